"""Statements in, conditions out: others decide what a condition says, this module decides when it last flipped. Pure.

A transition time moves only when the status flips. `kubectl wait --for=condition=Available` compares the condition's
`observedGeneration` with the object's, so every condition carries the generation that it was derived from.
"""

import datetime
import re
from collections.abc import Iterable
from typing import Any, Final

import attrs

from llmkube.k8s.crd.meta import Condition, find_condition

AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SUSPENDED: Final = "Suspended"

_MAX_MESSAGE: Final = 32768  # characters, by the schema of a condition
_MAX_REASON: Final = 1024
_STRANGE: Final = re.compile(r"[^A-Za-z0-9_,:]+")


@attrs.frozen
class Verdict:
    """Where an object stands: its phase, the reason as a word for programs, and a sentence for people."""

    phase: str
    reason: str
    message: str


@attrs.frozen
class Statement:
    """A condition before it has a time: what holds or does not, and why."""

    type: str
    holds: bool
    reason: str
    message: str


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
    before = {condition.type: condition for condition in observed}
    return [_settled(statement, before.get(statement.type), generation, now) for statement in statements]


def current(conditions: Iterable[Condition], kind: str, generation: int) -> Condition | None:
    """Return a condition that speaks about this generation of the spec, or None.

    An edit makes a verdict on the previous spec obsolete: a crash loop is not held against the spec that ends it. A
    writer that does not say which generation it saw is believed.
    """
    found = find_condition(conditions, kind)
    if found is None or (found.observed_generation or generation) < generation:
        return None
    return found


def timestamp(moment: datetime.datetime) -> str:
    """Return a moment as Kubernetes writes it: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _settled(statement: Statement, before: Condition | None, generation: int, now: datetime.datetime) -> dict[str, Any]:
    status = "True" if statement.holds else "False"
    flipped = before is None or before.status != status or not before.last_transition_time
    return {
        "type": statement.type,
        "status": status,
        "reason": _spelled(statement.reason),
        "message": _cut(statement.message),
        "lastTransitionTime": timestamp(now) if before is None or flipped else before.last_transition_time,
        "observedGeneration": generation,
    }


def _spelled(reason: str) -> str:
    """Return a reason as the schema wants it: the kubelet's own has dots and slashes (`OutOfnvidia.com/gpu`)."""
    word = _STRANGE.sub("_", reason)[:_MAX_REASON].strip("_,:")
    return word if word[:1].isalpha() else f"Reason_{word}".rstrip("_")


def _cut(message: str) -> str:
    """Return a message that fits: a refusal quotes what it refuses, and that may be of any length."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 1]}…"
