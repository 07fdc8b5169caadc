"""The engine without containers: one fresh process per trial, in a folder of its own.

Same code, same record, less isolation: the process is bounded by CPU affinity, file size and the
deadline, but the memory limit is not enforced and the network is not cut off (the record's
`engine` says so, and so does the verdict).
"""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from artifact.errors import UserError
from artifact.host import locks, venvs
from artifact.host.engines import Layout, Outcome, Request, StackIdentity, Timing, tail
from artifact.host.store import disk_errors
from artifact.trial.identity import PACKAGE, code_hash

#: The same start as the images' `artifact` command; the package's folder is the first argument.
_BOOTSTRAP = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('artifact', run_name='__main__', alter_sys=True)"
)

_KILL_GRACE_S = 10.0

InterpreterFor = Callable[[str, str], Path]


class ProcessEngine:
    """Runs each request with the interpreter that `interpreter_for(stack, accelerator)` names.

    `owner` marks our processes (in the names of their scratch folders) so that leftovers of a
    killed campaign are found; `temporary` is where those folders are made.
    """

    name = "process"

    def __init__(
        self,
        accelerator: str = "cpu",
        *,
        interpreter_for: InterpreterFor = venvs.interpreter_for,
        temporary: Path | None = None,
        owner: str = "trial",
    ) -> None:
        self._interpreter_for = interpreter_for
        self._accelerator = accelerator
        root = temporary or Path(tempfile.gettempdir())
        self._prefix = root.absolute() / f"gaps-{os.getuid()}-{owner}-"
        self._identities: dict[str, StackIdentity] = {}
        self._interpreters: dict[str, Path] = {}

    def prepare(self, stacks: Iterable[str]) -> Mapping[str, StackIdentity]:
        """Find each stack's interpreter; `UserError` where there is none."""
        for stack in stacks:
            interpreter = self._interpreter_for(stack, self._accelerator)
            if not os.access(interpreter, os.X_OK):
                raise UserError(
                    f"no interpreter for stack {stack} at {interpreter}",
                    next_step="run `artifact build --engine process`",
                )
            version = _version(interpreter)
            self._interpreters[stack] = interpreter
            self._identities[stack] = StackIdentity(
                image_id=version,
                lock_hash=self._lock_hash(stack, interpreter),
                code_hash=code_hash(),
                tag=str(interpreter),
            )
        return dict(self._identities)

    def _lock_hash(self, stack: str, interpreter: Path) -> str:
        """The locks' hash for the environment made from them; any other one has its own.

        Such an interpreter was named by the person (`GAPS_PYTHON_*`): nobody installed the locks
        into it, so its records must not be taken for records of the locked environment.
        """
        made = venvs.venv_directory(stack, self._accelerator) / "bin" / "python3"
        if interpreter == made:
            return locks.lock_hash(stack, self._accelerator)
        return f"unlocked-{_packages_hash(interpreter)}"

    def layout(self, work: Path, out: Path, bundles: Path | None) -> Layout:
        """Real folders; scratch gets a fresh name and is made when the process starts."""
        scratch = Path(f"{self._prefix}{secrets.token_hex(6)}") / "scratch"
        bundles = (bundles or work / "no-bundle").absolute()
        return Layout(work.absolute() / "in", out.absolute(), bundles, scratch)

    def run(self, request: Request, deadline_s: float) -> Outcome:
        """Run one process in a session of its own; everything it started is killed at its end."""
        if request.stack not in self._interpreters:
            self.prepare([request.stack])
        private = request.layout.scratch.parent
        with disk_errors(str(private)):
            private.mkdir(mode=0o700)
            log = private / "log"
        try:
            with log.open("wb") as stream:
                return self._run(request, deadline_s, private, stream.fileno(), log)
        finally:
            _kill_all(private)
            shutil.rmtree(private, ignore_errors=True)

    def _run(
        self, request: Request, deadline_s: float, private: Path, log_handle: int, log: Path
    ) -> Outcome:
        start_s = time.monotonic()
        with _affinity(request.limits.cpus):
            process = subprocess.Popen(
                self._command(request),
                env=self._environment(request),
                cwd=private,
                stdin=subprocess.DEVNULL,
                stdout=log_handle,
                stderr=log_handle,
                start_new_session=True,
            )
        started_s = time.monotonic()
        timed_out = True
        try:
            _limit(process.pid, request)
            timed_out = not _ends_within(process.pid, deadline_s - (started_s - start_s))
        finally:
            if timed_out:
                _kill_group(process.pid)
            process.wait(_KILL_GRACE_S)
        ended_s = time.monotonic()
        code = process.returncode
        return Outcome(
            exit_code=None if timed_out else (128 - code if code < 0 else code),
            oom=False,  # without a container nobody tells: judge_exit says "possible OOM" for 137
            timed_out=timed_out,
            log_tail=_log_tail(log),
            process_id=str(process.pid),
            identity=self._identities[request.stack],
            process_ms=(ended_s - started_s) * 1e3,
            timing=Timing(
                start_ms=(started_s - start_s) * 1e3, wait_ms=(ended_s - started_s) * 1e3
            ),
        )

    def _command(self, request: Request) -> list[str]:
        interpreter = str(self._interpreters[request.stack])
        return [interpreter, "-c", _BOOTSTRAP, str(PACKAGE.parent), *request.arguments]

    def _environment(self, request: Request) -> dict[str, str]:
        """The computed environment and PATH, the stack's own programs first (nvcc, ptxas)."""
        interpreter = self._interpreters[request.stack]
        path = venvs.search_path(interpreter, os.environ.get("PATH", os.defpath))
        return {**request.environment, "PATH": path}

    def remove_strays(self, campaign: str | None = None) -> int:
        """Kill processes of ours whose campaign is gone and remove their folders."""
        count = 0
        for private in self._prefix.parent.glob(f"{self._prefix.name}*"):
            if (
                private.is_dir()
                and not private.is_symlink()
                and private.stat().st_uid == os.getuid()
            ):
                count += 1
                _kill_all(private)
                shutil.rmtree(private, ignore_errors=True)
        return count

    def close(self) -> None:
        """Nothing to let go of."""


def _version(interpreter: Path) -> str:
    """`"Python 3.11.2"`; part of what may not change between sessions."""
    try:
        result = subprocess.run(
            [str(interpreter), "-V"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{interpreter} does not run: {error}") from error
    return result.stdout.strip()


#: Isolated (-I) like a trial, which sees neither PYTHONPATH nor the caller's own packages.
_LIST_PACKAGES = """
from importlib.metadata import distributions
found = {
    f"{d.metadata['Name']}=={d.version}"
    for d in distributions()
    if d.read_text("METADATA") or d.read_text("PKG-INFO")  # else: the rest of a removed package
}
print("\\n".join(sorted(found)))
"""


def _packages_hash(interpreter: Path) -> str:
    """SHA-256 (hex) over the sorted `name==version` of what is installed for `interpreter`."""
    try:
        result = subprocess.run(
            [str(interpreter), "-I", "-c", _LIST_PACKAGES],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{interpreter} cannot list its packages: {error}") from error
    return hashlib.sha256(result.stdout.strip().encode("utf-8")).hexdigest()


@contextmanager
def _affinity(cpus: int) -> Iterator[None]:
    """Start the child on the first `cpus` CPUs we may use: it inherits this thread's mask.

    Set around the start instead of in the child, so that it holds from the child's first
    instruction without running our code between fork and exec.
    """
    allowed = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, sorted(allowed)[:cpus])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _limit(pid: int, request: Request) -> None:
    """No core dumps, bounded files. Address space is not bounded: compilers reserve far more than
    they use."""
    size_bytes = request.limits.file_mib * 2**20
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
    except (ProcessLookupError, PermissionError):
        return  # it has ended already, or a hard limit of the user's is lower still


def _ends_within(pid: int, limit_s: float) -> bool:
    """Sleep until the process ends; False when it has not by then. Nothing polls beside it."""
    handle = os.pidfd_open(pid)
    try:
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        return bool(waiter.poll(max(0.0, limit_s) * 1e3))
    finally:
        os.close(handle)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _kill_all(private: Path) -> None:
    """Kill every process of ours that lives in `private`, also one that left its group.

    They are found by their TMPDIR, which is it or lies below it.
    """
    exact, below = f"TMPDIR={private}".encode(), f"TMPDIR={private}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                if any(v == exact or v.startswith(below) for v in variables):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue  # it ended, or belongs to another user


def _log_tail(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - 32_768))
        return tail(stream.read().decode("utf-8", errors="replace"))
