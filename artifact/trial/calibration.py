"""A fixed piece of work that says how fast the machine is just now (DESIGN: noise).

Three numbers, because three things can slow down apart: the C++ compiler (most of Inductor's
compile cost), the arithmetic units and the memory. Nothing here depends on a model or a stack.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from artifact.errors import UserError

MATRIX_SIDE = 1536
COPY_BYTES = 256 * 1024 * 1024
COMPILE_REPEATS, MATRIX_REPEATS, COPY_REPEATS = 3, 15, 9

#: Ordinary standard-library templates: what g++ spends its time on in generated kernels too.
SOURCE = """
#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>
int work(const std::string& text) {
  std::map<std::string, std::vector<int>> found;
  std::istringstream words(text);
  std::string word;
  for (int position = 0; words >> word; ++position) found[word].push_back(position);
  int sum = 0;
  for (auto& entry : found) {
    std::sort(entry.second.begin(), entry.second.end(), std::greater<int>());
    sum += entry.second.front();
  }
  return sum;
}
"""


def calibrate(scratch: Path, threads: int) -> dict[str, float]:
    """Medians in ms of a fixed g++ compile, an fp32 matrix product and a memory copy.

    Takes about 10 s. `scratch` is created if absent; `threads` bounds the matrix product (it must
    be set before NumPy is imported, which is why NumPy is imported here).
    """
    if "numpy" not in sys.modules:
        os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    import numpy as np

    scratch.mkdir(parents=True, exist_ok=True)
    left = np.full((MATRIX_SIDE, MATRIX_SIDE), 0.5, dtype=np.float32)
    product = np.empty_like(left)
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    target = np.zeros_like(source)
    return {
        "compile_ms": _median_ms(lambda: _compile(scratch), COMPILE_REPEATS),
        "matmul_ms": _median_ms(lambda: np.matmul(left, left, out=product), MATRIX_REPEATS),
        "memory_ms": _median_ms(lambda: np.copyto(target, source), COPY_REPEATS),
    }


def _median_ms(work: Callable[[], object], repeats: int) -> float:
    """Median duration of `work` in ms, after one untimed run."""
    work()
    durations_ms = []
    for _ in range(repeats):
        start_ns = time.perf_counter_ns()
        work()
        durations_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
    return median(durations_ms)


def _compile(scratch: Path) -> None:
    source = scratch / "calibration.cpp"
    source.write_text(SOURCE, encoding="ascii")
    command = ["g++", "-O2", "-std=c++17", "-c", str(source), "-o", str(scratch / "calibration.o")]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError("g++ is not installed", next_step="install g++ (see README.md)") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or ["no message"]
        raise UserError(f"the calibration's g++ failed: {lines[0]}") from error
