"""The index finds claims by Lease and by service, and keeps nothing of what is gone."""

from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import claim_name
from llmkube.supervisor.cluster.claim_index import ClaimIndex
from llmkube.supervisor.cluster.claims import Claim


def claim(name, slot=0, holder="a"):
    return Claim(Key("ns", name), slot, holder, Key("system", claim_name("ns", name, slot)), "1")


def test_claims_are_found_by_their_service():
    """Each service has its own claims, and one that has none is empty."""
    index, chats, embed = ClaimIndex(), [claim("chat", 0), claim("chat", 1)], claim("embed")
    for one in (*chats, embed):
        index.put(one.lease, one)
    assert index.of(Key("ns", "chat")) == tuple(chats)
    assert index.of(Key("ns", "other")) == ()
    assert set(index.all()) == {*chats, embed}


def test_a_newer_state_replaces_the_older_one():
    """A Lease is one claim only: the state that was put last."""
    index, before, now = ClaimIndex(), claim("chat", holder="a"), claim("chat", holder="b")
    index.put(before.lease, before)
    index.put(now.lease, now)
    assert index.all() == index.of(now.service) == (now,)


def test_nothing_is_kept_of_a_lease_that_is_gone():
    """A Lease that is deleted leaves nothing, also when it was never known."""
    index, one = ClaimIndex(), claim("chat")
    index.put(one.lease, one)
    for _ in range(2):
        index.put(one.lease, None)
    assert index.get(one.lease) is None
    assert not index._by_lease
    assert not index._by_service
