"""Validation of CustomResourceDefinitions: names, versions and the rules of structural schemas.

Facts: kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions" (structural schemas, the forbidden
keywords, defaulting, validation rules); wording as in `k8s.io/apiextensions-apiserver`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.schema import cel, patterns
from llmkube.apiserver.schema.defaults import apply_defaults, prune
from llmkube.apiserver.schema.structural import JsonObject, RuleError, Schema
from llmkube.apiserver.schema.validation import validate
from llmkube.apiserver.values.field_errors import (
    FieldError,
    Verbatim,
    at,
    at_item,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
)
from llmkube.apiserver.values.json_values import same
from llmkube.k8s.wire import name_rules

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_FORBIDDEN: Final = ("$ref", "definitions", "dependencies", "deprecated", "discriminator", "id", "patternProperties")
_FORBIDDEN_IN_BRANCHES: Final = (
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
)
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_INT_OR_STRING_BRANCH: Final = [{"type": "integer"}, {"type": "string"}]
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_SIMPLE_PATH: Final = re.compile(r"(\.[A-Za-z0-9_-]+)+")

Old = Mapping[str, Any] | None


def fill(obj: JsonObject) -> None:
    """Complete the names and the conversion of a CRD."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    names = spec.get("names")
    if isinstance(names, dict) and isinstance(names.get("kind"), str):
        if not names.get("singular"):
            names["singular"] = names["kind"].lower()
        if not names.get("listKind"):
            names["listKind"] = f"{names['kind']}List"
    spec.setdefault("conversion", {"strategy": "None"})


def prepare(obj: JsonObject, old: Old) -> None:
    """Set the stored versions in the status of a new CRD."""
    if old is None:
        stored = [version["name"] for version in _versions(obj) if version.get("storage") and version.get("name")]
        obj["status"] = {"storedVersions": stored}


def accepted_status(crd: Mapping[str, Any], now: str) -> JsonObject:
    """Return the status of a CRD whose names are free; kubectl waits for it with `--for condition=established`."""
    spec, status = crd["spec"], crd.get("status") or {}
    storage = next(version["name"] for version in _versions(crd) if version.get("storage"))
    stored = list(status.get("storedVersions") or ())
    known = {condition["type"]: condition for condition in status.get("conditions") or ()}

    def condition(kind: str, reason: str, message: str) -> JsonObject:
        existing = known.get(kind)
        since = existing["lastTransitionTime"] if existing and existing.get("status") == "True" else now
        return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}

    return {
        "acceptedNames": spec["names"],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": stored if storage in stored else [*stored, storage],
    }


def check(obj: Mapping[str, Any], old: Old) -> Iterator[FieldError]:
    """Validate a CRD as a whole."""
    spec = obj.get("spec") or {}
    names = spec.get("names") or {}
    yield from _check_names(obj, spec, names)
    versions = _versions(obj)
    yield from _check_versions(versions)
    if (spec.get("conversion") or {}).get("strategy") not in {"None", None}:
        yield not_supported("spec.conversion.strategy", spec["conversion"]["strategy"], ("None",))
    if spec.get("preserveUnknownFields"):
        yield invalid(
            "spec.preserveUnknownFields",
            value=True,
            detail="cannot set to true, set x-kubernetes-preserve-unknown-fields to true in"
            " spec.versions[*].schema instead",
        )
    bodies = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    hoisted = all(same(body, bodies[0]) for body in bodies)
    for index, body in enumerate(bodies[:1] if hoisted else bodies):
        where = "spec.validation" if hoisted else at(at_item("spec.versions", index), "schema")
        if not isinstance(body, Mapping):
            yield required(at(at_item("spec.versions", index), "schema.openAPIV3Schema"))
        else:
            yield from check_schema(body, at(where, "openAPIV3Schema"))
            if body.get("type") != "object" and any("status" in (each.get("subresources") or {}) for each in versions):
                why = "at the root of the schema if the status subresource is enabled"
                kind = body.get("type") or ""
                yield invalid(at(where, "openAPIV3Schema.type"), kind, f'only "object" is allowed as the type {why}')
    if old is not None:
        yield from _check_change(spec, old.get("spec") or {})


def check_schema(raw: Mapping[str, Any], path: str) -> list[FieldError]:
    """Validate a version's schema: structural, with valid defaults and rules that compile."""
    if raw.get("type") != "object":
        if not raw.get("type"):
            return [required(at(path, "type"), "must not be empty at the root")]
        return [invalid(at(path, "type"), raw["type"], "must be object at the root")]
    errors = list(_check_node(raw, path))
    restricted = set(((raw.get("properties") or {}).get("metadata") or {}).get("properties") or ())
    if restricted - {"name", "generateName"}:
        why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        errors.append(forbidden(at(path, "properties[metadata]"), why))
    return errors


def _versions(obj: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [version for version in (obj.get("spec") or {}).get("versions") or () if isinstance(version, Mapping)]


def _check_names(obj: Mapping[str, Any], spec: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[FieldError]:
    group, plural = spec.get("group") or "", names.get("plural") or ""
    name = (obj.get("metadata") or {}).get("name") or ""
    if name != f"{plural}.{group}":
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    if not group:
        yield required("spec.group")
    elif problem := name_rules.subdomain(group):
        yield invalid("spec.group", group, problem)
    elif "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot")
    if spec.get("scope") not in {"Cluster", "Namespaced"}:
        yield not_supported("spec.scope", spec.get("scope") or "", ("Cluster", "Namespaced"))
    yield from _check_name_fields(names)


def _check_name_fields(names: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in ("plural", "singular", "kind", "listKind"):
        text = names.get(field) or ""
        lowered = text if field == "plural" else text.lower()
        if not text:
            yield required(at("spec.names", field))
        elif problem := name_rules.label_1035(lowered):
            yield invalid(at("spec.names", field), text, problem)
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")
    for field in ("shortNames", "categories"):
        for index, text in enumerate(names.get(field) or ()):
            if problem := name_rules.label_1035(text):
                yield invalid(at_item(at("spec.names", field), index), text, problem)


def _check_versions(versions: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path = at_item("spec.versions", index)
        name = version.get("name") or ""
        if problem := name_rules.label_1035(name):
            yield invalid(at(path, "name"), name, problem)
        if name in seen:
            yield duplicate(at(path, "name"), name)
        seen.add(name)
        yield from _check_columns(version, path)
        scale = (version.get("subresources") or {}).get("scale")
        if isinstance(scale, Mapping):
            yield from _check_scale(scale, at(path, "subresources.scale"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield invalid("spec.versions", list(versions), "must have exactly one version marked as storage version")
        if not any(version.get("storage") for version in versions):
            yield invalid("status.storedVersions", Verbatim("null"), "must have at least one stored version")


def _check_columns(version: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        where = at_item(at(path, "additionalPrinterColumns"), index)
        if column.get("type") not in _COLUMN_TYPES:
            yield invalid(at(where, "type"), column.get("type") or "", f"must be one of {','.join(_COLUMN_TYPES)}")
        if not str(column.get("jsonPath") or "").startswith("."):
            text = column.get("jsonPath") or ""
            yield invalid(at(where, "jsonPath"), text, "must be a simple json path starting with .")


def _check_scale(scale: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field, root, needed in (
        ("specReplicasPath", ".spec.", True),
        ("statusReplicasPath", ".status.", True),
        ("labelSelectorPath", ".status.", False),
    ):
        text = scale.get(field) or ""
        if not text:
            if needed:
                yield required(at(path, field))
        elif not _SIMPLE_PATH.fullmatch(text):
            yield invalid(at(path, field), text, "must be a json path without array notation")
        elif not text.startswith(root) and not (field == "labelSelectorPath" and text.startswith(".spec.")):
            yield invalid(at(path, field), text, f"should be a json path under {root.rstrip('.')}")


def _check_change(spec: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in ("group", "scope"):
        if spec.get(field) != before.get(field):
            yield immutable(at("spec", field), spec.get(field))
    for field in ("kind", "plural"):
        now, then = ((side.get("names") or {}).get(field) for side in (spec, before))
        if now != then:
            yield immutable(at("spec.names", field), now)


def _check_node(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate one node of the structural tree, and all below it."""
    kind = raw.get("type") or ""
    loose = raw.get("x-kubernetes-int-or-string") or raw.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not loose:
        yield required(at(path, "type"), "must not be empty for specified object fields")
    elif kind and kind not in _TYPES:
        yield not_supported(at(path, "type"), kind, _TYPES)
    if raw.get("x-kubernetes-int-or-string") and kind:
        yield invalid(at(path, "type"), kind, "must be empty if x-kubernetes-int-or-string is true")
    yield from _check_keywords(raw, path)
    yield from _check_list(raw, kind, path)
    yield from _check_branches(raw, path)
    properties = raw.get("properties") or {}
    for name, inner in properties.items():
        yield from _check_node(inner, at_item(at(path, "properties"), name))
    for word in ("items", "additionalProperties"):
        if isinstance(raw.get(word), Mapping):
            yield from _check_node(raw[word], at(path, word))
    yield from _check_default(raw, path)
    for index, rule in enumerate(raw.get("x-kubernetes-validations") or ()):
        yield from _check_rule(rule, at_item(at(path, "x-kubernetes-validations"), index))


def _check_keywords(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for word in _FORBIDDEN:
        if raw.get(word):
            yield forbidden(at(path, word), f"{word} is not supported")
    if raw.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(at(path, "uniqueItems"), why)
    if raw.get("additionalProperties") is False:
        yield forbidden(at(path, "additionalProperties"), "additionalProperties cannot be set to false")
    if raw.get("properties") and raw.get("additionalProperties") is not None:
        yield forbidden(at(path, "additionalProperties"), "additionalProperties and properties are mutual exclusive")
    if raw.get("x-kubernetes-embedded-resource") and raw.get("type") != "object":
        found = raw.get("type") or ""
        yield invalid(at(path, "type"), found, "must be object if x-kubernetes-embedded-resource is true")
    if "x-kubernetes-preserve-unknown-fields" in raw and raw["x-kubernetes-preserve-unknown-fields"] is not True:
        yield invalid(at(path, "x-kubernetes-preserve-unknown-fields"), value=False, detail="must be true or undefined")
    pattern = raw.get("pattern")
    if pattern:
        try:
            patterns.compiled(pattern)
        except patterns.PatternError as error:
            yield invalid(at(path, "pattern"), pattern, f"must be a valid regular expression, but isn't: {error}")


def _check_list(raw: Mapping[str, Any], kind: str, path: str) -> Iterator[FieldError]:
    relation, keys = raw.get("x-kubernetes-list-type"), raw.get("x-kubernetes-list-map-keys") or ()
    items = raw.get("items")
    if kind == "array" and items is None:
        yield required(at(path, "items"), "must be specified")
    if isinstance(items, list):
        yield forbidden(at(path, "items"), "items must be a schema object and not an array")
        return
    if relation is None:
        if keys:
            where = at(path, "x-kubernetes-list-type")
            yield required(where, "must be map if x-kubernetes-list-map-keys is non-empty")
        return
    if kind != "array":
        yield invalid(at(path, "type"), kind, "must be array if x-kubernetes-list-type is specified")
    if relation not in {"atomic", "map", "set"}:
        yield not_supported(at(path, "x-kubernetes-list-type"), relation, ("atomic", "map", "set"))
    if relation == "map":
        yield from _check_keyed(items if isinstance(items, Mapping) else {}, keys, path)


def _check_keyed(item: Mapping[str, Any], keys: Sequence[str], path: str) -> Iterator[FieldError]:
    """Validate a keyed list: its items are objects that always have every key."""
    where = at(path, "x-kubernetes-list-map-keys")
    if not keys:
        yield required(where, "must not be empty if x-kubernetes-list-type is map")
    if item.get("type") != "object":
        found = item.get("type") or ""
        yield invalid(at(path, "items.type"), found, "must be object if parent array's x-kubernetes-list-type is map")
    declared = item.get("properties") or {}
    for index, name in enumerate(keys):
        if name not in declared:
            yield invalid(at_item(where, index), name, "must be the name of a property of the items")
        elif name not in (item.get("required") or ()) and "default" not in declared[name]:
            yield required(
                at(at_item(at(path, "items.properties"), name), "default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            )


def _check_branches(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for word in _BRANCHES:
        for index, branch in enumerate(raw.get(word) or ()):
            if raw.get("x-kubernetes-int-or-string") and branch in _INT_OR_STRING_BRANCH:
                continue
            yield from _check_branch(branch, at_item(at(path, word), index))
    if isinstance(raw.get("not"), Mapping):
        yield from _check_branch(raw["not"], at(path, "not"))


def _check_branch(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate a branch of allOf, anyOf, oneOf or not: it may add bounds, but no structure."""
    for word in _FORBIDDEN_IN_BRANCHES:
        if raw.get(word):
            yield forbidden(at(path, word), "must be empty to be structural")
    yield from _check_branches(raw, path)
    for name, inner in (raw.get("properties") or {}).items():
        yield from _check_branch(inner, at_item(at(path, "properties"), name))
    if isinstance(raw.get("items"), Mapping):
        yield from _check_branch(raw["items"], at(path, "items"))


def _check_default(raw: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if "default" not in raw:
        return
    schema, default = Schema.parse(raw), raw["default"]
    where = at(path, "default")
    if isinstance(default, Mapping):
        _, unknown = prune(default, schema)
        for field in unknown:
            yield invalid(where, default, f"must not have unknown fields: {field}")
        default = apply_defaults(default, schema)
    yield from validate(default, None, schema, where)


def _check_rule(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    text = str(rule.get("rule") or "").strip()
    if not text:
        yield required(at(path, "rule"), "rule is not specified")
        return
    for field in ("rule", "messageExpression"):
        expression = rule.get(field)
        if expression:
            try:
                cel.compiled(expression)
            except RuleError as error:
                yield invalid(at(path, field), expression, str(error))
    message = rule.get("message")
    if message is not None and not message.strip():
        yield invalid(at(path, "message"), message, "message must be non-empty if specified")
    if message and "\n" in message:
        yield invalid(at(path, "message"), message, "message must not contain line breaks")
