"""What the gateway knows of the models: where each answers, or why it does not."""

import enum
from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from llmkube.base.http.message import Headers
from llmkube.k8s.wire.reasons import Meaning, Reason

NOT_READY: Final = "model_not_ready"
"""Error code of the gateway for a model that does not answer now; the error has the `reason` too."""

NOT_FOUND: Final = "model_not_found"
"""Error code of the gateway for an unknown model."""

_RESTARTS: Final = frozenset({Reason.ENGINE_EXITED, Reason.NOT_ANSWERING, Reason.RESTARTING})
"""Reasons of a service whose engine has just ended by itself: the next one loads, or the reason changes."""


def is_on_its_way(reason: str) -> bool:
    """Return whether a service that is not ready loads, or will soon, by the reason of its condition.

    It does not where it is stopped, failed or refused, or waits for memory, for which there is no bound.
    """
    found = Reason.of(reason)
    return found is None or found.meaning is Meaning.PASSING or found in _RESTARTS


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
    """

    host: str
    port: int
    alias: str
    credentials: bytes = attrs.field(default=b"", repr=False)
    mode: str = ""

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
