"""The directory of services: where each model answers, or why it does not, and what a client is told then."""

import enum
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import attrs

from llmkube.base.http.message import Headers
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.router.refusals import RefusedError, refused

NOT_READY: Final = "model_not_ready"
"""Error code of the gateway for a model that does not answer now; the error has the `reason` too."""

NOT_FOUND: Final = "model_not_found"
"""Error code of the gateway for an unknown model."""

_MODE_OF_PATH: Final[Mapping[str, str]] = {
    "embeddings": "embedding",
    "embed": "embedding",
    "rerank": "rerank",
    "reranking": "rerank",
}
"""What an engine has to be started for, by the last part of a path."""

_RESTARTS: Final = frozenset({Reason.ENGINE_EXITED, Reason.NOT_ANSWERING, Reason.RESTARTING})
"""Reasons of a service whose engine has just ended by itself: the next one loads, or the reason changes."""


def will_be_ready(reason: str) -> bool:
    """Return whether a service that is not ready loads, or will soon, by the reason of its condition.

    It does not where it is stopped, failed or refused, or waits for memory, for which there is no bound.
    """
    found = Reason.of(reason)
    return found is None or found.meaning is Meaning.WAITING or found in _RESTARTS


class State(enum.Enum):
    """Whether a model is there, in the words of llama.cpp's server."""

    LOADED = "loaded"
    LOADING = "loading"
    UNLOADED = "unloaded"


@attrs.frozen
class Backend:
    """An engine that answers.

    Attributes:
        host: Address.
        port: TCP port.
        alias: The model id that the engine itself goes by.
        credentials: Header lines that let the gateway in; the client's own credentials do not go to the engine then.
        mode: What it was started for: `chat`, `embedding`, `rerank`; "" where that is not known.
        service: Namespace and name of its service; "" where that is not known.
    """

    host: str
    port: int
    alias: str
    credentials: bytes = attrs.field(default=b"", repr=False)
    mode: str = ""
    service: str = ""

    @property
    def credential_headers(self) -> Headers:
        """The credentials as headers."""
        name, _, value = self.credentials.decode("ascii").strip().partition(": ")
        return Headers([(name, value)] if name else [])


@attrs.frozen
class UnavailableModel:
    """A model that exists and does not answer now.

    Attributes:
        reason: One CamelCase word.
        message: A sentence for the client.
        retry_after_seconds: When asking again may help; None when it does not help until a person does something.
        state: What a list of models says of it.
        failed: Whether it is no plan to wait.
    """

    reason: str
    message: str
    retry_after_seconds: int | None = 5
    state: State = State.LOADING
    failed: bool = False


class ModelDirectory(Protocol):
    """What models there are and where; asked at every request, answers at once."""

    def model_ids(self) -> Sequence[str]:
        """Return the ids of what is served, one for each, in order."""
        ...

    def aliases(self) -> Sequence[str]:
        """Return the further ids that lead to one of them, in order."""
        ...

    def lookup(self, model_id: str) -> Backend | UnavailableModel | None:
        """Return where a model answers or why it does not; None when there is no such model."""
        ...


def engine_of(directory: ModelDirectory, named: object, path: str) -> Backend:
    """Return the engine of the model that a request names, or of the only one.

    Args:
        directory: The models.
        named: The request's `model`; None of one that names none.
        path: What is asked.

    Raises:
        RefusedError: There is no such model, or it does not answer now, or not at this path.
    """
    model_id = _only_model(directory) if named is None else named
    if not isinstance(model_id, str):
        raise refused(400, '"model" must be a string', "invalid_model")
    found = directory.lookup(model_id)
    if found is None:
        raise no_such_model(model_id, directory.model_ids())
    if isinstance(found, UnavailableModel):
        raise _not_ready(model_id, found)
    wanted = _MODE_OF_PATH.get(path.rstrip("/").rpartition("/")[2])
    if wanted is not None and found.mode == "chat":  # the engine would name a flag of its own, which users do not write
        message = f"model {model_id!r} is served for chat; for {path} its InferenceService needs spec.mode: {wanted}"
        raise refused(501, message, "mode_not_served")
    return found


def no_such_model(model_id: str, model_ids: Sequence[str]) -> RefusedError:
    """Return what is said of a model that is none of these."""
    return refused(404, f"no model {model_id!r}; {_models_hint(model_ids)}", NOT_FOUND)


def _only_model(directory: ModelDirectory) -> str:
    model_ids = directory.model_ids()
    if len(model_ids) == 1:
        return model_ids[0]
    raise refused(400, f'the request names no "model"; {_models_hint(model_ids)}', "model_required")


def _models_hint(model_ids: Sequence[str]) -> str:
    return f"there is {', '.join(map(repr, model_ids))}" if model_ids else "no model is served yet"


def _not_ready(model_id: str, state: UnavailableModel) -> RefusedError:
    message = f"model {model_id!r} is not ready ({state.reason}): {state.message}"
    seconds = state.retry_after_seconds
    # OpenAI's and Anthropic's clients read the second header: to ask again now would only be refused again.
    retry_headers = {"Retry-After": str(seconds)} if seconds is not None else {"X-Should-Retry": "false"}
    return refused(503, message, NOT_READY, retry_headers, reason=state.reason)
