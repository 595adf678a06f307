"""Events reach the API server once per message, and reporting one never blocks or fails."""

import datetime
import random
from contextlib import asynccontextmanager

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from k8s.scripted import status
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.k8s import events
from llmkube.k8s.builtins import ConfigMap, Event
from llmkube.k8s.client import Client
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.events import (
    BURST,
    MAX_MESSAGES_PER_REASON,
    MAX_PENDING,
    MAX_PENDING_PER_OBJECT,
    REFILL_SECONDS,
    STALE_SECONDS,
    EventRecorder,
)

SETTLED = 0.5


def clock():
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=trio.current_time())


def thing(name="chat", uid="", namespace="default"):
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{name}"))


@attrs.define(eq=False)
class Lab(httpx.AsyncBaseTransport):
    """A recorder, an API server in memory, and the network between them: writes are written down, and may fail."""

    inner: httpx.AsyncBaseTransport
    recorder: EventRecorder
    client: Client = None
    down: bool = False
    answer: httpx.Response | None = None
    writes: list = attrs.field(factory=list)

    async def handle_async_request(self, request):
        await trio.lowlevel.checkpoint()
        if self.down:
            raise httpx.ConnectError("connection refused")
        self.writes.append((trio.current_time(), request.method, request.url.path))
        return self.answer or await self.inner.handle_async_request(request)

    async def events(self):
        await trio.sleep(SETTLED)
        found = (await self.client.list(Event)).items
        return sorted(found, key=lambda one: (one.first_timestamp, one.message))

    async def event_rows(self):
        return [(one.involved_object.name, one.reason, one.message, one.count) for one in await self.events()]


@asynccontextmanager
async def open_lab():
    server = ApiServer(Store(), utcnow=clock, rng=random.Random(0))
    await server.ensure_namespaces()
    recorder = EventRecorder("llmkube-agent", "studio", clock, random.Random(1))
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as direct,
        httpx.AsyncClient(transport=(lab := Lab(transport, recorder)), base_url="http://apiserver") as http,
        trio.open_nursery() as nursery,
    ):
        lab.client = Client(direct)
        nursery.start_soon(recorder.run, Client(http))
        yield lab
        nursery.cancel_scope.cancel()


async def test_an_event_has_object_reason_and_time(autojump_clock):
    """One piece of news is one Event in the object's namespace, complete enough for `kubectl describe`."""
    async with open_lab() as lab:
        await trio.sleep(60)
        lab.recorder.emit_nowait(thing(), "CrashLoopBackOff", "exit code 1", type="Warning")
        [event] = await lab.events()
        assert event.metadata.name.startswith("chat.")
        assert event.metadata.namespace == "default"
        about = event.involved_object
        assert (about.api_version, about.kind, about.namespace, about.name, about.uid) == (
            "v1",
            "ConfigMap",
            "default",
            "chat",
            "uid-chat",
        )
        assert (event.type, event.reason, event.message) == ("Warning", "CrashLoopBackOff", "exit code 1")
        assert event.count == 1
        assert event.first_timestamp == event.last_timestamp == "2026-01-01T00:01:00Z"
        assert (event.reporting_component, event.reporting_instance) == ("llmkube-agent", "studio")


async def test_the_same_news_raises_a_count(autojump_clock):
    """Repetitions raise count and lastTimestamp of one Event; another message, reason or life is another Event."""
    async with open_lab() as lab:
        for _ in range(3):
            lab.recorder.emit_nowait(thing(), "Restarting", "again")
            await trio.sleep(40)
        [event] = await lab.events()
        assert (event.count, event.first_timestamp, event.last_timestamp) == (
            3,
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:01:20Z",
        )
        lab.recorder.emit_nowait(thing(), "Restarting", "for another reason")
        lab.recorder.emit_nowait(thing(), "Loaded", "again")
        lab.recorder.emit_nowait(thing(uid="a-later-one"), "Restarting", "again")
        assert sorted(one[3] for one in await lab.event_rows()) == [1, 1, 1, 3]


async def test_a_crash_loop_is_not_a_flood(autojump_clock):
    """A thousand pieces of news in an hour about one object are a few writes and one line with the right count."""
    async with open_lab() as lab:
        for _ in range(1000):
            lab.recorder.emit_nowait(thing(), "EngineExited", "exit code 1")
            await trio.sleep(3.6)
        await trio.sleep(REFILL_SECONDS)
        assert [one[3] for one in await lab.event_rows()] == [1000]
        assert len(lab.writes) <= BURST + 3600 / REFILL_SECONDS + 2


@pytest.mark.ci
async def test_messages_that_always_differ_are_not_a_flood_either(autojump_clock):
    """A day of crashes, each with another pid in its message, is a few Events; the last has the newest words."""
    async with open_lab() as lab:
        for pid in range(1440):
            lab.recorder.emit_nowait(thing(), "EngineExited", f"pid {pid} exited")
            await trio.sleep(60)
        event_rows = await lab.event_rows()
        assert [one[3] for one in event_rows] == [1] * MAX_MESSAGES_PER_REASON + [1440 - MAX_MESSAGES_PER_REASON]
        assert event_rows[-1][2] == "pid 1439 exited"
        lab.recorder.emit_nowait(thing(), "EngineExited", "pid 0 exited")
        assert [one[3] for one in await lab.event_rows()] == [
            2,
            *[1] * (MAX_MESSAGES_PER_REASON - 1),
            1440 - MAX_MESSAGES_PER_REASON,
        ]


async def test_one_object_does_not_crowd_out_another(autojump_clock):
    """While one object has used up its writes, the news about another arrives at once."""
    async with open_lab() as lab:
        for step in range(BURST + 5):
            lab.recorder.emit_nowait(thing("loud"), f"Noise{step}", "line")
        await trio.sleep(SETTLED)
        lab.recorder.emit_nowait(thing("quiet"), "Ready", "at last")
        event_rows = await lab.event_rows()
        assert ("quiet", "Ready", "at last", 1) in event_rows
        assert len(event_rows) == BURST + 1
        await trio.sleep(6 * REFILL_SECONDS)
        assert len(await lab.event_rows()) == BURST + 6


async def test_pending_events_are_bounded(autojump_clock):
    """While the server is away, the oldest news goes: that of the loudest object first, and all is counted."""
    async with open_lab() as lab:
        lab.down = True
        await trio.sleep(1)
        for step in range(1000):
            lab.recorder.emit_nowait(thing("loud"), f"Noise{step}", "line")
        assert lab.recorder.dropped == 1000 - MAX_PENDING_PER_OBJECT
        for step in range(MAX_PENDING):
            lab.recorder.emit_nowait(thing(f"t{step}"), "Noise", "hello")
        assert lab.recorder.dropped == 1000
        assert len(lab.recorder._pending) == MAX_PENDING


async def test_an_outage_delays_and_merges(autojump_clock):
    """News of an outage arrives after it, once, with the times at which it happened."""
    async with open_lab() as lab:
        lab.down = True
        for _ in range(10):
            lab.recorder.emit_nowait(thing(), "Restarting", "again")
            await trio.sleep(30)
        lab.down = False
        await trio.sleep(90)
        [event] = await lab.events()
        assert (event.count, event.first_timestamp, event.last_timestamp) == (
            10,
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:04:30Z",
        )


async def test_old_news_is_dropped(autojump_clock):
    """An Event that could not be sent for half an hour is dropped."""
    async with open_lab() as lab:
        lab.down = True
        lab.recorder.emit_nowait(thing(), "Restarting", "again")
        await trio.sleep(STALE_SECONDS + 1)
        lab.down = False
        await trio.sleep(120)
        assert (await lab.event_rows(), lab.recorder.dropped) == ([], 1)


@pytest.mark.parametrize("refusal", [status(403, "Forbidden"), status(404, "NotFound"), status(422, "Invalid")])
async def test_a_refusal_is_believed(autojump_clock, refusal):
    """A server that says no hears of that news no more, and the next one is tried again."""
    async with open_lab() as lab:
        lab.answer = refusal
        lab.recorder.emit_nowait(thing(), "Ready", "at last")
        await trio.sleep(600)
        assert (len(lab.writes), lab.recorder.dropped) == (1, 1)
        lab.answer = None
        lab.recorder.emit_nowait(thing(), "Ready", "again")
        assert len(await lab.event_rows()) == 1


async def test_an_expired_event_is_created_again(autojump_clock):
    """When the server has deleted an Event after an hour, the next repetition creates a new one with count 1."""
    async with open_lab() as lab:
        lab.recorder.emit_nowait(thing(), "Restarting", "again")
        [event] = await lab.events()
        await lab.client.delete(Event, event.key)
        lab.recorder.emit_nowait(thing(), "Restarting", "again")
        [later] = await lab.events()
        assert (later.count, later.first_timestamp > event.first_timestamp or later.key != event.key) == (1, True)


async def test_a_clean_exit_waits_for_the_last_events(autojump_clock):
    """`wait_written` returns once nothing is pending, and at once when it is."""
    async with open_lab() as lab:
        await lab.recorder.wait_written()
        lab.recorder.emit_nowait(thing(), "Stopped", "bye")
        await lab.recorder.wait_written()
        assert len((await lab.client.list(Event)).raw) == 1


async def test_memory_is_bounded(autojump_clock, monkeypatch):
    """Of many objects and series only the latest are remembered."""
    monkeypatch.setattr(events, "MAX_REMEMBERED", 5)
    async with open_lab() as lab:
        for step in range(50):
            lab.recorder.emit_nowait(thing(f"t{step}"), "Ready", "x")
            await trio.sleep(0.1)
        assert len(await lab.event_rows()) == 50
        assert (len(lab.recorder._written), len(lab.recorder._buckets)) == (5, 5)
        assert (len(lab.recorder._pending), len(lab.recorder._pending_per_object)) == (0, 0)


@pytest.mark.parametrize("name", ["a" * 253, "a." * 126 + "a", "chat.v2"])
async def test_long_names_make_valid_events(autojump_clock, name):
    """An object whose name leaves no room for a suffix still has Events."""
    async with open_lab() as lab:
        lab.recorder.emit_nowait(thing(name), "Ready", "x")
        [event] = await lab.events()
        assert event.involved_object.name == name
        assert len(event.metadata.name) <= 253


async def test_cluster_scoped_objects_have_events_in_default(autojump_clock):
    """An object without a namespace is spoken about in `default`."""
    async with open_lab() as lab:
        lab.recorder.emit_nowait(thing(namespace=""), "Ready", "x")
        [event] = await lab.events()
        assert (event.key.namespace, event.involved_object.namespace) == ("default", "")
