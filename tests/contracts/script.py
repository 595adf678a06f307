"""The script: what is asked of both servers, chapter by chapter; each chapter has a namespace of its own.

A chapter only sends; what is right is what kube-apiserver answers. Names start with `chapter_`.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from contracts.check_api_server import widget_crd
from contracts.gadgets import GADGETS_CRD, gadget_crd
from contracts.session import (
    ABSENT_UID,
    APPLY,
    GROUP,
    JSON,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    TABLE,
    Operation,
    Session,
)

WIDGETS: Final = f"/apis/{GROUP}/v1/namespaces/{{ns}}/widgets"
GADGETS: Final = f"/apis/{GROUP}/v1/namespaces/{{ns}}/gadgets"
CORE: Final = "/api/v1/namespaces/{ns}"
MAPS: Final = f"{CORE}/configmaps"
SERVICES: Final = f"{CORE}/services"
SECRETS: Final = f"{CORE}/secrets"
ENDPOINTS: Final = f"{CORE}/endpoints"
EVENTS: Final = f"{CORE}/events"
SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOWHERE: Final = f"/apis/{GROUP}/v1/namespaces/no-such-home/widgets"

SUBRESOURCES: Final = frozenset({"", "status", "scale", "finalize"})
"""What of a kind is compared: the embedded server has no pods to proxy to, and signs no tokens."""

Chapter = Callable[[Session], Awaitable[None]]


def widget(name: str, spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": name, **metadata},
        "spec": {"size": 3} if spec is None else spec,
    }


def gadget(name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {**widget(name, spec, **metadata), "kind": "Gadget"}


def config_map(name: str, data: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {}}


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def slice_of(name: str, kind: str, *addresses: Any, **more: Any) -> dict[str, Any]:
    endpoints = [{"addresses": list(addresses)}] if addresses else []
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name},
        "addressType": kind,
        "endpoints": endpoints,
        **more,
    }


def owner(path: str, name: str, *, version: str = f"{GROUP}/v1", kind: str = "Widget", **more: Any) -> list[Any]:
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": f"{{uid:{path}/{name}}}", **more}]


# -- create and get ----------------------------------------------------------------------------------------------------


async def chapter_create(s: Session) -> None:
    await s.post(WIDGETS, widget("a", {"size": 3, "unknown": 1}))
    await s.get(f"{WIDGETS}/a")
    await s.post(WIDGETS, widget("a"))
    await s.post(WIDGETS, {**widget("b"), "status": {"phase": "Ready"}})
    await s.post(WIDGETS, {"metadata": {"name": "c"}, "spec": {"size": 1}})
    await s.post(WIDGETS, widget("c", uid=ABSENT_UID, creationTimestamp="2001-01-01T00:00:00Z", generation=7))
    await s.post(WIDGETS, widget("d", resourceVersion="5"))
    await s.post(WIDGETS, widget("d", selfLink="/x", deletionTimestamp="2001-01-01T00:00:00Z"))
    await s.post(WIDGETS, widget("e", namespace="elsewhere"))
    await s.post(WIDGETS, widget("e", namespace="{ns}", labels={"a": "b"}, annotations={"x/y": "z"}))
    await s.post(NOWHERE, widget("a"))
    await s.post(WIDGETS, widget("", generateName="job-"))
    await s.post(WIDGETS, widget("f", generateName="job-"))
    await s.post(WIDGETS, {"metadata": {}, "spec": {"size": 1}})
    await s.post(WIDGETS, widget(""))
    await s.post(f"{WIDGETS}/a", widget("a"))
    await s.post(f"{MAPS}/a", config_map("a"))
    await s.post("/api/v1/configmaps", config_map("a"))
    await s.get(f"{MAPS}/a/status")
    await s.post(f"{SERVICES}/a/status", service("a"))
    await s.post(f"/apis/{GROUP}/v1/widgets", widget("a"))
    await s.get(f"{WIDGETS}/nope")
    await s.get(f"{WIDGETS}/nope/status")
    await s.get(f"{WIDGETS}/a/nope")
    await s.get(f"/apis/{GROUP}/v1/nopes")
    await s.get(f"/apis/{GROUP}/v2/widgets")
    await s.get("/apis/no.such.group/v1/things")
    await s.get(f"{NOWHERE}")
    await s.get("/nothing/here")
    await s.post(WIDGETS, widget("x", spec=None) | {"spec": None})
    await s.post(WIDGETS, widget("x") | {"kind": "Gadget"})
    await s.post(WIDGETS, widget("x") | {"apiVersion": "v1"})
    await s.post(WIDGETS, widget("x") | {"metadata": []})
    await s.post(WIDGETS, widget("x") | {"metadata": None})
    await s.post(MAPS, {"metadata": {"name": "m"}, "data": {"a": "b"}})
    await s.post(MAPS, {"metadata": {"name": "m"}, "kind": "Secret", "apiVersion": "v1"})
    await s.get(f"{MAPS}/m")
    await s.post(MAPS, config_map("n", {"a": 1}))
    await s.post(MAPS, {**config_map("n"), "binaryData": {"x": "AAA="}, "immutable": True, "bogus": 1})
    await s.put(f"{MAPS}/n", config_map("n", {"a": "changed"}))
    await s.post(SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "b"}, "data": {"c": "ZA=="}})
    await s.post(SECRETS, {"metadata": {"name": "t"}, "type": "kubernetes.io/tls", "data": {}})
    await s.post(SECRETS, {"metadata": {"name": "t"}, "data": {"c": "not base64"}})
    await s.post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 40}})
    await s.post(LEASES, {"metadata": {"name": "m"}, "spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}})
    await s.post(LEASES, {"metadata": {"name": "m"}, "spec": {"renewTime": "yesterday"}})
    happened = {"kind": "Widget", "name": "a", "namespace": "{ns}"}
    await s.post(EVENTS, {"metadata": {"generateName": "x-"}, "involvedObject": happened, "reason": "R", "type": "Normal"})
    await s.post(EVENTS, {"metadata": {"name": "e"}, "involvedObject": {**happened, "namespace": "other"}})


async def chapter_names(s: Session) -> None:
    for name in ("Upper", "under_score", "-dash", "dash-", "a.b", "a..b", "x" * 253, "x" * 254, "a/b", "ä", "1", "%"):
        await s.post(WIDGETS, widget(name))
        await s.post(SERVICES, service(name, ports=[{"port": 80}], clusterIP="None"))
    await s.post(WIDGETS, widget("", generateName="y" * 70))
    for labels in ({"a": "b c"}, {"a b": "c"}, {"/a": "c"}, {"x/": "c"}, {"a": "y" * 64}, {"x/y/z": ""}, {"a": ""}, {"a": 1}, {"a": None}, []):
        await s.post(WIDGETS, widget("labelled", labels=labels), dryRun="All")
    for annotations in ({"a b": "c"}, {"A/b": "c"}, {"a": 1}, {"a": None}):
        await s.post(WIDGETS, widget("annotated", annotations=annotations), dryRun="All")
    for finalizers in (["plain"], ["a b"], ["x.dev/y"], [""], ["orphan", "foregroundDeletion"], [1], "x"):
        await s.post(WIDGETS, widget("final", finalizers=finalizers), dryRun="All")
    uid = ABSENT_UID
    for reference in (
        {},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"},
        {"apiVersion": "a/b/c", "kind": "ConfigMap", "name": "x", "uid": uid},
        {"apiVersion": "v1", "kind": "Event", "name": "x", "uid": uid},
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid, "bogus": 1},
    ):
        await s.post(WIDGETS, widget("owned", ownerReferences=[reference]), dryRun="All")
    two = [{"apiVersion": "v1", "kind": "ConfigMap", "name": x, "uid": uid, "controller": True} for x in "ab"]
    await s.post(WIDGETS, widget("owned", ownerReferences=two), dryRun="All")


# -- validation --------------------------------------------------------------------------------------------------------


async def chapter_validation(s: Session) -> None:
    for index, spec in enumerate(
        (
            {},
            [],
            "x",
            1,
            {"size": 11},
            {"size": 0},
            {"size": "3"},
            {"size": 3.5},
            {"size": 3.0},
            {"size": None},
            {"size": True},
            {"size": 99, "colour": "green"},
            {"size": 3, "colour": None},
            {"size": 3, "colour": 1},
            {"size": 3, "replicas": -1},
            {"size": 3, "replicas": 5_000_000_000},
            {"size": 3, "parts": [{"weight": "x"}]},
            {"size": 3, "parts": [{"weight": 1}]},
            {"size": 3, "parts": [{"name": "a"}, {"name": "a"}]},
            {"size": 3, "parts": [{"name": "a", "weight": "x"}]},
            {"size": 3, "parts": [None]},
            {"size": 3, "parts": ["a"]},
            {"size": 3, "parts": {}},
            {"size": 3, "parts": None},
            {"size": 3, "parts": []},
            {"size": 99, "colour": "green", "parts": [{"weight": "x"}]},
            {"size": 3, "frozen": 1},
            {"colour": "green", "frozen": []},
        )
    ):
        await s.post(WIDGETS, widget(f"v{index}", spec))
    await s.post(WIDGETS, widget("w", {"size": 3, "frozen": "ice"}))
    await s.patch(f"{WIDGETS}/w", {"spec": {"frozen": "water"}})
    await s.patch(f"{WIDGETS}/w", {"spec": {"frozen": "ice", "size": 4}})
    await s.patch(f"{WIDGETS}/w", {"spec": {"frozen": None}})
    await s.patch(f"{WIDGETS}/w", {"spec": {"frozen": "water", "size": 0}})
    await s.patch(f"{WIDGETS}/w", {"spec": {"replicas": "1"}})
    await s.patch(f"{WIDGETS}/w", {"spec": {"size": None}})
    await s.patch(f"{WIDGETS}/w", {"spec": None})
    await s.patch(f"{WIDGETS}/w", {"spec": "x"})
    await s.patch(f"{WIDGETS}/w/status", {"status": {"phase": 1, "replicas": "x"}})
    await s.patch(f"{WIDGETS}/w/status", {"status": None})
    await s.patch(f"{WIDGETS}/w/status", {"status": []})
    await s.get(f"{WIDGETS}/w")


async def chapter_gadgets(s: Session) -> None:
    for index, spec in enumerate(
        (
            {},
            {"count": 5},
            {"anything": {"a": [1, {"b": None}]}, "either": 1},
            {"either": "50%", "nothing": None},
            {"either": 1.5},
            {"either": None},
            {"nested": {}},
            {"nested": {"deep": {}}},
            {"nested": {"deep": None}},
            {"nested": None},
            {"tags": ["a", "b"]},
            {"tags": ["a", "a"]},
            {"tags": [1]},
            {"row": ["a", "a"]},
            {"map": {"x": 1, "y": 2}},
            {"map": {"x": "1"}},
            {"map": {"x": None}},
            {"when": "yesterday"},
            {"when": "2024-01-01T00:00:00Z"},
            {"code": "abc"},
            {"code": "ABC-1"},
            {"code": "ABC-12345678901234567890"},
            {"ratio": 4},
            {"ratio": 4.0},
            {"ratio": 3},
            {"ratio": 2.5},
            {"ratio": 0},
            {"ratio": 12},
            {"ratio": -2},
            {"choice": {"a": "x"}},
            {"choice": {"b": 1}},
            {"choice": {"a": "x", "b": 1}},
            {"choice": {}},
            {"range": {"low": 1, "high": 2}},
            {"range": {"low": 3, "high": 2}},
            {"range": {"low": 3}},
            {"range": {"low": 101, "high": 102}},
            {"items": [{"key": "a"}, {"key": "b", "value": 2}]},
            {"items": [{"key": "a"}, {"key": "a", "zone": "far"}]},
            {"items": [{"key": "a"}, {"key": "a", "zone": "near"}]},
            {"items": [{"value": 1}]},
            {"list": [1, 2, 3, 4]},
            {"list": []},
            {"object": {}},
            {"object": {"a": 1, "b": 2, "c": 3}},
            {"host": "example.org"},
            {"host": "not a host"},
            {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"a": 1}}},
            {"template": {"metadata": {"name": "x", "bogus": 1}}},
            {"template": {"kind": "Pod"}},
            {"bogus": 1, "nested": {"bogus": 2}, "items": [{"key": "a", "bogus": 3}]},
            {"flag": "true"},
            {"flag": False},
            {"mode": "a"},
            {"mode": "z"},
        )
    ):
        await s.post(GADGETS, gadget(f"g{index}", spec))
    await s.get(GADGETS, fieldSelector="spec.mode=a")
    await s.get(GADGETS, fieldSelector="spec.count=5")
    await s.get(GADGETS, fieldSelector="spec.mode!=a", limit="2")
    await s.get(GADGETS, TABLE)
    # rules about a change
    await s.post(GADGETS, gadget("r", {"count": 5, "mode": "a", "items": [{"key": "a", "value": 1}]}))
    await s.patch(f"{GADGETS}/r", {"spec": {"count": 4}})
    await s.patch(f"{GADGETS}/r", {"spec": {"count": 6}})
    await s.patch(f"{GADGETS}/r", {"spec": {"mode": None}})
    await s.patch(f"{GADGETS}/r", {"spec": {"items": [{"key": "a", "value": 0}]}})
    await s.patch(f"{GADGETS}/r", {"spec": {"items": [{"key": "b", "value": 0}]}})
    await s.patch(f"{GADGETS}/r", {"status": {"x": 1}})
    await s.patch(f"{GADGETS}/r/status", {"status": {"x": 1}})
    await s.get(f"{GADGETS}/r/scale")
    # an apply through each kind of list
    for manager, spec in (
        ("one", {"tags": ["a", "b"], "row": ["x"], "map": {"k": 1}, "items": [{"key": "k", "value": 1}]}),
        ("two", {"tags": ["b", "c"], "map": {"l": 2}, "items": [{"key": "k", "zone": "far"}]}),
        ("two", {"row": ["y"]}),
        ("two", {"map": {"k": 2}}),
        ("two", {"items": [{"key": "k", "value": 2}]}),
        ("one", {"tags": ["b"]}),
        ("one", {"items": [{"key": "k"}, {"key": "k"}]}),
        ("one", {"tags": ["b", "b"]}),
        ("one", {"items": [{"value": 2}]}),
        ("one", {"items": [{"key": "k", "bogus": 2}]}),
        ("one", {"items": [{"key": "k", "value": "2"}]}),
        ("one", {"nested": {"bogus": 1}}),
        ("one", {"anything": {"free": 1}}),
        ("one", {"anything": {"other": 1}}),
        ("one", {"template": {"metadata": {"name": "t"}}}),
        ("one", {"object": {}}),
        ("one", {"nested": None}),
        ("one", {}),
    ):
        await s.apply(f"{GADGETS}/ssa", gadget("ssa", spec), manager)
    await s.get(f"{GADGETS}/ssa")


# -- updates -----------------------------------------------------------------------------------------------------------


async def chapter_updates(s: Session) -> None:
    first = await s.post(WIDGETS, widget("a"))
    path = f"{WIDGETS}/a"
    for size in (4, 5):
        raw = json.dumps({**first, "spec": {"size": size}}).encode()
        await s.send(Operation("PUT", path, raw=raw, content_type=JSON), said=f"the first with size {size}")
    await s.put(path, widget("a"))
    await s.put(path, widget("b"))
    await s.put(path, widget("a", namespace="elsewhere", resourceVersion=f"{{rv:{path}}}"))
    await s.put(path, widget("a", resourceVersion=f"{{rv:{path}}}"))
    await s.put(path, widget("a", resourceVersion=f"{{rv:{path}}}"))
    await s.put(path, widget("a", {"size": 5, "bogus": 1}, resourceVersion=f"{{rv:{path}}}", labels={"x": "y"}))
    await s.put(path, widget("a", uid=ABSENT_UID, resourceVersion=f"{{rv:{path}}}"))
    await s.put(path, widget("a", uid=ABSENT_UID))
    await s.put(path, widget("a", resourceVersion="not a number"))
    await s.put(f"{WIDGETS}/absent", widget("absent"))
    await s.put(f"{WIDGETS}/absent", widget("absent", resourceVersion="1"))
    await s.put(f"{WIDGETS}/absent", widget("absent", uid=ABSENT_UID))
    await s.put(WIDGETS, widget("a"))
    await s.put(MAPS, config_map("a"))
    await s.patch(MAPS, {})
    await s.put(path, {**widget("a", resourceVersion=f"{{rv:{path}}}"), "kind": "Gadget"})
    await s.put(path, {**widget("a", resourceVersion=f"{{rv:{path}}}"), "status": {"phase": "Ready"}})
    await s.put(f"{path}/status", {**widget("a", resourceVersion=f"{{rv:{path}}}"), "status": {"phase": "Ready"}})
    await s.put(f"{path}/status", {**widget("a"), "status": {"phase": "Ready"}})
    await s.patch(path, {"metadata": {"resourceVersion": "1"}})
    await s.patch(path, {"metadata": {"resourceVersion": f"{{rv:{path}}}", "labels": {"l": "m"}}})
    for metadata in (
        {"uid": "other"},
        {"uid": ABSENT_UID},
        {"uid": None},
        {"name": "b"},
        {"name": None},
        {"namespace": "zz"},
        {"namespace": None},
        {"creationTimestamp": "2001-01-01T00:00:00Z"},
        {"creationTimestamp": "yesterday"},
        {"creationTimestamp": None},
        {"generation": 77},
        {"generation": -1},
        {"deletionTimestamp": "2001-01-01T00:00:00Z"},
        {"deletionGracePeriodSeconds": 5},
        {"selfLink": "/x"},
        {"generateName": "zz-"},
        {"managedFields": []},
        {"managedFields": [{}]},
        {"bogus": 1},
        {"labels": {"a": None, "b": "c"}},
        {"annotations": {"b": "c"}},
        {"labels": None},
    ):
        await s.patch(path, {"metadata": metadata})
        current = await s.get(path)
        changed = {**current, "metadata": {**current["metadata"], **metadata}}
        await s.send(Operation("PUT", path, raw=json.dumps(changed).encode(), content_type=JSON), said=f"the same with {metadata}")
    await s.post(MAPS, config_map("c"))
    await s.put(f"{MAPS}/c", config_map("c", {"a": "b"}))
    await s.put(f"{MAPS}/c", config_map("c", {"a": "b"}))
    await s.put(f"{MAPS}/c", config_map("c", {"a": "b"}, uid=ABSENT_UID))
    await s.put(f"{MAPS}/absent", config_map("absent"))
    await s.patch(f"{MAPS}/c", {"metadata": {"uid": ABSENT_UID}})
    await s.patch(f"{MAPS}/c", {"immutable": True})
    await s.patch(f"{MAPS}/c", {"data": {"a": "c"}})
    await s.patch(f"{MAPS}/c", {"immutable": False})
    await s.put(f"{LEASES}/new", {"metadata": {"name": "new"}, "spec": {"holderIdentity": "me"}})
    await s.put(f"{SERVICES}/new", service("new", ports=[{"port": 80}]))


# -- patches -----------------------------------------------------------------------------------------------------------


async def chapter_patches(s: Session) -> None:
    path = f"{WIDGETS}/a"
    await s.post(WIDGETS, widget("a", {"size": 3, "replicas": 1}, labels={"a/b": "c", "d~e": "f"}))
    await s.patch(path, {"spec": {"replicas": None, "size": 5}})
    await s.patch(path, {"spec": {"parts": [{"name": "a"}, {"name": "b"}]}})
    await s.patch(path, {})
    await s.patch(path, {"spec": {"bogus": 1}})
    for document in ([], None, "x", 1):
        await s.send(Operation("PATCH", path, content_type=MERGE, raw=json.dumps(document).encode()))
    for operations in (
        [],
        [{"op": "test", "path": "/spec/size", "value": 5}],
        [{"op": "test", "path": "/spec/size", "value": 6}],
        [{"op": "test", "path": "/spec/nope", "value": 6}],
        [{"op": "replace", "path": "/spec/size", "value": 6}],
        [{"op": "replace", "path": "/spec/nope", "value": 6}],
        [{"op": "add", "path": "/spec/replicas", "value": 2}],
        [{"op": "add", "path": "/nope/deep", "value": 2}],
        [{"op": "remove", "path": "/spec/replicas"}],
        [{"op": "remove", "path": "/spec/replicas"}],
        [{"op": "add", "path": "/spec/parts/-", "value": {"name": "c"}}],
        [{"op": "add", "path": "/spec/parts/0", "value": {"name": "z"}}],
        [{"op": "add", "path": "/spec/parts/9", "value": {"name": "y"}}],
        [{"op": "remove", "path": "/spec/parts/0"}],
        [{"op": "remove", "path": "/spec/parts/9"}],
        [{"op": "move", "from": "/spec/parts/0", "path": "/spec/parts/1"}],
        [{"op": "copy", "from": "/spec/size", "path": "/spec/replicas"}],
        [{"op": "move", "from": "/spec/nope", "path": "/spec/replicas"}],
        [{"op": "replace", "path": "/metadata/labels/a~1b", "value": "x"}],
        [{"op": "remove", "path": "/metadata/labels/a~1b"}],
        [{"op": "jump", "path": "/spec/size"}],
        [{"op": "add", "path": "/spec/size"}],
        [{"path": "/spec/size", "value": 1}],
        [{"op": "add", "value": 1}],
        [{"op": "replace", "path": "/spec", "value": {"size": 2}}],
        [{"op": "replace", "path": "", "value": {}}],
        [{"op": "remove", "path": "/spec"}],
        [{"op": "replace", "path": "/kind", "value": "Gadget"}],
        [{"op": "replace", "path": "/apiVersion", "value": "v1"}],
        [{"op": "replace", "path": "/metadata/name", "value": "b"}],
        [{"op": "add", "path": "/status", "value": {"phase": "x"}}],
        {"op": "add"},
        ["x"],
    ):
        await s.patch(path, operations, JSON_PATCH)
    await s.patch(path, {}, STRATEGIC)
    await s.patch(f"{WIDGETS}/absent", {"spec": {"size": 1}})
    await s.patch(WIDGETS, {"spec": {"size": 1}})
    await s.get(path)


async def chapter_strategic(s: Session) -> None:
    path = f"{SERVICES}/s"
    await s.post(SERVICES, service("s", ports=[{"name": "a", "port": 80}], selector={"app": "x"}))
    for patch in (
        {"spec": {"ports": [{"name": "b", "port": 81}]}},
        {"spec": {"ports": [{"port": 80, "name": "aa"}]}},
        {"spec": {"ports": [{"port": 81, "$patch": "delete"}]}},
        {"spec": {"selector": {"app": None, "b": "c"}}},
        {"spec": {"selector": {"$patch": "replace", "only": "this"}}},
        {"spec": {"ports": [{"$patch": "replace"}, {"name": "z", "port": 90}]}},
        {"spec": {"ports": [{"name": "no port"}]}},
        {"metadata": {"finalizers": ["x.dev/a"]}},
        {"metadata": {"finalizers": ["x.dev/b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.dev/a"]}},
        {"metadata": {"finalizers": None}},
        {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}},
        {"metadata": {"labels": None}},
        {"spec": {"bogus": 1}},
        {"spec": {"ports": "x"}},
        {"spec": {"type": "Nonsense"}},
        {"spec": {"$patch": "nonsense"}},
        {"spec": {"type": "ExternalName", "externalName": "example.org"}},
    ):
        await s.patch(path, patch, STRATEGIC)
    await s.get(path)
    await s.post(ENDPOINTS, {"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "192.0.2.1"}]}]})
    await s.patch(f"{ENDPOINTS}/e", {"subsets": [{"addresses": [{"ip": "192.0.2.2"}]}]}, STRATEGIC)
    await s.patch(f"{ENDPOINTS}/e", {"subsets": []}, STRATEGIC)
    await s.patch(f"{ENDPOINTS}/e", {"subsets": [{}]}, STRATEGIC)
    await s.post(MAPS, config_map("m", {"a": "1", "b": "2"}))
    await s.patch(f"{MAPS}/m", {"data": {"a": None}}, STRATEGIC)
    await s.patch(f"{MAPS}/m", {"data": None}, STRATEGIC)
    await s.patch(f"{MAPS}/m", {"$patch": "delete"}, STRATEGIC)


# -- apply -------------------------------------------------------------------------------------------------------------


async def chapter_apply(s: Session) -> None:
    path = f"{WIDGETS}/a"

    async def apply(manager: str, spec: Any, **params: str) -> Any:
        return await s.apply(path, widget("a", spec), manager, **params)

    await apply("one", {"size": 3, "replicas": 1})
    await apply("two", {"replicas": 2})
    await apply("two", {"replicas": 1})
    await apply("two", {"replicas": 2}, force="true")
    await apply("one", {"size": 3})
    await apply("one", {"size": 3})
    await apply("two", {})
    await apply("one", {"size": 4, "parts": [{"name": "a", "weight": 1}, {"name": "b"}]})
    await apply("two", {"size": 5, "parts": [{"name": "b", "weight": 2}, {"name": "c"}]})
    await apply("two", {"size": 5, "parts": [{"name": "b", "weight": 2}, {"name": "a", "weight": 9}]})
    await apply("two", {"parts": [{"name": "c"}, {"name": "b", "weight": 2}]})
    await apply("one", {"size": 4, "parts": [{"name": "a", "weight": 1}]})
    await apply("one", {})
    await apply("two", {"bogus": 1})
    await apply("two", {"bogus": 1}, fieldValidation="Ignore")
    await apply("two", {"bogus": 1}, fieldValidation="Strict")
    await apply("two", {"size": "3"})
    await apply("two", {"parts": [{"weight": 1}]})
    await apply("two", {"parts": [{"name": "a"}, {"name": "a"}]})
    await apply("two", {"parts": [{"name": "a", "bogus": 1}]})
    await apply("two", {"size": 99}, force="true")
    await apply("two", {"size": None}, force="true")
    await apply("two", None)
    await apply("two", {"size": 4}, dryRun="All")
    await apply("", {"size": 4})
    await apply("x" * 129, {"size": 4})
    await apply("tab\there", {"size": 4})
    await s.apply(path, widget("b"), "two")
    await s.apply(path, widget("b", {}), "two")
    await s.apply(path, widget("a", {}, namespace="elsewhere"), "two")
    await s.apply(path, {"spec": {"size": 4}}, "two")
    await s.apply(path, {**widget("a"), "kind": "Gadget"}, "two")
    await s.apply(path, {**widget("a"), "apiVersion": "v1"}, "two")
    await s.apply(path, {**widget("a"), "apiVersion": f"{GROUP}/v9"}, "two")
    await s.apply(path, widget("a", namespace="elsewhere"), "two")
    await s.apply(path, widget("a", {}, uid=ABSENT_UID), "two")
    await s.apply(path, widget("a", {}, resourceVersion="1"), "two")
    await s.apply(path, widget("a", {}, resourceVersion=f"{{rv:{path}}}"), "two")
    await s.apply(path, widget("a", {}, managedFields=[]), "two")
    await s.apply(path, widget("a", {}, managedFields=[{"manager": "x"}]), "two")
    await s.apply(path, widget("a", {}, creationTimestamp="2001-01-01T00:00:00Z", labels={"by": "two"}), "two")
    await s.apply(path, widget("a", {}, generation=9, labels={"by": "two"}), "two")
    await s.apply(f"{WIDGETS}/new", widget("new", uid=ABSENT_UID), "two")
    await s.apply(f"{WIDGETS}/new", widget("new", resourceVersion="1"), "two")
    await s.apply(f"{WIDGETS}/new", widget("new", {}), "two")
    await s.apply(f"{NOWHERE}/new", widget("new"), "two")
    await s.apply(WIDGETS, widget("new"), "two")
    await s.patch(path, {"spec": {"size": 7}}, fieldManager="hand")
    await s.patch(path, {"metadata": {"labels": {"by": "hand"}}}, fieldManager="hand")
    await apply("one", {"size": 8})
    await apply("one", {"size": 7})
    await s.patch(path, {"spec": {"size": 9}}, force="true")
    await s.put(path, widget("a", {"size": 2}, resourceVersion=f"{{rv:{path}}}"), fieldManager="put")
    await apply("one", {"size": 7, "colour": "blue", "replicas": 3})
    await s.get(path)
    await s.send(Operation("PATCH", path, content_type=APPLY, raw=b"", params={"fieldManager": "y"}))
    await s.send(Operation("PATCH", path, content_type=APPLY, raw=b"[1", params={"fieldManager": "y"}))
    yaml = f"apiVersion: {GROUP}/v1\nkind: Widget\nmetadata:\n  name: a\n  labels: {{yaml: 'yes'}}\n"
    await s.send(Operation("PATCH", path, content_type=APPLY, raw=yaml.encode(), params={"fieldManager": "y"}))
    # a built-in kind
    path = f"{SERVICES}/s"
    await s.apply(path, service("s", ports=[{"port": 80, "name": "web"}], selector={"a": "b"}), "one")
    await s.apply(path, service("s", ports=[{"port": 80, "name": "www"}]), "two")
    await s.apply(path, service("s", ports=[{"port": 81, "name": "alt"}]), "two")
    await s.apply(path, service("s", ports=[{"port": 80, "protocol": "UDP", "name": "dns"}]), "two")
    await s.apply(path, service("s", selector={"a": "b"}), "one")
    await s.apply(path, service("s", bogus=1), "one")
    await s.apply(path, service("s", ports=[{"name": "x"}]), "one")
    await s.apply(path, service("s", ports="x"), "one")
    await s.apply(path, service("s", ports=[{"port": "80"}]), "one")
    await s.get(path)
    path = f"{MAPS}/m"
    await s.apply(path, config_map("m", {"a": "1"}), "one")
    await s.apply(path, config_map("m", {"a": "2", "b": "3"}), "two")
    await s.apply(path, config_map("m", {"b": "3"}), "two")
    await s.apply(path, config_map("m", {}), "one")
    await s.apply(path, config_map("m", {"a": 1}), "one")


async def chapter_status(s: Session) -> None:
    path = f"{WIDGETS}/a"
    await s.post(WIDGETS, widget("a"))
    await s.patch(
        f"{path}/status",
        {"spec": {"size": 9}, "status": {"phase": "Ready"}, "metadata": {"labels": {"x": "y"}, "finalizers": ["a.b/c"]}},
    )
    await s.patch(path, {"spec": {"size": 4}, "status": {"phase": "Gone"}})
    await s.get(f"{path}/status")
    applied = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "a"}, "status": {"replicas": 2}}
    await s.apply(f"{path}/status", applied, "m")
    await s.apply(f"{path}/status", applied, "m")
    await s.apply(f"{path}/status", {**applied, "status": {"phase": "Bad"}}, "m")
    await s.apply(f"{path}/status", {**applied, "status": {"phase": "Bad"}}, "m", force="true")
    await s.apply(f"{path}/status", {**applied, "spec": {"size": 1}, "status": {}}, "m", force="true")
    await s.apply(f"{path}/status", {**applied, "status": {"bogus": 1}}, "m")
    await s.apply(f"{path}/status", {**applied, "status": {"phase": 1}}, "m")
    await s.apply(f"{path}/status", {**applied, "metadata": {"name": "a", "uid": ABSENT_UID}, "status": {"phase": "U"}}, "m")
    await s.apply(f"{path}/status", {**applied, "metadata": {"name": "a", "resourceVersion": "1"}}, "m")
    await s.apply(f"{WIDGETS}/absent/status", {**applied, "metadata": {"name": "absent"}}, "m")
    await s.apply(f"{path}/status", {**applied, "metadata": {"name": "a", "labels": {"status": "label"}}}, "m")
    await s.patch(f"{path}/status", {"metadata": {"uid": ABSENT_UID}, "status": {"phase": "V"}})
    await s.patch(f"{path}/status", {"status": {"bogus": 1}})
    await s.patch(f"{path}/status", {"status": {"bogus": 1}}, fieldValidation="Strict")
    await s.patch(f"{WIDGETS}/absent/status", {"status": {}})
    await s.post(f"{path}/status", widget("a"))
    await s.delete(f"{path}/status")
    # scale
    await s.get(f"{path}/scale")
    await s.patch(path, {"spec": {"replicas": 2}})
    await s.get(f"{path}/scale")
    await s.patch(f"{path}/scale", {"spec": {"replicas": 3}})
    await s.get(path)
    await s.patch(f"{path}/scale", {"spec": {"replicas": -3}})
    await s.patch(f"{path}/scale", {"spec": {"replicas": "3"}})
    await s.patch(f"{path}/scale", {"spec": {"replicas": None}})
    await s.patch(f"{path}/scale", [{"op": "replace", "path": "/spec/replicas", "value": 4}], JSON_PATCH)
    await s.patch(f"{path}/scale", {"spec": {"bogus": 1}})
    await s.put(f"{path}/scale", {"metadata": {"name": "a"}, "spec": {"replicas": 5}}, fieldManager="scaler")
    await s.get(path)
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale"}
    await s.put(f"{path}/scale", {**scale, "metadata": {"name": "a"}, "spec": {"replicas": 5}})
    await s.put(f"{path}/scale", {**scale, "metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"replicas": 6}})
    await s.put(f"{path}/scale", {**scale, "metadata": {"name": "b"}, "spec": {"replicas": 6}})
    await s.put(f"{path}/scale", {**scale, "metadata": {"name": "a", "uid": ABSENT_UID}, "spec": {"replicas": 6}})
    await s.put(f"{path}/scale", widget("a"))
    await s.get(f"{WIDGETS}/absent/scale")
    await s.put(f"{WIDGETS}/absent/scale", {**scale, "metadata": {"name": "absent"}, "spec": {"replicas": 1}})
    await s.get(path)


# -- reading -----------------------------------------------------------------------------------------------------------


async def chapter_lists(s: Session) -> None:
    for name, labels in (("a", {"tier": "web", "env": "dev"}), ("b", {"tier": "db", "n": "5"}), ("c", {}), ("d", {"n": "7"})):
        await s.post(WIDGETS, widget(name, labels=labels))
    await s.get(WIDGETS)
    await s.get(MAPS, labelSelector="x=y")
    for selector in (
        "tier=web", "tier==web,env=dev", "tier!=web", "tier", "!tier", "tier in (web,db)", "tier notin (web)",
        "tier in (web, db),env", "n>5", "n<7", "n>x", "tier in web", "tier in (", "a==", "a=", "=a", ",", "a,", ",a", "a b",
        "tier in ()", "!", "a=b=c", "a!b", "in", "notin (a)", "x/y/z=1", "_=1", "a in (b,)", "a=-", " tier = web ", "tier = web , env",
        "a=" + "y" * 64, "(a)", "a>1,b", "a<", "a in (b) c",
    ):
        await s.get(WIDGETS, labelSelector=selector, fieldSelector="metadata.name!=z")
    for selector in (
        "metadata.name=b", "metadata.name==b", "metadata.name!=b", "metadata.namespace={ns}", "spec.size=3", "nonsense",
        "metadata.name", "metadata.name=a,metadata.namespace!={ns}", "=", "metadata.name=a=b", "!metadata.name", "metadata.uid=x",
    ):
        await s.get(WIDGETS, fieldSelector=selector)
        await s.get(MAPS, fieldSelector=selector, labelSelector="x")
    await s.get(SECRETS, fieldSelector="type=Opaque")
    await s.get(SERVICES, fieldSelector="spec.type=ClusterIP")
    await s.get(EVENTS, fieldSelector="involvedObject.name=a,type=Normal")
    for params in (
        {"limit": "2"},
        {"limit": "2", "continue": f"{{token:{WIDGETS}}}"},
        {"limit": "0"},
        {"limit": "-1"},
        {"limit": "x"},
        {"limit": "1", "labelSelector": "n"},
        {"limit": "1", "labelSelector": "n", "continue": f"{{token:{WIDGETS}}}"},
        {"continue": "garbage"},
        {"continue": "eyJhIjoxfQ"},
        {"continue": "!!"},
        {"resourceVersion": "0"},
        {"resourceVersion": "abc"},
        {"resourceVersion": "-1"},
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"},
        {"resourceVersion": "1", "resourceVersionMatch": "Nonsense"},
        {"resourceVersionMatch": "Exact"},
        {"resourceVersion": f"{{rv:{WIDGETS}/b}}", "resourceVersionMatch": "Exact"},
        {"resourceVersion": f"{{rv:{WIDGETS}/b}}", "resourceVersionMatch": "NotOlderThan"},
        {"resourceVersion": f"{{rv:{WIDGETS}/b}}"},
        {"resourceVersion": f"{{rv:{WIDGETS}/b}}", "limit": "1"},
        {"sendInitialEvents": "true"},
        {"timeoutSeconds": "x"},
        {"allowWatchBookmarks": "maybe"},
        {"pretty": "true"},
    ):
        await s.get(WIDGETS, **params)
    await s.get(f"{WIDGETS}/a", resourceVersion="0")
    await s.get(f"{WIDGETS}/a", resourceVersion=f"{{rv:{WIDGETS}/a}}")
    await s.get(f"{WIDGETS}/a", resourceVersion="abc")
    await s.get(f"/apis/{GROUP}/v1/widgets", fieldSelector="metadata.namespace={ns}")
    for accept in (
        TABLE,
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/json;as=Nonsense;v=v1;g=meta.k8s.io",
        "image/png",
        "text/html",
        "*/*",
        f"{TABLE},application/json",
    ):
        await s.get(WIDGETS, accept)
        await s.get(SERVICES, accept)
    await s.get(f"{WIDGETS}/a", TABLE)
    await s.get(f"{WIDGETS}/a", TABLE, includeObject="None")
    await s.get(f"{WIDGETS}/a", TABLE, includeObject="Object")
    await s.get(f"{WIDGETS}/a", TABLE, includeObject="Nonsense")
    await s.get(f"{WIDGETS}/a", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    await s.get(f"{WIDGETS}/absent", TABLE)


async def chapter_tables(s: Session) -> None:
    await s.post(SERVICES, service("s", ports=[{"port": 80, "name": "a"}, {"port": 81, "protocol": "UDP", "name": "b"}]))
    await s.post(SERVICES, service("h", ports=[{"port": 80}], clusterIP="None"))
    await s.post(SERVICES, service("x", type="ExternalName", externalName="example.org"))
    await s.post(MAPS, config_map("m", {"a": "1", "b": "2"}, labels={"mine": "yes"}))
    await s.post(SECRETS, {"metadata": {"name": "t"}, "stringData": {"a": "b"}})
    await s.post(SLICES, slice_of("e", "IPv4", "192.0.2.1", "192.0.2.2", ports=[{"port": 80, "name": "a"}]))
    await s.post(SLICES, slice_of("f", "IPv6"))
    subset = {"addresses": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}], "ports": [{"port": 80}]}
    await s.post(ENDPOINTS, {"metadata": {"name": "e", "labels": {"mine": "yes"}}, "subsets": [subset]})
    await s.post(ENDPOINTS, {"metadata": {"name": "none", "labels": {"mine": "yes"}}})
    await s.post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}})
    for path in (
        SERVICES, f"{MAPS}/m", f"{SECRETS}/t", f"{SLICES}/e", f"{SLICES}/f", f"{ENDPOINTS}/e", f"{ENDPOINTS}/none", LEASES,
        "/api/v1/namespaces/{ns}", f"{CRDS}/widgets.{GROUP}", f"{GADGETS}", f"{CORE}/serviceaccounts/absent",
    ):
        await s.get(path, TABLE, includeObject="None")


async def chapter_watches(s: Session) -> None:
    before = (await s.get(WIDGETS))["metadata"]["resourceVersion"]
    path = f"{WIDGETS}/a"
    first = await s.post(WIDGETS, widget("a"))
    created = first["metadata"]["resourceVersion"]
    await s.patch(path, {"spec": {"size": 4}})
    await s.patch(path, {"spec": {"size": 4}})
    await s.patch(path, {"metadata": {"labels": {"on": "yes"}}})
    await s.patch(f"{path}/status", {"status": {"phase": "x"}})
    await s.patch(path, {"metadata": {"labels": {"on": None}}})
    await s.post(WIDGETS, widget("b", labels={"on": "yes"}))
    await s.delete(path)
    await s.delete(f"{WIDGETS}/b")
    await s.post(WIDGETS, widget("c", labels={"on": "yes"}))
    await s.watch(WIDGETS, 9, resourceVersion=before)
    await s.watch(WIDGETS, 8, resourceVersion=created)
    await s.watch(WIDGETS, 6, resourceVersion=before, labelSelector="on=yes")
    await s.watch(WIDGETS, 3, resourceVersion=before, labelSelector="on!=yes")
    await s.watch(WIDGETS, 6, resourceVersion=before, fieldSelector="metadata.name=a")
    await s.watch(path, 6, resourceVersion=before)
    await s.watch(WIDGETS, 1)
    await s.watch(WIDGETS, 1, resourceVersion="0")
    await s.watch(WIDGETS, 2, resourceVersion=before, accept=TABLE)
    await s.watch(WIDGETS, 2, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true")
    await s.watch(WIDGETS, 1, sendInitialEvents="true")
    await s.watch(WIDGETS, 1, sendInitialEvents="true", resourceVersionMatch="Exact", resourceVersion="1")
    await s.watch(WIDGETS, 1, sendInitialEvents="false", resourceVersionMatch="NotOlderThan", timeoutSeconds="1")
    await s.watch(WIDGETS, 1, resourceVersionMatch="NotOlderThan", resourceVersion="0")
    await s.watch(WIDGETS, 1, resourceVersion="abc")
    await s.watch(WIDGETS, 1, resourceVersion="-5")
    await s.watch(WIDGETS, 1, labelSelector="a in b")
    await s.watch(WIDGETS, 1, fieldSelector="spec.size=1")
    await s.watch(WIDGETS, 1, timeoutSeconds="x")
    await s.watch(WIDGETS, 1, accept="image/png")
    await s.watch(f"{WIDGETS}/absent", 1, timeoutSeconds="1")
    await s.watch(WIDGETS, 1, resourceVersion=before, timeoutSeconds="1", labelSelector="nobody")
    before = (await s.get(MAPS, labelSelector="mine"))["metadata"]["resourceVersion"]
    await s.post(MAPS, config_map("m", {"a": "1"}, labels={"mine": "yes"}))
    await s.patch(f"{MAPS}/m", {"data": {"a": "2"}})
    await s.delete(f"{MAPS}/m")
    await s.watch(MAPS, 3, resourceVersion=before, labelSelector="mine")


async def chapter_discovery(s: Session) -> None:
    for path in (f"/apis/{GROUP}", "/apis/no.such.group", "/apis/no.such.group/v1", f"/apis/{GROUP}/v7"):
        await s.get(path)
    await s.get("/healthz")
    await s.get("/livez")
    await s.get("/readyz")
    await s.post("/version", {})
    crd = f"{CRDS}/gadgets.{GROUP}"
    found = await s.send(Operation("GET", crd), recorded=False)
    s.note("GET gadgets' definition", 200, {}, {"spec": found["spec"], "accepted": found["status"]["acceptedNames"]})
    conditions = {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}
    s.note("its conditions", 200, {}, conditions)
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    listed = await s.send(Operation("GET", "/apis", accept=accept), recorded=False)
    ours = next(item for item in listed["items"] if item["metadata"]["name"] == GROUP)
    for version in ours["versions"]:
        version["resources"].sort(key=lambda each: str(each["resource"]))
        version.pop("freshness", None)
    s.note("aggregated", 200, {}, ours)
    core = await s.send(Operation("GET", "/api", accept=accept), recorded=False)
    core_kinds = {"configmaps", "secrets", "services", "endpoints", "events", "namespaces", "serviceaccounts"}
    resources = [each for each in core["items"][0]["versions"][0]["resources"] if each["resource"] in core_kinds]
    for each in resources:
        kept = [sub for sub in each.pop("subresources", []) if sub["subresource"] in SUBRESOURCES]
        each |= {"subresources": kept}
    s.note("aggregated core", 200, {}, sorted(resources, key=lambda each: str(each["resource"])))
    for path in ("/api/v1", "/apis/discovery.k8s.io/v1", "/apis/coordination.k8s.io/v1", f"/apis/{GROUP}/v1"):
        listed = await s.send(Operation("GET", path), recorded=False)
        shown = [
            {name: item for name, item in each.items() if name != "storageVersionHash"}
            for each in listed["resources"]
            if each["name"].partition("/")[0] in {*core_kinds, "endpointslices", "leases", "widgets", "gadgets"} and each["name"].partition("/")[2] in SUBRESOURCES
        ]
        s.note(f"resources of {path}", 200, {}, sorted(shown, key=lambda each: str(each["name"])))


# -- how a write is made -----------------------------------------------------------------------------------------------


async def chapter_modes(s: Session) -> None:
    strange = widget("a", {"size": 3, "bogus": 1, "parts": [{"name": "x", "bogus": 2}]}, bogus=3)
    for mode in ("Strict", "Warn", "Ignore", "", "Nonsense"):
        await s.post(WIDGETS, strange, fieldValidation=mode, dryRun="All")
        await s.post(MAPS, {**config_map("m"), "bogus": 1}, fieldValidation=mode, dryRun="All")
    twice = json.dumps(widget("a")).replace('"size": 3', '"size": 3, "size": 4')
    deep = json.dumps(widget("a", {"size": 3, "parts": [{"name": "x"}]})).replace('"name": "x"', '"name": "x", "name": "y"')
    for text in (twice, deep, twice.replace('"kind"', '"kind": "Widget", "kind"')):
        for mode in ("Strict", "Warn", "Ignore"):
            params = {"fieldValidation": mode, "dryRun": "All"}
            await s.send(Operation("POST", WIDGETS, content_type=JSON, raw=text.encode(), params=params))
    await s.post(WIDGETS, widget("a"))
    await s.post(MAPS, config_map("m"))
    await s.post(SERVICES, service("s", ports=[{"port": 80}]))
    for mode in ("Strict", "Warn", "Ignore"):
        await s.patch(f"{WIDGETS}/a", {"spec": {"bogus": 1}}, fieldValidation=mode)
        await s.patch(f"{WIDGETS}/a", {"metadata": {"bogus": 1}}, fieldValidation=mode)
        await s.patch(f"{WIDGETS}/a", [{"op": "add", "path": "/spec/bogus", "value": 1}], JSON_PATCH, fieldValidation=mode)
        await s.patch(f"{MAPS}/m", {"bogus": 1}, fieldValidation=mode)
        await s.patch(f"{SERVICES}/s", {"spec": {"bogus": 1}}, STRATEGIC, fieldValidation=mode)
        await s.apply(f"{WIDGETS}/a", widget("a", {"bogus": 1}), "x", fieldValidation=mode)
        await s.apply(f"{MAPS}/m", {**config_map("m"), "bogus": 1}, "x", fieldValidation=mode)
        await s.put(f"{MAPS}/m", {**config_map("m"), "bogus": 1}, fieldValidation=mode)
        raw = b'{"spec": {"size": 4, "size": 5}}'
        params = {"fieldValidation": mode}
        await s.send(Operation("PATCH", f"{WIDGETS}/a", content_type=MERGE, raw=raw, params=params))
        yaml = f"apiVersion: {GROUP}/v1\nkind: Widget\nmetadata: {{name: a}}\nspec:\n  size: 5\n  size: 6\n".encode()
        params = {"fieldValidation": mode, "fieldManager": "y"}
        await s.send(Operation("PATCH", f"{WIDGETS}/a", content_type=APPLY, raw=yaml, params=params))
    for mode in ("All", "Some", ""):
        await s.post(WIDGETS, widget("d"), dryRun=mode)
        await s.patch(f"{WIDGETS}/a", {"spec": {"size": 7}}, dryRun=mode)
        await s.put(f"{MAPS}/m", config_map("m", {"x": mode}), dryRun=mode)
        await s.delete(f"{WIDGETS}/d", dryRun=mode)
    await s.post(WIDGETS, widget("", generateName="dry-"), dryRun="All")
    await s.post(SERVICES, service("dry", ports=[{"port": 80}]), dryRun="All")
    await s.delete(WIDGETS, dryRun="All")
    await s.delete(f"{WIDGETS}/a", {"dryRun": ["All"]})
    await s.delete(f"{WIDGETS}/a", {"dryRun": ["Some"]})
    await s.get(WIDGETS)


async def chapter_bodies(s: Session) -> None:
    good = json.dumps(widget("a")).encode()
    for content_type, raw in (
        (JSON, b""),
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, b"null"),
        (JSON, b'"x"'),
        (JSON, b"{} trailing"),
        (JSON, good + b"x"),
        (JSON, b"\xff\xfe"),
        (JSON, b'{"metadata": {"name": "\xff"}}'),
        (JSON, b'{"apiVersion": 1}'),
        (JSON, b'{"metadata": "x"}'),
        (JSON, b'{"kind": "Widget", "apiVersion": "check.llmkube.dev/v1", "metadata": {"name": 5}}'),
        ("application/xml", b"<a/>"),
        ("text/plain", good),
        (MERGE, good),
        ("nonsense", good),
        ("application/json; charset=utf-8", json.dumps(widget("charset")).encode()),
        ("", json.dumps(widget("none")).encode()),
        ("application/yaml", f"apiVersion: {GROUP}/v1\nkind: Widget\nmetadata: {{name: yaml}}\nspec: {{size: 3}}".encode()),
        ("application/yaml", b"a: [1"),
        ("application/yaml", b"- a"),
    ):
        await s.send(Operation("POST", WIDGETS, content_type=content_type, raw=raw))
    for content_type in (JSON, "text/plain", "", "application/json-patch", "application/xml"):
        await s.send(Operation("PATCH", f"{WIDGETS}/yaml", content_type=content_type, raw=b"{}"))
    for raw in (b"", b"{", b"x"):
        await s.send(Operation("PATCH", f"{WIDGETS}/yaml", content_type=MERGE, raw=raw))
        await s.send(Operation("PATCH", f"{WIDGETS}/yaml", content_type=JSON_PATCH, raw=raw))
        await s.send(Operation("PATCH", f"{SERVICES}/absent", content_type=STRATEGIC, raw=raw))
    big = widget("big", annotations={"a": "x" * 262_144})
    await s.post(WIDGETS, big, dryRun="All")
    await s.post(MAPS, config_map("big", {"a": "x" * 1_048_577}), dryRun="All")
    huge = Operation("POST", MAPS, content_type=JSON, raw=json.dumps(config_map("huge", {"a": "x" * 3_200_000})).encode())
    await s.send(huge)
    await s.send(Operation("PATCH", f"{WIDGETS}/yaml", content_type=MERGE, raw=b'{"a": "' + b"x" * 3_200_000 + b'"}'))
    await s.send(Operation("OPTIONS", WIDGETS))
    await s.send(Operation("PUT", WIDGETS, content_type=JSON, raw=good))
    await s.send(Operation("POST", f"{WIDGETS}/a", content_type=JSON, raw=good))


# -- deletion ----------------------------------------------------------------------------------------------------------


async def chapter_deletion(s: Session) -> None:
    path = f"{WIDGETS}/a"
    await s.post(WIDGETS, widget("a"))
    await s.delete(path, {"preconditions": {"uid": "other"}})
    await s.delete(path, {"preconditions": {"resourceVersion": "1"}})
    await s.delete(path, {"preconditions": {"uid": ABSENT_UID, "resourceVersion": "1"}})
    await s.delete(path, {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": f"{{uid:{path}}}"}})
    await s.delete(path)
    await s.delete(path, {"preconditions": {"uid": "other"}})
    await s.post(SERVICES, service("s", ports=[{"port": 80}]))
    await s.delete(f"{SERVICES}/s", {"preconditions": {"uid": ABSENT_UID}})
    await s.delete(f"{SERVICES}/s", {"preconditions": {"resourceVersion": "1"}})
    await s.delete(f"{SERVICES}/s", {"propagationPolicy": "Nonsense"})
    await s.delete(f"{SERVICES}/s", {"propagationPolicy": "Orphan", "orphanDependents": True})
    await s.delete(f"{SERVICES}/s", {"gracePeriodSeconds": 30})
    await s.post(MAPS, config_map("m"))
    await s.delete(f"{MAPS}/m", {"bogus": 1, "gracePeriodSeconds": 0})
    await s.post(MAPS, config_map("m"))
    await s.delete(f"{MAPS}/m", {"kind": "ConfigMap", "apiVersion": "v1"})
    await s.delete(f"{MAPS}/m", [])
    await s.delete(f"{MAPS}/m", propagationPolicy="Background")
    # finalizers
    await s.post(WIDGETS, widget("f", finalizers=["x.dev/a"]))
    path = f"{WIDGETS}/f"
    await s.delete(path, dryRun="All")
    await s.delete(path)
    await s.delete(path)
    await s.patch(path, {"metadata": {"finalizers": ["x.dev/a", "y.dev/b"]}})
    await s.patch(path, {"spec": {"size": 4}})
    await s.patch(path, {"metadata": {"deletionTimestamp": None}})
    await s.post(WIDGETS, widget("f"))
    await s.apply(path, widget("f", {"size": 5}), "x", force="true")
    await s.put(path, widget("f", resourceVersion=f"{{rv:{path}}}"))
    await s.get(path)
    await s.post(WIDGETS, widget("g", finalizers=["x.dev/a"]))
    path = f"{WIDGETS}/g"
    await s.delete(path, {"propagationPolicy": "Background"})
    await s.patch(path, [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH, dryRun="All")
    await s.patch(path, [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH)
    await s.get(path)
    await s.post(MAPS, config_map("h", finalizers=["x.dev/a"]))
    await s.delete(f"{MAPS}/h")
    await s.patch(f"{MAPS}/h", {"metadata": {"finalizers": None}})
    await s.get(f"{MAPS}/h")
    # collections
    for name, colour in (("a", "x"), ("b", "y"), ("c", "x")):
        await s.post(WIDGETS, widget(name, labels={"set": colour}))
    await s.delete(WIDGETS, labelSelector="set=x")
    await s.get(WIDGETS)
    await s.delete(WIDGETS, labelSelector="a in b")
    await s.delete(WIDGETS, fieldSelector="metadata.name=b")
    await s.delete(f"/apis/{GROUP}/v1/widgets")
    await s.get(WIDGETS)


async def chapter_cascades(s: Session) -> None:
    await s.post(WIDGETS, widget("owner"))
    await s.post(MAPS, config_map("child", ownerReferences=owner(WIDGETS, "owner")))
    await s.post(MAPS, config_map("grand", ownerReferences=owner(MAPS, "child", version="v1", kind="ConfigMap")))
    await s.delete(f"{WIDGETS}/owner")
    await s.wait_gone(f"{MAPS}/child")
    await s.wait_gone(f"{MAPS}/grand")
    await s.post(WIDGETS, widget("owner"))
    await s.post(MAPS, config_map("orphan", ownerReferences=owner(WIDGETS, "owner")))
    await s.delete(f"{WIDGETS}/owner", {"propagationPolicy": "Orphan"})
    await s.wait_gone(f"{WIDGETS}/owner")
    await s.get(f"{MAPS}/orphan")
    await s.post(WIDGETS, widget("owner"))
    blocking = owner(WIDGETS, "owner", blockOwnerDeletion=True)
    await s.post(WIDGETS, widget("child", finalizers=["x.dev/hold"], ownerReferences=blocking))
    await s.delete(f"{WIDGETS}/owner", {"propagationPolicy": "Foreground"})
    await s.wait_until(f"{WIDGETS}/child", "deletionTimestamp")
    await s.get(f"{WIDGETS}/owner")
    await s.get(f"{WIDGETS}/child")
    await s.patch(f"{WIDGETS}/child", {"metadata": {"finalizers": None}})
    await s.wait_gone(f"{WIDGETS}/owner")
    await s.post(WIDGETS, widget("one"))
    await s.post(WIDGETS, widget("two"))
    await s.post(MAPS, config_map("shared", ownerReferences=[*owner(WIDGETS, "one"), *owner(WIDGETS, "two")]))
    await s.delete(f"{WIDGETS}/one")
    await s.delete(f"{WIDGETS}/two")
    await s.wait_gone(f"{MAPS}/shared")
    await s.post(WIDGETS, widget("lonely", ownerReferences=[{"apiVersion": f"{GROUP}/v1", "kind": "Widget", "name": "gone", "uid": ABSENT_UID}]))
    await s.wait_gone(f"{WIDGETS}/lonely")


async def chapter_namespaces(s: Session) -> None:
    home = "/api/v1/namespaces/{ns}-x"
    await s.post("/api/v1/namespaces", {"metadata": {"name": "{ns}-x", "labels": {"a": "b"}}})
    await s.get(home)
    await s.post("/api/v1/namespaces", {"metadata": {"name": "{ns}-x"}})
    await s.post("/api/v1/namespaces", {"metadata": {"name": "Not.A.Label"}})
    await s.patch(home, {"metadata": {"labels": {"kubernetes.io/metadata.name": None}}})
    await s.patch(home, {"spec": {"finalizers": []}})
    await s.patch(home, {"status": {"phase": "Terminating"}})
    await s.post(f"{home}/configmaps", config_map("held", finalizers=["x.dev/hold"]))
    await s.delete(home)
    await s.post(f"{home}/configmaps", config_map("late"))
    await s.apply(f"{home}/configmaps/late", config_map("late"), "x")
    await s.wait_until(f"{home}/configmaps/held", "deletionTimestamp")
    await s.patch(f"{home}/configmaps/held", {"metadata": {"finalizers": None}})
    await s.wait_gone(home)
    await s.delete("/api/v1/namespaces/no-such-home")
    await s.delete("/api/v1/namespaces/default", dryRun="All")
    await s.post("/api/v1/namespaces/no-such-home/configmaps", config_map("m"))


# -- endpoints and services --------------------------------------------------------------------------------------------


async def chapter_endpoints(s: Session) -> None:
    for index, made in enumerate(
        (
            ("IPv4", "127.0.0.1"), ("IPv4", "169.254.1.1"), ("IPv4", "0.0.0.0"), ("IPv4", "224.0.0.1"), ("IPv4", "192.0.2.5"),
            ("IPv4", "192.0.2.5", "192.0.2.5"), ("IPv4", "2001:db8::5"), ("IPv4", "010.0.0.1"), ("IPv4", "x"), ("IPv4", ""),
            ("IPv6", "::1"), ("IPv6", "fe80::1"), ("IPv6", "::"), ("IPv6", "ff02::1"), ("IPv6", "2001:db8::5"),
            ("IPv6", "2001:DB8:0:0::5"), ("IPv6", "::ffff:192.0.2.5"), ("IPv6", "192.0.2.5"), ("IPv6", "fe80::1%eth0"),
            ("FQDN", "example.org"), ("FQDN", "not a name"), ("", "192.0.2.5"), ("IPv5", "192.0.2.5"), ("IPv4",),
            ("IPv6", "::ffff:127.0.0.1"), ("IPv4", 5),
        )
    ):
        await s.post(SLICES, slice_of(f"s{index}", *made))
    for index, ports in enumerate(
        (
            [{"port": 80}], [{"port": 0}], [{"port": 65536}], [{"port": "80"}], [{"name": "A_b", "port": 1}], [{"protocol": "X"}], [{}],
            [{"name": "a", "port": 1}, {"name": "a", "port": 2}], [{"port": 1, "appProtocol": "http"}], [{"port": 1, "appProtocol": "a b"}], None, [],
            [{"name": "x" * 64}],
        )
    ):
        await s.post(SLICES, slice_of(f"p{index}", "IPv4", "192.0.2.1", ports=ports))
    for index, endpoint in enumerate(
        (
            {"addresses": []}, {"addresses": None}, {}, {"addresses": ["192.0.2.1"], "conditions": {"ready": True}},
            {"addresses": ["192.0.2.1"], "hostname": "a.b"}, {"addresses": ["192.0.2.1"], "nodeName": "a b"},
            {"addresses": ["192.0.2.1"], "conditions": {"ready": "x"}}, {"addresses": ["192.0.2.1"], "bogus": 1},
            {"addresses": ["192.0.2.1"], "zone": "z", "targetRef": {"kind": "Pod", "name": "p"}, "deprecatedTopology": {"a": "b"}},
        )
    ):
        await s.post(SLICES, {**slice_of(f"e{index}", "IPv4"), "endpoints": [endpoint]})
    await s.post(SLICES, {**slice_of("n", "IPv4"), "endpoints": None})
    await s.get(f"{SLICES}/s4")
    await s.patch(f"{SLICES}/s4", {"addressType": "IPv6"})
    await s.patch(f"{SLICES}/s4", {"addressType": "IPv6", "endpoints": [{"addresses": ["2001:db8::5"]}]})
    await s.patch(f"{SLICES}/s4", {"endpoints": [{"addresses": ["192.0.2.6"]}]})
    await s.patch(f"{SLICES}/s4", {"endpoints": []})
    await s.apply(f"{SLICES}/s4", slice_of("s4", "IPv4", "192.0.2.7", ports=[{"port": 80, "name": "a"}]), "agent")
    await s.apply(f"{SLICES}/s4", slice_of("s4", "IPv4", "192.0.2.7", ports=[]), "agent")
    await s.apply(f"{SLICES}/s4", slice_of("s4", "IPv4", ports=[]), "agent", force="true")
    for index, subset in enumerate(
        (
            {"addresses": [{"ip": "127.0.0.1"}]}, {"addresses": [{"ip": "x"}]}, {"addresses": [{}]}, {}, {"addresses": []},
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}, {"port": 2}]},
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 0}]},
            {"notReadyAddresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1, "protocol": "X"}]},
            {"addresses": [{"ip": "192.0.2.2"}, {"ip": "192.0.2.1"}], "ports": [{"port": 1}]},
            {"addresses": [{"ip": "2001:DB8:0:0::5"}]}, {"addresses": [{"ip": "::ffff:192.0.2.5"}]},
        )
    ):
        await s.post(ENDPOINTS, {"metadata": {"name": f"e{index}"}, "subsets": [subset]})
    await s.post(ENDPOINTS, {"metadata": {"name": "none"}, "subsets": []})
    await s.post(ENDPOINTS, {"metadata": {"name": "null"}, "subsets": None})
    await s.apply(f"{ENDPOINTS}/none", {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "none"}, "subsets": []}, "x")


async def chapter_services(s: Session) -> None:
    web = [{"port": 80}]
    for index, spec in enumerate(
        (
            {"ports": web}, {"ports": web, "clusterIP": "None"}, {"clusterIP": "None"}, {}, {"ports": []}, {"ports": [{"port": 0}]},
            {"ports": [{"port": 65536}]}, {"ports": [{"port": 80}, {"port": 81}]}, {"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]},
            {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]}, {"ports": [{"port": 80, "targetPort": "http"}]},
            {"ports": [{"port": 80, "targetPort": 0}]}, {"ports": [{"port": 80, "targetPort": "Not_A_Name"}]}, {"ports": [{"port": 80, "protocol": "X"}]},
            {"ports": [{"port": "80"}]}, {"ports": web, "type": "Nonsense"}, {"ports": web, "type": "ExternalName"}, {"type": "ExternalName", "externalName": "a b"},
            {"type": "ExternalName", "externalName": "example.org"}, {"ports": web, "selector": {"a": "b c"}}, {"ports": web, "sessionAffinity": "ClientIP"},
            {"ports": web, "sessionAffinity": "X"}, {"ports": web, "externalIPs": ["127.0.0.1"]}, {"ports": web, "clusterIP": "x"},
            {"ports": web, "publishNotReadyAddresses": True}, {"ports": web, "internalTrafficPolicy": "X"}, {"ports": web, "bogus": 1},
        )
    ):
        await s.post(SERVICES, service(f"s{index}", **spec))
    await s.put(f"{SERVICES}/s0", service("s0", ports=[{"port": 81}]))
    await s.patch(f"{SERVICES}/s0", {"spec": {"clusterIP": "None"}})
    await s.patch(f"{SERVICES}/s0", {"spec": {"selector": {"a": "b"}}})
    await s.patch(f"{SERVICES}/s0", {"spec": {"ports": None}})
    await s.patch(f"{SERVICES}/s0/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})
    await s.delete(f"{SERVICES}/s0")


async def chapter_definitions(s: Session) -> None:
    base = widget_crd()

    def made(**changes: Any) -> dict[str, Any]:
        crd = json.loads(json.dumps(base).replace("widgets", "things").replace("Widget", "Thing").replace("widget", "thing"))
        crd["spec"]["names"]["shortNames"] = []
        for path, value in changes.items():
            place = crd
            *above, last = path.split("__")
            for step in above:
                place = place[int(step) if step.isdigit() else step]
            place[last] = value
        return crd

    schema = "spec__versions__0__schema"
    for changes in (
        {"metadata__name": "other"},
        {"spec__scope": "Nonsense"},
        {"spec__versions": []},
        {"spec__names__kind": "lower"},
        {"spec__names__plural": "Upper"},
        {schema: {}},
        {schema: {"openAPIV3Schema": {"type": "object", "properties": {"spec": {}}}}},
        {schema: {"openAPIV3Schema": {"type": "string"}}},
        {schema: {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "array"}}}}},
        {"spec__bogus": 1},
    ):
        await _define(s, made(**changes), str(changes)[:80])
    await _define(s, made(), "as it is", fieldValidation="Strict")


async def _define(s: Session, crd: dict[str, Any], said: str, **params: str) -> None:
    """Say what a definition is refused for; of one that is taken, its code alone: controllers complete it later."""
    operation = Operation("POST", CRDS, crd, JSON, {"dryRun": "All", **params})
    body = await s.send(operation, recorded=False)
    code = int(body["code"]) if body["kind"] == "Status" else 201
    s.note(f"a definition with {said}", code, {}, body if body["kind"] == "Status" else {})


CHAPTERS: Final[tuple[Chapter, ...]] = tuple(
    chapter for name, chapter in globals().items() if name.startswith("chapter_")
)
"""Every chapter, in the order written."""

DEFINITIONS: Final = {f"widgets.{GROUP}": widget_crd, GADGETS_CRD: gadget_crd}
"""The kinds that the script needs."""
