"""An index answers which objects have a value now, and whom a change may concern."""

from hypothesis import given
from hypothesis import strategies as st

from llmkube.controller.informer import Event, Index
from llmkube.k8s.resource import Key

CHAT = Key("ml", "chat")


def event(before, now, key=CHAT):
    return Event(key, before, now)


def test_a_change_concerns_what_there_was_and_what_there_is():
    """Moving from one value to another concerns both; a deletion concerns what the object had last."""
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
