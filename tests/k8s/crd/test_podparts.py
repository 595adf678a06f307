"""Parts of pods are spelled out in the schema, and each is used."""

import typing
from collections.abc import Iterator
from typing import Any

import attrs

from llmkube.k8s.crd.definitions import KINDS, all_crds, object_schema
from llmkube.k8s.crd.placement import EnvVar
from llmkube.k8s.crd.podparts import part_schema, pod_parts
from llmkube.k8s.fields import wire_fields

ROOTS = [crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in all_crds()]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


NODES = [(path, node) for root in ROOTS for path, node in nodes(root)]


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
