"""The table of kinds, and kinds made from CRDs."""

import copy
from typing import Any

import pytest

from llmkube.apiserver.kinds import crd_rules
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, kinds_from_crd
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.writes import strategy
from llmkube.k8s.crd.definitions import all_crds

CRD_KIND = next(kind for kind in BUILTIN_KINDS if kind.resource.kind == "CustomResourceDefinition")
SCHEMA = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}


def crd(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.test.dev"},
        "spec": {
            "group": "test.dev",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
            **changes,
        },
    }


def with_schema(**properties: Any) -> dict[str, Any]:
    body = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    return crd(versions=[version])


def judge(sent: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    completed, _ = strategy.complete(CRD_KIND, sent)
    prepared = strategy.prepare(CRD_KIND, completed, old)
    return [str(error) for error in strategy.check(CRD_KIND, prepared, old)]


def test_every_builtin_kind_is_named_once():
    """No two built-in kinds share a resource or an OpenAPI name, and each knows apiVersion, kind and metadata."""
    assert len({kind.resource.full_name for kind in BUILTIN_KINDS}) == len(BUILTIN_KINDS)
    assert len({kind.definition for kind in BUILTIN_KINDS}) == len(BUILTIN_KINDS)
    assert all({"apiVersion", "kind", "metadata"} <= kind.schema.properties.keys() for kind in BUILTIN_KINDS)


def test_every_keyed_list_declares_its_keys():
    """Keyed lists of built-in kinds have object items with every key declared."""

    def walk(schema: Schema) -> None:
        if schema.list_type == "map":
            assert schema.items is not None
            assert set(schema.list_map_keys) <= schema.items.properties.keys()
        for inner in (*schema.properties.values(), schema.items, schema.additional):
            if inner is not None:
                walk(inner)

    for kind in BUILTIN_KINDS:
        walk(kind.schema)


@pytest.mark.parametrize("manifest", all_crds(), ids=lambda manifest: manifest["metadata"]["name"])
def test_our_own_crds_are_accepted(manifest: dict[str, Any]):
    """The CRDs that LLMKube ships are structural, lose nothing to pruning and become kinds with a status."""
    completed, dropped = strategy.complete(CRD_KIND, manifest)
    assert dropped == ()
    assert judge(manifest) == []
    (kind,) = kinds_from_crd(completed)
    assert kind.status_subresource
    assert kind.resource.group == "inference.llmkube.dev"


def test_a_kind_from_a_crd_has_the_crds_names():
    """Names, scale, columns, short names and the OpenAPI name come from the CRD."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n", "priority": 1}],
        "selectableFields": [{"jsonPath": ".spec.n"}],
        "deprecated": True,
    }
    old = {**version, "name": "v1beta1", "served": False, "storage": False}
    names = {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]}
    completed, _ = strategy.complete(CRD_KIND, crd(versions=[version, old], names=names))
    (kind,) = kinds_from_crd(completed)
    assert (kind.singular, kind.list_kind, kind.definition) == ("widget", "WidgetList", "dev.test.v1.Widget")
    assert kind.resource.short_names == ("wd",)
    assert kind.resource.subresources == ("status", "scale")
    assert kind.scale is not None
    assert kind.scale.spec_path == ".spec.replicas"
    assert kind.printer_columns[0].priority == 1
    assert kind.selectable_fields == ("spec.n",)
    assert kind.deprecation_warning == "test.dev/v1 Widget is deprecated"


def test_a_custom_kinds_metadata_merges_and_is_closed():
    """A custom object's finalizers are a set and unknown metadata is dropped, whatever the CRD says of metadata."""
    completed, _ = strategy.complete(CRD_KIND, crd())
    (kind,) = kinds_from_crd(completed)
    assert kind.schema.properties["metadata"].properties["finalizers"].list_type == "set"
    _, dropped = strategy.complete(kind, {"metadata": {"name": "a", "colour": "red"}, "spec": {"n": 1, "z": 2}})
    assert dropped == ("metadata.colour", "spec.z")


def test_a_crd_may_restrict_names():
    """A pattern for metadata.name in the CRD's schema is enforced."""
    body = {
        **SCHEMA,
        "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    (kind,) = kinds_from_crd(crd(versions=[version]))
    errors = strategy.check(kind, {"metadata": {"name": "long-name"}}, None)
    assert [str(error) for error in errors] == ["metadata.name: Too long: may not be more than 3 bytes"]


BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        crd(group="other.dev"),
        'metadata.name: Invalid value: "widgets.test.dev": must be spec.names.plural+"."+spec.group',
    ),
    (crd(scope="Galaxy"), 'spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced"'),
    (crd(versions=[]), "spec.versions: Invalid value: []: must have exactly one version marked as storage version"),
    (crd(versions=[]), "status.storedVersions: Invalid value: null: must have at least one stored version"),
    (
        crd(versions=[{"name": "v1", "served": True, "storage": True}]),
        "spec.versions[0].schema.openAPIV3Schema: Required value",
    ),
    (
        with_schema(a={}),
        "properties[spec].properties[a].type: Required value: must not be empty for specified object fields",
    ),
    (with_schema(a={"type": "array"}), "properties[a].items: Required value: must be specified"),
    (with_schema(a={"type": "integer", "default": "x"}), "properties[a].default: Invalid value: "),
    (
        with_schema(a={"type": "object", "properties": {"b": {"type": "string"}}, "default": {"c": 1}}),
        "must not have unknown fields: c",
    ),
    (
        with_schema(
            a={"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "string"}}
        ),
        "additionalProperties and properties are mutual exclusive",
    ),
    (
        with_schema(a={"type": "string", "anyOf": [{"type": "string"}]}),
        "anyOf[0].type: Forbidden: must be empty to be structural",
    ),
    (
        with_schema(a={"type": "array", "uniqueItems": True, "items": {"type": "string"}}),
        "uniqueItems cannot be set to true",
    ),
    (
        with_schema(a={"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}),
        "must not be empty if x-kubernetes-list-type is map",
    ),
    (
        with_schema(
            a={
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            }
        ),
        "it must have a default or be a required property",
    ),
    (with_schema(a={"type": "string", "x-kubernetes-validations": [{"rule": "self =="}]}), "compilation failed"),
    (with_schema(a={"type": "string", "x-kubernetes-validations": [{}]}), "rule is not specified"),
    (with_schema(a={"type": "string", "pattern": "("}), "must be a valid regular expression"),
    (
        with_schema(a={"x-kubernetes-int-or-string": True, "type": "string"}),
        "must be empty if x-kubernetes-int-or-string",
    ),
    (crd(conversion={"strategy": "Webhook"}), 'spec.conversion.strategy: Unsupported value: "Webhook"'),
]


@pytest.mark.parametrize(("sent", "message"), BROKEN)
def test_a_broken_crd_is_refused_with_the_path(sent: dict[str, Any], message: str):
    """Names, versions and every structural rule are enforced in kube-apiserver's words."""
    assert any(message in error for error in judge(sent))


def test_int_or_string_may_repeat_itself():
    """The two-branch anyOf that generators write beside x-kubernetes-int-or-string is allowed."""
    assert (
        judge(with_schema(a={"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}))
        == []
    )


def test_a_crds_identity_cannot_change():
    """Group, scope, kind and plural are fixed once the CRD exists."""
    completed, _ = strategy.complete(CRD_KIND, crd())
    stored = copy.deepcopy(completed)
    stored["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    changed = copy.deepcopy(stored)
    changed["spec"]["scope"] = "Cluster"
    changed["spec"]["names"]["kind"] = "Gadget"
    assert judge(changed, stored) == [
        'spec.scope: Invalid value: "Cluster": field is immutable',
        'spec.names.kind: Invalid value: "Gadget": field is immutable',
    ]


def test_accepted_status_keeps_times_and_old_versions():
    """Conditions keep their time while they stay true, and a version that was ever stored stays listed."""
    completed, _ = strategy.complete(CRD_KIND, crd())
    first = crd_rules.accepted_status(completed, "t0")
    assert [condition["type"] for condition in first["conditions"]] == ["NamesAccepted", "Established"]
    later = crd_rules.accepted_status({**completed, "status": {**first, "storedVersions": ["v0"]}}, "t1")
    assert {condition["lastTransitionTime"] for condition in later["conditions"]} == {"t0"}
    assert later["storedVersions"] == ["v0", "v1"]
