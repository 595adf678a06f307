"""Strategic merge patches on built-in kinds."""

from typing import Any

import pytest

from llmkube.apiserver.fields.strategic_merge import StrategicPatchError, strategic_merge_patch
from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.schema.structural import Schema

SERVICE = next(kind.schema for kind in BUILTIN_KINDS if kind.resource.kind == "Service")
POD_LIKE = Schema.parse(
    {
        "type": "object",
        "properties": {
            "env": {
                "type": "array",
                "x-kubernetes-patch-strategy": "merge",
                "x-kubernetes-patch-merge-key": "name",
                "items": {"type": "object"},
            },
            "strategy": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys"},
            "whole": {"type": "object", "x-kubernetes-patch-strategy": "replace"},
        },
    }
)


def ports(*numbers: int) -> list[dict[str, Any]]:
    return [{"port": number} for number in numbers]


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def meta(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


def ordered(*numbers: int, **fields: Any) -> dict[str, Any]:
    return spec(**{"$setElementOrder/ports": ports(*numbers)}, **fields)


ON_SERVICES: list[tuple[Any, Any, Any]] = [
    (
        spec(ports=[{"port": 80, "name": "a"}]),
        spec(ports=[{"port": 80, "targetPort": 1}, {"port": 81}]),
        spec(ports=[{"port": 80, "name": "a", "targetPort": 1}, {"port": 81}]),
    ),
    (spec(ports=ports(80, 81)), spec(ports=[{"port": 80, "$patch": "delete"}]), spec(ports=ports(81))),
    (spec(ports=ports(80, 81)), spec(ports=[{"$patch": "replace"}, {"port": 9}]), spec(ports=ports(9))),
    (spec(ports=ports(80, 81)), ordered(81, 80, 82, ports=ports(82)), spec(ports=ports(81, 80, 82))),
    (spec(ports=ports(80, 7, 81)), ordered(81, 80), spec(ports=ports(7, 81, 80))),  # 7 came before 81
    (meta(finalizers=["a", "b"]), meta(finalizers=["b", "c"]), meta(finalizers=["a", "b", "c"])),
    (
        meta(finalizers=["a", "b", "c"]),
        meta(**{"$deleteFromPrimitiveList/finalizers": ["b", "x"]}),
        meta(finalizers=["a", "c"]),
    ),
    (
        meta(ownerReferences=[{"uid": "1", "name": "a"}]),
        meta(ownerReferences=[{"uid": "1", "$patch": "delete"}, {"uid": "2"}]),
        meta(ownerReferences=[{"uid": "2"}]),
    ),
    (meta(labels={"a": "1", "b": "2"}), meta(labels={"a": None, "c": "3"}), meta(labels={"b": "2", "c": "3"})),
    (spec(externalIPs=["1"]), spec(externalIPs=["2"]), spec(externalIPs=["2"])),
    (spec(selector={"a": "b"}), spec(selector={"$patch": "delete"}), spec()),
    (spec(a=1, b=2), spec(**{"$patch": "replace"}, c=3), spec(c=3)),
    (spec(ports=ports(80)), spec(ports=None), spec()),
]


@pytest.mark.parametrize(("target", "patch", "result"), ON_SERVICES)
def test_lists_merge_by_the_kinds_keys(target: Any, patch: Any, result: Any):
    """Keyed lists, sets, atomic lists and every directive come out as kubectl expects."""
    assert strategic_merge_patch(target, patch, SERVICE) == result


def test_env_merges_by_name():
    """A list with merge key `name` changes the named item only."""
    target = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    patch = {"env": [{"name": "B", "value": "3"}]}
    assert strategic_merge_patch(target, patch, POD_LIKE) == {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]
    }


def test_retain_keys_drops_all_others():
    """`$retainKeys` clears what it does not list, and must list what the patch sets."""
    target = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}
    patch = {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    assert strategic_merge_patch(target, patch, POD_LIKE) == {"strategy": {"type": "Recreate"}}
    with pytest.raises(StrategicPatchError, match="retainKeys"):
        strategic_merge_patch(target, {"strategy": {"$retainKeys": [], "type": "x"}}, POD_LIKE)


def test_a_map_with_strategy_replace_is_replaced():
    """A map whose schema says `replace` does not merge."""
    assert strategic_merge_patch({"whole": {"a": 1}}, {"whole": {"b": 2}}, POD_LIKE) == {"whole": {"b": 2}}


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"$patch": "explode"}},
        {"spec": {"ports": [{"name": "no key"}]}},
        {"spec": {"ports": [80]}},
        {"spec": {"$setElementOrder/ports": {}}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}},
    ],
)
def test_a_patch_that_means_nothing_is_refused(patch: Any):
    """An unknown directive, an item without its merge key or a directive of the wrong type raises."""
    with pytest.raises(StrategicPatchError):
        strategic_merge_patch({"spec": {"ports": [{"port": 80}]}}, patch, SERVICE)
