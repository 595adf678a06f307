"""The result of looking up a model, from the snapshot of its service."""

from typing import Any, Final

import attrs

from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.router.backends import HOLD_SECONDS, Backend, Found, State, UnavailableModel
from llmkube.supervisor.values.lifecycle import ServiceView

_RETRY_SECONDS: Final = {Meaning.FINE: 2, Meaning.WAITING: 2, Meaning.RECOVERING: 5, Meaning.RETRIED: 5}
"""`Retry-After` by the meaning of a reason. With other meanings a person must act, so clients should not wait."""


def lookup_result(key: Key, view: ServiceView) -> Found:
    """Return the engine of a service, or why it is not ready."""
    if view.closed:
        view = attrs.evolve(view, reason=Reason.INSUFFICIENT_MEMORY, message=view.closed)
    if view.ready:
        credentials = f"Authorization: Bearer {view.api_key}\r\n".encode("ascii") if view.api_key else b""
        return Backend(view.host, view.port, view.alias, credentials, view.mode, str(key), view.adapters)
    return unavailable(
        str(key),
        view.reason,
        view.message,
        on_request=view.on_request,
        estimated_seconds=view.load_seconds or None,
        hold_seconds=HOLD_SECONDS if view.hold_seconds is None else view.hold_seconds,
        delayed_until=view.delayed_until,
    )


def unavailable(service: str, reason: str, message: str, *, on_request: bool, **more: Any) -> UnavailableModel:
    """Return a service that is not ready.

    Args:
        service: Its namespace and name.
        reason: The reason of its condition; "" if there is none yet.
        message: The message of its condition, of which clients get the first line.
        on_request: Whether it loads for requests.
        more: Further attributes of the result.
    """
    known = Reason.of(reason)
    meaning = known.meaning if known is not None else Meaning.WAITING
    stopped = meaning.is_failing or meaning is Meaning.STOPPED
    return UnavailableModel(
        reason or Reason.PENDING,
        message.partition("\n")[0] or f"model {Key.parse(service).name} is not ready",
        _RETRY_SECONDS.get(meaning),
        State.UNLOADED if stopped or known is Reason.IDLE else State.LOADING,
        meaning.is_failing,
        service,
        wakes=on_request and (not stopped or known is Reason.ENGINE_EXITED),
        **more,
    )
