"""`ollama://NAME:TAG` on a host: the local Ollama pulls the model, and reports its file and its shape.

The agent requests a pull once per plan, and only if Ollama does not have the model. A failed pull is retried like any
download, with increasing pauses. Services of one model share a pull. There is one pull at a time, because each is
checked against the space that is free when it starts.
"""

import os
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.client import HttpClient
from llmkube.programs.daemon_engine.ollama_api import OllamaApi, address_problem, daemon_url
from llmkube.programs.daemon_engine.ollama_weights import (
    FreeSpace,
    check_capacity,
    free_bytes_near,
    measure_capacity,
    pull_within,
)
from llmkube.programs.daemon_engine.server import DaemonError
from llmkube.weights.download.progress import OnProgress, Progress, Rate, Stage
from llmkube.weights.errors import (
    FetchError,
    NoSpaceError,
    SourceNotAllowedError,
    SourceNotFoundError,
    SourceRefusedError,
    WeightsError,
)
from llmkube.weights.formats.ollama_show import StoredModel, read_show
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.ollama_model import REMEDY, AllowedModels, OllamaModel
from llmkube.weights.store.blobs import WeightsFile

_DIGEST_MARK: Final = "@sha256:"

REFUSAL_SECONDS: Final = 600.0
"""Time for which a model that did not fit is refused without another pull; its tag may name a smaller one later."""


def local_ollama(http: HttpClient, allowed: AllowedModels) -> "OllamaLibrary":
    """Return the models of the Ollama at OLLAMA_HOST in this program's environment, else at the default port.

    Args:
        http: HTTP client for Ollama.
        allowed: Ollama models that Models may name.
    """
    url = daemon_url(os.environ)
    return OllamaLibrary(OllamaApi(http, url), allowed, address_problem(url))


@attrs.define(eq=False)
class OllamaLibrary:
    """The models of one Ollama.

    Attributes:
        api: Ollama's API.
        allowed: Its models that Models may name.
        problem: Why this Ollama cannot be used; "" if it can.
        free: Returns the free bytes of a disk.
    """

    api: OllamaApi
    allowed: AllowedModels
    problem: str = ""
    free: FreeSpace = free_bytes_near
    _pulling: trio.Lock = attrs.field(factory=trio.Lock)
    _refused: dict[str, tuple[float, int]] = attrs.field(factory=dict)  # time, and least bytes needed

    async def fetch(self, source: OllamaModel, progress: OnProgress) -> tuple[WeightsFile, GGUFFacts]:
        """Have Ollama pull a model if it does not have it, and return the model's file and facts.

        Raises:
            WeightsError: The model does not exist, is not allowed, or cannot be served here.
            FetchError: Ollama does not respond, has no space for it, or failed to pull it.
        """
        if not self.allowed.admits(source):
            raise SourceNotAllowedError.of_ollama(source.name, REMEDY)
        if self.problem:
            raise SourceRefusedError(f"{source.redacted}: {self.problem}")
        try:
            model = await self._installed(source)
            if model is None:
                if self._pulling.locked():
                    progress(Progress("waiting", note="Ollama is pulling another model"))
                async with self._pulling:
                    if not await self.has(source):  # another service may have pulled it meanwhile
                        await self._pull(source.name, progress)
                model = await self._installed(source)
        except DaemonError as error:
            raise _pull_error(source, self.api.url, error) from error
        if model is None:
            raise FetchError(f"Ollama reported that it pulled {source.name}, but does not list it")
        identity = f"{source.redacted}{_DIGEST_MARK}{model.sha256}"
        return WeightsFile(model.path, model.facts.size_bytes, model.sha256, identity), model.facts

    async def has(self, source: OllamaModel) -> bool:
        """Whether Ollama has the model and may serve it; False if Ollama does not respond."""
        try:
            return not self.problem and self.allowed.admits(source) and await self.api.blob_of(source.name) is not None
        except DaemonError:
            return False

    async def keeps(self, identity: str) -> bool:
        """Whether a file that `fetch` returned is still the file of its model, and may be served."""
        name, _, digest = identity.partition("://")[2].partition(_DIGEST_MARK)
        try:
            return self.allowed.admits(OllamaModel(name)) and await self.api.blob_of(name) == f"sha256-{digest}"
        except DaemonError:
            return False

    async def _pull(self, name: str, progress: OnProgress) -> None:
        capacity = await measure_capacity(self.api, self.free)
        refused_at, needed_bytes = self._refused.get(name, (0.0, 0))
        if needed_bytes and trio.current_time() - refused_at < REFUSAL_SECONDS:
            check_capacity(capacity.folder, needed_bytes, capacity.free_bytes)
        try:
            await pull_within(self.api, name, capacity, _PullProgress(progress))
        except NoSpaceError:
            self._refused[name] = (trio.current_time(), capacity.needed_bytes)
            raise
        self._refused.pop(name, None)

    async def _installed(self, source: OllamaModel) -> StoredModel | None:
        body = await self.api.show(source.name)
        if body is None:
            return None
        size_bytes = (await self.api.sizes()).get(source.name, 0)
        # In a thread: the response lists hundreds of tensors and all tokens of the model
        return await trio.to_thread.run_sync(_read, source.name, body, size_bytes, abandon_on_cancel=True)


def _read(name: str, body: bytes, size_bytes: int) -> StoredModel:
    answer: Any = orjson.loads(body)
    return read_show(name, answer if isinstance(answer, dict) else {}, size_bytes)


def _pull_error(source: OllamaModel, url: str, error: DaemonError) -> WeightsError | FetchError:
    """Return the error of a failed pull, with a fix."""
    if error.gone:
        return FetchError(
            f"{source.redacted} needs this machine's Ollama, which does not respond at {url}: start it (its app, or "
            "`ollama serve`); if it listens elsewhere, start llmkube with OLLAMA_HOST=ADDRESS:PORT"
        )
    if error.status == 404:
        return SourceNotFoundError(
            f"Ollama's library has no {source.name}: check name and tag at https://ollama.com/library, or {REMEDY}"
        )
    if "newer version" in str(error):
        return SourceRefusedError(f"Ollama cannot pull {source.name}: {error}; upgrade Ollama on this machine")
    return FetchError(f"Ollama failed to pull {source.name}: {error}")


@attrs.define(eq=False)
class _PullProgress:
    """Turns Ollama's messages about each file of a model into the progress of the whole pull."""

    progress: OnProgress
    _files: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    _rate: Rate = attrs.field(factory=Rate)

    def __call__(self, text: str, done: int, total: int) -> None:
        if not total:
            stage: Stage = "verifying" if text.startswith("verifying") else "resolving"
            self.progress(Progress(stage, note="" if stage == "verifying" else f"Ollama: {text}"))
            return
        self._files[text] = (done, total)
        done_bytes, total_bytes = (sum(column) for column in zip(*self._files.values(), strict=True))
        self._rate.add(trio.current_time(), done_bytes)
        rate, left = self._rate.bytes_per_second, self._rate.seconds_left(total_bytes)
        self.progress(Progress("downloading", done_bytes, total_bytes, rate, left, note="by Ollama"))
