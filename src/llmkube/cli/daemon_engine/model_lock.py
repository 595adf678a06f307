"""Who uses one model of a borrowed daemon, and whether one who has died has left it loaded.

Each front holds a shared lock of a file of the model, in the agent's state directory; who has the exclusive one uses
the model alone. The kernel drops a dead process's lock. A byte in the file says that the model was not unloaded since
a front has begun to use it, and outlives the front.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import attrs
import trio

from llmkube.base.errors import WorldError

T = TypeVar("T")

AGAIN_SECONDS: Final = 0.2
"""Between two looks at a lock while another front unloads the model, which takes some seconds at most."""

_FOLDER: Final = "daemon-models"
_MARK: Final = b"1"


class ModelLockError(WorldError):
    """The file of a model's lock cannot be used; names it, and what helps."""


class ModelLock(Protocol):
    """One front's part in the lock of one model. All methods raise `ModelLockError`."""

    async def share(self) -> None:
        """Use the model from now on, beside others; wait while one of them unloads it."""
        ...

    async def alone(self) -> bool:
        """Whether nobody else uses the model; then nobody begins to as long as this lasts."""
        ...

    async def is_left(self) -> bool:
        """Whether one who has died may have left the model loaded; then nobody uses it as long as this lasts."""
        ...

    async def clear(self) -> None:
        """The model is unloaded."""
        ...


OpenLock = Callable[[str], AbstractAsyncContextManager[ModelLock]]
"""Opens the lock of a model, by what tells it from all others on this machine; leaving it lets the lock go."""


@attrs.frozen
class Unshared:
    """A `ModelLock` of a model that only one front can use."""

    async def share(self) -> None:
        """Nobody else can use it."""
        await trio.lowlevel.checkpoint()

    async def alone(self) -> bool:
        """Nobody else can use it."""
        await trio.lowlevel.checkpoint()
        return True

    async def is_left(self) -> bool:
        """It ends with its front."""
        await trio.lowlevel.checkpoint()
        return False

    async def clear(self) -> None:
        """There is nothing to note."""
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def unshared(model: str) -> AsyncIterator[ModelLock]:
    """Have no lock."""
    await trio.lowlevel.checkpoint()
    yield Unshared()


def locks_in(state_dir: str) -> OpenLock:
    """Return what opens the locks of the agent with this state directory; "" of a front that no agent has started."""
    return partial(opened, Path(state_dir) / _FOLDER) if state_dir else unshared


@asynccontextmanager
async def opened(folder: Path, model: str) -> AsyncIterator[ModelLock]:
    """Have the lock of a model during the block.

    Args:
        folder: Where the files of all models are; made if it is missing.
        model: What tells the model from all others; "" of one that ends with its front.

    Raises:
        ModelLockError: Its file cannot be made.
    """
    if not model:
        yield Unshared()
        return
    path = folder / hashlib.sha256(model.encode()).hexdigest()[:32]
    lock = FileLock(path, await _in_thread(path, _open))
    try:
        yield lock
    finally:
        os.close(lock.fd)


@attrs.frozen
class FileLock:
    """A `ModelLock` that the kernel keeps.

    Attributes:
        path: The file.
        fd: It, opened; the lock goes with it.
    """

    path: Path
    fd: int

    async def share(self) -> None:
        """Use the model from now on."""
        while not await self._do(partial(_locked, self.fd, fcntl.LOCK_SH)):  # noqa: ASYNC110 - the kernel tells nobody
            await trio.sleep(AGAIN_SECONDS)
        await self._do(lambda: os.pwrite(self.fd, _MARK, 0))

    async def alone(self) -> bool:
        """Whether nobody else uses the model; if others do, the own part in its lock has gone, too."""
        return await self._do(partial(_locked, self.fd, fcntl.LOCK_EX))

    async def is_left(self) -> bool:
        """Whether one who has died may have left it loaded."""
        return await self.alone() and await self._do(lambda: os.fstat(self.fd).st_size > 0)

    async def clear(self) -> None:
        """The model is unloaded."""
        await self._do(lambda: os.ftruncate(self.fd, 0))

    async def _do(self, step: Callable[[], object]) -> bool:
        return bool(await _in_thread(self.path, lambda _: step()))


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


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True
