"""Which conditions follow from the facts, of a service and of its Model. Pure."""

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
from llmkube.k8s.wire.reasons import is_failing
from llmkube.supervisor.service.facts import Facts


def service_conditions(facts: Facts) -> tuple[Statement, ...]:
    """Return what is true of a service on this host; what is not known yet is left out."""
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
    """Return what is true of its Model on this host."""
    if facts.fetch is None:
        return ()
    fetch, generation = facts.fetch.value, facts.fetch.generation
    return (Statement(FETCHED, fetch.here, fetch.reason, fetch.message, generation),)


def _accepted(facts: Facts) -> Statement | None:
    if facts.problem is None:
        return None
    problem, generation = facts.problem.value, facts.problem.generation
    if problem:
        return Statement(ACCEPTED, False, "Invalid", problem, generation)
    return Statement(ACCEPTED, True, "Accepted", "the spec can be served on this host", generation)


def _spec_honoured(facts: Facts) -> Statement | None:
    if facts.ignored is None:
        return None
    generation, listed = facts.ignored.generation, ", ".join(facts.ignored.value)
    if listed:
        message = f"these fields are accepted and have no effect on a host: {listed}"
        return Statement(SPEC_HONOURED, False, "FieldsIgnored", message, generation)
    return Statement(SPEC_HONOURED, True, "Honoured", "every given field has its effect", generation)


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
    if not view.ready:
        return Statement(UP_TO_DATE, None, "NotServing", "no engine serves on this host", generation)
    if outdated.reason:
        message = outdated.message
        if outdated == facts.unplanned and is_failing(outdated.reason, unknown=True):
            message = f"the newest spec was refused ({message}); the previous one still serves"
        return Statement(UP_TO_DATE, False, outdated.reason, message, generation)
    return Statement(
        UP_TO_DATE, True, "UpToDate", "the engine that serves was started from the newest spec", generation
    )


def _published(facts: Facts) -> Statement | None:
    if facts.published is None:
        return None
    problem = facts.publish_problem
    if problem.reason:
        return Statement(PUBLISHED, False, problem.reason, problem.message, facts.published)
    closed = f"; without a key, 401: {facts.closed}" if facts.closed else ""
    return Statement(PUBLISHED, True, "Published", facts.reach.why + closed, facts.published)


def _memory_pressure(facts: Facts) -> Statement | None:
    if facts.pressure is None:
        return None
    now = facts.pressure.value
    return Statement(MEMORY_PRESSURE, now.short, now.reason, now.message, facts.pressure.generation)
