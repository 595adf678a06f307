"""Merge patches and JSON patches, against the tables of their RFCs and a second implementation."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.values.json_text import MAX_VALUES
from llmkube.apiserver.values.json_values import same
from llmkube.apiserver.writes.patches import (
    MAX_COPIED_BYTES,
    CopiedTooMuchError,
    PatchDocumentError,
    PatchFailedError,
    PatchTooLargeError,
    json_patch,
    merge_patch,
)

RFC_7386: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7386)
def test_merge_patch_does_what_its_rfc_shows(target: Any, patch: Any, result: Any):
    """Each example of RFC 7386, appendix A, gives the printed result, and the inputs are not modified."""
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == result
    assert (target, patch) == before


RFC_6902: list[tuple[Any, list[dict[str, Any]], Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["a", "b"]}, [{"op": "add", "path": "/foo/1", "value": "q"}], {"foo": ["a", "q", "b"]}),
    ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["b"]}], {"foo": ["a", ["b"]]}),
    ({"baz": 1, "foo": 2}, [{"op": "remove", "path": "/baz"}], {"foo": 2}),
    ({"foo": ["a", "b", "c"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "c"]}),
    ({"baz": 1}, [{"op": "replace", "path": "/baz", "value": 2}], {"baz": 2}),
    ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
    ({"a": [1, 2, 3]}, [{"op": "move", "from": "/a/0", "path": "/a/2"}], {"a": [2, 3, 1]}),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    ({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
]

# Forbidden by RFC 6902, but accepted by a kube-apiserver
LAX: list[tuple[Any, list[dict[str, Any]], Any]] = [
    ({}, [{"op": "replace", "path": "/a", "value": 1}], {"a": 1}),
    ({}, [{"op": "copy", "from": "/b", "path": "/c"}], {"c": None}),
    ({}, [{"op": "test", "path": "/a", "value": None}], {}),
    ({}, [{"op": "test", "path": "/a"}], {}),
    ({}, [{"op": "add", "path": "/a"}], {"a": None}),
    ({}, [{"op": "add", "path": "x/a", "value": 1}], {"a": 1}),
    ({}, [{"op": "add", "path": "/~2", "value": 1}], {"~2": 1}),
    ({"a": [1, 2]}, [{"op": "remove", "path": "/a/-1"}], {"a": [1]}),
    ({"a": [1, 2]}, [{"op": "add", "path": "/a/-1", "value": 3}], {"a": [1, 2, 3]}),
    ({"a": [1, 2]}, [{"op": "add", "path": "/a/01", "value": 3}], {"a": [1, 3, 2]}),
]


@pytest.mark.parametrize(("target", "patch", "result"), [*RFC_6902, *LAX])
def test_json_patch_follows_its_rfc_and_is_as_lax_as_a_kube_apiserver(target: Any, patch: Any, result: Any):
    """All six operations act on objects and arrays, with escaped pointers, and leave the inputs alone."""
    before = copy.deepcopy(target)
    assert json_patch(target, patch) == result
    assert target == before


FAILING: list[tuple[Any, dict[str, Any], str]] = [
    ({}, {"op": "remove", "path": "/a"}, "Unable to remove nonexistent key: a: missing value"),
    ({}, {"op": "replace", "path": "/a/b", "value": 1}, "replace operation does not apply"),
    ({}, {"op": "add", "path": "/a/b", "value": 1}, 'add operation does not apply: doc is missing path: "/a/b"'),
    ({}, {"op": "add", "path": "", "value": {}}, "add operation does not apply"),
    ({}, {"op": "remove", "path": ""}, "remove operation does not apply"),
    ({}, {"op": "replace", "path": "", "value": 3}, "must be object or array"),
    ({}, {"op": "jump", "path": "/a"}, "Unexpected kind: jump"),
    ({}, {"op": "add", "value": 1}, "missing path"),
    ({}, {"op": "move", "path": "/a"}, "missing from"),
    ({"a": [1]}, {"op": "remove", "path": "/a/-2"}, "Unable to access invalid index: -2"),
    ({"a": 1}, {"op": "test", "path": "/a"}, "testing value /a failed"),
    ({"a": []}, {"op": "add", "path": "/a/1", "value": 1}, "Unable to access invalid index: 1"),
    ({"a": [1]}, {"op": "remove", "path": "/a/-"}, "is not an index"),
    ({"a": 1}, {"op": "test", "path": "/a", "value": True}, "testing value /a failed: test failed"),
    ({"a": {}}, {"op": "move", "from": "/a", "path": "/a/b"}, "move operation does not apply"),
    ({"a": 1}, {"op": "copy", "from": "/b/c", "path": "/c"}, "copy operation does not apply"),
]


@pytest.mark.parametrize(("target", "operation", "message"), FAILING)
def test_an_operation_that_does_not_apply_names_the_cause(target: Any, operation: Any, message: str):
    """The error names the operation and the path, and the target is not modified."""
    before = copy.deepcopy(target)
    with pytest.raises(PatchFailedError, match=message):
        json_patch(target, [operation])
    assert target == before


@pytest.mark.parametrize(
    "patch",
    [
        {"op": "add"},
        ["add"],
        [{"op": 1, "path": "/a"}],
        [{"op": "add", "path": 1}],
        [{"op": "move", "from": 1, "path": "/a"}],
    ],
)
def test_a_malformed_patch_is_distinguished_from_one_that_fails(patch: Any):
    """A document that is no JSON patch raises another error than one that does not apply."""
    with pytest.raises(PatchDocumentError):
        json_patch({}, patch)


def test_a_patch_has_10000_operations_at_most():
    """One more, and nothing is tried."""
    with pytest.raises(PatchTooLargeError, match="10000, got 10001"):
        json_patch({}, [{"op": "test", "path": "", "value": {}}] * 10_001)


NAMES = st.sampled_from(["a", "b", "a/b", "~"])
VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)
TOKENS = st.sampled_from(["a", "b", "a~1b", "~0", "0", "1", "-"])
POINTERS = st.lists(TOKENS, min_size=1, max_size=3).map(lambda tokens: "".join(f"/{token}" for token in tokens))
OPERATIONS = st.one_of(
    st.fixed_dictionaries({"op": st.sampled_from(["add", "replace", "test"]), "path": POINTERS, "value": VALUES}),
    st.fixed_dictionaries({"op": st.just("remove"), "path": POINTERS}),
    st.fixed_dictionaries({"op": st.sampled_from(["move", "copy"]), "from": POINTERS, "path": POINTERS}),
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3) | st.lists(VALUES, max_size=3)


def _by_library(document: Any, operations: list[dict[str, Any]]) -> tuple[bool, Any]:
    try:
        return True, jsonpatch.apply_patch(document, operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError):
        return False, None


@given(DOCUMENTS, st.lists(OPERATIONS, min_size=1, max_size=3))
def test_json_patch_agrees_with_another_implementation(document: Any, operations: list[dict[str, Any]]):
    """Where the `jsonpatch` library answers a random patch, we answer the same."""
    works, expected = _by_library(copy.deepcopy(document), operations)
    try:
        got = json_patch(document, operations)
    except PatchFailedError:
        assert not works
    else:
        assert not works or same(got, expected)  # it is stricter, as its RFC is


def test_what_a_json_patch_copies_is_counted():
    """Doubling a list stops at the bound, which the refusal names; copying as much as the bound does not."""
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(27)]
    with pytest.raises(CopiedTooMuchError, match=f"exceeding the limit {MAX_COPIED_BYTES}"):
        json_patch({"a": ["x" * 1000]}, doubling)
    half = {"a": "x" * (MAX_COPIED_BYTES // 2 - 2)}
    twice = [{"op": "copy", "from": "/a", "path": f"/b{number}"} for number in range(2)]
    assert json_patch(half, twice)["b1"] == half["a"]
    with pytest.raises(CopiedTooMuchError, match=f"limit is {MAX_VALUES} copied values"):
        json_patch({"a": [1]}, doubling)
    with pytest.raises(CopiedTooMuchError):
        json_patch(half, [*twice, {"op": "copy", "from": "/b0", "path": "/c"}])


def test_a_value_that_moves_is_not_copied():
    """10,000 moves of a large value cost as much as of a small one: it is neither measured nor copied."""
    large = {"a": ["x"] * 50_000}
    there_and_back = [{"op": "move", "from": "/a", "path": "/b"}, {"op": "move", "from": "/b", "path": "/a"}]
    assert json_patch(large, there_and_back * 5_000) == large


def test_an_index_of_thousands_of_digits_is_no_index():
    """Python reads no such number; the patch does not apply, and nothing fails."""
    with pytest.raises(PatchFailedError):
        json_patch({"a": [1]}, [{"op": "remove", "path": "/a/" + "9" * 5000}])
