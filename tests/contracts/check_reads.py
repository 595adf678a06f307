"""Checks of what is read: lists, watches, and what kubectl asks for."""

import json

from contracts.lab import MERGE, Lab, status_of


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


async def version_of(lab: Lab) -> str:
    version: str = (await lab.get(lab.widgets))["metadata"]["resourceVersion"]
    return version


async def check_a_watch_ends_when_its_time_is_over(lab: Lab) -> None:
    """`timeoutSeconds` ends the stream cleanly."""
    async with lab.watch(lab.widgets, timeoutSeconds="1", resourceVersion=await version_of(lab)) as next_event:
        while (event := await next_event()) is not None:
            assert event["type"] == "BOOKMARK"


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
    """A successful write is visible to the next read, write after write."""
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
