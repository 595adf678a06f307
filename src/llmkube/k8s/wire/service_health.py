"""Derive the health of services and Models from their conditions, identically for all readers. Pure.

```
 agents:      Accepted, Fetched, Loaded, UpToDate, Published ─▶ host_failure ─▶ the controller's phase and Degraded
                                     │                                                  │
 controller:  Available, Progressing, Degraded, phase                                   │
                                     ▼                                                  ▼
                                service_health ─▶ Health ─▶ deploy, up --ask, status, chat, logs
```

For a service on hosts, the agents' conditions are used, which are newer than the controller's; for a service in pods,
the controller's, which are the only ones. A condition about an older generation of the spec is ignored.
"""

import enum
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import (
    ACCEPTED,
    AVAILABLE,
    DEGRADED,
    FETCHED,
    LOADED,
    PROGRESSING,
    PUBLISHED,
    SUSPENDED,
    UP_TO_DATE,
    current,
    find_condition,
)
from llmkube.k8s.wire.reasons import Meaning, Reason, is_failing

STEPS: Final = ("fetch", "load", "ready")
"""The steps of a service before it serves requests, in order."""

_STOPPED_PHASES: Final = frozenset({"Stopped", "Suspended"})
_KIND_AT_FAULT: Final = {ACCEPTED: InferenceService.RESOURCE.kind, FETCHED: Model.RESOURCE.kind}


class State(enum.Enum):
    """The state of a service, and what the reader should do."""

    READY = enum.auto()
    """It serves requests; an idle one loads its model for the next."""

    STOPPED = enum.auto()
    """Nothing runs, as its spec requests: start it."""

    WAITING = enum.auto()
    """It is starting, or recovers by itself: wait."""

    FAILING = enum.auto()
    """Waiting will not help: fix what the reason names."""


@attrs.frozen
class Health:
    """The health of a service or a Model.

    Attributes:
        state: Ready, stopped, waiting or failing.
        done: The number of completed `STEPS`.
        reason: Why it is not ready, as a word (`Reason`, or one of the kubelet).
        message: The same as a sentence; the lines after the first are from the engine.
        since: The transition time of the condition behind this, as RFC 3339; empty without a condition.
        faulty_kind: The kind whose current spec is the cause; empty if no spec is.
        serving: Whether an engine serves nevertheless, until the user fixes the object.
    """

    state: State
    done: int
    reason: str = ""
    message: str = ""
    since: str = ""
    faulty_kind: str = ""
    serving: bool = False

    @property
    def failing(self) -> bool:
        """Whether waiting will not help."""
        return self.state is State.FAILING

    @property
    def recovering(self) -> bool:
        """Whether there is a problem that is retried without a user's help."""
        reason = Reason.of(self.reason)
        return reason is not None and reason.meaning is Meaning.RECOVERING

    @property
    def headline(self) -> str:
        """The first line of the message, else the reason."""
        return self.message.partition("\n")[0] or self.reason


def service_health(service: InferenceService, model: Model | None) -> Health:
    """Return the health of a service from its own conditions and those of `model`, None if the Model is missing."""
    health = _evaluate(service, model)
    loaded = find_condition(service.status.conditions, LOADED, "True")
    reason = Reason.of(health.reason)
    fixable = health.failing and reason is not None and reason.meaning is Meaning.USER
    return attrs.evolve(health, serving=True) if fixable and loaded is not None else health


def _evaluate(service: InferenceService, model: Model | None) -> Health:
    if model is None:
        message = f"Model {service.spec.model_ref} not found in namespace {service.key.namespace}"
        return Health(State.FAILING, 0, Reason.MODEL_NOT_FOUND, message, faulty_kind=service.RESOURCE.kind)
    accepted = current(service.status.conditions, ACCEPTED, service.metadata.generation)
    if accepted is not None and accepted.status == "False":
        return _failing(accepted, 0)
    on_hosts = service.spec.hosts.replicas if service.spec.hosts is not None else 0
    if service.spec.suspend or service.spec.replicas + on_hosts == 0:
        return _stopped_health(service)
    available = current(service.status.conditions, AVAILABLE, service.metadata.generation)
    if available is not None and available.status == "False" and available.reason == Reason.NO_HOST:
        return _failing(available, 0)
    if is_reported_by_host(service) or find_condition(model.status.conditions, FETCHED) is not None:
        is_accepted = accepted is not None and accepted.status == "True"
        return _host_health(service, model, is_accepted=is_accepted)
    return _controller_health(service, available)


def model_health(model: Model) -> Health:
    """Return the health of a Model from its conditions; `done` is 1 when its file is present."""
    generation = model.metadata.generation
    fetched = current(model.status.conditions, FETCHED, generation)
    if fetched is not None:
        if fetched.status == "True":
            return _health(fetched, State.READY, 1)
        failing = is_failing(fetched.reason, unknown=True)
        return _failing(fetched, 0) if failing else _health(fetched, State.WAITING, 0)
    available = current(model.status.conditions, AVAILABLE, generation)
    if available is None:
        return Health(State.WAITING, 0, Reason.PENDING, "waiting for an agent or the controller to process it")
    if available.status == "True":
        return _health(available, State.READY, 1)
    degraded = current(model.status.conditions, DEGRADED, generation, "True")
    if degraded is not None:
        return attrs.evolve(_health(degraded, State.FAILING, 0), faulty_kind=model.RESOURCE.kind)
    return _health(available, State.WAITING, 0)


def host_failure(service: InferenceService, model: Model | None) -> Condition | None:
    """Return an agent's condition that explains why this spec fails on its host; None while waiting may help.

    While the file is being fetched, or the agent has not processed the newest Model, the engine's failures with the
    previous file are ignored.
    """
    generation = service.metadata.generation
    refused = current(service.status.conditions, ACCEPTED, generation, "False")
    if refused is not None:
        return refused
    fetched = current(model.status.conditions, FETCHED, model.metadata.generation) if model is not None else None
    if fetched is not None and fetched.status == "False":
        return fetched if is_failing(fetched.reason, unknown=True) else None
    if model is not None and _is_edited(model):
        return None
    failed = current(service.status.conditions, LOADED, generation, "False")
    if failed is not None and is_failing(failed.reason, unknown=False):
        return failed
    return find_condition(service.status.conditions, PUBLISHED, "False")


def _is_edited(model: Model) -> bool:
    """Return whether a Model was edited since an agent last processed it."""
    conditions, generation = model.status.conditions, model.metadata.generation
    return find_condition(conditions, FETCHED) is not None and current(conditions, FETCHED, generation) is None


def _is_up_to_date(loaded: Condition, service: InferenceService, model: Model) -> bool:
    """Return whether an agent's condition of an engine that does not serve is about the newest specs.

    After the agent has accepted an edit, an earlier wait may continue; an earlier failure is about the previous spec.
    """
    if _is_edited(model):
        return False
    generation = service.metadata.generation
    if current([loaded], LOADED, generation) is not None:
        return True
    is_accepted = current(service.status.conditions, ACCEPTED, generation, "True") is not None
    return is_accepted and not is_failing(loaded.reason, unknown=True) and loaded.reason != Reason.RESTARTING


def was_available(service: InferenceService) -> bool:
    """Return whether a service has ever been available: `Available` has changed since the first status was written.

    `Suspended` is written with it and changes only with the spec; if that has changed, too, the answer is True.
    """
    available = find_condition(service.status.conditions, AVAILABLE)
    suspended = find_condition(service.status.conditions, SUSPENDED, "False")
    if available is None:
        return False
    is_first = suspended is not None and available.last_transition_time == suspended.last_transition_time
    return available.status == "True" or not is_first


def is_reported_by_host(service: InferenceService) -> bool:
    """Return whether an agent manages the service, so that its conditions determine the health."""
    if service.spec.hosts is not None and service.status.selector:  # agents manage only some replicas, pods the rest
        return False
    loaded = find_condition(service.status.conditions, LOADED)
    return loaded is not None and loaded.reason != Reason.RELEASED


def pods_of(service: InferenceService) -> str:
    """Return the label selector of the service's pods; empty for a service on hosts."""
    return "" if is_reported_by_host(service) else service.status.selector


def unready_condition(service: InferenceService) -> Condition | None:
    """Return the controller's condition that explains why a service is not ready; None if it is ready or stopped."""
    conditions = service.status.conditions
    available = find_condition(conditions, AVAILABLE)
    if available is None or available.status == "True":
        return None
    progressing = find_condition(conditions, PROGRESSING)
    return progressing if available.reason == Reason.NO_READY_REPLICAS and progressing is not None else available


def _stopped_health(service: InferenceService) -> Health:
    field = "spec.suspend is true" if service.spec.suspend else "spec.replicas is 0"
    reason = Reason.SUSPENDED if service.spec.suspend else Reason.MANUALLY_SCALED_TO_ZERO
    if service.status.phase in _STOPPED_PHASES:
        return Health(State.STOPPED, len(STEPS), reason, field)
    return Health(State.WAITING, 0, reason, f"stopping: {field}")


def _host_health(service: InferenceService, model: Model, *, is_accepted: bool) -> Health:
    fetched = current(model.status.conditions, FETCHED, model.metadata.generation)
    done = int(fetched is not None and fetched.status == "True")
    if (failure := host_failure(service, model)) is not None:
        return _failing(failure, done)
    if fetched is not None and not done:
        return _health(fetched, State.WAITING, 0)
    loaded = find_condition(service.status.conditions, LOADED)  # may be about an older spec, which still runs
    if loaded is None or not (is_accepted if loaded.status == "True" else _is_up_to_date(loaded, service, model)):
        return Health(State.WAITING, done, Reason.PENDING, "waiting for the agent to process it")
    if loaded.status == "True" or loaded.reason == Reason.IDLE:
        return _update_health(service) or _replica_health(service, loaded)
    if done and loaded.reason == Reason.FETCHING:  # the Model was written first; the service is not up to date yet
        return Health(State.WAITING, done, Reason.FETCHING)
    return _health(loaded, State.WAITING, done)


def _replica_health(service: InferenceService, loaded: Condition) -> Health:
    if service.status.phase in {"Ready", "Idle"}:
        return _health(loaded, State.READY, len(STEPS))
    progressing = find_condition(service.status.conditions, PROGRESSING)
    if service.status.phase == "Progressing" and progressing is not None:  # other replicas are missing
        return _health(progressing, State.WAITING, 2)
    return Health(State.WAITING, 2, Reason.PENDING, "the engine is ready; waiting for the controller")


def _update_health(service: InferenceService) -> Health | None:
    """Return the health while an engine that serves an older spec is replaced; None if it serves the newest."""
    if find_condition(service.status.conditions, UP_TO_DATE) is None:
        return None
    newest = current(service.status.conditions, UP_TO_DATE, service.metadata.generation)
    if newest is None:
        return Health(State.WAITING, 1, Reason.PENDING, "waiting for the agent to process it")
    if newest.status != "False":
        return None
    return _failing(newest, 1) if is_failing(newest.reason, unknown=False) else _health(newest, State.WAITING, 1)


def _controller_health(service: InferenceService, available: Condition | None) -> Health:
    done = int(bool(service.status.model_ready))
    if available is None:
        return Health(State.WAITING, done, Reason.PENDING, "waiting for the controller to process it")
    if service.status.phase == "Ready":
        return _health(available, State.READY, len(STEPS))
    degraded = current(service.status.conditions, DEGRADED, service.metadata.generation)
    if degraded is not None and degraded.status == "True":
        return _failing(degraded, done)
    is_available = available.status == "True"
    return _health(unready_condition(service) or available, State.WAITING, 2 if done and is_available else done)


def _failing(condition: Condition, done: int) -> Health:
    return attrs.evolve(_health(condition, State.FAILING, done), faulty_kind=_KIND_AT_FAULT.get(condition.type, ""))


def _health(condition: Condition, state: State, done: int) -> Health:
    since = condition.last_transition_time or ""
    return Health(state, done, condition.reason, condition.message, since)
