"""Rules for a CustomResourceDefinition and for its changes."""

import copy
from typing import Any

import pytest

from apiserver.kinds.widget_definition import CRD_KIND, crd
from llmkube.apiserver.kinds import crd_rules
from llmkube.apiserver.kinds.kind_info import kinds_from_crd
from llmkube.apiserver.writes import strategy
from llmkube.k8s.crd.definitions import all_crds


def with_schema(**properties: Any) -> dict[str, Any]:
    body = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    return crd(versions=[version])


def judge(sent: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    completed, _ = strategy.complete(CRD_KIND, sent)
    prepared = strategy.prepare(CRD_KIND, completed, old)
    return [str(error) for error in strategy.check(CRD_KIND, prepared, old)]


@pytest.mark.parametrize("manifest", all_crds(), ids=lambda manifest: manifest["metadata"]["name"])
def test_our_own_crds_are_accepted(manifest: dict[str, Any]):
    """The CRDs that LLMKube ships are structural, lose nothing to pruning and become kinds with a status."""
    completed, dropped = strategy.complete(CRD_KIND, manifest)
    assert dropped == ()
    assert judge(manifest) == []
    (kind,) = kinds_from_crd(completed)
    assert kind.status_subresource
    assert kind.resource.group == "inference.llmkube.dev"


BROKEN: list[tuple[dict[str, Any], str]] = [  # beyond what the recorded script tries
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
    """The two-branch anyOf that generators add to x-kubernetes-int-or-string is allowed."""
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
