"""Objects are read: listed, selected, paged, drawn as tables, watched, discovered."""

import json

from contracts.lab import config_map
from contracts.nouns import (
    CORE,
    ENDPOINTS,
    EVENTS,
    GADGETS,
    LEASES,
    MAPS,
    SECRETS,
    SERVICES,
    SLICES,
    SUBRESOURCES,
    WIDGETS,
    service,
    slice_of,
    widget,
)
from contracts.session import JSON, JSON_PATCH, MERGE, STRATEGIC, TABLE, Operation, Session
from contracts.widgets import CRDS, GROUP


async def chapter_lists(s: Session) -> None:
    for name, labels in (
        ("a", {"tier": "web", "env": "dev"}),
        ("b", {"tier": "db", "n": "5"}),
        ("c", {}),
        ("d", {"n": "7"}),
    ):
        await s.post(WIDGETS, widget(name, labels=labels))
    await s.get(WIDGETS)
    await s.get(MAPS, labelSelector="x=y")
    for selector in (
        "tier=web",
        "tier==web,env=dev",
        "tier!=web",
        "tier",
        "!tier",
        "tier in (web,db)",
        "tier notin (web)",
        "tier in (web, db),env",
        "n>5",
        "n<7",
        "n>x",
        "tier in web",
        "tier in (",
        "a==",
        "a=",
        "=a",
        ",",
        "a,",
        ",a",
        "a b",
        "tier in ()",
        "!",
        "a=b=c",
        "a!b",
        "in",
        "notin (a)",
        "x/y/z=1",
        "_=1",
        "a in (b,)",
        "a=-",
        " tier = web ",
        "tier = web , env",
        "a=" + "y" * 64,
        "(a)",
        "a>1,b",
        "a<",
        "a in (b) c",
    ):
        await s.get(WIDGETS, labelSelector=selector, fieldSelector="metadata.name!=z")
    for selector in (
        "metadata.name=b",
        "metadata.name==b",
        "metadata.name!=b",
        "metadata.namespace={ns}",
        "spec.size=3",
        "nonsense",
        "metadata.name",
        "metadata.name=a,metadata.namespace!={ns}",
        "=",
        "metadata.name=a=b",
        "!metadata.name",
        "metadata.uid=x",
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
    await s.post(
        SERVICES, service("s", ports=[{"port": 80, "name": "a"}, {"port": 81, "protocol": "UDP", "name": "b"}])
    )
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
    await s.post(WIDGETS, widget("w", {"size": 3, "replicas": 2}))
    await s.post(WIDGETS, widget("v", {"size": 3}))
    for path in (
        f"{WIDGETS}/w/scale",
        f"{WIDGETS}/v/scale",
        SERVICES,
        f"{MAPS}/m",
        f"{SECRETS}/t",
        f"{SLICES}/e",
        f"{SLICES}/f",
        f"{ENDPOINTS}/e",
        f"{ENDPOINTS}/none",
        LEASES,
        "/api/v1/namespaces/{ns}",
        f"{CRDS}/widgets.{GROUP}",
        f"{GADGETS}",
        f"{CORE}/serviceaccounts/absent",
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
    conditions = {each["type"]: [each["status"], each["reason"]] for each in found["status"]["conditions"]}
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
            if each["name"].partition("/")[0] in {*core_kinds, "endpointslices", "leases", "widgets", "gadgets"}
            and each["name"].partition("/")[2] in SUBRESOURCES
        ]
        s.note(f"resources of {path}", 200, {}, sorted(shown, key=lambda each: str(each["name"])))


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
        (
            "application/yaml",
            f"apiVersion: {GROUP}/v1\nkind: Widget\nmetadata: {{name: yaml}}\nspec: {{size: 3}}".encode(),
        ),
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
    huge = Operation(
        "POST", MAPS, content_type=JSON, raw=json.dumps(config_map("huge", {"a": "x" * 3_200_000})).encode()
    )
    await s.send(huge)
    await s.send(Operation("PATCH", f"{WIDGETS}/yaml", content_type=MERGE, raw=b'{"a": "' + b"x" * 3_200_000 + b'"}'))
    await s.send(Operation("OPTIONS", WIDGETS))
    await s.send(Operation("PUT", WIDGETS, content_type=JSON, raw=good))
    await s.send(Operation("POST", f"{WIDGETS}/a", content_type=JSON, raw=good))
