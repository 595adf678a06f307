"""A class attribute says everything about its JSON field: name, bounds, default, meaning.

Every class that crosses the wire is `Wired`, and a table of `field(...)` lines:

```python
@attrs.frozen(kw_only=True)
class Autoscaling(Wired):
    \"\"\"Scale between two replica counts.\"\"\"

    max_replicas: int = field("Highest replica count.", REQUIRED, minimum=1, maximum=100)
    min_replicas: int = field("Lowest replica count.", 1, minimum=1, maximum=10)
```

The codec (`k8s.codec`) and the schema generator (`k8s.crd.definitions`) read the same table through `wire_fields()`,
so what is decoded, what is encoded and what the API server enforces cannot drift apart. The JSON name is the
attribute's name in camelCase unless `name=` spells it differently (`moeCPULayers`).
"""

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

REQUIRED: Final = attrs.NOTHING
"""The default of a field that has none: it must be given."""

IntOrString = int | str
"""A port number or a port's name, as Kubernetes writes it."""

_FACTS: Final = "llmkube"


@attrs.frozen
class Rule:
    """A CEL expression that must hold, and what to tell the user when it does not.

    Args:
        rule: The expression; `self` is the value that carries the rule.
        message: What must hold, in words.
        field_path: The field below `self` that an error names, such as `.rules`; empty for `self`.
    """

    rule: str
    message: str
    field_path: str = ""


@attrs.frozen
class Column:
    """One column of `kubectl get`; `wide` columns wait for `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


@attrs.frozen(kw_only=True)
class SchemaFacts:
    """What the schema says about a field beyond its Python type; None and empty mean nothing is said.

    Args:
        exclusive_minimum: The value lies above `minimum`, not on it.
        items: What holds for each item of a list.
        rendered: It takes effect in the objects that the controller makes, and not in the engine's container.
        pod_part: The part of a pod (`crd.podparts`) that a free-form map stands for; the schema spells it out.
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
    """What an object looked like as JSON, apart from its values.

    Args:
        unknown: JSON fields that the class does not know, as they came; they are written back.
        given: Attribute names that were present, so that a value equal to its default stays written. Not part of
            equality: an object that says `replicas: 1` wants the same as one that leaves the default alone.
    """

    unknown: Mapping[str, Any] = attrs.field(factory=dict, hash=False)  # equal, but a map cannot be hashed
    given: frozenset[str] = attrs.field(default=frozenset(), eq=False)


_BLANK: Final = WireForm()


@attrs.frozen(kw_only=True)
class Wired:
    """An object that crosses the wire, and remembers its JSON; by default it was built in Python, not received."""

    wire: WireForm = attrs.field(default=_BLANK, repr=False)


def received() -> Any:
    """Declare the same attribute in a class that does not derive from `Wired`, as those of plug-ins do."""
    return attrs.field(default=_BLANK, repr=False)


def field(description: str = "", default: Any = None, /, *, repr: bool = True, **facts: Any) -> Any:  # noqa: A002 (attrs' word)
    """Declare one JSON field.

    Args:
        description: One sentence, shown by `kubectl explain`.
        default: The value when the field is absent: `REQUIRED`, a value, `dict` for an empty map, or a wire class for
            a block whose absence means all of its defaults.
        repr: False keeps secrets out of logs.
        **facts: The rest of `SchemaFacts`. `required=True` with a default means: always written, tolerated when absent.
    """
    known = SchemaFacts(description=description, **{"required": default is REQUIRED, **facts})
    metadata = {_FACTS: known}
    if default is dict:
        return attrs.field(factory=dict, hash=False, repr=repr, metadata=metadata)
    if isinstance(default, type):
        default = default()  # one frozen instance serves every owner
    return attrs.field(default=default, repr=repr, metadata=metadata)


@attrs.frozen
class WireField:
    """One JSON field of a class, resolved: what the codec and the schema generator walk over."""

    attribute: str
    key: str
    type: Any  # never `X | None`: absence is the codec's business
    default: Any  # REQUIRED when there is none
    facts: SchemaFacts


def camel(snake: str) -> str:
    """Spell an attribute name as JSON does: `context_size` is `contextSize`."""
    head, *tail = snake.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


@functools.cache
def wire_fields(cls: type) -> tuple[WireField, ...]:
    """Every JSON field of a wire class, in the order of the source.

    Raises:
        TypeError: The class has no `wire`, so it could not keep unknown fields.
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


def json_name(cls: type, attribute: str) -> str:
    """The JSON spelling of an attribute: `json_name(InferenceServiceSpec, "moe_cpu_layers")` is `moeCPULayers`."""
    return next(slot.key for slot in wire_fields(cls) if slot.attribute == attribute)


def rendered_paths(cls: type, prefix: str) -> Iterator[str]:
    """The JSON path of every field of a class, and of its blocks, that is `rendered`."""
    for slot in wire_fields(cls):
        path = f"{prefix}.{slot.key}"
        if slot.facts.rendered:
            yield path
        elif attrs.has(slot.type):
            yield from rendered_paths(slot.type, path)


def changed_paths(obj: Any, prefix: str = "") -> Iterator[str]:
    """The JSON path of every known leaf whose value is not its default, in the order of the source.

    A default that is written out is no change: the API server writes them all.
    Lists and maps are leaves.
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
