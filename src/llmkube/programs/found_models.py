"""The result of looking up a model, from the snapshot of its service."""

from typing import Final

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
    message = view.message.partition("\n")[0] or f"model {key.name} is not ready"
    reason = Reason.of(view.reason)
    meaning = reason.meaning if reason is not None else Meaning.WAITING
    failed = meaning.is_failing
    stopped = failed or meaning is Meaning.STOPPED
    return UnavailableModel(
        view.reason or Reason.PENDING,
        message,
        _RETRY_SECONDS.get(meaning),
        State.UNLOADED if stopped or reason is Reason.IDLE else State.LOADING,
        failed,
        str(key),
        wakes=view.on_request and (not stopped or reason is Reason.ENGINE_EXITED),
        estimated_seconds=view.load_seconds or None,
        hold_seconds=HOLD_SECONDS if view.hold_seconds is None else view.hold_seconds,
        delayed_until=view.delayed_until,
    )
