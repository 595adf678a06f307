"""The applier deletes slices left by an earlier agent of this host, and keeps those of running services."""

import random
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio

from llmkube.base.errors import ExternalError, UserError
from llmkube.k8s.builtins import EndpointSlice, Lease, Service
from llmkube.k8s.client import Listing
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.applier import (
    REFUSED_SECONDS,
    SETTLE_SECONDS,
    Applier,
    belongs_to_service,
    delete_stale_endpoints,
    is_made_by_predecessor,
)
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.service.status_manager import slice_manifest
from llmkube.supervisor.values.settings import AgentSettings

A, B = Slot(Lease, Key("ns", "a")), Slot(Lease, Key("ns", "b"))
PUBLISHED = Slot(EndpointSlice, Key("ns", "a"))


class Server:
    """A client that records writes; `answers` are raised in turn, then every write succeeds."""

    def __init__(self):
        self.received = []
        self.answers = []
        self.gate = trio.Event()
        self.gate.set()
        self.at_once = 0
        self.live = {}  # by key
        self.unreadable = []
        self.listing_fails = False

    async def apply(self, kind, manifest, *, field_manager, subresource):
        await self._receive(manifest)
        key = Key("ns", manifest.get("name", "a"))
        version = str(len(self.received))
        self.live[key] = Lease(metadata=ObjectMeta(name=key.name, namespace="ns", resource_version=version))
        return self.live[key]

    async def delete(self, kind, key):
        await self._receive(f"delete {key}")

    async def list(self, kind, *, namespace, label_selector):
        await trio.lowlevel.checkpoint()
        if self.listing_fails:
            raise ExternalError("away")
        return Listing(kind, (*map(encode, self.live.values()), *self.unreadable), "9")

    async def _receive(self, word):
        self.at_once += 1
        try:
            await self.gate.wait()
            await trio.lowlevel.checkpoint()
            if self.answers:
                raise self.answers.pop(0)
            self.received.append(word)
        finally:
            self.at_once -= 1


@pytest.fixture
def server():
    return Server()


@pytest.fixture
async def applier(server, nursery):
    """A running applier."""
    applier = Applier(random.Random(0))
    nursery.start_soon(lambda: applier.run(server, field_manager="test"))
    await trio.lowlevel.checkpoint()
    return applier


async def test_only_the_newest_manifest_is_written(autojump_clock, applier, server):
    """Manifests that were replaced while the server was slow are never written."""
    server.gate = trio.Event()
    for number in range(100):
        applier.apply_nowait(A, {"n": number})
        await trio.lowlevel.checkpoint()
    server.gate.set()
    await applier.wait_applied()
    assert server.received[-1] == {"n": 99}
    assert len(server.received) <= 2


async def test_the_same_manifest_twice_is_one_write(autojump_clock, applier, server):
    for _ in range(3):
        applier.apply_nowait(A, {"n": 1})
        await applier.wait_applied(A)
    assert server.received == [{"n": 1}]


async def test_changes_that_arrive_together_are_one_write(autojump_clock, applier, server):
    """All changes within SETTLE_SECONDS of the first are one write, so that a start is not delayed."""
    start = trio.current_time()
    for number in range(5):
        applier.apply_nowait(A, {"n": number})
        await trio.sleep(SETTLE_SECONDS / 10)
    assert server.received == []
    await applier.wait_applied(A)
    assert trio.current_time() - start == pytest.approx(SETTLE_SECONDS)
    assert server.received == [{"n": 4}]


async def test_a_change_that_clients_follow_is_written_at_once_and_once(autojump_clock, applier, server):
    """A published endpoint is changed without a pause, and the same state is not written again."""
    applier.apply_nowait(PUBLISHED, {"n": 1})
    await applier.wait_applied()
    start = trio.current_time()
    applier.apply_nowait(PUBLISHED, {"n": 2})
    await applier.wait_applied()
    assert trio.current_time() == start
    await trio.sleep(REFUSED_SECONDS)
    assert server.received == [{"n": 1}, {"n": 2}]


async def test_slots_of_an_earlier_agent_are_changed_at_once(autojump_clock, applier):
    """Clients may use it already, so neither the first write nor a deletion waits."""
    start = trio.current_time()
    applier.apply_nowait(PUBLISHED, {"n": 1}, is_published=True)
    applier.delete_nowait(attrs.evolve(PUBLISHED, key=Key("ns", "b")), is_published=True)
    await applier.wait_applied()
    assert trio.current_time() == start


async def test_a_failed_write_is_repeated_until_it_succeeds(autojump_clock, applier, server):
    server.answers = [ExternalError("away")] * 20
    applier.apply_nowait(A, {"n": 1})
    with trio.fail_after(1200):
        await applier.wait_applied(A)
    assert server.received == [{"n": 1}]


async def test_a_refused_manifest_is_retried_slowly_and_delays_no_other(autojump_clock, applier, server):
    """A refused manifest is sent again after a minute and not before, and delays no other slot."""
    server.answers = [UserError("no")]
    applier.apply_nowait(A, {"n": 1})
    await applier.wait_applied(A)
    await trio.sleep(REFUSED_SECONDS - 1)
    assert server.received == []
    await trio.sleep(2)
    assert server.received == [{"n": 1}]
    applier.apply_nowait(A, {"n": 2})
    await applier.wait_applied(A)
    assert server.received == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("answers", [[], [UserError("no")], [ExternalError("away"), UserError("no")]])
async def test_a_last_write_is_not_repeated_after_a_refusal(autojump_clock, answers, applier, server):
    """A final write that was refused is forgotten instead of repeated for ever."""
    server.answers = answers
    applier.apply_nowait(A, {"n": 1})
    applier.forget_once_applied(A)
    await applier.wait_applied(A)
    assert not applier.has(A)
    written = list(server.received)
    await trio.sleep(10 * REFUSED_SECONDS)
    assert server.received == written


async def test_a_slow_slot_does_not_hold_up_another(autojump_clock, applier, server):
    """Two slots are written concurrently, one slot never twice at a time."""
    server.gate = trio.Event()
    applier.apply_nowait(A, {"n": 1})
    applier.apply_nowait(B, {"n": 2})
    await trio.sleep(1)
    applier.apply_nowait(A, {"n": 3})
    await trio.sleep(1)
    assert server.at_once == 2
    server.gate.set()
    await applier.wait_applied()
    assert server.received[-1] == {"n": 3}


async def test_a_deletion_is_written_once(autojump_clock, applier, server):
    """The deletion is written, and then the slot is forgotten, also when the object was already deleted."""
    applier.delete_nowait(A)
    await applier.wait_applied(A)
    server.answers = [NotFoundError("gone")]
    applier.delete_nowait(B)
    await applier.wait_applied(B)
    assert server.received == ["delete ns/a"]


@pytest.mark.parametrize("answers", [[], [UserError("no")]])
async def test_a_slot_forgotten_during_its_write_leaves_nothing(autojump_clock, answers, applier, server):
    """A slot that is forgotten during its write has no applied manifest and no version afterwards."""
    server.gate, server.answers = trio.Event(), answers
    applier.apply_nowait(A, {"n": 1})
    await trio.sleep(1)
    applier.forget(A)
    server.gate.set()
    await trio.sleep(1)
    assert not applier._records


async def test_a_write_that_hangs_is_given_up_and_repeated(autojump_clock, applier, server):
    """A server that accepts a request and never answers does not block a slot for ever."""
    gate, server.gate = server.gate, trio.Event()
    applier.apply_nowait(A, {"n": 1})
    await trio.sleep(14)
    server.gate = gate
    with trio.fail_after(60):
        await applier.wait_applied(A)
    assert server.received == [{"n": 1}]


@pytest.fixture
async def written(applier, server, nursery):
    """Both slots are applied, and can be applied again."""
    nursery.start_soon(lambda: applier.run_resync(server, every_seconds=60))
    applier.apply_nowait(A, {"name": "a"})
    applier.apply_nowait(B, {"name": "b"})
    await applier.wait_applied()
    server.received.clear()


async def test_an_unchanged_object_is_not_written_again(autojump_clock, written, server):
    """Nothing is written while every object has the version that our last write returned."""
    await trio.sleep(600)
    assert server.received == []


async def test_a_removed_object_is_written_again(autojump_clock, written, server):
    """A check creates a deleted object again, and no other."""
    del server.live[A.key]
    await trio.sleep(150)
    assert server.received == [{"name": "a"}]


async def test_an_overwritten_object_is_written_again_once(autojump_clock, written, server):
    """A check reapplies an object whose version is not the one that we wrote."""
    server.live[B.key] = Lease(metadata=ObjectMeta(name="b", namespace="ns", resource_version="77"))
    await trio.sleep(300)
    assert server.received == [{"name": "b"}]


async def test_an_unreadable_object_ends_no_check(autojump_clock, written, server):
    """Another client's object that cannot be read is ignored, and removed objects are still written again."""
    server.unreadable = [{"metadata": {"name": "c", "namespace": "ns", "resourceVersion": "5"}, "spec": 5}]
    del server.live[A.key]
    await trio.sleep(150)
    assert server.received == [{"name": "a"}]


async def test_everything_is_written_when_a_list_fails(autojump_clock, written, server):
    """Objects that cannot be listed are reapplied unconditionally, at the same interval."""
    server.listing_fails = True
    await trio.sleep(150)
    assert len(server.received) in (4, 6)


async def test_a_bug_is_not_swallowed(autojump_clock, server):
    """An error that is neither a user error nor an environment error ends the applier."""
    applier, server.answers = Applier(random.Random(0)), [KeyError("bug")]
    applier.apply_nowait(A, {"n": 1})
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        await applier.run(server, field_manager="test")


SETTINGS = AgentSettings("mac", Path("/s"), Path("/s/store"), "llama-server")


def slice_of(name):
    metadata = {"name": name, "namespace": "ns", "uid": "1"}
    service = decode(InferenceService, {"metadata": metadata, "spec": {"modelRef": "m"}})
    return decode(EndpointSlice, slice_manifest(service, "mac", "192.0.2.1", 8080, ready=True))


class SliceServer:
    """A client that lists three slices, at the second attempt."""

    def __init__(self):
        self.asked = 0
        self.slices = [slice_of("chat"), slice_of("gone"), slice_of("said")]

    async def list(self, kind, *, namespace, label_selector):
        await trio.lowlevel.checkpoint()
        self.asked += 1
        if self.asked == 1:
            raise ExternalError("away")
        return SimpleNamespace(items=self.slices)


async def test_only_the_slice_of_no_service_is_deleted(autojump_clock):
    """A running service publishes its own slice, and so does one that this agent already writes."""
    server, applier = SliceServer(), Applier(random.Random(0))
    slots = {one.key.name: Slot(EndpointSlice, one.key) for one in server.slices}
    written = slots[server.slices[2].key.name]
    applier.apply_nowait(written, {"said": 1})
    await delete_stale_endpoints(server, SETTINGS, applier, {Key("ns", "chat")})
    assert server.asked == 2
    assert [applier.has(slot) for slot in slots.values()] == [False, True, True]
    assert applier._records[written].wanted.manifest == {"said": 1}


THEIRS = {"llmkube.ai/managed-by": "metal-agent", "llmkube.ai/inference-service": "chat"}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u"}


@pytest.mark.parametrize(
    ("labels", "owners", "theirs"),
    [
        (THEIRS, [], True),
        ({}, [], False),
        ({"llmkube.ai/managed-by": "somebody"}, [], False),
        (THEIRS, [OWNER], False),
    ],
)
def test_only_labelled_slices_without_owner_are_an_earlier_agents(labels, owners, theirs):
    """A slice with another label, without one or with an owner belongs to another program, and stays."""
    found = decode(Service, {"metadata": {"name": "chat", "labels": labels, "ownerReferences": owners}})
    assert is_made_by_predecessor(found.metadata) is theirs


def test_a_service_is_adopted_for_its_own_name_alone():
    """`a.b` and `a-b` shared one Service: the label names the service that it belonged to."""
    found = decode(Service, {"metadata": {"name": "a-b", "labels": {**THEIRS, "llmkube.ai/inference-service": "a.b"}}})
    assert belongs_to_service(found.metadata, "a.b")
    assert not belongs_to_service(found.metadata, "a-b")
