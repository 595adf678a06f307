"""Decode JSON objects into typed ones and encode them again, without loss.

* **Unknown fields survive.** A field that a class does not know, at any level, is stored in `wire.unknown` and written
  back: our update never erases a field of a newer API server or of another client.
* **Defaults apply, absence is remembered.** An attribute holds its default when the field is absent, so consumers read
  `isvc.spec.replicas == 1`. `wire.given` records which fields were present: encoding writes a field if it was given, if
  it is required, or if its value differs from its default. `None` is never written. `attrs.evolve` copies `wire`.
* **Types are checked, values are not.** A string in place of a number is a `DecodeError` that names the path and the
  value. Enums and bounds are checked by the API server (the CRD schema has them): an object that a newer schema
  admitted must still be readable here.
* An explicit `null` means absent, as it does to the API server. `apiVersion` and `kind` may be missing (items of a list
  have neither) and are always written.

Decoded and encoded objects share the free-form parts (`unknown`, `Mapping[str, Any]`) with their source: do not modify
either.
"""

import collections.abc
import functools
import json
import typing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import cattrs

from llmkube.base.errors import UserError
from llmkube.k8s.fields import REQUIRED, IntOrString, WireForm, wire_fields
from llmkube.k8s.resource import Key, Object, Resource

W = TypeVar("W")
_MAX_INTERNED_CHARS = 128
_Hook = Callable[[Any, Any], Any]


class DecodeError(UserError):
    """A JSON object does not match its kind; `field` is the path of the first mismatch."""


class _Mismatch(Exception):  # noqa: N818 (never leaves this module: `decode` turns it into a DecodeError)
    """The expected type and the actual value; each enclosing level adds its step to the path."""

    def __init__(self, expected: str, value: Any) -> None:
        self.expected = expected
        self.value = value
        self.path: list[str] = []


def decode(kind: type[W], data: Mapping[str, Any]) -> W:
    """Return a JSON object as a typed one; parts of objects (a spec, a condition) work the same way.

    Raises:
        DecodeError: A value has the wrong type or a required field is missing.
    """
    try:
        decoded: W = _converter.get_structure_hook(kind)(data, kind)
    except _Mismatch as mismatch:
        path = "".join(reversed(mismatch.path)).removeprefix(".")
        message = f"expected {mismatch.expected}, got {_format_value(mismatch.value)}{_object_suffix(kind, data)}"
        raise DecodeError(message, field=path) from None
    return decoded


def encode(obj: Any) -> dict[str, Any]:
    """Return a typed object as JSON, without None and without defaults that were not given."""
    encoded: dict[str, Any] = _converter.get_unstructure_hook(type(obj))(obj)
    return encoded


def _format_value(value: Any) -> str:
    """Return the value as the user wrote it, shortened to one line."""
    if isinstance(value, _Absent):
        return "nothing"
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _object_suffix(kind: type, data: Any) -> str:
    """Return " in KIND KEY" for the object that holds the value, or "" when it is unknown."""
    resource: Resource | None = getattr(kind, "RESOURCE", None)
    if resource is None or not isinstance(data, Mapping) or not isinstance(data.get("metadata"), Mapping):
        return ""
    name = data["metadata"].get("name")
    return f" in {resource.kind} {Key.of(data)}" if isinstance(name, str | None) else ""


class _Absent:
    """Marks a missing required field in a message."""


_ABSENT = _Absent()

# -- JSON to objects --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _wire(given: tuple[str, ...]) -> WireForm:
    """Return one shared `WireForm` for all objects in which the same fields were given."""
    return WireForm(given=frozenset(given))


def _structure_object(cls: Any, converter: cattrs.Converter) -> _Hook:
    # Made once per class. A hook visits the fields that are present: an InferenceService has 70, a user writes five.
    in_repr = {attribute.name: attribute.repr for attribute in attrs.fields(cls)}
    table = {
        slot.key: (slot.attribute, _hook_for(slot.type, in_repr[slot.attribute], converter), slot.type)
        for slot in wire_fields(cls)
    }
    required = {slot.attribute: slot.key for slot in wire_fields(cls) if slot.default is REQUIRED}
    type_meta = _type_meta(cls)

    def structure(data: Any, _: Any) -> Any:
        if type(data) is not dict and not isinstance(data, Mapping):
            raise _Mismatch("an object", data)
        values: dict[str, Any] = {}
        unknown: dict[str, Any] = {}
        for key, value in data.items():
            row = table.get(key)
            if row is not None:
                if value is None:
                    continue
                attribute, hook, type_ = row
                try:
                    values[attribute] = hook(value, type_)
                except _Mismatch as mismatch:
                    raise _at(f".{key}", mismatch) from None
            elif key not in type_meta:
                unknown[key] = value
            elif value != type_meta[key]:
                raise _at(f".{key}", _Mismatch(_format_value(type_meta[key]), value))
        if not required.keys() <= values.keys():
            raise _missing(required, values)
        wire = WireForm(unknown, frozenset(values)) if unknown else _wire(tuple(values))
        return cls(**values, wire=wire)

    return structure


def _missing(required: Mapping[str, str], values: Mapping[str, Any]) -> _Mismatch:
    key = next(key for attribute, key in required.items() if attribute not in values)
    return _at(f".{key}", _Mismatch("a value", _ABSENT))


def _type_meta(cls: Any) -> dict[str, str]:
    resource: Resource | None = getattr(cls, "RESOURCE", None)
    return resource.type_meta if resource else {}


def _at(step: str, mismatch: _Mismatch) -> _Mismatch:
    mismatch.path.append(step)
    return mismatch


def _structure_tuple(cls: Any, converter: cattrs.Converter) -> _Hook:
    item_type, _ellipsis = typing.get_args(cls)
    hook = converter.get_structure_hook(item_type)

    def structure(data: Any, _: Any) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise _Mismatch("a list", data)
        items = []
        for index, item in enumerate(data):
            try:
                items.append(hook(item, item_type))
            except _Mismatch as mismatch:
                raise _at(f"[{index}]", mismatch) from None
        return tuple(items)

    return structure


def _hook_for(type_: Any, in_repr: Any, converter: cattrs.Converter) -> _Hook:
    """Return the hook of a field; strings of a field with repr=False (Secrets) are not interned, so they are freed."""
    if not in_repr and type_ == Mapping[str, str]:
        return _mapping_of(_scalar("a string", str), str)
    hook: _Hook = converter.get_structure_hook(type_)
    return hook


def _structure_mapping(cls: Any, converter: cattrs.Converter) -> _Hook:
    _, value_type = typing.get_args(cls)
    return _mapping_of(converter.get_structure_hook(value_type), value_type)


def _mapping_of(hook: _Hook, value_type: Any) -> _Hook:
    def structure(data: Any, _: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            raise _Mismatch("an object", data)
        values = {}
        for key, value in data.items():
            try:
                values[_intern(key)] = hook(value, value_type)
            except _Mismatch as mismatch:
                raise _at(f"[{key}]", mismatch) from None
        return values

    return structure


@functools.lru_cache(maxsize=1024)
def _intern(text: str) -> str:
    """Return the same object for equal strings."""
    # Each line of a watch is parsed by itself, and a fleet repeats `True`, `InferenceReady` and timestamps thousands of
    # times: this halves a cache (`benchmarks/bench_cache_memory.py`). Names and uids pass through as well and never
    # repeat; a larger table would mostly hold those.
    return text


def _structure_string(value: Any, _: Any) -> Any:
    if type(value) is not str:
        raise _Mismatch("a string", value)
    return _intern(value) if len(value) <= _MAX_INTERNED_CHARS else value


def _scalar(expected: str, *accepted: type) -> _Hook:
    """Return a hook that passes a JSON scalar through or refuses it; nothing is coerced."""

    def structure(value: Any, _: Any) -> Any:
        if type(value) in accepted:  # exact, since a bool is an int to Python
            return value
        raise _Mismatch(expected, value)

    return structure


# -- Objects to JSON --------------------------------------------------------------------------------------------------


def _unstructure_object(cls: Any, converter: cattrs.Converter) -> Callable[[Any], dict[str, Any]]:
    rows = [
        (slot.attribute, slot.key, slot.default, slot.facts.required, converter.get_unstructure_hook(slot.type))
        for slot in wire_fields(cls)
    ]
    type_meta = _type_meta(cls)

    def unstructure(obj: Any) -> dict[str, Any]:
        encoded: dict[str, Any] = dict(type_meta)
        wire: WireForm = obj.wire
        given = wire.given
        for attribute, key, default, required, hook in rows:
            value = getattr(obj, attribute)
            if value is not None and (required or attribute in given or value != default):
                encoded[key] = hook(value)
        encoded.update(wire.unknown)
        return encoded

    return unstructure


def _unstructure_tuple(cls: Any, converter: cattrs.Converter) -> Callable[[Any], list[Any]]:
    hook = converter.get_unstructure_hook(typing.get_args(cls)[0])
    return lambda values: [hook(value) for value in values]


def _unstructure_mapping(cls: Any, converter: cattrs.Converter) -> Callable[[Any], dict[str, Any]]:
    hook = converter.get_unstructure_hook(typing.get_args(cls)[1])
    return lambda values: {key: hook(value) for key, value in values.items()}


def _is_tuple(cls: Any) -> bool:
    return typing.get_origin(cls) is tuple


def _is_mapping(cls: Any) -> bool:
    return typing.get_origin(cls) is collections.abc.Mapping


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False, forbid_extra_keys=False)
    for applies, structure, unstructure in (
        (attrs.has, _structure_object, _unstructure_object),
        (_is_tuple, _structure_tuple, _unstructure_tuple),
        (_is_mapping, _structure_mapping, _unstructure_mapping),
    ):
        converter.register_structure_hook_factory(applies, structure)
        converter.register_unstructure_hook_factory(applies, unstructure)
    for kind, hook in (
        (str, _structure_string),
        (bool, _scalar("true or false", bool)),
        (int, _scalar("an integer", int)),
        (float, _scalar("a number", int, float)),
    ):
        converter.register_structure_hook(kind, hook)
    int_or_string = _scalar("an integer or a string", int, str)
    converter.register_structure_hook_func(lambda cls: cls == IntOrString, int_or_string)
    converter.register_unstructure_hook_func(lambda cls: cls is Any or cls == IntOrString, lambda value: value)
    return converter


_converter = _make_converter()


T = TypeVar("T", bound=Object)

MAX_STATES: Final = 256
"""Object states that are cached: a watch repeats the response to a write, often before that response arrives."""


@attrs.define(eq=False)
class VersionDecoder:
    """Decode each state of an object once, however often one API server sends it; managedFields are removed.

    Agent and controller in one process share the objects of their watches; responses to writes share them as well.
    """

    _states: OrderedDict[tuple[type, str, str], Any] = attrs.field(factory=OrderedDict, init=False)

    def decode(self, kind: type[T], raw: Mapping[str, Any]) -> T:
        """Return the typed object; DecodeError when it is malformed."""
        state = _state_of(kind, raw)
        if state is None:
            return decode(kind, without_managed_fields(raw))
        known: T | None = self._states.get(state)
        if known is None:
            known = self._states[state] = decode(kind, without_managed_fields(raw))
            if len(self._states) > MAX_STATES:
                self._states.popitem(last=False)
        return known


def without_managed_fields(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object without managedFields, half of its size; an update without them does not change them."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping) or "managedFields" not in metadata:
        return raw
    return {**raw, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def resource_version_of(obj: Mapping[str, Any]) -> str:
    """Return the resourceVersion of a JSON object or list, or ""."""
    metadata = obj.get("metadata")
    return str(metadata.get("resourceVersion") or "") if isinstance(metadata, Mapping) else ""


def _state_of(kind: type, raw: Mapping[str, Any]) -> tuple[type, str, str] | None:
    """Return a permanent identity of an object's state; None for an object without uid or resourceVersion."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    return (kind, uid, version) if isinstance(uid, str) and isinstance(version, str) and uid and version else None
