"""An informer reports each change once, with the object before and after."""

import itertools
import random

import trio
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster import SETTLED, open_cluster
from controller.objects import service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.informer import Event, Index, Informer
from llmkube.k8s.resource import Key

CHAT = Key("ml", "chat")


async def test_a_handler_gets_the_states_before_and_after(autojump_clock):
    """A new object has nothing before it, a changed one has both states, and a deleted one nothing after it."""
    changes = []
    async with open_cluster() as cluster, trio.open_nursery() as nursery:
        informer = Informer(InferenceService)
        by_model = informer.add_index(lambda one: [one.spec.model_ref])
        rng = random.Random(0)

        async def follow():
            await informer.run(cluster.client, changes.append, namespace=None, rng=rng)

        nursery.start_soon(follow)
        await cluster.create_service("chat")
        await trio.sleep(SETTLED)
        assert changes[0].before is None
        assert by_model.keys("phi") == {CHAT}
        del changes[:]
        await cluster.client.patch(InferenceService, CHAT, {"spec": {"modelRef": "other"}})
        await trio.sleep(SETTLED)
        assert (changes[0].before.spec.model_ref, changes[0].now.spec.model_ref) == ("phi", "other")
        assert all(one.now is two.before for one, two in itertools.pairwise(changes))
        del changes[:]
        await cluster.client.delete(InferenceService, CHAT)
        await trio.sleep(SETTLED)
        assert (changes[-1].before.spec.model_ref, changes[-1].now) == ("other", None)
        assert not by_model.keys("other")
        nursery.cancel_scope.cancel()


def test_a_cleared_kind_is_in_no_index():
    """A kind that is not served any more leaves no object and no value behind."""
    informer = Informer(InferenceService)
    by_model = informer.add_index(lambda one: [one.spec.model_ref])
    chat = service()
    informer.cache._objects[CHAT] = chat
    informer._deliver(lambda _: None, CHAT)
    assert by_model.keys(chat.spec.model_ref) == {CHAT}
    informer.clear()
    assert not by_model.keys(chat.spec.model_ref)
    assert informer.get(CHAT) is None


def event(before, now, key=CHAT):
    return Event(key, before, now)


def test_a_change_affects_the_states_before_and_after():
    """Moving from one value to another affects both; a deletion affects the object's last value."""
    index = Index(frozenset)
    for before, now, concerned in ((None, "p", "p"), ("p", "q", "pq"), ("q", None, "q")):
        index.update(event(before, now))
        assert index.values(event(before, now)) == frozenset(concerned)
        assert index.keys("q") == ({CHAT} if now == "q" else frozenset())
    assert not index.keys("p")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.frozensets(st.sampled_from("xyz")))))
def test_an_index_agrees_with_a_search(changes):
    """After any sequence of changes the keys of a value are those of the objects that have it now."""
    index, now = Index(lambda values: values), {}
    for key, values in changes:
        index.update(event(now.get(key), values or None, key))
        now[key] = values or None
    for value in "xyz":
        assert index.keys(value) == {key for key, values in now.items() if values and value in values}
        assert index.count(value) == len(index.keys(value))
