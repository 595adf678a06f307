"""Derive conditions from a service's facts, and Events and log lines from changes of the facts. Pure."""

from collections.abc import Iterator, Mapping
from typing import Literal

import attrs

from llmkube.k8s.crd.pairing import METAL
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.conditions import (
    ACCEPTED,
    FETCHED,
    LOADED,
    MEMORY_PRESSURE,
    PUBLISHED,
    SPEC_HONOURED,
    UP_TO_DATE,
    Statement,
)
from llmkube.k8s.wire.reasons import Reason, is_failing
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.service.facts import Facts


@attrs.frozen
class Event:
    """Something that happened to a service.

    Attributes:
        reason: CamelCase word for programs.
        message: Sentence for people.
        type: `Warning` if a person should look at it.
        log: Log event; "" for no log line.
        fields: Fields of the log line besides the service's name.
    """

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Warning"
    log: str = ""
    fields: Mapping[str, object] = attrs.field(factory=dict)


def events(before: Facts, after: Facts) -> tuple[Event, ...]:
    """Return the Events that follow from a change of facts."""
    return (*_of_host(before, after), *_of_plan(before, after), *_of_memory(before, after), *_of_engines(before, after))


def _of_host(before: Facts, after: Facts) -> Iterator[Event]:
    if after.host_address.problem not in {"", before.host_address.problem}:
        yield Event(Reason.NO_ADDRESS, after.host_address.problem)
    for slot, error in after.refused.items():
        if str(error) != str(before.refused.get(slot)):
            yield Event("NotPublished", str(error))


def _of_plan(before: Facts, after: Facts) -> Iterator[Event]:
    if after.problem != before.problem and after.problem is not None and after.problem.value:
        problem = after.problem.value
        yield Event(Reason.INVALID, problem, log="spec refused", fields={"error": problem})
    if after.fetch_failures > before.fetch_failures and after.fetch is not None:
        error = after.fetch_error  # the fetch is retried without end; the log has each error once
        log = "model not fetched" if error != before.fetch_error else ""
        yield Event(after.fetch.value.reason, error, log=log, fields={"error": error})

    if after.fetch_delay and not before.fetch_delay:  # one for each wait, however many attempts it has
        yield Event(
            "FetchDelayed",
            f"file not fetched yet: {after.fetch_delay}; retrying",
            log="fetch delayed",
            fields={"reason": after.fetch_delay},
        )


def _of_memory(before: Facts, after: Facts) -> Iterator[Event]:
    for reason in after.waits - before.waits:  # one for each wait; the status has the figures as they change
        yield Event(reason, after.view.value.message)
    evict = after.evicted
    if evict is None or evict is before.evicted:
        return
    if evict.cause is Cause.DISPLACED:
        yield Event("Displaced", evict.why)
    else:
        cut = "; requests in flight are cut short" if evict.urgent else "; requests in flight may finish first"
        yield Event(Reason.EVICTED, evict.why + cut)


def _of_engines(before: Facts, after: Facts) -> Iterator[Event]:
    if after.restarts > before.restarts and after.failure is not None:
        yield Event(str(after.failure.reason), after.failure.message)
    if after.replace_failures > before.replace_failures and after.failure is not None:
        yield Event("NotReplaced", f"the engine of the older spec keeps serving: {after.failure.message}")
    if after.loads > before.loads:
        view = after.view.value
        fields = {"hostIP": after.address or view.host, "port": view.port}
        message = f"{view.message} on {after.host}"
        yield Event(Reason.LOADED, message, "Normal", log="registered endpoint", fields=fields)
        if before.evicted is not None:
            yield Event("Returned", f"Running again; before that: {before.evicted.why}", "Normal")


def cut_short_event(why: str) -> Event:
    """Return the Event of an engine that stops before its requests have finished."""
    log = "requests in flight cut short"
    return Event("RequestsCutShort", f"{log}: {why}", log=log, fields={"reason": why})


def displacing_event(winner: Key, evict: Eviction) -> Event:
    """Return the Event of a service for which another one is evicted."""
    name = evict.key.name if evict.key.namespace == winner.namespace else str(evict.key)
    return Event("Displacing", f"{name} is evicted to make room for this service", "Normal")


def service_conditions(facts: Facts) -> tuple[Statement, ...]:
    """Return the conditions of a service on this host, without those that are not known yet."""
    found = (
        _accepted(facts),
        _loaded(facts),
        _memory_pressure(facts),
        _published(facts),
        _spec_honoured(facts),
        _up_to_date(facts),
    )
    return tuple(one for one in found if one is not None)


def model_conditions(facts: Facts) -> tuple[Statement, ...]:
    """Return the conditions of its Model on this host."""
    if facts.fetch is None:
        return ()
    fetch, generation = facts.fetch.value, facts.fetch.generation
    return (Statement(FETCHED, fetch.present, fetch.reason, fetch.message, generation),)


def _accepted(facts: Facts) -> Statement | None:
    if facts.problem is None:
        return None
    problem, generation = facts.problem.value, facts.problem.generation
    if problem:
        return Statement(ACCEPTED, False, Reason.INVALID, problem, generation)
    return Statement(ACCEPTED, True, Reason.ACCEPTED, "the spec can be served on this machine", generation)


def _spec_honoured(facts: Facts) -> Statement | None:
    if facts.ignored is None:
        return None
    generation, view = facts.ignored.generation, facts.view.value
    ignored, hardware = (*facts.ignored.value, *view.given_up), facts.desired.model.spec.hardware
    # `metal` also means any host; on a Mac, `Loaded` has a warning.
    wants_gpu = hardware.accelerator not in {"cpu", METAL} and (hardware.gpu is None or hardware.gpu.layers != 0)
    if view.ready and wants_gpu and view.offload is not None and not view.offload.layers:
        ignored = (*ignored, "Model.spec.hardware.accelerator (the engine has put no layer on a device)")
    listed = ", ".join(ignored)
    if listed:
        message = f"no effect on this machine: {listed}"
        return Statement(SPEC_HONOURED, False, Reason.FIELDS_IGNORED, message, generation)
    return Statement(SPEC_HONOURED, True, Reason.HONOURED, "every field that is set has an effect", generation)


def _loaded(facts: Facts) -> Statement | None:
    view = facts.view.value
    if not view.reason:
        return None
    return Statement(LOADED, view.ready, str(view.reason), view.message, facts.view.generation)


def _up_to_date(facts: Facts) -> Statement | None:
    view, outdated = facts.view.value, facts.outdated.value
    generation = max(facts.view.generation, facts.outdated.generation)
    if not view.reason:
        return None
    if view.reason == Reason.IDLE:
        return Statement(UP_TO_DATE, True, Reason.UP_TO_DATE, "the next load uses the newest spec", generation)
    if not view.ready:
        return Statement(UP_TO_DATE, None, Reason.NOT_SERVING, "no engine serves on this machine", generation)
    if outdated.reason:
        message = outdated.message
        if outdated == facts.unplanned and is_failing(outdated.reason, unknown=True):
            message = f"the newest spec was refused ({message}); the previous one still serves"
        return Statement(UP_TO_DATE, False, outdated.reason, message, generation)
    message = "the engine that serves was started from the newest spec"
    return Statement(UP_TO_DATE, True, Reason.UP_TO_DATE, message, generation)


def _published(facts: Facts) -> Statement | None:
    if facts.published is None:
        return None
    problem = facts.publish_problem
    if problem.reason:
        return Statement(PUBLISHED, False, problem.reason, problem.message, facts.published)
    closed = f"; requests without a key are refused (401): {facts.closed}" if facts.closed else ""
    return Statement(PUBLISHED, True, Reason.PUBLISHED, facts.host_address.why + closed, facts.published)


def _memory_pressure(facts: Facts) -> Statement | None:
    if facts.pressure is None:
        return None
    pressure = facts.pressure.value
    return Statement(MEMORY_PRESSURE, pressure.short, pressure.reason, pressure.message, facts.pressure.generation)
