"""Conditions as Kubernetes wants them: what holds, why, since when, and for which generation of the spec. Pure.

A transition time moves only when the status flips. `kubectl wait --for=condition=Available` compares the condition's
`observedGeneration` with the object's, so every condition carries the generation that it was derived from.
"""

import datetime
import re
from collections.abc import Iterable
from typing import Any, Final

import attrs

from llmkube.base.messages import shorten
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.wire.times import timestamp

# Of every object, by the controller
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SUSPENDED: Final = "Suspended"

# Of a service, by the program that serves it: the agent of a host, or the controller for pods
ACCEPTED: Final = "Accepted"
SPEC_HONOURED: Final = "SpecHonoured"

# Of a service, by agents alone
LOADED: Final = "Loaded"
UP_TO_DATE: Final = "UpToDate"
PUBLISHED: Final = "Published"
MEMORY_PRESSURE: Final = "MemoryPressure"

# Of a Model, by agents alone
FETCHED: Final = "Fetched"

MAX_MESSAGE_BYTES: Final = 8192
"""Kubernetes allows 32,768 characters in a condition; a quarter is already more than a person reads."""

_MAX_REASON: Final = 1024
_NOT_IN_REASONS: Final = re.compile(r"[^A-Za-z0-9_,:]+")


@attrs.frozen
class Verdict:
    """Where an object stands: its phase, the reason as a word for programs, and a sentence for people."""

    phase: str
    reason: str
    message: str


@attrs.frozen
class Statement:
    """A condition before it has a time: whether it holds (None: it is not known) and why.

    One that was derived from an older generation of the object than the rest names it.
    """

    type: str
    holds: bool | None
    reason: str
    message: str
    generation: int | None = None

    @property
    def status(self) -> str:
        """`True`, `False` or `Unknown`."""
        return "Unknown" if self.holds is None else str(self.holds)


def find_condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of one type, or None when it was never stated."""
    return next((condition for condition in conditions if condition.type == kind), None)


def settle(
    statements: Iterable[Statement], observed: Iterable[Condition], *, generation: int, now: datetime.datetime
) -> list[dict[str, Any]]:
    """Return the statements as conditions, each with the time at which its status last flipped.

    Args:
        statements: What is true now, one of each type.
        observed: The conditions that the object carries; those of other writers are ignored.
        generation: The `metadata.generation` that the statements were derived from.
        now: The time of a flip that happens here.
    """
    before = {one.type: (one.status, one.last_transition_time) for one in observed}
    return [settled(each, before.get(each.type), generation=generation, now=now) for each in statements]


def current(conditions: Iterable[Condition], kind: str, generation: int) -> Condition | None:
    """Return a condition that is about this generation of the spec, or None.

    An edit makes a verdict on the previous spec obsolete: a crash loop is not held against the spec that ends it. A
    writer that does not say which generation it saw is believed.
    """
    found = find_condition(conditions, kind)
    if found is None or (found.observed_generation or generation) < generation:
        return None
    return found


def settled(
    statement: Statement, before: tuple[str, str] | None, *, generation: int, now: datetime.datetime
) -> dict[str, Any]:
    """Return one statement as a condition.

    Args:
        statement: What is true now.
        before: Status and transition time of the condition that it replaces; None when there is none.
        generation: The `metadata.generation` that it was derived from.
        now: The time of a flip that happens here.
    """
    is_unchanged = before is not None and before[0] == statement.status and before[1]
    return {
        "type": statement.type,
        "status": statement.status,
        "reason": _to_reason(statement.reason),
        "message": shorten(statement.message, MAX_MESSAGE_BYTES),
        "lastTransitionTime": before[1] if before is not None and is_unchanged else timestamp(now),
        "observedGeneration": generation if statement.generation is None else statement.generation,
    }


def _to_reason(reason: str) -> str:
    """Return a reason as the schema wants it: the kubelet's own has dots and slashes (`OutOfnvidia.com/gpu`)."""
    word = _NOT_IN_REASONS.sub("_", reason)[:_MAX_REASON].strip("_,:")
    return word if word[:1].isalpha() else f"Reason_{word}".rstrip("_")
