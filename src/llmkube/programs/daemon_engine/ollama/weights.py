"""Brings a model into Ollama's store under our own name: from a file on disk, or from Ollama's library."""

import hashlib
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import structlog
import trio

from llmkube.programs.daemon_engine.daemon_http import DaemonError
from llmkube.programs.daemon_engine.ollama.daemon_api import DaemonApi
from llmkube.programs.daemon_engine.ollama.options import Options
from llmkube.programs.daemon_engine.ollama.pull_room import Free, free_near, measured, pull_within
from llmkube.weights.errors import NoSpaceError

_TOO_LARGE: Final = 413
"""As if the server had refused it: to ask at once again would fail again."""

TELL_SECONDS: Final = 5.0
"""Between two lines of progress."""

log = structlog.get_logger()


class Weights(Protocol):
    """Where a model's weights come from."""

    async def prepare(self, api: DaemonApi) -> str:
        """Have the model in the store, made anew; return the name of its file there.

        Raises:
            DaemonError: The server did not take it.
            OSError: The file cannot be read.
        """
        ...


def weights_of(options: Options) -> Weights:
    """Return where the model comes from."""
    if options.library_name:
        return LibraryModel(options.library_name, options.store_name, options.parameters)
    return ModelFile(Path(options.model), options.store_name, options.parameters)


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

    async def prepare(self, api: DaemonApi) -> str:
        """Have it in the store."""
        if not self._digest:
            log.info("hashing the weights", path=str(self.path))
            # a file of hundreds of GiB: the thread is left behind if this process has to end meanwhile
            self._digest = await trio.to_thread.run_sync(_digest_of, self.path, abandon_on_cancel=True)
        told = _Progress()
        if not await api.has_blob(self._digest):
            await api.upload(self._digest, self.path, told)
        source: dict[str, Any] = {"files": {"model.gguf": f"sha256:{self._digest}"}}
        await api.create(self.name, _with(source, self.parameters), told)
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
    free: Free = free_near

    async def prepare(self, api: DaemonApi) -> str:
        """Have it in the store."""
        told = _Progress()
        if await api.blob_of(self.source) is None:
            log.info("fetching the model from Ollama's library", model=self.source)
            try:
                await pull_within(api, self.source, await measured(api, self.free), told)
            except NoSpaceError as error:
                raise DaemonError(str(error), _TOO_LARGE) from error
        await api.create(self.name, _with({"from": self.source}, self.parameters), told)
        return await _blob(api, self.name)


@attrs.define(eq=False)
class _Progress:
    """Writes what a server says of its progress, where that has moved."""

    _said: tuple[str, int] = ("", 0)
    _next_at: float = float("-inf")

    def __call__(self, text: str, done: int, total: int) -> None:
        now, percent = trio.current_time(), 100 * done // total if total else 0
        if (text, done) == self._said or (text == self._said[0] and now < self._next_at):
            return
        self._said, self._next_at = (text, done), now + TELL_SECONDS
        log.info(text or "Ollama is at work", **({"percent": percent, "bytes": done} if total else {}))


def _with(source: dict[str, Any], parameters: dict[str, int]) -> dict[str, Any]:
    return source | ({"parameters": parameters} if parameters else {})


async def _blob(api: DaemonApi, name: str) -> str:
    found = await api.blob_of(name)
    if found is None:
        raise DaemonError(f"Ollama has made the model {name}, and does not know it")
    return found


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
