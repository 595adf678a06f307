"""A value is made once for each thing that it is made from."""

import pytest

from llmkube.controller.render_cache import Memo


def test_a_value_is_made_again_only_from_something_else():
    """Equal things do not make the value anew, whether they are the same objects or not; others do."""
    memo, made = Memo(), []

    def make():
        made.append(len(made))
        return made[-1]

    assert [memo.get("a", (1, ["x"]), make) for _ in range(3)] == [0, 0, 0]
    assert memo.get("b", (1, ["x"]), make) == 1, "another key has a value of its own"
    assert memo.get("a", (2, ["x"]), make) == 2
    assert memo.get("a", (1, ["x"]), make) == 3, "only the newest is kept"


def test_what_is_forgotten_is_made_again():
    """A key that went and came back does not get the value of its predecessor."""
    memo = Memo()
    assert memo.get("a", (1,), lambda: "old") == "old"
    memo.forget("a")
    memo.forget("never there")
    assert memo.get("a", (1,), lambda: "new") == "new"


def test_an_error_is_not_kept():
    """Making is tried again after it failed, and what was kept before stands until then."""
    memo = Memo()

    def fail():
        raise ValueError("not now")

    memo.get("a", (1,), lambda: "first")
    with pytest.raises(ValueError, match="not now"):
        memo.get("a", (2,), fail)
    assert memo.get("a", (1,), fail) == "first"
    assert memo.get("a", (2,), lambda: "second") == "second"
