"""A RoutingConfig as JSON: reading is strict, writing is complete, and equal configs have equal bytes.

Keys are the attributes in camelCase. Defaults are written too, so that a router of another release does not apply its
own. Unknown keys are rejected, not dropped: an ignored key would be a policy that is not enforced.

This module also validates the fields of a ModelRouter that no API server has validated against its CRD.
"""

import functools
import hashlib
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import attrs

from llmkube.base import json_text
from llmkube.base.errors import UserError
from llmkube.k8s.fields import SchemaFacts, camel, wire_fields
from llmkube.router.config.config_checks import config_problems
from llmkube.router.config.routing_config import VERSION, RoutingConfig

_EXCERPT_CHARACTERS: Final = 60


def field_problems(value: Any, path: str) -> Iterator[str]:
    """Yield the problems of an object's fields, each with path, value and fix."""
    for key, unknown in value.wire.unknown.items():
        names = ", ".join(slot.key for slot in wire_fields(value.__class__))
        yield f"{path}.{key}: unknown field (value {_excerpt(unknown)}); known fields are {names}"
    for slot in wire_fields(value.__class__):
        field_value = getattr(value, slot.attribute)
        if field_value is not None and (slot.attribute in value.wire.given or field_value != slot.default):
            yield from _value_problems(field_value, slot.facts, f"{path}.{slot.key}")


def _value_problems(value: Any, facts: SchemaFacts, path: str) -> Iterator[str]:
    if attrs.has(type(value)):
        yield from field_problems(value, path)
    elif isinstance(value, tuple):
        yield from _count_problems(value, facts, path)
        for index, each in enumerate(value):
            named = facts.list_map_keys and getattr(each, facts.list_map_keys[0])
            yield from _value_problems(each, facts.items or SchemaFacts(), f"{path}[{named or index}]")
    elif isinstance(value, str):
        yield from _text_problems(value, facts, path)
    elif isinstance(value, int) and not isinstance(value, bool):
        if facts.minimum is not None and value < facts.minimum:
            yield f"{path}: {value} is too small; write at least {facts.minimum:g}"
        if facts.maximum is not None and value > facts.maximum:
            yield f"{path}: {value} is too large; write at most {facts.maximum:g}"


def _count_problems(value: tuple[Any, ...], facts: SchemaFacts, path: str) -> Iterator[str]:
    if facts.min_items is not None and len(value) < facts.min_items:
        yield f"{path}: {len(value)} entries are too few; give at least {facts.min_items}"
    if facts.max_items is not None and len(value) > facts.max_items:
        yield f"{path}: {len(value)} entries are too many; give at most {facts.max_items}"


def _text_problems(value: str, facts: SchemaFacts, path: str) -> Iterator[str]:
    if facts.enum and value not in facts.enum:
        yield f"{path}: {_excerpt(value)} is unknown; write one of {', '.join(facts.enum)}"
    elif facts.pattern and not re.search(facts.pattern, value):
        yield f"{path}: {_excerpt(value)} does not match the pattern {facts.pattern}"
    elif facts.min_length is not None and len(value) < facts.min_length:
        yield f"{path}: {_excerpt(value)} is too short; write at least {facts.min_length} characters, or omit it"
    elif facts.max_length is not None and len(value) > facts.max_length:
        yield f"{path}: {_excerpt(value)} is too long; write at most {facts.max_length} characters"


def _excerpt(value: Any) -> str:
    text = json_text.dumps(value).decode()
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"


_VERSION_KEY: Final = "version"


class ConfigError(UserError):
    """A config file is invalid; each line of the message is one problem with field, value and fix."""


def encode_config(config: RoutingConfig) -> bytes:
    """Return the config as JSON; equal configs have equal bytes."""
    return json_text.dumps({_VERSION_KEY: VERSION, **_to_json(config)})


def config_digest(config: RoutingConfig) -> str:
    """Return the config's identifier in audit logs and ConfigMaps: `sha256:` and the digest of its JSON."""
    return f"sha256:{hashlib.sha256(encode_config(config)).hexdigest()}"


def decode_config(data: bytes) -> RoutingConfig:
    """Return the config in a file.

    Raises:
        ConfigError: The file is not a config, or the config is invalid; the message lists all problems.
    """
    try:
        value = json_text.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"the config is not JSON ({exc}); write one object, as compiled from a ModelRouter") from exc
    if not isinstance(value, Mapping):
        raise ConfigError(f"the config is {_excerpt(value)}; write one JSON object")
    version = value.get(_VERSION_KEY)
    if version != VERSION or isinstance(version, bool):
        raise ConfigError(
            f"{_excerpt(version)} is not supported: this release reads {VERSION}; compile the ModelRouter again",
            field=_VERSION_KEY,
        )
    problems: list[str] = []
    config = _read_object(RoutingConfig, {k: each for k, each in value.items() if k != _VERSION_KEY}, "", problems)
    if not problems:
        problems += config_problems(config)
    if problems:
        raise ConfigError("\n".join(problems))
    assert isinstance(config, RoutingConfig)
    return config


# -- to JSON ----------------------------------------------------------------------------------------------------------


def _to_json(value: Any) -> Any:
    if attrs.has(type(value)):
        return {key: _to_json(getattr(value, name)) for key, name, _, _ in _fields(value.__class__)}
    if isinstance(value, Mapping):
        return {key: _to_json(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    return str(value) if isinstance(value, Decimal) else value


# -- from JSON --------------------------------------------------------------------------------------------------------


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Return the key, name and type of each attribute that is written, and whether it is required."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (camel(each.name), each.name, hints[each.name], each.default is attrs.NOTHING)
        for each in attrs.fields(cls)
        if each.init and not each.metadata
    )


def _read(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None is the only one
        return None if value is None else _read(arguments[0], value, path, problems)
    if attrs.has(kind):
        return _read_object(kind, value, path, problems)
    if origin in (tuple, frozenset):
        if not isinstance(value, list):
            return _reject(value, "a list", path, problems)
        return origin(_read(arguments[0], each, f"{path}[{index}]", problems) for index, each in enumerate(value))
    if origin is not None:  # Mapping[str, X]
        if not isinstance(value, Mapping):
            return _reject(value, "an object", path, problems)
        return {key: _read(arguments[1], each, f"{path}[{key}]", problems) for key, each in value.items()}
    return _read_scalar(kind, value, path, problems)


def _read_scalar(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    if kind is Decimal:
        try:
            number = Decimal(value) if isinstance(value, str) else None
        except InvalidOperation:
            number = None
        if number is None or not number.is_finite():
            return _reject(value, 'a decimal number as a string, such as "2.50"', path, problems)
        return number
    expected, accepts = _SCALARS[kind]
    return value if accepts(value) else _reject(value, expected, path, problems)


_SCALARS: Final[Mapping[Any, tuple[str, Callable[[Any], bool]]]] = {
    str: ("a string", lambda value: type(value) is str),
    bool: ("true or false", lambda value: type(value) is bool),
    int: ("a whole number", lambda value: type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float)),
}


def _read_object(cls: Any, value: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return _reject(value, "an object", path, problems)
    problems_before = len(problems)
    known = _fields(cls)
    problems += _unknown_keys(value, {key for key, *_ in known}, path)
    given = {}
    for key, name, kind, required in known:
        where = f"{path}.{key}" if path else key
        if key in value:
            given[name] = _read(kind, value[key], where, problems)
        elif required:
            problems.append(f"{where}: required, but missing; add it")
    return cls(**given) if len(problems) == problems_before else None


def _unknown_keys(value: Mapping[str, Any], known: set[str], path: str) -> Iterator[str]:
    for key in value:
        if key not in known:
            where = f"{path}.{key}" if path else key
            names = ", ".join(sorted(known))
            yield f"{where}: unknown key (value {_excerpt(value[key])}); known keys are {names}"


def _reject(value: Any, expected: str, path: str, problems: list[str]) -> None:
    problems.append(f"{path}: {_excerpt(value)} is not {expected}; write {expected}")
