"""Directory of services: the engine of each model, or the reason why it is not ready and the error that clients get."""

import enum
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import attrs

from llmkube.base.hold import Hold
from llmkube.base.http.message import Headers
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.router.dialects.ollama_models import known_name
from llmkube.router.refusals import DO_NOT_RETRY, RefusedError, refused

NOT_READY: Final = "model_not_ready"
"""Error code of the gateway for a model that is not ready; the error also has its `reason`."""

HOLD_SECONDS: Final = 600.0
"""Longest time for which a request waits for a model that is loaded on request, unless its service has another one."""

HELD_HEADER: Final = "X-LLMKube-Held-Seconds"
"""Header of a request that the door of another host has forwarded: how long it has waited there."""

NOT_FOUND: Final = "model_not_found"
"""Error code of the gateway for an unknown model."""

_MODE_OF_PATH: Final[Mapping[str, str]] = {
    "embeddings": "embedding",
    "embedding": "embedding",
    "embed": "embedding",
    "rerank": "rerank",
    "reranking": "rerank",
}
"""Mode that an engine must be started in, by the last segment of a path."""

_RESTARTS: Final = frozenset({Reason.ENGINE_EXITED, Reason.NOT_ANSWERING, Reason.RESTARTING})
"""Reasons of a service whose engine has just exited: the next one loads, or the reason changes."""


def will_be_ready(reason: str) -> bool:
    """Return whether a service that is not ready is loading or about to load, by the reason of its condition.

    A service that is stopped, failed or refused is not, nor one that waits for memory: that wait has no bound.
    """
    found = Reason.of(reason)
    return found is None or found.meaning is Meaning.WAITING or found in _RESTARTS


class State(enum.Enum):
    """State of a model, as named by llama.cpp's server."""

    LOADED = "loaded"
    LOADING = "loading"
    UNLOADED = "unloaded"


@attrs.frozen
class Backend:
    """An engine that accepts requests.

    Attributes:
        alias: Model id that the engine uses for itself.
        credentials: Header lines that authenticate the gateway; they replace the client's credentials.
        mode: `chat`, `embedding` or `rerank`; "" if unknown.
        service: Namespace and name of its service; "" if unknown.
        adapters: Name and scale of its LoRA adapters, in its order; one without a name always applies.
    """

    host: str
    port: int
    alias: str
    credentials: bytes = attrs.field(default=b"", repr=False)
    mode: str = ""
    service: str = ""
    adapters: tuple[tuple[str, float], ...] = ()

    @property
    def credential_headers(self) -> Headers:
        """Credentials as headers."""
        name, _, value = self.credentials.decode("ascii").strip().partition(": ")
        return Headers([(name, value)] if name else [])


@attrs.frozen
class UnavailableModel:
    """A model that exists but is not ready.

    Attributes:
        reason: One CamelCase word.
        message: Sentence for the client.
        retry_after_seconds: Time after which a retry may succeed; None if it cannot until a person acts.
        state: State in lists of models.
        failed: Whether waiting is pointless.
        service: Namespace and name of its service; "" if unknown.
        wakes: Whether a request may wait for it: it loads when one needs it, or is loading for one.
        estimated_seconds: Time that its load is expected to take, as its last one did; None if not known.
        hold_seconds: Longest wait of a request.
        delayed_until: When its load may begin, on Trio's clock; in the past if it may now.
    """

    reason: str
    message: str
    retry_after_seconds: int | None = 5
    state: State = State.LOADING
    failed: bool = False
    service: str = attrs.field(default="", eq=False)
    wakes: bool = False
    estimated_seconds: float | None = attrs.field(default=None, eq=False)
    hold_seconds: float = attrs.field(default=HOLD_SECONDS, eq=False)
    delayed_until: float = attrs.field(default=0.0, eq=False)

    def as_of(self, now: float) -> "UnavailableModel":
        """Return it with the rest of its delay in the expected time."""
        seconds = (self.estimated_seconds or 0.0) + self.delayed_until - now
        return attrs.evolve(self, estimated_seconds=seconds) if self.delayed_until > now else self

    @property
    def retry_seconds(self) -> int | None:
        """`retry_after_seconds`, or the expected time of the load."""
        known = self.estimated_seconds if self.wakes else None
        return self.retry_after_seconds if known is None else max(1, math.ceil(known))


Found = Backend | UnavailableModel


class ModelDirectory(Protocol):
    """Models and their engines; queried at every request, so it must not block."""

    def model_ids(self) -> Sequence[str]:
        """Return one id per model, in order."""

    def aliases(self) -> Sequence[str]:
        """Return the additional ids of models, in order."""

    def lookup(self, model_id: str) -> Found | None:
        """Return the engine of a model or the reason why it is not ready; None if there is no such model."""


class Waker(Protocol):
    """Loads services for requests; services are named by namespace and name, as in `Backend.service`."""

    def using(self, service: str, tenant: str) -> AbstractContextManager[Hold]:
        """Keep a service loaded while a request of a tenant waits or runs; load it first if it is idle.

        A service whose last load failed is not loaded again before its back-off has ended. The request waits in the
        contexts that the value of this one returns: its engine may be stopped then.
        """

    async def wait_changed(self, service: str) -> None:
        """Return once the directory's answer for a service may have changed since the call."""


class Activator(Waker, Protocol):
    """Loads and unloads services on request.

    No method fails: a service that is unknown, or always loaded, is left as it is. None of them waits, except
    `wait_changed`.
    """

    def load(self, service: str) -> None:
        """Load a service that is idle, also during the back-off after a failed load."""

    def unload(self, service: str) -> bool:
        """Unload a service once its requests have ended, and end its pin; return whether it was loaded or loading.

        The next request loads it again.
        """

    def pin(self, service: str, seconds: float | None) -> None:
        """Load a service and keep it loaded, until `unload` or the agent's end.

        Args:
            service: Namespace and name of the service.
            seconds: Time without requests after which it is unloaded, in place of `spec.activation.idleTimeout`; other
                services may displace it then. None: it is never unloaded, and never displaced.
        """


def engine_of(directory: ModelDirectory, named: object, path: str) -> Backend:
    """Return the engine of the model that a request names, or of the only model.

    Args:
        directory: Models and their engines.
        named: `model` of the request; None if it has none.
        path: Path of the request.

    Raises:
        RefusedError: The model does not exist, is not ready, or does not serve this path.
    """
    model_id, found = find_model(directory, named, path)
    if isinstance(found, UnavailableModel):
        raise not_ready(model_id, found)
    return found


def find_model(
    directory: ModelDirectory, named: object, path: str, listed: Sequence[str] | None = None
) -> tuple[str, Found]:
    """Return the id and the state of the model that a request names, or of the only model; arguments as `engine_of`.

    Args:
        directory: Models and their engines.
        named: `model` of the request; None if it has none.
        path: Path of the request.
        listed: Ids to list in errors; None for all.

    Raises:
        RefusedError: The model does not exist, or does not serve this path.
    """
    model_id = _only_model(directory.model_ids() if listed is None else listed) if named is None else named
    if not isinstance(model_id, str):
        raise refused(400, '"model" must be a string', "invalid_model")
    known = known_name(model_id, lambda name: directory.lookup(name) is not None)
    found = directory.lookup(known)
    if found is None:
        raise no_such_model(model_id, directory.model_ids() if listed is None else listed)
    wanted = _MODE_OF_PATH.get(path.rstrip("/").rpartition("/")[2])
    if wanted is not None and isinstance(found, Backend) and found.mode == "chat":
        # the engine's own error names a flag that users cannot set
        message = f"model {model_id!r} is served for chat; for {path} its InferenceService needs spec.mode: {wanted}"
        raise refused(501, message, "mode_not_served")
    return known, found


def no_such_model(model_id: str, model_ids: Sequence[str]) -> RefusedError:
    """Return the error for a model that does not exist."""
    return refused(404, f"no model {model_id!r}; {_models_hint(model_ids)}", NOT_FOUND)


def _only_model(model_ids: Sequence[str]) -> str:
    if len(model_ids) == 1:
        return model_ids[0]
    raise refused(400, f'the request names no "model"; {_models_hint(model_ids)}', "model_required")


def _models_hint(model_ids: Sequence[str]) -> str:
    return f"available: {', '.join(map(repr, model_ids))}" if model_ids else "no model is served yet"


def not_ready(model_id: str, state: UnavailableModel, why: str = "is not ready") -> RefusedError:
    """Return the error for a model that is not ready."""
    message = f"model {model_id!r} {why} ({state.reason}): {state.message}"
    seconds = state.retry_seconds
    # OpenAI's and Anthropic's clients honor the second header: a retry would fail again.
    retry_headers = {"Retry-After": str(seconds)} if seconds is not None else DO_NOT_RETRY
    return refused(503, message, NOT_READY, retry_headers, reason=state.reason)
