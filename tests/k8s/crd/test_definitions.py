"""The generated CRDs are structural schemas that say what the classes mean."""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import celpy
import pytest
import yaml

from llmkube.k8s.builtins import CustomResourceDefinition
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.definitions import KINDS, all_crds, crd_manifest, crds_yaml, object_schema
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceStatus
from llmkube.k8s.crd.meta import QUANTITY, Condition
from llmkube.k8s.crd.model import SOURCE_PATTERN, Model
from llmkube.k8s.crd.modelrouter import Backend, ModelRouter
from llmkube.k8s.crd.placement import Autoscaling, EnvVar
from llmkube.k8s.crd.podparts import POD_PARTS, part_schema
from llmkube.k8s.crd.serving import SPECULATION_TYPES, SpeculativeDecoding
from llmkube.k8s.fields import IntOrString, Rule, SchemaFacts, WireForm, field, received, wire_fields

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


def test_every_field_says_what_it_is_for() -> None:
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
    model, service, router = (crd["spec"]["versions"][0]["subresources"] for crd in all_crds())
    assert model == router == {"status": {}}
    assert service == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_columns_point_at_fields() -> None:
    """Every printer column reads a field that exists, and the phase comes first."""
    for kind, root in zip(KINDS, ROOTS, strict=True):
        columns = crd_manifest(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
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
    ]


def test_pod_parts_are_spelled_out() -> None:
    """Nothing in a kind is free-form: what a class keeps as a map is typed by the schema as a pod's part is."""
    free = [path for path, node in NODES if node.get("x-kubernetes-preserve-unknown-fields")]
    assert free == []
    spec = ROOTS[1]["properties"]["spec"]["properties"]
    probe = part_schema("Probe")
    assert [inner["properties"] for inner in spec["probeOverrides"]["properties"].values()] == [probe["properties"]] * 3
    assert spec["tolerations"]["items"] == part_schema("Toleration")
    assert object_schema(EnvVar)["properties"]["valueFrom"]["properties"].keys() >= {"secretKeyRef", "fieldRef"}


def test_every_pod_part_is_used() -> None:
    """Each part of a pod that is spelled out stands in some kind, under the name that a field gives it."""
    used = {slot.facts.pod_part for cls in wire_classes() for slot in wire_fields(cls) if slot.facts.pod_part}
    assert used == set(POD_PARTS)


def wire_classes() -> list[Any]:
    """Every class that a kind is made of, the kinds included."""
    todo, seen = list(KINDS), []
    while todo:
        cls = todo.pop()
        seen.append(cls)
        inner = [kind for slot in wire_fields(cls) for kind in (slot.type, *typing.get_args(slot.type))]
        todo += [kind for kind in inner if attrs.has(kind) and kind not in seen + todo]
    return seen


def test_yaml_is_plain_and_stable() -> None:
    """The YAML reads back as the definitions, has no anchors, and is the same every time."""
    text = crds_yaml()
    assert list(yaml.safe_load_all(text)) == all_crds()
    assert not re.search(r"[&*]id\d+", text)
    assert text == crds_yaml()


def test_definitions_survive_the_codec() -> None:
    """A generated definition is a CustomResourceDefinition like any other to our client."""
    for crd in all_crds():
        assert encode(decode(CustomResourceDefinition, crd)) == crd


# -- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "admitted"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B-GGUF/resolve/main/Qwen3-8B-Q4_K_M.gguf", True),
        ("http://host/m.gguf", True),
        ("file:///models/with space.gguf", True),
        ("pvc://claim/path", True),
        ("hf://org/repo@rev", True),
        ("s3://bucket/key", True),
        ("builtin://demo", True),
        ("/models/m.gguf", True),
        ("org/repo", True),
        ("org/repo-1.5@refs-pr.1", True),
        ("", False),
        ("https://", False),
        ("HTTPS://x", False),
        ("gs://bucket/key", False),
        ("ftp://host/m.gguf", False),
        ("phi3:mini", False),
        ("/with space.gguf", False),
        ("org/repo@", False),
        ("../up", False),
        ("/", False),
    ],
)
def test_source_pattern(source: str, admitted: bool) -> None:
    """A source is a URL of a known scheme, an absolute path, or a repository with or without a revision."""
    assert bool(re.search(SOURCE_PATTERN, source)) is admitted


@pytest.mark.parametrize(
    ("quantity", "admitted"),
    [
        *((text, True) for text in ("1", "0", "500m", "1.5", ".5", "2.", "24Gi", "8G", "1e9", "1E3", "10Ki", "3n")),
        *((text, False) for text in ("", "-1", "+1", "4.5.5Gi", "24GB", "lots", "1 Gi", "Gi", ".", "1e", "1mi")),
    ],
)
def test_quantity_pattern(quantity: str, admitted: bool) -> None:
    """An amount is what Kubernetes parses, without a sign."""
    assert bool(re.search(QUANTITY, quantity)) is admitted


# -- rules ------------------------------------------------------------------------------------------------------------


def broken_rules(cls: Any, value: dict[str, Any]) -> list[str]:
    """The messages of the rules that a value breaks, by a real CEL evaluator."""
    environment = celpy.Environment()
    rules: tuple[Rule, ...] = cls.RULES
    activation = {"self": celpy.json_to_cel(value)}
    programs = [(environment.program(environment.compile(rule.rule)), rule.message) for rule in rules]
    return [message for program, message in programs if not program.evaluate(activation)]


@pytest.mark.parametrize(
    ("minimum", "maximum", "broken"),
    [(1, 1, []), (1, 5, []), (3, 2, ["minReplicas must not exceed maxReplicas"])],
)
def test_autoscaling_rule(minimum: int, maximum: int, broken: list[str]) -> None:
    """A floor above the ceiling is refused."""
    assert broken_rules(Autoscaling, {"minReplicas": minimum, "maxReplicas": maximum}) == broken


PERMISSIONS, NONE, BOTH = (rule.message for rule in SpeculativeDecoding.RULES)
FILE, REF = {"draftModel": "draft.gguf"}, {"draftModelRef": "small"}


@pytest.mark.parametrize(
    ("value", "broken"),
    [
        ({"type": "draft"}, [PERMISSIONS]),
        ({"type": "draft", **FILE}, []),
        ({"type": "draft-eagle3", **REF}, []),
        ({"type": "draft-simple", **FILE, **REF}, [BOTH]),
        ({"type": "draft-mtp"}, []),
        ({"type": "draft-mtp", **REF}, []),
        ({"type": "mtp"}, []),
        ({"type": "mtp", **FILE}, []),
        ({"type": "ngram-mod"}, []),
        ({"type": "ngram-mod", **FILE}, [NONE]),
        ({"type": "none", **FILE, **REF}, [NONE, BOTH]),
    ],
)
def test_speculation_rules(value: dict[str, Any], broken: list[str]) -> None:
    """A draft model is named exactly where the method uses one, and once."""
    assert broken_rules(SpeculativeDecoding, value) == broken


@pytest.mark.parametrize("method", SPECULATION_TYPES)
def test_every_method_can_be_used(method: str) -> None:
    """No method is ruled out altogether: each is admitted with a draft model or without."""
    assert [] in (broken_rules(SpeculativeDecoding, {"type": method, **extra}) for extra in ({}, FILE))


def test_rules_reach_the_schema() -> None:
    """A class's rules are part of every schema that uses the class, once."""
    spec = ROOTS[1]["properties"]["spec"]["properties"]
    for name, cls in (("autoscaling", Autoscaling), ("speculativeDecoding", SpeculativeDecoding)):
        rules = [{"rule": rule.rule, "message": rule.message} for rule in cls.RULES]
        assert spec[name]["x-kubernetes-validations"] == rules


@pytest.mark.parametrize(
    ("backend", "tier"),
    [
        ({"inferenceServiceRef": {"name": "phi"}}, "local"),
        ({"external": {"provider": "openai", "model": "x"}}, "cloud"),
        ({"external": {"provider": "openai", "model": "x", "url": "http://lan"}, "tier": "local"}, "local"),
    ],
)
def test_what_leaves_the_cluster_is_cloud(backend: dict[str, Any], tier: str) -> None:
    """A backend without a tier is local only if it is an InferenceService; no default says otherwise."""
    schema = object_schema(Backend)["properties"]["tier"]
    assert "default" not in schema
    assert decode(Backend, {"name": "b", **backend}).effective_tier == tier


# -- the generator itself ---------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Sample:
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
    wire: WireForm = received()


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
    assert probe == {**part_schema("Probe"), "description": "A part of a pod."}


def test_a_type_without_a_schema_is_a_bug() -> None:
    """A field of a type that JSON does not have is refused when the schema is made."""

    @attrs.frozen
    class Odd:
        """Holds what no schema can say."""

        value: complex = field("A number.", 0j)
        wire: WireForm = received()

    with pytest.raises(TypeError, match="no schema for"):
        object_schema(Odd)


def test_every_status_number_can_be_unknown() -> None:
    """A status number that nobody observed is None, so an observed 0 is written."""
    numbers = [slot for slot in wire_fields(InferenceServiceStatus) if slot.type is int]
    assert numbers
    assert all(slot.default is None for slot in numbers)
    assert encode(InferenceServiceStatus(ready_replicas=0)) == {"readyReplicas": 0}
