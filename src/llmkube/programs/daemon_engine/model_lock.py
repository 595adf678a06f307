"""Lock of one model of a borrowed daemon: who uses the model, and whether a dead front has left it loaded.

Each front holds a shared lock on a file for the model in the agent's state directory; a front with the exclusive lock
is the only user. The kernel releases the lock of a dead process. A byte in the file, which outlives the front, marks
that the model has been used and not unloaded since.
"""

import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.private_files import make_private_folder

T = TypeVar("T")

RETRY_SECONDS: Final = 0.2
"""Interval between attempts to lock while another front unloads the model, which takes some seconds at most."""

_FOLDER: Final = "daemon-models"
_MARK: Final = b"1"


class ModelLockError(ExternalError):
    """A model's lock file cannot be used; the message has its path and a fix."""


class ModelLock:
    """A front's lock on one model; this class is for a model that only this front can use.

    All methods of a shared one may raise `ModelLockError`.
    """

    async def share(self) -> None:
        """Share the model with other fronts from now on; wait while one of them unloads it."""
        await trio.lowlevel.checkpoint()

    async def exclusive(self) -> bool:
        """Return whether no other front uses the model; if so, none can start to until this lock is released."""
        await trio.lowlevel.checkpoint()
        return True

    async def has_leftover(self) -> bool:
        """Return whether a dead front may have left the model loaded; if so, this lock is exclusive."""
        await trio.lowlevel.checkpoint()
        return False

    async def clear(self) -> None:
        """Record that the model is unloaded."""
        await trio.lowlevel.checkpoint()


OpenLock = Callable[[str], AbstractAsyncContextManager[ModelLock]]
"""Context manager that opens the lock of a model, by the key that identifies it on this machine."""


def lock_opener(state_dir: str) -> OpenLock:
    """Return the opener of locks in an agent's state directory; empty for a front that no agent has started."""
    return partial(open_model_lock, Path(state_dir) / _FOLDER if state_dir else None)


@asynccontextmanager
async def open_model_lock(folder: Path | None, model: str) -> AsyncIterator[ModelLock]:
    """Open the lock of a model for the duration of the block.

    Args:
        folder: Folder of the lock files; created if it is missing.
        model: Key that identifies the model; empty for one that is unloaded with its front.

    Raises:
        ModelLockError: The lock file cannot be created.
    """
    if folder is None or not model:
        await trio.lowlevel.checkpoint()
        yield ModelLock()
        return
    path = folder / hashlib.sha256(model.encode()).hexdigest()[:32]
    lock = FileLock(path, _Descriptor(await _in_thread(path, _open)))
    try:
        yield lock
    finally:
        lock.file.close()


@attrs.define(eq=False)
class _Descriptor:
    """A file descriptor that abandoned threads may still use; it is closed once none of them does.

    Otherwise its number could be reused for another file, which such a thread would then lock or write.
    """

    fd: int
    _mutex: threading.Lock = attrs.field(factory=threading.Lock)  # never held during a call that can block
    _users: int = 0
    _is_closed: bool = False

    def use(self, step: Callable[[int], object]) -> object:
        """Call a function with the descriptor; called in a thread."""
        with self._mutex:
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
        try:
            return step(self.fd)
        finally:
            with self._mutex:
                self._users -= 1
                self._close_if_unused()

    def close(self) -> None:
        """Close the descriptor, or let the last thread that uses it do so."""
        with self._mutex:
            self._is_closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._users:
            os.close(self.fd)


@attrs.frozen
class FileLock(ModelLock):
    """A `ModelLock` by `flock`.

    Attributes:
        path: The lock file.
        file: The open file; closing it releases the lock.
    """

    path: Path
    file: _Descriptor

    async def share(self) -> None:
        """Share the model from now on."""
        while not await self._do(partial(_try_lock, operation=fcntl.LOCK_SH)):  # noqa: ASYNC110 - a lock has no event
            await trio.sleep(RETRY_SECONDS)
        await self._do(lambda fd: os.pwrite(fd, _MARK, 0))

    async def exclusive(self) -> bool:
        """Return whether no other front uses the model; if one does, this front has lost its shared lock as well."""
        return await self._do(partial(_try_lock, operation=fcntl.LOCK_EX))

    async def has_leftover(self) -> bool:
        """Return whether a dead front may have left the model loaded."""
        return await self.exclusive() and await self._do(lambda fd: os.fstat(fd).st_size > 0)

    async def clear(self) -> None:
        """Record that the model is unloaded."""
        await self._do(lambda fd: os.ftruncate(fd, 0))

    async def _do(self, step: Callable[[int], object]) -> bool:
        return bool(await _in_thread(self.path, lambda _: self.file.use(step)))


async def _in_thread(path: Path, step: Callable[[Path], T]) -> T:
    try:
        return await trio.to_thread.run_sync(step, path, abandon_on_cancel=True)
    except OSError as error:
        problem = f"the model's lock file {path} cannot be used ({error.strerror})"
        fix = "use a state directory on a local disk that this user can write to"
        raise ModelLockError(f"{problem}: {fix}") from error


def _open(path: Path) -> int:
    make_private_folder(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True
