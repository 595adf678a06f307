"""What the definition of ModelRouter says of each field alone, for a router that no API server has checked.

An unknown field is refused: it may be policy, misspelled or of a newer release, and no router would enforce it.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import attrs

from llmkube.base import json_text
from llmkube.k8s.fields import SchemaFacts, wire_fields

_LONGEST_SHOWN: Final = 60


def misfits(value: Any, path: str) -> Iterator[str]:
    """Yield what is wrong with the fields of an object, each with its path, its value and the way out."""
    for key, unknown in value.wire.unknown.items():
        names = ", ".join(slot.key for slot in wire_fields(value.__class__))
        yield f"{path}.{key}: {_shown(unknown)} stands under a field that nothing reads; known are {names}"
    for slot in wire_fields(value.__class__):
        held = getattr(value, slot.attribute)
        if held is not None and (slot.attribute in value.wire.given or held != slot.default):
            yield from _of_value(held, slot.facts, f"{path}.{slot.key}")


def _of_value(value: Any, facts: SchemaFacts, path: str) -> Iterator[str]:
    if attrs.has(type(value)):
        yield from misfits(value, path)
    elif isinstance(value, tuple):
        yield from _of_count(value, facts, path)
        for place, each in enumerate(value):
            named = facts.list_map_keys and getattr(each, facts.list_map_keys[0])
            yield from _of_value(each, facts.items or SchemaFacts(), f"{path}[{named or place}]")
    elif isinstance(value, str):
        yield from _of_text(value, facts, path)
    elif isinstance(value, int) and not isinstance(value, bool):
        if facts.minimum is not None and value < facts.minimum:
            yield f"{path}: {value} is too small; write at least {facts.minimum:g}"
        if facts.maximum is not None and value > facts.maximum:
            yield f"{path}: {value} is too large; write at most {facts.maximum:g}"


def _of_count(value: tuple[Any, ...], facts: SchemaFacts, path: str) -> Iterator[str]:
    if facts.min_items is not None and len(value) < facts.min_items:
        yield f"{path}: it has {len(value)} entries; give at least {facts.min_items}"
    if facts.max_items is not None and len(value) > facts.max_items:
        yield f"{path}: it has {len(value)} entries; give at most {facts.max_items}"


def _of_text(value: str, facts: SchemaFacts, path: str) -> Iterator[str]:
    if facts.enum and value not in facts.enum:
        yield f"{path}: {_shown(value)} is unknown; write one of {', '.join(facts.enum)}"
    elif facts.pattern and not re.search(facts.pattern, value):
        yield f"{path}: {_shown(value)} does not have the form {facts.pattern}"
    elif facts.min_length is not None and len(value) < facts.min_length:
        yield f"{path}: {_shown(value)} is too short; write at least {facts.min_length} characters, or leave it out"
    elif facts.max_length is not None and len(value) > facts.max_length:
        yield f"{path}: {_shown(value)} is too long; write at most {facts.max_length} characters"


def _shown(value: Any) -> str:
    text = json_text.dumps(value).decode()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
