"""Conditions, as the Kubernetes API conventions define them. Pure.

The transition time changes only when the status flips. `kubectl wait --for=condition=Available` compares the
condition's `observedGeneration` with the object's, so every condition has the generation that it was derived from.
"""

import datetime
import re
from collections.abc import Iterable
from typing import Any, Final

import attrs

from llmkube.base.messages import shorten
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.wire.times import timestamp

# On every object, by the controller
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SUSPENDED: Final = "Suspended"

# On a service, by the program that serves it: the agent of a host, or the controller for pods
ACCEPTED: Final = "Accepted"
SPEC_HONOURED: Final = "SpecHonoured"

# On a service, only by agents
LOADED: Final = "Loaded"
UP_TO_DATE: Final = "UpToDate"
PUBLISHED: Final = "Published"
MEMORY_PRESSURE: Final = "MemoryPressure"

# On a Model, only by agents
FETCHED: Final = "Fetched"

MAX_MESSAGE_BYTES: Final = 8192
"""Kubernetes allows 32,768 characters in a condition's message; a quarter is more than a person reads."""

_MAX_REASON: Final = 1024
_NOT_IN_REASONS: Final = re.compile(r"[^A-Za-z0-9_,:]+")


@attrs.frozen
class Verdict:
    """The assessment of an object: its phase, the reason for programs, and a message for people."""

    phase: str
    reason: str
    message: str


@attrs.frozen
class Statement:
    """A condition without its times: whether it holds (None: unknown) and why.

    `generation` is set if it was derived from an older generation of the object than the others.
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


def find_condition(conditions: Iterable[Condition], kind: str, status: str = "") -> Condition | None:
    """Return the condition of a type, or None if there is none, or none with this status."""
    return next((one for one in conditions if one.type == kind and status in {"", one.status}), None)


def settle(
    statements: Iterable[Statement], observed: Iterable[Condition], *, generation: int, now: datetime.datetime
) -> list[dict[str, Any]]:
    """Return the statements as conditions, each with the time at which its status last flipped.

    Args:
        statements: The current statements, one of each type.
        observed: The present conditions of the object; those of other types are ignored.
        generation: The `metadata.generation` that the statements were derived from.
        now: The transition time of a status that flips now.
    """
    before = {one.type: (one.status, one.last_transition_time) for one in observed}
    return [settled(each, before.get(each.type), generation=generation, now=now) for each in statements]


def current(conditions: Iterable[Condition], kind: str, generation: int, status: str = "") -> Condition | None:
    """Return the condition of a type if it is about this generation of the spec, else None; of this status, if given.

    After an edit, the conditions of the previous spec are obsolete: the new spec may end a crash loop. A condition
    without a generation is taken to be current.
    """
    found = find_condition(conditions, kind, status)
    if found is None or (found.observed_generation or generation) < generation:
        return None
    return found


def settled(
    statement: Statement, before: tuple[str, str] | None, *, generation: int, now: datetime.datetime
) -> dict[str, Any]:
    """Return one statement as a condition.

    Args:
        statement: The current statement.
        before: The status and transition time of the condition that it replaces, or None.
        generation: The `metadata.generation` that it was derived from.
        now: The transition time if the status flips now.
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
    """Return a reason that the schema accepts; the kubelet's have dots and slashes (`OutOfnvidia.com/gpu`)."""
    word = _NOT_IN_REASONS.sub("_", reason)[:_MAX_REASON].strip("_,:")
    return word if word[:1].isalpha() else f"Reason_{word}".rstrip("_")
