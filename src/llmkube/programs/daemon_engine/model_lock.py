"""Who uses one model of a borrowed daemon, and whether one who has died has left it loaded.

Each front holds a shared lock of a file of the model, in the agent's state directory; who has the exclusive one uses
the model alone. The kernel drops a dead process's lock. A byte in the file says that the model was not unloaded since
a front has begun to use it, and outlives the front.
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

T = TypeVar("T")

RETRY_SECONDS: Final = 0.2
"""Between two looks at a lock while another front unloads the model, which takes some seconds at most."""

_FOLDER: Final = "daemon-models"
_MARK: Final = b"1"


class ModelLockError(ExternalError):
    """The file of a model's lock cannot be used; names it, and what helps."""


class ModelLock:
    """One front's part in the lock of one model, here of one that only this front can use.

    All methods of one that is shared raise `ModelLockError`.
    """

    async def share(self) -> None:
        """Use the model from now on, beside others; wait while one of them unloads it."""
        await trio.lowlevel.checkpoint()

    async def exclusive(self) -> bool:
        """Whether no other front uses the model; then none begins to until this lock is let go."""
        await trio.lowlevel.checkpoint()
        return True

    async def has_leftover(self) -> bool:
        """Whether a front that has died may have left the model loaded; then none uses it until this lock is let go."""
        await trio.lowlevel.checkpoint()
        return False

    async def clear(self) -> None:
        """The model is unloaded."""
        await trio.lowlevel.checkpoint()


OpenLock = Callable[[str], AbstractAsyncContextManager[ModelLock]]
"""Opens the lock of a model, by what tells it from all others on this machine; leaving it lets the lock go."""


def lock_opener(state_dir: str) -> OpenLock:
    """Return what opens the locks of the agent with this state directory; "" of a front that no agent has started."""
    return partial(open_model_lock, Path(state_dir) / _FOLDER if state_dir else None)


@asynccontextmanager
async def open_model_lock(folder: Path | None, model: str) -> AsyncIterator[ModelLock]:
    """Have the lock of a model during the block.

    Args:
        folder: Where the files of all models are; made if it is missing.
        model: What tells the model from all others; "" of one that ends with its front.

    Raises:
        ModelLockError: Its file cannot be made.
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
    """A file that threads use which their tasks may have left: closed once none of them is at it.

    Its number would else be that of another file, which such a thread then locks or writes.
    """

    fd: int
    _mutex: threading.Lock = attrs.field(factory=threading.Lock)  # held for no call that can wait
    _users: int = 0
    _is_closed: bool = False

    def use(self, step: Callable[[int], object]) -> object:
        """Call with the descriptor, in a thread."""
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
        """Close it, or have the last thread that uses it do so."""
        with self._mutex:
            self._is_closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_closed and not self._users:
            os.close(self.fd)


@attrs.frozen
class FileLock(ModelLock):
    """A `ModelLock` that the kernel keeps.

    Attributes:
        path: The file.
        file: It, opened; the lock goes with it.
    """

    path: Path
    file: _Descriptor

    async def share(self) -> None:
        """Use the model from now on."""
        while not await self._do(partial(_try_lock, operation=fcntl.LOCK_SH)):  # noqa: ASYNC110 - a lock has no event
            await trio.sleep(RETRY_SECONDS)
        await self._do(lambda fd: os.pwrite(fd, _MARK, 0))

    async def exclusive(self) -> bool:
        """Whether no other front uses the model; where one does, this front has lost its own share as well."""
        return await self._do(partial(_try_lock, operation=fcntl.LOCK_EX))

    async def has_leftover(self) -> bool:
        """Whether a front that has died may have left it loaded."""
        return await self.exclusive() and await self._do(lambda fd: os.fstat(fd).st_size > 0)

    async def clear(self) -> None:
        """The model is unloaded."""
        await self._do(lambda fd: os.ftruncate(fd, 0))

    async def _do(self, step: Callable[[int], object]) -> bool:
        return bool(await _in_thread(self.path, lambda _: self.file.use(step)))


async def _in_thread(path: Path, step: Callable[[Path], T]) -> T:
    try:
        return await trio.to_thread.run_sync(step, path, abandon_on_cancel=True)
    except OSError as error:
        problem = f"the lock of the model, {path}, cannot be used ({error.strerror})"
        fix = "put the state directory on a local disk that this user may write to"
        raise ModelLockError(f"{problem}: {fix}") from error


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True
