"""Claims in an API server that has one Lease: lost races are normal, and the index has every response."""

import datetime
from pathlib import Path

import pytest
import trio

from llmkube.k8s.builtins import Lease
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster import claims
from llmkube.supervisor.cluster.claim_manager import ClaimLeases
from llmkube.supervisor.cluster.claims import ClaimIndex, FreeSlot
from llmkube.supervisor.values.settings import AgentSettings

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CHAT = decode(InferenceService, {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m"}})
LEASE = Key("llmkube-system", "claim.ns.chat.0")


def lease_of(holder, version="1"):
    manifest = claims.claim_manifest(CHAT, 0, holder, LEASE.namespace, NOW)
    manifest["metadata"]["resourceVersion"] = version
    return decode(Lease, manifest)


class Server:
    """A client that answers every request with the same Lease, or raises the given error."""

    def __init__(self, lease=None, error=None, service=CHAT):
        self.lease, self.error, self.service = lease, error, service

    async def _answer(self):
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error
        return self.lease

    async def create(self, lease):
        return await self._answer()

    async def patch(self, kind, key, change):
        return await self._answer()

    async def delete(self, kind, key, *, resource_version):
        await self._answer()

    async def get(self, kind, key):
        await trio.lowlevel.checkpoint()
        found = self.lease if kind is Lease else self.service
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise NotFoundError("gone")
        return found


def leases(server, **settings):
    facts = AgentSettings(
        "me", Path("/s"), Path("/s/store"), "llama-server", lease_namespace="llmkube-system", **settings
    )
    return ClaimLeases(server, facts, lambda: NOW, ClaimIndex())


OVER = claims.claim_of(lease_of("dead"))


@pytest.mark.parametrize("decision", [FreeSlot(0), FreeSlot(0, OVER)])
async def test_a_slot_that_is_acquired_is_in_the_index(decision):
    """The server's response is in the index at once, before the watch delivers it."""
    ours = leases(Server(lease_of("me")))
    assert await ours.acquire(CHAT, decision) is None
    assert [claim.holder for claim in ours.index.of(CHAT.key)] == ["me"]


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        (FreeSlot(0), AlreadyExistsError("there")),
        (FreeSlot(0, OVER), ConflictError("changed")),
        (FreeSlot(0, OVER), NotFoundError("deleted")),
    ],
)
async def test_a_race_that_is_lost_names_the_lease_to_read(decision, error):
    """Another host was faster: the index has nothing until that Lease is read."""
    ours = leases(Server(error=error))
    assert await ours.acquire(CHAT, decision) == LEASE
    assert ours.index.all() == ()


async def test_a_missing_namespace_is_an_error():
    """A claim that cannot be created is not a lost race."""
    with pytest.raises(NotFoundError):
        await leases(Server(error=NotFoundError("no namespace"))).acquire(CHAT, FreeSlot(0))


@pytest.mark.parametrize(
    ("server", "left"),
    [
        (Server(), []),
        (Server(lease_of("other", "2"), ConflictError("changed")), ["other"]),  # another host has taken it over
        (Server(None, NotFoundError("gone")), []),
    ],
)
async def test_after_a_deletion_the_index_has_the_current_holder(server, left):
    """A claim that has changed in the meantime is not deleted, and its new holder is in the index."""
    ours = leases(server)
    ours.index.put(LEASE, OVER)
    await ours.delete(OVER)
    assert [claim.holder for claim in ours.index.of(CHAT.key)] == left


@pytest.mark.parametrize(
    ("service", "settings", "followed", "deleted"),
    [
        (CHAT, {}, True, False),
        (CHAT, {"namespace": "other"}, False, False),
        (NotFoundError("gone"), {}, False, True),
        (ForbiddenError("no"), {}, False, False),
    ],
)
async def test_a_service_exists_or_is_unknown(service, settings, followed, deleted):
    """A service that may not be read is neither watched nor known to be deleted."""
    ours = leases(Server(service=service), **settings)
    assert await ours.is_selected(CHAT.key) is followed
    assert await ours.is_deleted(CHAT.key) is deleted
