"""Claims, as tables: each situation of a host and a service has one result.

The index finds claims by Lease and by service, and drops deleted ones.
"""

import datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.k8s.builtins import Lease
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import claim_name
from llmkube.supervisor.cluster import claims
from llmkube.supervisor.cluster.claims import Claim, ClaimIndex, FreeSlot, HeldSlot, NoFreeSlot

CHAT = Key("ns", "chat")
ALIVE = frozenset({"me", "a", "b"})
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def claim(slot, holder, version="1"):
    return Claim(CHAT, slot, holder, Key("system", claim_name("ns", "chat", slot)), version)


@pytest.mark.parametrize(
    ("slots", "held", "decision"),
    [
        (1, [], FreeSlot(0)),
        (1, [claim(0, "me")], HeldSlot(0)),
        (1, [claim(0, "a")], NoFreeSlot(("a",))),
        (1, [claim(0, "dead")], FreeSlot(0, claim(0, "dead"))),
        (1, [claim(0, "")], FreeSlot(0, claim(0, ""))),
        (2, [claim(0, "a")], FreeSlot(1)),
        (2, [claim(0, "a"), claim(1, "me")], HeldSlot(1, reports=False)),
        (2, [claim(0, "dead"), claim(1, "me")], HeldSlot(1, reports=True)),
        (2, [claim(0, "me"), claim(1, "a")], HeldSlot(0, reports=True)),
        (2, [claim(0, "a"), claim(1, "b")], NoFreeSlot(("a", "b"))),
        (2, [claim(0, "me"), claim(1, "me")], HeldSlot(0)),
        # fewer replicas than before: claims on slots beyond them have no effect
        (1, [claim(0, "a"), claim(1, "me")], NoFreeSlot(("a",))),
        (1, [claim(1, "me")], FreeSlot(0)),
        (1, [claim(0, "dead"), claim(1, "me")], FreeSlot(0, claim(0, "dead"))),
    ],
)
def test_decisions_of_a_host(slots, held, decision):
    """Each row: the number of slots, these claims, and the decision for the host `me`."""
    assert claims.decide("me", slots, held, ALIVE) == decision


@pytest.mark.parametrize(
    ("decision", "given_up"),
    [(None, [0, 1, 3]), (HeldSlot(1), [0, 3]), (NoFreeSlot(("a",)), []), (FreeSlot(2), [])],
)
def test_claims_that_a_host_releases(decision, given_up):
    """All without a service, all but the slot that it holds, and none while that slot is unknown."""
    ours = [claim(slot, "me") for slot in (0, 1, 3)]
    assert [one.slot for one in claims.claims_to_release(ours, decision)] == given_up


def test_a_host_is_alive_to_itself():
    """A host whose Lease has expired (its network is down) still holds its claims."""
    assert claims.decide("me", 1, [claim(0, "me")], frozenset({"a"})) == HeldSlot(0)


hosts = st.sampled_from(["a", "b", "c", "dead"])


@given(slots=st.integers(1, 4), holders=st.dictionaries(st.integers(0, 5), hosts, max_size=5))
def test_a_slot_never_has_two_hosts(slots, holders):
    """For any claims, no two live hosts hold one slot, and no host takes a live host's."""
    alive = frozenset("abc")
    held = [claim(slot, holder) for slot, holder in holders.items()]
    seen = {}
    for host in sorted(alive):
        decision = claims.decide(host, slots, held, alive)
        if isinstance(decision, HeldSlot):
            assert seen.setdefault(decision.slot, host) == host
            assert holders[decision.slot] == host
        elif isinstance(decision, FreeSlot):
            assert holders.get(decision.slot) not in alive
            assert decision.slot < slots


def test_more_free_memory_comes_first_and_names_break_ties():
    """The order is the same for all hosts that have the same data."""
    free = {"a": 8, "b": 16, "c": 8}
    assert [claims.rank(host, free) for host in "bac"] == [0, 1, 2]
    assert claims.rank("new", free) == 3


@pytest.mark.parametrize("hosts", [1, 2, 6, 13, 100])
def test_the_file_matters_more_than_the_rank(hosts):
    """The first host without the file waits longer than all that have it; the host that runs the engine never waits."""
    wait = partial(claims.delay_seconds, hosts=hosts, running=False)
    with_file = [wait(place, has_file=True) for place in range(min(hosts, claims.MAX_STEPS + 1))]
    assert with_file == sorted(set(with_file))
    assert with_file[0] == 0.0
    assert wait(0, has_file=False) > wait(hosts - 1, has_file=True)
    assert wait(hosts - 1, has_file=False) < 10
    assert claims.delay_seconds(5, hosts, has_file=False, running=True) == 0.0


def test_a_claim_is_read_as_it_was_written():
    service = decode(InferenceService, {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m"}})
    lease = decode(Lease, claims.claim_manifest(service, 1, "me", "system", NOW))
    assert claims.claim_of(lease) == Claim(
        CHAT, 1, "me", Key("system", "claim.ns.chat.1"), lease.metadata.resource_version
    )


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {}},
        {"annotations": {"inference.llmkube.dev/inferenceservice": "chat", "inference.llmkube.dev/slot": "0"}},
        {"annotations": {"inference.llmkube.dev/inferenceservice": "ns/chat", "inference.llmkube.dev/slot": "x"}},
        {"annotations": {"inference.llmkube.dev/inferenceservice": "ns/chat", "inference.llmkube.dev/slot": "1"}},
        {"name": "claim.ns.other.0"},
    ],
)
def test_a_lease_that_is_no_claim_is_none(change):
    """A Lease whose name and fields do not agree is not a claim."""
    annotations = {"inference.llmkube.dev/inferenceservice": "ns/chat", "inference.llmkube.dev/slot": "0"}
    metadata = {"name": "claim.ns.chat.0", "namespace": "system", "annotations": annotations, **change}
    assert claims.claim_of(decode(Lease, {"metadata": metadata, "spec": {"holderIdentity": "me"}})) is None


def claim_on(name, slot=0, holder="a"):
    return Claim(Key("ns", name), slot, holder, Key("system", claim_name("ns", name, slot)), "1")


def test_claims_are_found_by_their_service():
    """Each service has its own claims; one without claims has an empty list."""
    index, chats, embed = ClaimIndex(), [claim_on("chat", 0), claim_on("chat", 1)], claim_on("embed")
    for one in (*chats, embed):
        index.put(one.lease, one)
    assert index.of(Key("ns", "chat")) == tuple(chats)
    assert index.of(Key("ns", "other")) == ()
    assert set(index.all()) == {*chats, embed}


def test_a_newer_state_replaces_the_older_one():
    """A Lease is one claim only: the newest state."""
    index, before, now = ClaimIndex(), claim_on("chat", holder="a"), claim_on("chat", holder="b")
    index.put(before.lease, before)
    index.put(now.lease, now)
    assert index.all() == index.of(now.service) == (now,)


def test_a_deleted_lease_leaves_nothing():
    """A deleted Lease leaves nothing, even when it was never known."""
    index, one = ClaimIndex(), claim_on("chat")
    index.put(one.lease, one)
    for _ in range(2):
        index.put(one.lease, None)
    assert index.get(one.lease) is None
    assert not index._by_lease
    assert not index._by_service
