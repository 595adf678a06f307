"""`ollama://NAME:TAG` on a host: the Ollama that runs here pulls the model, and says what its file needs.

The agent asks for a pull once per plan, never while Ollama has the model; one that fails is repeated as any download
is, after a pause that grows. Services of one model share one pull, and there is one pull at a time: each is measured
against what is free when it begins.
"""

import os
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.client import HttpClient
from llmkube.programs.daemon_engine.ollama_api import OllamaApi
from llmkube.programs.daemon_engine.ollama_program import DaemonAddressError, daemon_url, require_local
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
"""So long what did not fit is refused by its size, without another pull: its tag may name a smaller model then."""


def local_ollama(http: HttpClient, allowed: AllowedModels) -> "OllamaLibrary":
    """Return the models of the Ollama that OLLAMA_HOST of this program's environment names, else of the usual port.

    Args:
        http: The way to it.
        allowed: What its owner lets Models name.
    """
    url, problem = daemon_url(os.environ), ""
    try:
        require_local(url)
    except DaemonAddressError as error:
        problem = str(error)
    return OllamaLibrary(OllamaApi(http, url), allowed, problem)


@attrs.define(eq=False)
class OllamaLibrary:
    """The models of one Ollama.

    Attributes:
        api: The way to it.
        allowed: What of it Models may name.
        problem: Why it cannot be used from here; "" when it can.
        free: Looks at the disk.
    """

    api: OllamaApi
    allowed: AllowedModels
    problem: str = ""
    free: FreeSpace = free_bytes_near
    _pulling: trio.Lock = attrs.field(factory=trio.Lock)
    _refused: dict[str, tuple[float, int]] = attrs.field(factory=dict)  # when, and what it would have needed at least

    async def fetch(self, source: OllamaModel, progress: OnProgress) -> tuple[WeightsFile, GGUFFacts]:
        """Have Ollama pull a model that it does not have, and return what it says of the model's file.

        Raises:
            WeightsError: There is no such model, it is not allowed, or it cannot be served here; says what to do.
            FetchError: Ollama does not answer, has no room for it, or has not pulled it.
        """
        if not self.allowed.admits(source):
            raise SourceNotAllowedError.of_ollama(source.name, REMEDY)
        if self.problem:
            raise SourceRefusedError(f"{source.redacted}: {self.problem}")
        try:
            model = await self._installed(source)
            if model is None:
                if self._pulling.locked():
                    progress(Progress("waiting", note="Ollama pulls another model"))
                async with self._pulling:
                    if not await self.has(source):  # by a service that has waited less
                        await self._pull(source.name, progress)
                model = await self._installed(source)
        except DaemonError as error:
            raise _pull_error(source, self.api.url, error) from error
        if model is None:
            raise FetchError(f"Ollama says that it has pulled {source.name}, and does not know it then")
        identity = f"{source.redacted}{_DIGEST_MARK}{model.sha256}"
        return WeightsFile(model.path, model.facts.size_bytes, model.sha256, identity), model.facts

    async def has(self, source: OllamaModel) -> bool:
        """Whether Ollama has the model already, and may serve it; it has not if it does not answer."""
        try:
            return not self.problem and self.allowed.admits(source) and await self.api.blob_of(source.name) is not None
        except DaemonError:
            return False

    async def keeps(self, identity: str) -> bool:
        """Whether a file that `fetch` has returned is still the one of its model, and may be served."""
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
        # hundreds of tensors, and all tokens of the model
        return await trio.to_thread.run_sync(_read, source.name, body, size_bytes, abandon_on_cancel=True)


def _read(name: str, body: bytes, size_bytes: int) -> StoredModel:
    answer: Any = orjson.loads(body)
    return read_show(name, answer if isinstance(answer, dict) else {}, size_bytes)


def _pull_error(source: OllamaModel, url: str, error: DaemonError) -> WeightsError | FetchError:
    """Return why a model is not here, with the way out."""
    if error.gone:
        return FetchError(
            f"{source.redacted} is pulled by the Ollama of this host, and none answers at {url}: start it (its app, or "
            "`ollama serve`); if it listens elsewhere, start the agent with OLLAMA_HOST=ADDRESS:PORT"
        )
    if error.status == 404:
        return SourceNotFoundError(
            f"Ollama's library has no {source.name}: look up name and tag at https://ollama.com/library, or {REMEDY}"
        )
    if "newer version" in str(error):
        return SourceRefusedError(f"Ollama does not pull {source.name}: {error}; upgrade Ollama on this host")
    return FetchError(f"Ollama has not pulled {source.name}: {error}")


@attrs.define(eq=False)
class _PullProgress:
    """Turns Ollama's lines about each file of a model into the progress of all of them."""

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
        self.progress(
            Progress(
                "downloading",
                done_bytes,
                total_bytes,
                self._rate.bytes_per_second,
                self._rate.seconds_left(total_bytes),
                note="by Ollama",
            )
        )
