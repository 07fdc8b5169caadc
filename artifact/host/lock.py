"""One campaign at a time on a machine: a lock file that names its holder.

Two campaigns at once would disturb each other's times, whoever started them. The file therefore has
one fixed place for all users and all shells: /tmp exists and is writable for everybody, while
/run/lock is not writable for users on many distributions and `TMPDIR` differs from shell to shell.
The lock is the kernel's (`flock`): it goes away with its holder, even after `kill -9`, so that a
stale file never blocks anybody.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifact.errors import UserError

LOCK_PATH = Path("/tmp/gaps-artifact.lock")


@contextmanager
def campaign_lock(path: Path = LOCK_PATH) -> Iterator[None]:
    """Hold the machine's campaign lock; a `UserError` names the process that has it already."""
    handle = _open(path)
    try:
        _acquire(handle, path)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """Open the lock file; another user's file is opened for reading, which is enough to lock it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except PermissionError:
        pass  # protected_regular: the file of another user in a sticky folder
    except OSError as error:
        raise UserError(f"cannot open the lock file {path}: {error.strerror}") from error
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"cannot open the lock file {path}: {error.strerror}") from error


def _acquire(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise UserError(f"cannot lock {path}: {error.strerror}") from error
        holder = os.pread(handle, 32, 0).decode("ascii", errors="replace").strip()
        raise UserError(
            f"another campaign runs on this machine (process {holder or 'unknown'}, lock {path})",
            next_step="wait for it, or stop that process",
        ) from None
    _name_holder(handle)


def _name_holder(handle: int) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode("ascii"), 0)
    except OSError:
        return  # opened for reading only: the lock holds all the same, only the name is missing
