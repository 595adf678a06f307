"""Objects change: by updates, each kind of patch and each subresource, in each mode."""

import json

from contracts.lab import config_map
from contracts.nouns import ENDPOINTS, LEASES, MAPS, SERVICES, WIDGETS, service, widget
from contracts.session import ABSENT_UID, APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC, Operation, Session
from contracts.widgets import GROUP


async def chapter_updates(s: Session) -> None:
    first = await s.post(WIDGETS, widget("a"))
    path = f"{WIDGETS}/a"
    for size in (4, 5):
        raw = json.dumps({**first, "spec": {"size": size}}).encode()
        await s.send(Operation("PUT", path, raw=raw, content_type=JSON), label=f"the first with size {size}")
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
        await s.send(
            Operation("PUT", path, raw=json.dumps(changed).encode(), content_type=JSON),
            label=f"the same with {metadata}",
        )
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
    await s.put(
        f"{LEASES}/gone", {"metadata": {"name": "gone", "resourceVersion": "1"}, "spec": {"holderIdentity": "me"}}
    )
    await s.put(f"{SERVICES}/gone", {**service("gone"), "metadata": {"name": "gone", "resourceVersion": "1"}})


async def chapter_patches(s: Session) -> None:
    path = f"{WIDGETS}/a"
    await s.post(WIDGETS, widget("a", {"size": 3, "replicas": 1}, labels={"a/b": "c"}))
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
        [{"op": "replace", "path": "", "value": []}],
        [{"op": "replace", "path": "", "value": 3}],
        [{"op": "add", "path": "", "value": {}}],
        [{"op": "test", "path": "", "value": {}}],
        [{"op": "test", "path": "/spec/nope", "value": None}],
        [{"op": "test", "path": "/spec/size"}],
        [{"op": "test", "path": "/spec/parts/9", "value": None}],
        [{"op": "add", "path": "/spec/parts", "value": [{"name": "a"}, {"name": "b"}]}],
        [{"op": "remove", "path": "/spec/parts/-1"}],
        [{"op": "add", "path": "/spec/parts/-1", "value": {"name": "last"}}],
        [{"op": "add", "path": "/spec/parts/01", "value": {"name": "second"}}],
        [{"op": "remove", "path": "/spec/parts/-9"}],
        [{"op": "remove", "path": "/spec/parts/x"}],
        [{"op": "replace", "path": "/spec/parts/0"}],
        [{"op": "add", "path": "/spec/size/x", "value": 1}],
        [{"op": "copy", "from": "/spec/nope", "path": "/spec/replicas"}],
        [{"op": "copy", "path": "/spec/replicas"}],
        [{"op": "add", "path": "x/nope", "value": 1}],
        [{"op": "remove", "path": "/metadata"}],
        [{"op": "remove", "path": "/metadata/name"}],
        [{"op": "remove", "path": "/kind"}],
        [{"op": "remove", "path": "/apiVersion"}],
        [{"op": 3, "path": "/spec"}],
        [{"op": "add", "path": 3}],
        [{"op": "test", "path": "/a"}] * 10_001,
        {"op": "add"},
        ["x"],
    ):
        await s.patch(path, operations, JSON_PATCH)
    await s.patch(path, {"kind": None})
    await s.patch(path, {"kind": 3})
    await s.patch(path, {"kind": "Gadget"})
    await s.patch(path, {"apiVersion": "v1", "spec": {"size": "x"}})
    await s.patch(path, {"apiVersion": "x.dev/v1", "kind": "Foo"})
    await s.patch(path, {"apiVersion": "x.dev/v1", "metadata": {"name": "other"}})
    await s.post(MAPS, config_map("m", {"a": "b"}))
    for media in (MERGE, STRATEGIC):
        await s.patch(f"{MAPS}/m", {"kind": None}, media)
        await s.patch(f"{MAPS}/m", {"apiVersion": "v2"}, media)
        await s.patch(f"{MAPS}/m", {"apiVersion": "discovery.k8s.io/v1"}, media)
    await s.patch(f"{MAPS}/m", [{"op": "replace", "path": "", "value": {}}], JSON_PATCH)
    await s.patch(f"{MAPS}/m", [{"op": "add", "path": "/data/z"}], JSON_PATCH)
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
        {
            "spec": {
                "ports": [{"name": "y", "port": 91}, {"name": "x", "port": 89}],
                "$setElementOrder/ports": [{"port": 91}, {"port": 89}],
            }
        },
        {"spec": {"$setElementOrder/ports": [{"port": 89}, {"port": 91}]}},
        {"spec": {"bogus": 1}},
        {"spec": {"ports": "x"}},
        {"spec": {"type": "Nonsense"}},
        {"spec": {"$patch": "nonsense"}},
        {"spec": {"type": "ExternalName", "externalName": "example.org"}},
    ):
        await s.patch(path, patch, STRATEGIC)
    await s.get(path)
    await s.post(SERVICES, service("portless", clusterIP="None"))
    for patch in (
        {"spec": {"ports": [{"port": 81}, {"name": "p", "port": 81}]}},
        {"spec": {"ports": [{"name": "no port"}]}},
        {"spec": {"ports": [{"port": 81, "$patch": "delete"}, {"port": 82, "name": None, "targetPort": 83}]}},
    ):
        await s.patch(f"{SERVICES}/portless", patch, STRATEGIC)
    await s.post(ENDPOINTS, {"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "192.0.2.1"}]}]})
    await s.patch(f"{ENDPOINTS}/e", {"subsets": [{"addresses": [{"ip": "192.0.2.2"}]}]}, STRATEGIC)
    await s.patch(f"{ENDPOINTS}/e", {"subsets": []}, STRATEGIC)
    await s.patch(f"{ENDPOINTS}/e", {"subsets": [{}]}, STRATEGIC)
    await s.post(MAPS, config_map("m", {"a": "1", "b": "2"}))
    await s.patch(f"{MAPS}/m", {"data": {"a": None}}, STRATEGIC)
    await s.patch(f"{MAPS}/m", {"data": None}, STRATEGIC)
    await s.patch(f"{MAPS}/m", {"$patch": "delete"}, STRATEGIC)


async def chapter_status(s: Session) -> None:
    path = f"{WIDGETS}/a"
    await s.post(WIDGETS, widget("a"))
    await s.patch(
        f"{path}/status",
        {
            "spec": {"size": 9},
            "status": {"phase": "Ready"},
            "metadata": {"labels": {"x": "y"}, "finalizers": ["a.b/c"]},
        },
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
    await s.apply(
        f"{path}/status", {**applied, "metadata": {"name": "a", "uid": ABSENT_UID}, "status": {"phase": "U"}}, "m"
    )
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


async def chapter_modes(s: Session) -> None:
    strange = widget("a", {"size": 3, "bogus": 1, "parts": [{"name": "x", "bogus": 2}]}, bogus=3)
    for mode in ("Strict", "Warn", "Ignore", "", "Nonsense"):
        await s.post(WIDGETS, strange, fieldValidation=mode, dryRun="All")
        await s.post(MAPS, {**config_map("m"), "bogus": 1}, fieldValidation=mode, dryRun="All")
    twice = json.dumps(widget("a")).replace('"size": 3', '"size": 3, "size": 4')
    deep = json.dumps(widget("a", {"size": 3, "parts": [{"name": "x"}]})).replace(
        '"name": "x"', '"name": "x", "name": "y"'
    )
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
        await s.patch(
            f"{WIDGETS}/a", [{"op": "add", "path": "/spec/bogus", "value": 1}], JSON_PATCH, fieldValidation=mode
        )
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
