"""The generated CRDs are structural schemas that say what the classes mean."""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
import yaml

from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.definitions import KINDS, all_crds, crd_manifest, crds_yaml, object_schema, pod_parts
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceStatus
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.placement import Autoscaling, EnvVar
from llmkube.k8s.crd.serving import SpeculativeDecoding
from llmkube.k8s.fields import IntOrString, Rule, SchemaFacts, Wired, field, wire_fields

ROOTS = [crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in all_crds()]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


PARTS = tuple(
    f".spec.{name}"
    for name in (
        "affinity", "env[].valueFrom", "extraVolumeMounts[]", "extraVolumes[]", "podSecurityContext",
        "prefetchTolerations[]", "probeOverrides.liveness", "probeOverrides.readiness", "probeOverrides.startup",
        "proxy.resources", "securityContext", "tolerations[]", "topologySpreadConstraints[]",
    )
)  # fmt: skip


def within_a_pod_part(path: str) -> bool:
    """Whether a path leads into what is Kubernetes' own."""
    return path.startswith(PARTS)


NODES = [(path, node) for root in ROOTS for path, node in nodes(root)]


def test_every_node_is_structural() -> None:
    """Every node has one type, lists say what they hold, and objects either list properties or say that they do not."""
    for path, node in NODES:
        if "x-kubernetes-int-or-string" in node:
            assert "type" not in node, path
            continue
        assert node.get("type") in {"object", "array", "string", "boolean", "integer", "number"}, path
        assert ("items" in node) == (node["type"] == "array"), path
        if node["type"] == "object" and path != ".metadata":
            shapes = {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"} & node.keys()
            assert len(shapes) == 1, path
        assert set(node.get("required", ())) <= node.get("properties", {}).keys(), path


def test_every_field_has_a_description() -> None:
    """`kubectl explain` has one sentence for every field; what a part of a pod has in it is explained with pods."""
    silent = [
        f"{path}.{name}"
        for path, node in NODES
        if not within_a_pod_part(path)
        for name, inner in node.get("properties", {}).items()
        if name != "metadata" and not re.fullmatch(r"\S.*\.", inner.get("description", ""), re.DOTALL)
    ]
    assert silent == []


def test_integers_have_a_width() -> None:
    """Every integer is int32 or int64, every time a date-time."""
    for path, node in NODES:
        if node.get("type") == "integer":
            assert node["format"] in {"int32", "int64"}, path
        if path.endswith(("Time", "lastUpdated", "lastRevalidated")):
            assert node["format"] == "date-time", path


def test_bounds_admit_their_default() -> None:
    """No default is outside its own enum, bounds or type."""
    python = {"string": str, "boolean": bool, "integer": int, "number": float, "object": dict}
    for path, node in NODES:
        if "default" in node:
            assert isinstance(node["default"], python[node["type"]]), path
            assert node["default"] in node.get("enum", [node["default"]]), path
            if node["type"] == "integer":
                assert node.get("minimum", 0) <= node["default"] <= node.get("maximum", 10**9), path


def filled(schema: dict[str, Any], obj: dict[str, Any]) -> dict[str, Any]:
    """The object after the API server's defaulting."""
    for name, inner in schema.get("properties", {}).items():
        if "default" in inner and name not in obj:
            obj[name] = inner["default"]
        if isinstance(obj.get(name), dict):
            obj[name] = filled(inner, dict(obj[name]))
    return obj


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (Model, {"source": "/m.gguf"}),
        (InferenceService, {"modelRef": "m"}),
        (ModelRouter, {"backends": [{"name": "mac", "inferenceServiceRef": {"name": "phi"}}]}),
    ],
)
def test_server_and_class_agree_on_defaults(kind: Any, spec: dict[str, Any]) -> None:
    """An object means the same before and after the API server has filled in its defaults."""
    short = {"metadata": {"name": "a", "namespace": "b"}, "spec": spec}
    schema = crd_manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    full = filled(schema, {"metadata": short["metadata"], "spec": dict(spec)})
    assert full["spec"].keys() > spec.keys()
    assert decode(kind, full) == decode(kind, short)


def test_defaults_are_filled_in_where_columns_read_them() -> None:
    """`kubectl get models` shows an accelerator even when the manifest has no hardware block."""
    full = filled(ROOTS[0], {"spec": {"source": "/m.gguf"}})
    assert full["spec"]["hardware"] == {"accelerator": "cpu"}


def test_subresources() -> None:
    """Every kind has status, and the service scales by replicas, of the pods that its status selects."""
    model, service, *others = (crd["spec"]["versions"][0]["subresources"] for crd in all_crds())
    assert all(each == {"status": {}} for each in (model, *others))
    assert service == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_columns_point_at_fields() -> None:
    """Every printer column reads a field that exists, and the phase of the first kinds comes first."""
    for kind, root in zip(KINDS, ROOTS, strict=True):
        columns = crd_manifest(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
        if kind in {Model, InferenceService, ModelRouter}:
            assert columns[0] == {"name": "Phase", "type": "string", "jsonPath": ".status.phase"}
        assert columns[-1] == {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
        for column in columns[:-1]:
            schema = root
            for step in re.sub(r"\[.*?\)\]", "", column["jsonPath"]).strip(".").split("."):
                schema = schema.get("items", schema)["properties"][step]
            assert schema["type"] == column["type"], column


def test_conditions_are_a_map_by_type() -> None:
    """Several writers can each own their condition types under server-side apply."""
    for root in ROOTS:
        conditions = root["properties"]["status"]["properties"]["conditions"]
        assert conditions["x-kubernetes-list-type"] == "map"
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]
        assert "type" in conditions["items"]["required"]


def test_names_and_scope() -> None:
    """The definitions carry the group, the plural names and the category that the guides use."""
    names = [(crd["metadata"]["name"], crd["spec"]["names"]["categories"], crd["spec"]["scope"]) for crd in all_crds()]
    assert names == [
        ("models.inference.llmkube.dev", ["llmkube"], "Namespaced"),
        ("inferenceservices.inference.llmkube.dev", ["llmkube"], "Namespaced"),
        ("modelrouters.inference.llmkube.dev", ["llmkube"], "Namespaced"),
        ("modelpools.inference.llmkube.dev", ["llmkube"], "Namespaced"),
        ("gpuquotas.inference.llmkube.dev", ["llmkube"], "Namespaced"),
    ]


def test_yaml_is_plain_and_stable() -> None:
    """The YAML reads back as the definitions, has no anchors, and is the same every time."""
    text = crds_yaml()
    assert list(yaml.safe_load_all(text)) == all_crds()
    assert not re.search(r"[&*]id\d+", text)
    assert text == crds_yaml()


def test_rules_reach_the_schema() -> None:
    """A class's rules are part of every schema that uses the class, once."""
    spec = ROOTS[1]["properties"]["spec"]["properties"]
    for name, cls in (("autoscaling", Autoscaling), ("speculativeDecoding", SpeculativeDecoding)):
        rules = [{"rule": rule.rule, "message": rule.message} for rule in cls.RULES]
        assert spec[name]["x-kubernetes-validations"] == rules


@attrs.frozen(kw_only=True)
class Sample(Wired):
    """Every kind of field that a class can declare.

    The second paragraph is for readers of the source.
    """

    port: IntOrString = field("A port.", 80)
    names: tuple[str, ...] = field("Names.", (), min_items=1, max_items=2, list_map_keys=("name",))
    condition: Condition | None = field("A block.", atomic=True, rules=(Rule("has(self.type)", "needs a type"),))
    share: float | None = field("A number.", minimum=0, exclusive_minimum=True)
    tags: tuple[str, ...] = field(
        "Tags.", (), max_items=3, items=SchemaFacts(max_length=5, rules=(Rule("self != 'x'", "not x", ".y"),))
    )
    probe: Mapping[str, Any] | None = field("A part of a pod.", pod_part="Probe")


def test_facts_reach_the_schema() -> None:
    """Whatever a field says about itself appears in its schema, in Kubernetes' words."""
    schema = object_schema(Sample)
    assert schema["description"] == "Every kind of field that a class can declare."
    port, names, condition, share, tags, probe = schema["properties"].values()
    assert port == {"x-kubernetes-int-or-string": True, "description": "A port.", "default": 80}
    assert (names["minItems"], names["maxItems"], names["x-kubernetes-list-map-keys"]) == (1, 2, ["name"])
    assert condition["x-kubernetes-map-type"] == "atomic"
    assert condition["x-kubernetes-validations"] == [{"rule": "has(self.type)", "message": "needs a type"}]
    assert (share["minimum"], share["exclusiveMinimum"]) == (0, True)
    assert "exclusiveMinimum" not in port
    rules = [{"rule": "self != 'x'", "message": "not x", "fieldPath": ".y"}]
    assert tags["maxItems"] == 3
    assert tags["items"] == {"type": "string", "maxLength": 5, "x-kubernetes-validations": rules}
    assert probe == {**pod_parts()["Probe"], "description": "A part of a pod."}


def test_a_type_without_a_schema_is_a_bug() -> None:
    """A field of a type that JSON does not have is refused when the schema is made."""

    @attrs.frozen
    class Odd(Wired):
        """Holds what no schema can say."""

        value: complex = field("A number.", 0j)

    with pytest.raises(TypeError, match="no schema for"):
        object_schema(Odd)


def test_every_status_number_can_be_unknown() -> None:
    """A status number that was not observed is None, so an observed 0 is written."""
    numbers = [slot for slot in wire_fields(InferenceServiceStatus) if slot.type is int]
    assert numbers
    assert all(slot.default is None for slot in numbers)
    assert encode(InferenceServiceStatus(ready_replicas=0)) == {"readyReplicas": 0}


def test_pod_parts_are_spelled_out() -> None:
    """Nothing in a kind is free-form: what a class keeps as a map is typed by the schema as a pod's part is."""
    free = [path for path, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")]
    assert free == []
    spec = ROOTS[1]["properties"]["spec"]["properties"]
    probe = pod_parts()["Probe"]
    assert [inner["properties"] for inner in spec["probeOverrides"]["properties"].values()] == [probe["properties"]] * 3
    assert spec["tolerations"]["items"] == pod_parts()["Toleration"]
    assert object_schema(EnvVar)["properties"]["valueFrom"]["properties"].keys() >= {"secretKeyRef", "fieldRef"}


def test_every_pod_part_is_used() -> None:
    """Each modelled part of a pod is in some kind, under the name of its field."""
    used = {slot.facts.pod_part for cls in wire_classes() for slot in wire_fields(cls) if slot.facts.pod_part}
    assert used == pod_parts().keys()


def wire_classes() -> list[Any]:
    """Every class that a kind is made of, the kinds included."""
    todo, seen = list(KINDS), []
    while todo:
        cls = todo.pop()
        seen.append(cls)
        inner = [kind for slot in wire_fields(cls) for kind in (slot.type, *typing.get_args(slot.type))]
        todo += [kind for kind in inner if attrs.has(kind) and kind not in seen + todo]
    return seen
