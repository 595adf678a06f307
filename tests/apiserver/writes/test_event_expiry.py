"""Events expire an hour after the last write, and watches receive the deletion."""

import json
import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import trio

from llmkube.apiserver.storage.revisions import Object, Ref, Store
from llmkube.apiserver.writes.garbage_collector import BATCH, MAX_EVENTS, last_written, overdue, seconds_to_next
from llmkube.k8s.resource import Key
from memory_api_server import open_memory_api_server

START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = "/api/v1/namespaces/default/events"


def virtual_utcnow() -> Callable[[], datetime]:
    started = trio.current_time()
    return lambda: START + timedelta(seconds=trio.current_time() - started)


def stamped(*minutes: int) -> dict[str, Any]:
    """Return an object made at the first minute and written to at the others."""
    first, *later = [(START + timedelta(minutes=each)).strftime("%Y-%m-%dT%H:%M:%SZ") for each in minutes]
    return {"metadata": {"creationTimestamp": first, "managedFields": [{"time": each} for each in later]}}


@pytest.mark.parametrize(
    ("event", "minute"),
    [(stamped(3), 3), (stamped(0, 5), 5), (stamped(0, 9, 7), 9), ({"metadata": {}}, None)],
)
def test_the_servers_own_timestamps_date_an_event(event: Object, minute: int | None):
    """The newest of creation and recorded writes counts, whatever the client says of itself."""
    expected = datetime.min.replace(tzinfo=UTC) if minute is None else START + timedelta(minutes=minute)
    assert last_written(event) == expected


def test_an_event_has_an_hour_from_its_last_write():
    """Sixty minutes after the last write it is due, not a second before; the oldest go first."""
    events = [(Key("a", "new"), stamped(0, 30)), (Key("a", "old"), stamped(2)), (Key("a", "older"), stamped(1))]
    now = START + timedelta(hours=1)
    assert overdue(events, now) == []
    assert overdue(events, now + timedelta(minutes=2, seconds=-1)) == [Key("a", "older")]
    assert overdue(events, now + timedelta(minutes=2)) == [Key("a", "older"), Key("a", "old")]


def test_of_too_many_events_the_oldest_go_early():
    """More than the limit are cut down to it, from the old end."""
    events = [(Key("a", str(minute)), stamped(minute)) for minute in range(5)]
    assert overdue(events, START, limit=3) == [Key("a", "0"), Key("a", "1")]
    assert overdue(events, START, limit=5) == []


def test_nothing_is_scanned_before_an_event_can_expire():
    """The next look is when the oldest is due: at once when it is or there are too many, never without Events."""
    events = [(Key("a", "new"), stamped(30)), (Key("a", "old"), stamped(2))]
    assert seconds_to_next(events, START + timedelta(minutes=32)) == 30 * 60
    assert seconds_to_next(events, START + timedelta(minutes=62)) == 0
    assert seconds_to_next(events, START, limit=1) == 0
    assert seconds_to_next([], START) == math.inf


def event(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "involvedObject": {"namespace": "default", "name": "x"},
        "reason": "Tried",
    }


async def test_a_watch_sees_events_expire_and_a_write_puts_it_off(autojump_clock):
    """An Event without writes is DELETED within 61 minutes; a write extends its life by an hour."""
    async with (
        open_memory_api_server(utcnow=virtual_utcnow(), rng=random.Random(0)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=None) as http,
    ):
        await http.post(EVENTS, json=event("alone"))
        await http.post(EVENTS, json=event("again"))
        await http.post("/api/v1/namespaces/default/configmaps", json={"metadata": {"name": "stays"}})
        await trio.sleep(1800)
        merge = {"content-type": "application/merge-patch+json"}
        await http.patch(f"{EVENTS}/again", json={"count": 2}, headers=merge)
        gone = []
        begun = trio.current_time() - 1800
        async with http.stream("GET", EVENTS, params={"watch": "true", "timeoutSeconds": "9000"}) as response:
            async for line in response.aiter_lines():
                seen = json.loads(line)
                if seen["type"] == "DELETED":
                    gone.append((seen["object"]["metadata"]["name"], trio.current_time() - begun))
        assert [name for name, _ in gone] == ["alone", "again"]
        assert 3600 <= gone[0][1] <= 3661
        assert 5400 <= gone[1][1] <= 5461
        assert (await http.get(EVENTS)).json()["items"] == []
        assert (await http.get("/api/v1/namespaces/default/configmaps/stays")).status_code == 200


async def test_a_flood_of_events_is_cut_down_in_batches(autojump_clock):
    """Events over the limit after a restart are deleted within a minute, although a transaction takes one batch."""
    many = MAX_EVENTS + 2 * BATCH + 1
    stored = []
    for number in range(many):
        metadata = {"name": f"e{number:05}", "namespace": "default", "uid": str(number), "resourceVersion": str(number)}
        made = {"apiVersion": "v1", "kind": "Event", "metadata": stamped(0)["metadata"] | metadata}
        stored.append((Ref("events", Key("default", metadata["name"])), made))
    store = Store(many, stored)
    async with open_memory_api_server(utcnow=virtual_utcnow(), rng=random.Random(0), store=store):
        await trio.sleep(61)
        left = store.list("events")
        assert len(left) == MAX_EVENTS
        assert left[0][0].name == f"e{2 * BATCH + 1:05}"
