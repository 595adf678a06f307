"""The index answers who points here, also about objects that are gone."""

from hypothesis import given
from hypothesis import strategies as st

from llmkube.controller.reverse_index import Index


def test_put_tells_all_that_a_change_concerns():
    """Moving from one value to another concerns both; a deletion concerns what was held last."""
    index = Index()
    assert index.put("chat", ["phi"]) == {"phi"}
    assert index.put("chat", ["qwen"]) == {"phi", "qwen"}
    assert index.holders("phi") == frozenset()
    assert index.holders("qwen") == {"chat"}
    assert index.put("chat", []) == {"qwen"}
    assert index.put("chat", []) == frozenset()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.frozensets(st.sampled_from("xyz")))))
def test_the_index_agrees_with_a_search(puts):
    """After any sequence of puts the holders of a value are those whose last put names it."""
    index, last = Index(), {}
    for key, values in puts:
        assert index.put(key, values) == last.get(key, frozenset()) | values
        last[key] = values
    for value in "xyz":
        assert index.holders(value) == {key for key, values in last.items() if value in values}
