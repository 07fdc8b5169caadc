"""Every lock agrees with its .in file, has hashes, and tells nothing about its maker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from artifact.errors import UserError
from artifact.host.locks import CHECKOUT, lock_files, lock_hash

DOCKER = CHECKOUT / "docker"
LOCKS = sorted(DOCKER.glob("*/*.lock"))
PIN = re.compile(r"^([a-z0-9.-]+)(?:\[[a-z0-9,-]+\])?==(\S+) \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: Path) -> dict[str, str]:
    """{package: version} of a lock."""
    found = (PIN.match(line) for line in lock.read_text(encoding="utf-8").splitlines())
    return {canonical(match[1]): match[2] for match in found if match}


def requirements(source: Path) -> dict[str, str]:
    """{package: pinned version, or "" where the .in file leaves it open}, included files too."""
    found: dict[str, str] = {}
    for line in source.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            found |= requirements(source.parent / line.removeprefix("-r "))
        elif line and not line.startswith(("#", "-c ")):
            name, _, version = line.partition("==")
            found[canonical(name.partition("[")[0])] = version
    return found


def test_every_in_file_has_its_lock_and_the_other_way_round() -> None:
    sources = {path.with_suffix(".lock") for path in DOCKER.glob("*/*.in")}
    assert sources == set(LOCKS)
    assert len(LOCKS) == 7


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.relative_to(DOCKER).as_posix())
def test_lock_holds_what_its_in_file_asks_for(lock: Path) -> None:
    locked = pins(lock)
    for name, version in requirements(lock.with_suffix(".in")).items():
        assert name in locked, f"{name} is in the .in file only: run `make lock`"
        assert version in ("", locked[name]), f"{name}: asked {version}, locked {locked[name]}"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.relative_to(DOCKER).as_posix())
def test_lock_is_only_pins_with_hashes(lock: Path) -> None:
    """No index option, URL or file requirement: each line is a pin, a hash or a comment."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if PIN.match(line):
            assert HASH.match(lines[number + 1]), f"line {number + 1}: {line} has no hash"
        else:
            assert HASH.match(line) or re.match(r"^    #( |$)", line), f"line {number + 1}: {line}"
    assert "://" not in "".join(lines)


@pytest.mark.parametrize(
    ("second", "first"),
    [
        ("tvm/requirements.lock", "inductor/requirements.lock"),
        ("test/requirements.lock", "inductor/requirements.lock"),
        ("test/requirements.lock", "xla/requirements-cpu.lock"),
        ("test/requirements.lock", "xla/requirements-cuda.lock"),
        ("host/requirements-dev.lock", "host/requirements.lock"),
    ],
)
def test_a_lock_installed_on_top_changes_nothing_below(second: str, first: str) -> None:
    upper, lower = pins(DOCKER / second), pins(DOCKER / first)
    changed = {name for name in upper.keys() & lower.keys() if upper[name] != lower[name]}
    assert changed == set()


def test_all_environments_have_the_same_numpy() -> None:
    """Weights and inputs come from NumPy's generator: one release, so one stream, everywhere."""
    stacks = [lock for lock in LOCKS if "numpy" in pins(lock)]
    assert len(stacks) == 6
    assert len({pins(lock)["numpy"] for lock in stacks}) == 1


def test_nvcc_and_its_parts_are_of_torchs_cuda_release() -> None:
    tvm, torch = pins(DOCKER / "tvm/requirements.lock"), pins(DOCKER / "inductor/requirements.lock")
    parts = {tvm[name] for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm")}
    assert parts == {torch["nvidia-cuda-nvrtc"]}


def test_cuda_lock_adds_nvidia_packages_to_the_cpu_lock_and_changes_nothing() -> None:
    cpu, cuda = (
        pins(DOCKER / "xla/requirements-cpu.lock"),
        pins(DOCKER / "xla/requirements-cuda.lock"),
    )
    assert cpu.items() <= cuda.items()
    assert all(name.startswith(("nvidia-", "jax-cuda13-")) for name in cuda.keys() - cpu.keys())
    assert "nvidia-cuda-nvcc" in cuda


def test_no_stack_can_import_the_host_side() -> None:
    """Neither a compiler in the host's lock nor pandas, matplotlib or docker in a stack's."""
    assert not pins(DOCKER / "host/requirements.lock").keys() & {"torch", "jax", "apache-tvm"}
    for stack in ("inductor", "xla", "tvm"):
        for lock in lock_files(stack):
            assert not pins(lock).keys() & {"pandas", "matplotlib", "docker", "pytest"}


def test_lock_hash_follows_every_lock_of_the_stack(tmp_path: Path) -> None:
    for name in ("inductor/requirements.lock", "tvm/requirements.lock"):
        (tmp_path / "docker" / name).parent.mkdir(parents=True)
        (tmp_path / "docker" / name).write_text("a==1\n", encoding="utf-8")
    inductor, tvm = lock_hash("inductor", root=tmp_path), lock_hash("tvm", root=tmp_path)
    (tmp_path / "docker/tvm/requirements.lock").write_text("a==2\n", encoding="utf-8")
    assert lock_hash("inductor", root=tmp_path) == inductor
    assert lock_hash("tvm", root=tmp_path) != tvm
    (tmp_path / "docker/inductor/requirements.lock").write_text("a==2\n", encoding="utf-8")
    assert lock_hash("inductor", root=tmp_path) != inductor


def test_accelerator_changes_the_lock_of_xla_only() -> None:
    assert lock_hash("xla", "cpu") != lock_hash("xla", "cuda")
    assert lock_hash("inductor", "cpu") == lock_hash("inductor", "cuda")
    assert lock_hash("tvm", "cpu") == lock_hash("tvm", "cuda")


@pytest.mark.parametrize(("stack", "accelerator"), [("xla", "rocm"), ("eager", "cpu")])
def test_unknown_names_are_refused_by_name(stack: str, accelerator: str) -> None:
    with pytest.raises(UserError, match=r"rocm|eager"):
        lock_files(stack, accelerator)


def test_incomplete_checkout_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"requirements-cpu\.lock"):
        lock_hash("xla", root=tmp_path)
