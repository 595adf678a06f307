"""A status is written only when it differs: even while the cache lags, even when a server drops a field."""

import datetime

import attrs
import pytest

from controller.objects import NOBODY, NOW, STUDIO, fetched_model
from llmkube.controller.status.model_status import derive_model_status
from llmkube.controller.writes.status_writer import StatusWriter
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ServerError
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER


class Server:
    """A server as `Client.apply` sees it: it merges our fields, unless set to drop some or to fail."""

    def __init__(self, held, *, drops=(), fails=0):
        self.held = held
        self.drops = drops
        self.fails = fails
        self.applied = []

    async def apply(self, kind, manifest, *, field_manager, force=True, subresource=""):
        assert (kind, field_manager, force, subresource) == (Model, CONTROLLER_FIELD_MANAGER, True, "status")
        if self.fails:
            self.fails -= 1
            raise ServerError("busy", code=503)
        self.applied.append(manifest)
        data = encode(self.held)
        status = {field: value for field, value in manifest["status"].items() if field not in self.drops}
        ours = {one["type"] for one in status["conditions"]}
        kept = [one for one in data["status"].get("conditions", []) if one["type"] not in ours]
        data["status"] = {**data["status"], **status, "conditions": kept + status["conditions"]}
        data["metadata"]["resourceVersion"] = str(int(data["metadata"]["resourceVersion"]) + 1)
        self.held = decode(Model, data)
        return self.held


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        self.now += datetime.timedelta(seconds=1)
        return self.now


def bench(server):
    clock = Clock()
    writer = StatusWriter(server, Model)

    async def reconcile(cached):
        status = derive_model_status(writer.newest(cached), STUDIO, now=clock())
        return await writer.write(cached, status, extra={"cacheKey": str(clock())})

    return writer, reconcile


async def test_a_written_status_is_not_written_again():
    """The first reconcile writes; the one that this write wakes, seconds later, finds nothing to do."""
    server = Server(fetched_model())
    _, reconcile = bench(server)
    assert await reconcile(server.held)
    assert server.held.status.cache_key  # written too, different each time, and no reason to write again
    assert not await reconcile(server.held)
    assert len(server.applied) == 1


async def test_our_write_is_known_until_another_program_writes():
    """The result of a write is our own, not a state before or after it, or of another object."""
    before = fetched_model()
    server = Server(before)
    writer, reconcile = bench(server)
    assert not writer.is_own(before)
    await reconcile(before)
    assert writer.is_own(server.held)
    assert not writer.is_own(before)
    for other in ({"resource_version": "99"}, {"uid": "another"}):
        assert not writer.is_own(attrs.evolve(server.held, metadata=attrs.evolve(server.held.metadata, **other)))


async def test_a_lagging_cache_causes_no_second_write():
    """Woken before its own write is in the cache, the controller compares with the server's response."""
    stale = fetched_model()
    server = Server(stale)
    writer, reconcile = bench(server)
    assert await reconcile(stale)
    assert not await reconcile(stale)
    assert writer.newest(stale) == server.held
    assert len(server.applied) == 1


async def test_a_restarted_controller_finds_its_own_work_done():
    """A new controller over an up-to-date object writes nothing."""
    server = Server(fetched_model())
    await bench(server)[1](server.held)
    assert not await bench(server)[1](server.held)


async def test_a_dropped_field_is_asked_for_once():
    """A server whose older schema prunes a field is not written to for ever."""
    server = Server(fetched_model(), drops=["acceleratorReady"])
    _, reconcile = bench(server)
    assert await reconcile(server.held)
    for _ in range(3):
        assert not await reconcile(server.held)


async def test_a_status_overwritten_by_others_is_repaired():
    """A phase that was edited by hand is written again, although the same manifest was applied before."""
    server = Server(fetched_model())
    _, reconcile = bench(server)
    await reconcile(server.held)
    metadata = attrs.evolve(server.held.metadata, resource_version="99")
    server.held = attrs.evolve(server.held, metadata=metadata, status=attrs.evolve(server.held.status, phase="Failed"))
    assert await reconcile(server.held)
    assert server.held.status.phase == "Ready"


async def test_conditions_of_others_neither_matter_nor_are_written():
    """The host's own condition is not part of our manifest, and its change alone writes nothing."""
    server = Server(fetched_model())
    _, reconcile = bench(server)
    await reconcile(server.held)
    assert "Fetched" not in [one["type"] for one in server.applied[0]["status"]["conditions"]]
    more = decode(Model, encode(server.held))
    conditions = [c for c in more.status.conditions if c.type == "Fetched"] + list(more.status.conditions)
    assert not await reconcile(attrs.evolve(more, status=attrs.evolve(more.status, conditions=tuple(conditions))))


async def test_a_failed_write_is_not_remembered():
    """After an error the same status is sent again."""
    server = Server(fetched_model(), fails=1)
    _, reconcile = bench(server)
    with pytest.raises(ServerError):
        await reconcile(server.held)
    assert await reconcile(server.held)


async def test_the_manifest_names_this_very_state():
    """The resourceVersion is that of the newest known state, even while the cache lags; a uid would guard nothing."""
    stale = fetched_model()
    server = Server(stale)
    writer, reconcile = bench(server)
    await reconcile(stale)
    await writer.write(stale, derive_model_status(writer.newest(stale), NOBODY, now=NOW))
    first, second = (manifest["metadata"] for manifest in server.applied)
    version = stale.metadata.resource_version
    assert first == {"name": "phi", "namespace": "ml", "resourceVersion": version}
    assert second["resourceVersion"] == str(int(version) + 1)


async def test_a_successor_inherits_no_memory():
    """The record of a deleted object does not suppress the same status of its successor."""
    server = Server(fetched_model(), drops=["acceleratorReady"])
    _, reconcile = bench(server)
    await reconcile(server.held)
    metadata = attrs.evolve(server.held.metadata, uid="m-2")
    server.held = attrs.evolve(server.held, metadata=metadata)
    assert await reconcile(server.held)
