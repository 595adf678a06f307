"""Objects come to be: named, defaulted, pruned, judged by schemas and rules."""

import json
from typing import Any

from contracts.lab import config_map
from contracts.nouns import EVENTS, GADGETS, LEASES, MAPS, NOWHERE, SECRETS, SERVICES, WIDGETS, gadget, service, widget
from contracts.session import ABSENT_UID, JSON, TABLE, Operation, Session
from contracts.widgets import CRDS, GROUP, widget_crd


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
    await s.post(
        EVENTS, {"metadata": {"generateName": "x-"}, "involvedObject": happened, "reason": "R", "type": "Normal"}
    )
    await s.post(EVENTS, {"metadata": {"name": "e"}, "involvedObject": {**happened, "namespace": "other"}})


async def chapter_names(s: Session) -> None:
    for name in ("Upper", "under_score", "-dash", "dash-", "a.b", "a..b", "x" * 253, "x" * 254, "a/b", "ä", "1", "%"):
        await s.post(WIDGETS, widget(name))
        await s.post(SERVICES, service(name, ports=[{"port": 80}], clusterIP="None"))
    await s.post(WIDGETS, widget("", generateName="y" * 70))
    for labels in (
        {"a": "b c"},
        {"a b": "c"},
        {"/a": "c"},
        {"x/": "c"},
        {"a": "y" * 64},
        {"x/y/z": ""},
        {"a": ""},
        {"a": 1},
        {"a": None},
        [],
    ):
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
            {"range": {"high": 3}},
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
    for spec in (
        {"map": {"x": 1}, "tags": ["a"], "range": {"low": 1, "high": 2}},
        {"map": {}, "tags": ["a"]},
        {"tags": []},
        {"range": {}},
        {},
    ):
        await s.apply(f"{GADGETS}/emptied", gadget("emptied", spec), "one")
    await s.get(f"{GADGETS}/emptied")


async def chapter_definitions(s: Session) -> None:
    base = widget_crd()

    def made(**changes: Any) -> dict[str, Any]:
        crd = json.loads(
            json.dumps(base).replace("widgets", "things").replace("Widget", "Thing").replace("widget", "thing")
        )
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


async def _define(s: Session, crd: dict[str, Any], label: str, **params: str) -> None:
    """Say what a definition is refused for; of one that is taken, its code alone: controllers complete it later."""
    operation = Operation("POST", CRDS, crd, JSON, {"dryRun": "All", **params})
    body = await s.send(operation, recorded=False)
    code = int(body["code"]) if body["kind"] == "Status" else 201
    s.note(f"a definition with {label}", code, {}, body if body["kind"] == "Status" else {})
