"""Declare the JSON fields of a class as attributes: name, type, bounds, default, description.

Every class that is sent or received derives from `Wired` and declares its fields with `field(...)`:

```python
@attrs.frozen(kw_only=True)
class Autoscaling(Wired):
    \"\"\"Scale between two replica counts.\"\"\"

    max_replicas: int = field("Highest replica count.", REQUIRED, minimum=1, maximum=100)
    min_replicas: int = field("Lowest replica count.", 1, minimum=1, maximum=10)
```

The codec (`k8s.codec`) and the schema generator (`k8s.crd.definitions`) read the same declarations through
`wire_fields()`, so that decoding, encoding and the API server's validation cannot diverge. The JSON name is the
attribute's name in camelCase unless `name=` overrides it (`moeCPULayers`).
"""

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

REQUIRED: Final = attrs.NOTHING
"""Marks a field without a default, which must be given."""

IntOrString = int | str
"""A port number or a port's name."""

_FACTS: Final = "llmkube"


@attrs.frozen
class Rule:
    """A CEL expression that must hold, and the message for the user when it does not.

    Args:
        rule: The expression; `self` is the value that has the rule.
        message: The requirement in words.
        field_path: The field below `self` that an error names, such as `.rules`; empty for `self`.
    """

    rule: str
    message: str
    field_path: str = ""


@attrs.frozen
class Column:
    """One column of `kubectl get`; `wide` columns appear only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@attrs.frozen(kw_only=True)
class SchemaFacts:
    """Schema properties of a field beyond its Python type; None and empty mean unset.

    Args:
        exclusive_minimum: The value must be above `minimum`.
        items: The properties of each item of a list.
        rendered: The field takes effect in objects that the controller creates, not in the engine's container.
        pod_part: The part of a pod (`crd/podparts.json`) that a free-form map holds, whose schema is inserted.
    """

    name: str = ""
    description: str = ""
    required: bool = False
    enum: tuple[Any, ...] = ()
    minimum: float | None = None
    exclusive_minimum: bool = False
    maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    pattern: str = ""
    format: str = ""
    list_map_keys: tuple[str, ...] = ()
    items: "SchemaFacts | None" = None
    pod_part: str = ""
    rendered: bool = False
    atomic: bool = False
    apply_default: bool = False
    rules: tuple[Rule, ...] = ()


_NO_FACTS: Final = SchemaFacts()


@attrs.frozen
class WireForm:
    """The JSON form of an object, apart from its values.

    Args:
        unknown: JSON fields that the class does not know, unchanged; they are written back.
        given: Attributes that were present, so that a value equal to its default is written again. Ignored in
            comparisons: an object with `replicas: 1` equals one that omits the default.
    """

    unknown: Mapping[str, Any] = attrs.field(factory=dict, hash=False)  # compared, but a map cannot be hashed
    given: frozenset[str] = attrs.field(default=frozenset(), eq=False)


_BLANK: Final = WireForm()


@attrs.frozen(kw_only=True)
class Wired:
    """An object that is sent or received, with its JSON form; the default is for objects built in Python."""

    wire: WireForm = attrs.field(default=_BLANK, repr=False)


def received() -> Any:
    """Declare the attribute `wire` in a class that does not derive from `Wired`, such as a plugin's."""
    return attrs.field(default=_BLANK, repr=False)


def field(description: str = "", default: Any = None, /, *, repr: bool = True, **facts: Any) -> Any:  # noqa: A002 (attrs' word)
    """Declare one JSON field.

    Args:
        description: One sentence for `kubectl explain`.
        default: The value when the field is absent: `REQUIRED`, a value, `dict` for an empty map, or a wire class for
            a block whose absence means all of its defaults.
        repr: False keeps secrets out of logs.
        **facts: As in `SchemaFacts`. `required=True` with a default: always written, may be absent when read.
    """
    known = SchemaFacts(description=description, **{"required": default is REQUIRED, **facts})
    metadata = {_FACTS: known}
    if default is dict:
        return attrs.field(factory=dict, hash=False, repr=repr, metadata=metadata)
    if isinstance(default, type):
        default = default()  # all owners share one frozen instance
    return attrs.field(default=default, repr=repr, metadata=metadata)


@attrs.frozen
class WireField:
    """One JSON field of a class, resolved for the codec and the schema generator."""

    attribute: str
    key: str
    type: Any  # never `X | None`: the codec handles absence
    default: Any  # REQUIRED when there is none
    facts: SchemaFacts


def camel(snake: str) -> str:
    """Return the JSON name of an attribute: `context_size` is `contextSize`."""
    head, *tail = snake.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


@functools.cache
def wire_fields(cls: type) -> tuple[WireField, ...]:
    """Return all JSON fields of a wire class, in source order.

    Raises:
        TypeError: The class has no `wire` and so could not store unknown fields.
    """
    attributes: tuple[attrs.Attribute[Any], ...] = attrs.fields(cls)
    if all(attribute.name != "wire" for attribute in attributes):
        raise TypeError(f"{cls.__name__} must derive from Wired")
    return tuple(_slot(attribute) for attribute in attributes if attribute.name != "wire")


def _slot(attribute: "attrs.Attribute[Any]") -> WireField:
    facts: SchemaFacts = attribute.metadata.get(_FACTS, _NO_FACTS)
    default: Any = attribute.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # attrs types Factory as a function, it is a class
        default = default.factory()
    return WireField(
        attribute=attribute.name,
        key=facts.name or camel(attribute.name),
        type=_without_none(attribute.type),
        default=default,
        facts=facts if facts.required or default is not REQUIRED else attrs.evolve(facts, required=True),
    )


def _without_none(annotation: Any) -> Any:
    if not isinstance(annotation, types.UnionType):
        return annotation
    kinds = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType]
    return functools.reduce(lambda left, right: left | right, kinds)


def rendered_paths(cls: type, prefix: str) -> Iterator[str]:
    """Yield the JSON path of every `rendered` field of a class and its blocks."""
    for slot in wire_fields(cls):
        path = f"{prefix}.{slot.key}"
        if slot.facts.rendered:
            yield path
        elif attrs.has(slot.type):
            yield from rendered_paths(slot.type, path)


def changed_paths(obj: Any, prefix: str = "") -> Iterator[str]:
    """Yield the JSON path of every known leaf whose value is not its default, in source order.

    A default that is written out is not a change: the API server writes them all. Lists and maps are leaves.
    """
    for slot in wire_fields(obj.__class__):
        value = getattr(obj, slot.attribute)
        if value is None or value == slot.default:
            continue
        path = f"{prefix}.{slot.key}" if prefix else slot.key
        if attrs.has(type(value)):
            yield from changed_paths(value, path)
        else:
            yield path
