"""Flags that set fields of the CRDs; type, bounds, choices and help come from the field itself."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import click

from llmkube.base.errors import UserError
from llmkube.base.units import parse_quantity
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import QUANTITY
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import WireField, wire_fields
from llmkube.programs.options import Decorator, NumberRange, with_options


@attrs.frozen
class FieldFlag:
    """A flag, and the field that it sets.

    Attributes:
        flag: Such as `--context-size`.
        kind: Model or InferenceService.
        path: Path of the field in JSON, such as `spec.contextSize`.
        metavar: Placeholder for the value in the help; empty for the type's own.
        help: Replaces the description of the field.
        expected: Describes the pattern of the field in errors.
    """

    flag: str
    kind: type[Any]
    path: str
    metavar: str = ""
    help: str = ""
    expected: str = ""

    @property
    def parameter(self) -> str:
        """Name of click's parameter."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def slot(self) -> WireField:
        """The definition of the field."""
        owner: Any = self.kind
        for name in self.path.split("."):
            found = next(each for each in wire_fields(owner) if each.key == name)
            owner = found.type
        return found


FLAGS: Final = (
    FieldFlag("--sha256", Model, "spec.sha256", "DIGEST", expected="64 hexadecimal digits"),
    FieldFlag(
        "--secret", Model, "spec.sourceSecretRef.name", "NAME", help="Secret that holds HF_TOKEN for Hugging Face."
    ),
    FieldFlag("--mmproj", Model, "spec.mmproj", "FILE", help="Projector, to see pictures: a file, or none."),
    FieldFlag("--format", Model, "spec.format"),
    FieldFlag("--gpu-layers", Model, "spec.hardware.gpu.layers"),
    FieldFlag("--gpu-count", Model, "spec.hardware.gpu.count"),
    FieldFlag("--memory-budget", Model, "spec.hardware.memoryBudget", "QUANTITY"),
    FieldFlag("--memory-fraction", Model, "spec.hardware.memoryFraction"),
    FieldFlag("--replicas", InferenceService, "spec.replicas"),
    FieldFlag("--runtime", InferenceService, "spec.runtime"),
    FieldFlag(
        "--engine",
        InferenceService,
        "spec.engine.name",
        "NAME",
        help="Engine of the host's config.toml, with the runtime generic.",
        expected="a name of letters, digits, - and _",
    ),
    FieldFlag("--mode", InferenceService, "spec.mode"),
    FieldFlag("--context-size", InferenceService, "spec.contextSize", "TOKENS"),
    FieldFlag("--parallel", InferenceService, "spec.parallelSlots"),
    FieldFlag("--batch-size", InferenceService, "spec.batchSize", "TOKENS"),
    FieldFlag("--flash-attention", InferenceService, "spec.flashAttention"),
    FieldFlag("--cache-type-k", InferenceService, "spec.cacheTypeK"),
    FieldFlag("--cache-type-v", InferenceService, "spec.cacheTypeV"),
    FieldFlag("--jinja", InferenceService, "spec.jinja"),
    FieldFlag("--priority", InferenceService, "spec.priority"),
    FieldFlag("--cpu", InferenceService, "spec.resources.cpu", "QUANTITY"),
    FieldFlag("--memory", InferenceService, "spec.resources.memory", "QUANTITY"),
    FieldFlag("--image", InferenceService, "spec.image"),
    FieldFlag(
        "--extra-arg",
        InferenceService,
        "spec.extraArgs",
        "ARG",
        help="Argument for the engine: --extra-arg=--mlock. Repeatable.",
    ),
)
"""Flags of `llmkube deploy` that set one field each."""


def field_options(flags: Iterable[FieldFlag]) -> Decorator:
    """Add the options; the value of one that was not given is None, or an empty tuple if it is repeatable."""
    return with_options(*map(_option, flags))


def given_fields(flags: Iterable[FieldFlag], values: Mapping[str, Any]) -> dict[FieldFlag, Any]:
    """Return the fields that the command line sets."""
    found = {each: values[each.parameter] for each in flags}
    return {
        each: list(value) if isinstance(value, tuple) else value
        for each, value in found.items()
        if value not in {None, ()}
    }


def put(obj: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at a path of JSON data; create missing objects on the path."""
    *blocks, last = path.split(".")
    for block in blocks:
        obj = obj.setdefault(block, {})
    obj[last] = value


def _option(each: FieldFlag) -> Decorator:
    slot = each.slot
    facts = slot.facts
    text = each.help or facts.description
    if slot.type is bool:
        return click.option(f"{each.flag}/--no-{each.flag[2:]}", each.parameter, default=None, help=text)
    metavar: str | None = each.metavar or None
    kind: click.ParamType[Any] = click.STRING
    if facts.enum:
        kind = click.Choice([str(choice) for choice in facts.enum])
    elif slot.type is int:
        kind = click.IntRange(_to_int(facts.minimum), _to_int(facts.maximum))
    elif slot.type is float:
        kind = NumberRange(facts.minimum, facts.maximum)
    elif facts.pattern:
        kind = _PatternType(facts.pattern, each.expected)
    many = slot.type not in {str, int, float}
    return click.option(each.flag, each.parameter, type=kind, metavar=metavar, multiple=many, default=None, help=text)


class _PatternType(click.ParamType[str]):
    """Text that matches the pattern of the field."""

    name = "text"

    def __init__(self, pattern: str, expected: str) -> None:
        self._pattern = pattern
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self._pattern == QUANTITY:
            try:
                parse_quantity(value)
            except UserError as exc:
                self.fail(str(exc), param, ctx)
        if not re.search(self._pattern, value):
            self.fail(f'"{value}" is not {self._expected or f"of the form {self._pattern}"}', param, ctx)
        return value


def _to_int(bound: float | None) -> int | None:
    return None if bound is None else int(bound)
