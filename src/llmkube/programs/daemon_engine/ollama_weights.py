"""Import a model into Ollama's store under our own name: from a file on disk, or from Ollama's library.

A pull is aborted as soon as the sizes in its progress show that it would fill the disk. Ollama fetches the files of a
model one after the other, the weights first, and reports the size of each with its first line. Closing the response
ends the pull.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.programs.daemon_engine.ollama_api import OllamaApi, ProgressCallback
from llmkube.programs.daemon_engine.server import DaemonError
from llmkube.weights.errors import NoSpaceError
from llmkube.weights.store.disk import free_bytes, margin_of

REMEDY: Final = "ollama rm removes models"

_SAMPLED_MODELS: Final = 3

FreeSpace = Callable[[Path], Awaitable[int]]
"""Returns the free bytes on the disk of a folder, which need not exist yet."""


@attrs.define(eq=False)
class PullCapacity:
    """Disk capacity for one pull.

    Attributes:
        folder: Ollama's models folder.
        free_bytes: Free bytes there before the pull.
        needed_bytes: Bytes to write for all files reported so far.
    """

    folder: Path
    free_bytes: int
    needed_bytes: int = 0
    _missing: dict[str, int] = attrs.field(factory=dict)

    def take(self, text: str, done: int, total: int) -> None:
        """Process a line of the pull's progress.

        Raises:
            NoSpaceError: The files reported so far do not fit.
        """
        if total and text not in self._missing:
            self._missing[text] = max(total - done, 0)
            self.needed_bytes = sum(self._missing.values())
            check_capacity(self.folder, self.needed_bytes, self.free_bytes)


def check_capacity(folder: Path, needed_bytes: int, free: int) -> None:
    """Check that a size fits on the disk, with a margin.

    Raises:
        NoSpaceError: It does not fit.
    """
    needed = needed_bytes + margin_of(needed_bytes)
    if needed_bytes > 0 and free < needed:
        store = "Ollama's models folder"
        raise NoSpaceError(str(folder), needed_bytes=needed, free_bytes=max(free, 0), store=store, remedy=REMEDY)


async def measure_capacity(api: OllamaApi, free: FreeSpace) -> PullCapacity:
    """Return the disk capacity for a pull that is about to start.

    Args:
        api: The server, which reports its folder with a model; if it has no models, the folder is OLLAMA_MODELS of this
            program, or Ollama's default.
        free: Returns the free bytes.

    Raises:
        DaemonError: The server does not answer.
    """
    folder = await _reported_folder(api) or folder_of(os.environ)
    return PullCapacity(folder, await free(folder))


async def pull_within(api: OllamaApi, name: str, capacity: PullCapacity, report: ProgressCallback) -> None:
    """Pull a model, and abort as soon as it is known not to fit.

    Raises:
        DaemonError: The model was not pulled.
        NoSpaceError: The model does not fit.
    """

    def take(text: str, done: int, total: int) -> None:
        capacity.take(text, done, total)
        report(text, done, total)

    await api.pull(name, take)


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return the models folder of this user's Ollama."""
    chosen = environ.get("OLLAMA_MODELS", "")
    return Path(chosen).expanduser() if chosen else Path(environ.get("HOME") or Path.home()) / ".ollama" / "models"


async def _reported_folder(api: OllamaApi) -> Path | None:
    for name in list(await api.sizes())[:_SAMPLED_MODELS]:
        if (folder := await api.folder_of(name)) is not None:
            return folder
    return None


async def free_bytes_near(folder: Path) -> int:
    """Returns the free bytes on the disk of a folder, which need not exist yet."""
    return await trio.to_thread.run_sync(_free_bytes, folder, abandon_on_cancel=True)


def _free_bytes(folder: Path) -> int:
    for each in (folder, *folder.parents):
        try:
            return free_bytes(each)
        except OSError:  # it does not exist yet, or belongs to another user
            continue
    return free_bytes(Path(os.sep))


_TOO_LARGE: Final = 413
"""Status as if the server had refused it: an immediate retry would fail again."""

PROGRESS_SECONDS: Final = 5.0
"""Interval between log lines with the progress."""

log = structlog.get_logger()


@attrs.define(eq=False)
class ModelFile:
    """A GGUF file, which is copied into the store once.

    Attributes:
        name: Name of the model in the store.
        parameters: Parameters for its creation.
    """

    path: Path
    name: str
    parameters: dict[str, int]
    _digest: str = ""

    async def prepare(self, api: OllamaApi) -> str:
        """Create the model in the store, even if it exists; return the name of its file there.

        Raises:
            DaemonError: The server did not accept it.
            OSError: The file cannot be read.
        """
        if not self._digest:
            log.info("hashing the weights", path=str(self.path))
            # the file may have hundreds of GiB: the thread is abandoned if this process has to exit meanwhile
            self._digest = await trio.to_thread.run_sync(_digest_of, self.path, abandon_on_cancel=True)
        progress = _Progress()
        if not await api.has_blob(self._digest):
            await api.upload(self._digest, self.path, progress)
        source = {"files": {"model.gguf": f"sha256:{self._digest}"}}
        return await _create(api, self.name, source, self.parameters, progress)


@attrs.frozen
class LibraryModel:
    """A model of Ollama's library; it is fetched if the store lacks it.

    Attributes:
        source: Name in the library.
        name: Name of our model in the store.
        parameters: Parameters for its creation.
        free: Returns the free bytes.
    """

    source: str
    name: str
    parameters: dict[str, int]
    free: FreeSpace = free_bytes_near

    async def prepare(self, api: OllamaApi) -> str:
        """Create the model in the store, even if it exists; return the name of its file there.

        Raises:
            DaemonError: The server did not accept it.
        """
        progress = _Progress()
        if await api.blob_of(self.source) is None:
            log.info("fetching the model from Ollama's library", model=self.source)
            try:
                await pull_within(api, self.source, await measure_capacity(api, self.free), progress)
            except NoSpaceError as error:
                raise DaemonError(str(error), _TOO_LARGE) from error
        return await _create(api, self.name, {"from": self.source}, self.parameters, progress)


Weights = ModelFile | LibraryModel
"""Source of a model's weights."""


@attrs.define(eq=False)
class _Progress:
    """Log the progress that a server reports, if it has changed."""

    _last_line: tuple[str, int] = ("", 0)
    _next_at: float = float("-inf")

    def __call__(self, text: str, done: int, total: int) -> None:
        now, percent = trio.current_time(), 100 * done // total if total else 0
        if (text, done) == self._last_line or (text == self._last_line[0] and now < self._next_at):
            return
        self._last_line, self._next_at = (text, done), now + PROGRESS_SECONDS
        log.info(text or "Ollama is working", **({"percent": percent, "bytes": done} if total else {}))


async def _create(
    api: OllamaApi, name: str, source: dict[str, Any], parameters: dict[str, int], progress: _Progress
) -> str:
    await api.create(name, source | ({"parameters": parameters} if parameters else {}), progress)
    found = await api.blob_of(name)
    if found is None:
        raise DaemonError(f"Ollama has created the model {name}, but does not list it")
    return found


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
