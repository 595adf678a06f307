"""Brings a model into Ollama's store under our own name: from a file on disk, or from Ollama's library.

A pull ends before it fills the disk: by the sizes that its progress names, as soon as it names them. Ollama fetches the
files of a model one after the other and tells the size of each with its first line; the weights come first. Closing the
answer ends the pull.
"""

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

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
"""Returns how many bytes are free where a folder is, or will be."""


@attrs.define(eq=False)
class PullCapacity:
    """The room that one pull has.

    Attributes:
        folder: Ollama's folder of models.
        free_bytes: What was free there before.
        needed_bytes: What is to be written for all files that have been named so far.
    """

    folder: Path
    free_bytes: int
    needed_bytes: int = 0
    _missing: dict[str, int] = attrs.field(factory=dict)

    def take(self, text: str, done: int, total: int) -> None:
        """Take a line of its progress into account.

        Raises:
            NoSpaceError: What has been named does not fit.
        """
        if total and text not in self._missing:
            self._missing[text] = max(total - done, 0)
            self.needed_bytes = sum(self._missing.values())
            check_capacity(self.folder, self.needed_bytes, self.free_bytes)


def check_capacity(folder: Path, needed_bytes: int, free: int) -> None:
    """Refuse what does not fit, with a margin.

    Raises:
        NoSpaceError: It does not fit.
    """
    needed = needed_bytes + margin_of(needed_bytes)
    if needed_bytes > 0 and free < needed:
        store = "Ollama's models folder"
        raise NoSpaceError(str(folder), needed_bytes=needed, free_bytes=max(free, 0), store=store, remedy=REMEDY)


async def measure_capacity(api: OllamaApi, free: FreeSpace) -> PullCapacity:
    """Return the room of a pull that is about to begin.

    Args:
        api: The server: where its models are is what it says of one of them; of one that has none, what OLLAMA_MODELS
            of this program says, or where Ollama has them by itself.
        free: Looks at the disk.

    Raises:
        DaemonError: It does not answer.
    """
    folder = await _reported_folder(api) or folder_of(os.environ)
    return PullCapacity(folder, await free(folder))


async def pull_within(api: OllamaApi, name: str, capacity: PullCapacity, report: ProgressCallback) -> None:
    """Have a model pulled, and end that as soon as it is known not to fit.

    Raises:
        DaemonError: It was not pulled.
        NoSpaceError: It does not fit.
    """

    def take(text: str, done: int, total: int) -> None:
        capacity.take(text, done, total)
        report(text, done, total)

    await api.pull(name, take)


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return where an Ollama of this user keeps its models."""
    chosen = environ.get("OLLAMA_MODELS", "")
    return Path(chosen).expanduser() if chosen else Path(environ.get("HOME") or Path.home()) / ".ollama" / "models"


async def _reported_folder(api: OllamaApi) -> Path | None:
    for name in list(await api.sizes())[:_SAMPLED_MODELS]:
        if (folder := await api.folder_of(name)) is not None:
            return folder
    return None


async def free_bytes_near(folder: Path) -> int:
    """Return how many bytes are free where a folder is, or will be."""
    return await trio.to_thread.run_sync(_free_bytes, folder, abandon_on_cancel=True)


def _free_bytes(folder: Path) -> int:
    for each in (folder, *folder.parents):
        try:
            return free_bytes(each)
        except OSError:  # it is not there yet, or another user's
            continue
    return free_bytes(Path(os.sep))


_TOO_LARGE: Final = 413
"""As if the server had refused it: to ask at once again would fail again."""

PROGRESS_SECONDS: Final = 5.0
"""Between two lines of progress."""

log = structlog.get_logger()


class Weights(Protocol):
    """Where a model's weights come from."""

    async def prepare(self, api: OllamaApi) -> str:
        """Have the model in the store, made anew; return the name of its file there.

        Raises:
            DaemonError: The server did not take it.
            OSError: The file cannot be read.
        """
        ...


@attrs.define(eq=False)
class ModelFile:
    """A file in GGUF, which is copied into the store once.

    Attributes:
        path: Where it is.
        name: The model's name.
        parameters: What it is created with.
    """

    path: Path
    name: str
    parameters: dict[str, int]
    _digest: str = ""

    async def prepare(self, api: OllamaApi) -> str:
        """Have it in the store."""
        if not self._digest:
            log.info("hashing the weights", path=str(self.path))
            # a file of hundreds of GiB: the thread is left behind if this process has to end meanwhile
            self._digest = await trio.to_thread.run_sync(_digest_of, self.path, abandon_on_cancel=True)
        progress = _Progress()
        if not await api.has_blob(self._digest):
            await api.upload(self._digest, self.path, progress)
        source: dict[str, Any] = {"files": {"model.gguf": f"sha256:{self._digest}"}}
        await api.create(self.name, _with(source, self.parameters), progress)
        return await _blob(api, self.name)


@attrs.frozen
class LibraryModel:
    """A model of Ollama's library; it is fetched if the store lacks it.

    Attributes:
        source: Its name there.
        name: The model's name.
        parameters: What it is created with.
        free: Looks at the disk.
    """

    source: str
    name: str
    parameters: dict[str, int]
    free: FreeSpace = free_bytes_near

    async def prepare(self, api: OllamaApi) -> str:
        """Have it in the store."""
        progress = _Progress()
        if await api.blob_of(self.source) is None:
            log.info("fetching the model from Ollama's library", model=self.source)
            try:
                await pull_within(api, self.source, await measure_capacity(api, self.free), progress)
            except NoSpaceError as error:
                raise DaemonError(str(error), _TOO_LARGE) from error
        await api.create(self.name, _with({"from": self.source}, self.parameters), progress)
        return await _blob(api, self.name)


@attrs.define(eq=False)
class _Progress:
    """Writes what a server says of its progress, where that has moved."""

    _last_line: tuple[str, int] = ("", 0)
    _next_at: float = float("-inf")

    def __call__(self, text: str, done: int, total: int) -> None:
        now, percent = trio.current_time(), 100 * done // total if total else 0
        if (text, done) == self._last_line or (text == self._last_line[0] and now < self._next_at):
            return
        self._last_line, self._next_at = (text, done), now + PROGRESS_SECONDS
        log.info(text or "Ollama is at work", **({"percent": percent, "bytes": done} if total else {}))


def _with(source: dict[str, Any], parameters: dict[str, int]) -> dict[str, Any]:
    return source | ({"parameters": parameters} if parameters else {})


async def _blob(api: OllamaApi, name: str) -> str:
    found = await api.blob_of(name)
    if found is None:
        raise DaemonError(f"Ollama has made the model {name}, and does not know it")
    return found


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
