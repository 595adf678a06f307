"""Checks of what is read: lists, watches, and what kubectl asks for."""

import json

from contracts.lab import (
    MERGE,
    Lab,
    status_of,
    widget,
)
from contracts.widgets import GROUP, WIDGETS


async def check_lists_select(lab: Lab) -> None:
    """Label selectors of every form and the two field selectors choose what they say."""
    for name, labels in (("a", {"tier": "web", "env": "dev"}), ("b", {"tier": "db"}), ("c", {})):
        await lab.create(lab.widgets, widget(name, metadata={"labels": labels}))

    async def names(**params: str) -> str:
        return "".join(item["metadata"]["name"] for item in (await lab.get(lab.widgets, **params))["items"])

    for selector, expected in (
        ("tier=web", "a"),
        ("tier==web,env=dev", "a"),
        ("tier!=web", "bc"),
        ("tier", "ab"),
        ("!tier", "c"),
        ("tier in (web,db)", "ab"),
        ("tier notin (web)", "bc"),
        ("tier in (web, db),env", "a"),
    ):
        assert await names(labelSelector=selector) == expected, selector
    assert await names(fieldSelector="metadata.name=b") == "b"
    assert await names(fieldSelector="metadata.name!=b") == "ac"
    status_of(await lab.http.get(lab.widgets, params={"fieldSelector": "spec.size=3"}), 400, "BadRequest")
    status_of(await lab.http.get(lab.widgets, params={"labelSelector": "tier in web"}), 400, "BadRequest")


async def check_pages_show_one_moment(lab: Lab) -> None:
    """A list read page by page is the list as it was at its first page."""
    for name in "abcde":
        await lab.widget(name)
    first = await lab.get(lab.widgets, limit=2)
    assert first["metadata"]["remainingItemCount"] == 3
    await lab.http.delete(f"{lab.widgets}/d")
    await lab.widget("cc")
    names = [item["metadata"]["name"] for item in first["items"]]
    page = first
    while token := page["metadata"].get("continue"):
        page = await lab.get(lab.widgets, **{"limit": 2, "continue": token})
        names += [item["metadata"]["name"] for item in page["items"]]
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert names == list("abcde")
    status_of(await lab.http.get(lab.widgets, params={"continue": "nonsense"}), 400, "BadRequest")


async def check_resource_versions_of_reads(lab: Lab) -> None:
    """`Exact` shows the past, `NotOlderThan` at least that, and a version from the future is refused with a retry."""
    await lab.widget("a")
    before = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    await lab.widget("b")
    past = await lab.get(lab.widgets, resourceVersion=before, resourceVersionMatch="Exact")
    assert [item["metadata"]["name"] for item in past["items"]] == ["a"]
    fresh = await lab.get(lab.widgets, resourceVersion=before, resourceVersionMatch="NotOlderThan")
    assert [item["metadata"]["name"] for item in fresh["items"]] == ["a", "b"]
    assert len((await lab.get(lab.widgets, resourceVersion="0"))["items"]) == 2


async def check_a_watch_follows_a_list(lab: Lab) -> None:
    """Every change after the list's version comes once, in order, with growing versions."""
    version = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    async with lab.watch(lab.widgets, resourceVersion=version) as next_event:
        await lab.widget("a")
        await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": 4}}, headers=MERGE)
        await lab.http.delete(f"{lab.widgets}/a")
        events = [await next_event() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))
    assert events[-1]["object"]["spec"]["size"] == 4
    async with lab.watch(lab.widgets, resourceVersion=events[0]["object"]["metadata"]["resourceVersion"]) as next_event:
        assert (await next_event())["type"] == "MODIFIED"


async def check_a_watch_without_a_version_begins_with_the_state(lab: Lab) -> None:
    """Without a version the objects that are there come first, as ADDED."""
    await lab.widget("a")
    async with lab.watch(lab.widgets) as next_event:
        event = await next_event()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
        await lab.widget("b")
        assert (await next_event())["object"]["metadata"]["name"] == "b"


async def check_selectors_of_watches_turn_changes_into_comings_and_goings(lab: Lab) -> None:
    """An object that begins to match is ADDED, one that stops is DELETED, others are not mentioned."""
    async with lab.watch(lab.widgets, labelSelector="on=yes", resourceVersion=await version_of(lab)) as next_event:
        await lab.widget("a")
        await lab.http.patch(f"{lab.widgets}/a", json={"metadata": {"labels": {"on": "yes"}}}, headers=MERGE)
        await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": 4}}, headers=MERGE)
        await lab.http.patch(f"{lab.widgets}/a", json={"metadata": {"labels": {"on": None}}}, headers=MERGE)
        assert [(await next_event())["type"] for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]
    async with lab.watch(lab.widgets, fieldSelector="metadata.name=b", resourceVersion=await version_of(lab)) as events:
        await lab.widget("c")
        await lab.widget("b")
        assert (await events())["object"]["metadata"]["name"] == "b"


async def version_of(lab: Lab) -> str:
    version: str = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    return version


async def check_a_watch_ends_when_its_time_is_over(lab: Lab) -> None:
    """`timeoutSeconds` ends the stream cleanly."""
    async with lab.watch(lab.widgets, timeoutSeconds="1", resourceVersion=await version_of(lab)) as next_event:
        while (event := await next_event()) is not None:
            assert event["type"] == "BOOKMARK"


async def check_a_streaming_list_says_where_it_ends(lab: Lab) -> None:
    """`sendInitialEvents` sends the state and then a bookmark that says so."""
    await lab.widget("a")
    params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with lab.watch(lab.widgets, **params) as next_event:
        assert (await next_event())["type"] == "ADDED"
        bookmark = await next_event()
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    answer = await lab.http.get(lab.widgets, params={"watch": "true", "sendInitialEvents": "true"})
    status_of(answer, 422, "Invalid")


async def check_bookmarks_do_not_go_backwards(lab: Lab) -> None:
    """A bookmark is not older than any event before it, and a watch from there misses nothing and repeats nothing."""
    made = await lab.widget("a")
    params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with lab.watch(lab.widgets, **params) as next_event:
        assert (await next_event())["type"] == "ADDED"
        bookmark = await next_event()
    at = bookmark["object"]["metadata"]["resourceVersion"]
    assert int(at) >= int(made["metadata"]["resourceVersion"])
    await lab.widget("b")
    async with lab.watch(lab.widgets, resourceVersion=at) as next_event:
        assert (await next_event())["object"]["metadata"]["name"] == "b"


async def check_every_acknowledged_write_is_read_again(lab: Lab) -> None:
    """What was answered with success is what the next read shows, write after write."""
    await lab.widget("a")
    for size in (1, 2, 3, 4, 5, 6, 7, 8):
        answer = await lab.http.patch(f"{lab.widgets}/a", json={"spec": {"size": size}}, headers=MERGE)
        assert (await lab.get(f"{lab.widgets}/a")) == answer.json()


async def check_a_forgotten_version_is_gone(lab: Lab) -> None:
    """A watch from a version that the server has forgotten ends with 410 Expired, as an ERROR event or a status."""
    params = {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "1"}
    async with lab.http.stream("GET", lab.widgets, params=params) as answer:
        if answer.status_code == 410:
            status = json.loads(await answer.aread())
        else:
            line = await anext(answer.aiter_lines(), "")
            if not line or json.loads(line)["type"] != "ERROR":
                return  # a young server remembers everything
            status = json.loads(line)["object"]
    assert (status["code"], status["reason"]) == (410, "Expired")


async def check_discovery(lab: Lab) -> None:
    """The kind is in the old discovery, in the aggregated one and in OpenAPI, with its names and subresources."""
    listed = await lab.get(WIDGETS)
    entry = next(item for item in listed["resources"] if item["name"] == "widgets")
    assert (entry["kind"], entry["namespaced"], entry["shortNames"]) == ("Widget", True, ["wd"])
    assert {"get", "list", "watch", "create", "update", "patch", "delete"} <= set(entry["verbs"])
    assert {"widgets/status", "widgets/scale"} <= {item["name"] for item in listed["resources"]}
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    found = (await lab.http.get("/apis", headers={"accept": accept})).json()
    assert found["kind"] == "APIGroupDiscoveryList"
    group = next(item for item in found["items"] if item["metadata"]["name"] == GROUP)
    assert "Widget" in {each["responseKind"]["kind"] for each in group["versions"][0]["resources"]}
    assert (await lab.get("/apis"))["kind"] == "APIGroupList"
    assert (await lab.get("/api"))["versions"] == ["v1"]
    paths = (await lab.get("/openapi/v3"))["paths"]
    document = await lab.get(paths[f"apis/{GROUP}/v1"]["serverRelativeURL"])
    kinds = [
        kind["kind"]
        for schema in document["components"]["schemas"].values()
        for kind in schema.get("x-kubernetes-group-version-kind", [])
    ]
    assert "Widget" in kinds


async def check_tables(lab: Lab) -> None:
    """Asked for a Table, the server draws the kind's columns; asked for metadata, it leaves the rest out."""
    await lab.widget("a")
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    drawn = (await lab.http.get(lab.widgets, headers={"accept": accept})).json()
    assert (drawn["kind"], drawn["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in drawn["columnDefinitions"]] == ["Name", "Size"]
    assert drawn["rows"][0]["cells"] == ["a", 3]
    assert drawn["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
    partial = (await lab.http.get(lab.widgets, headers={"accept": accept})).json()
    assert partial["kind"] == "PartialObjectMetadataList"
    assert "spec" not in partial["items"][0]
    answer = await lab.http.get(lab.widgets, headers={"accept": "image/png"})
    status_of(answer, 406, "NotAcceptable")


async def check_services_have_addresses(lab: Lab) -> None:
    """A Service gets an address that survives updates and recreation of nothing else; a headless one gets none."""
    made = await lab.create(lab.core("services"), {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    address = made["spec"]["clusterIP"]
    assert made["spec"]["clusterIPs"] == [address]
    assert made["spec"]["ports"][0]["targetPort"] == 80
    answer = await lab.http.put(
        f"{lab.core('services')}/s", json={"metadata": {"name": "s"}, "spec": {"ports": [{"port": 81}]}}
    )
    assert answer.json()["spec"]["clusterIP"] == address
    headless = {"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}
    assert (await lab.create(lab.core("services"), headless))["spec"]["clusterIP"] == "None"


async def check_slices_refuse_loopback(lab: Lab) -> None:
    """An EndpointSlice with a loopback address is refused with the address's path."""
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{lab.namespace}/endpointslices"
    manifest = {"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}]}
    status = status_of(await lab.http.post(slices, json=manifest), 422, "Invalid")
    assert status["details"]["causes"][0]["field"] == "endpoints[0].addresses[0]"
