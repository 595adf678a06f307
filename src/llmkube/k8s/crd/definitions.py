"""Generate CustomResourceDefinitions from the classes, so that the API server enforces what the codec reads.

The output is `apiextensions.k8s.io/v1` with structural schemas; free-form parts of a pod get theirs from `podparts`.
Defaults are those of the classes. A block whose absence means all of its defaults (`Hardware`) is filled in by the API
server only if its field has `apply_default=True`; otherwise the stored object stays as short as the user wrote it, and
the class supplies the same values.
"""

import collections.abc
import functools
import inspect
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

import attrs
import yaml

from llmkube.base import json_text
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.fields import REQUIRED, Column, IntOrString, Rule, SchemaFacts, WireField, wire_fields
from llmkube.k8s.resource import Object, Resource


@functools.cache
def _text() -> bytes:
    return resources.files(__package__).joinpath("podparts.json").read_bytes()


def pod_parts() -> dict[str, dict[str, Any]]:
    """Return the structural schema of each part, new on each call: YAML would write a shared node as an alias."""
    parts: dict[str, dict[str, Any]] = json_text.loads(_text())
    return parts


KINDS: Final[tuple[type[Object], ...]] = (Model, InferenceService, ModelRouter, ModelPool, GPUQuota)
"""All custom kinds of the project, in the order in which to create them."""

_SCALARS: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int32"},
    float: {"type": "number"},
    IntOrString: {"x-kubernetes-int-or-string": True},
}

# The first properties of every CRD; the descriptions are ours.
_TYPE_META: Final[dict[str, Any]] = {
    "apiVersion": {"type": "string", "description": "Group and version of this representation."},
    "kind": {"type": "string", "description": "Kind of the object."},
}


def crd_manifest(kind: type[Object]) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind.

    Args:
        kind: A class with `RESOURCE`, and optionally `COLUMNS` and `SCALE`.
    """
    resource = kind.RESOURCE
    columns: Iterable[Column] = getattr(kind, "COLUMNS", ())
    version: dict[str, Any] = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _kind_schema(kind)},
        "subresources": _subresources(resource, getattr(kind, "SCALE", None)),
        "additionalPrinterColumns": [_column(column) for column in columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.full_name},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": resource.list_kind,
                "plural": resource.plural,
                "singular": resource.singular,
                "shortNames": list(resource.short_names),
                "categories": list(resource.categories),
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [{key: value for key, value in version.items() if value}],
        },
    }


def all_crds(accelerator: str = "cpu") -> list[dict[str, Any]]:
    """Return the definitions of all custom kinds, new on each call; `accelerator` is that of Models that name none."""
    crds = [crd_manifest(kind) for kind in KINDS]
    schema = crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["properties"]["hardware"]["properties"]["accelerator"]["default"] = accelerator
    return crds


def crds_yaml(crds: Iterable[Mapping[str, Any]] | None = None) -> str:
    """Return definitions as one YAML stream, deterministically; by default, those of all custom kinds."""
    given = all_crds() if crds is None else crds
    return yaml.safe_dump_all(given, sort_keys=False, explicit_start=True, width=120, allow_unicode=True)


# -- the schema of a class --------------------------------------------------------------------------------------------


def _kind_schema(kind: type) -> dict[str, Any]:
    schema = object_schema(kind)
    properties = {**_TYPE_META, **schema["properties"], "metadata": {"type": "object"}}
    required = [name for name in schema.get("required", []) if name != "metadata"]
    return {**schema, "properties": properties, "required": required}


def object_schema(cls: type) -> dict[str, Any]:
    """Return the structural schema of one wire class: a property per field, rules and description."""
    schema: dict[str, Any] = {
        "type": "object",
        "description": inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0],
        "properties": {slot.key: _field_schema(slot) for slot in wire_fields(cls)},
    }
    required = [slot.key for slot in wire_fields(cls) if slot.facts.required]
    if required:
        schema["required"] = required
    rules: tuple[Rule, ...] = getattr(cls, "RULES", ())
    return schema | _rules(rules)


def _field_schema(slot: WireField) -> dict[str, Any]:
    facts = slot.facts
    schema = _type_schema(slot.type, facts)
    schema.update(_bounds(facts))
    if facts.description:
        schema["description"] = facts.description
    if facts.list_map_keys:
        schema["x-kubernetes-list-type"] = "map"
        schema["x-kubernetes-list-map-keys"] = list(facts.list_map_keys)
    if facts.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    schema.update(_rules((*getattr(slot.type, "RULES", ()), *facts.rules)))
    schema.update(_default(slot))
    return schema


def _type_schema(annotation: Any, facts: SchemaFacts) -> dict[str, Any]:
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    if attrs.has(annotation):
        return object_schema(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return {"type": "array", "items": _item_schema(arguments[0], facts)}
    if origin is collections.abc.Mapping and facts.pod_part:
        return pod_parts()[facts.pod_part]
    if origin is collections.abc.Mapping and arguments[1] is Any:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    if origin is collections.abc.Mapping:
        return {"type": "object", "additionalProperties": _type_schema(arguments[1], facts)}
    raise TypeError(f"no schema for {annotation!r}")


def _item_schema(annotation: Any, facts: SchemaFacts) -> dict[str, Any]:
    """Return the schema of one item of a list, with the rules of its class."""
    schema = _type_schema(annotation, facts)
    return schema if facts.items is None else {**schema, **_bounds(facts.items), **_rules(facts.items.rules)}


def _bounds(facts: SchemaFacts) -> dict[str, Any]:
    entries = {
        "format": facts.format,
        "enum": list(facts.enum),
        "minimum": facts.minimum,
        "exclusiveMinimum": facts.exclusive_minimum or None,
        "maximum": facts.maximum,
        "minLength": facts.min_length,
        "maxLength": facts.max_length,
        "minItems": facts.min_items,
        "maxItems": facts.max_items,
        "pattern": facts.pattern,
    }
    return {key: value for key, value in entries.items() if value is not None and value not in ("", [])}


def _rules(rules: Iterable[Rule]) -> dict[str, Any]:
    validations = [_rule(rule) for rule in rules]
    return {"x-kubernetes-validations": validations} if validations else {}


def _rule(rule: Rule) -> dict[str, str]:
    entries = {"rule": rule.rule, "message": rule.message}
    return {**entries, "fieldPath": rule.field_path} if rule.field_path else entries


def _default(slot: WireField) -> dict[str, Any]:
    """Return a scalar's default, `{}` for a block that the API server fills in; nothing for empty defaults and None."""
    default = slot.default
    if default is REQUIRED or default is None or default in ("", ()) or slot.facts.required:
        return {}
    if attrs.has(type(default)):
        return {"default": {}} if slot.facts.apply_default else {}
    return {} if isinstance(default, Mapping) else {"default": default}


def _subresources(resource: Resource, scale: Mapping[str, str] | None) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}} if "status" in resource.subresources else {}
    return {**subresources, "scale": dict(scale)} if scale else subresources


def _column(column: Column) -> dict[str, Any]:
    shown = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**shown, "priority": 1} if column.wide else shown
