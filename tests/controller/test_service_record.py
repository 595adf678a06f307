"""A value is made once for each thing that it is made from."""

import pytest

from llmkube.controller.reconcile.context import Computed, ServiceRecord


def test_a_value_is_made_again_only_from_something_else():
    """Equal things do not make the value anew, whether they are the same objects or not; others do."""
    value, made = Computed(), []

    def make():
        made.append(len(made))
        return made[-1]

    assert [value.get((1, ["x"]), make) for _ in range(3)] == [0, 0, 0]
    assert value.get((2, ["x"]), make) == 1
    assert value.get((1, ["x"]), make) == 2, "only the newest is kept"


def test_an_error_is_not_kept():
    """Making is tried again after it failed, and what was kept before stands until then."""
    value = Computed()

    def fail():
        raise ValueError("not now")

    value.get((1,), lambda: "first")
    with pytest.raises(ValueError, match="not now"):
        value.get((2,), fail)
    assert value.get((1,), fail) == "first"
    assert value.get((2,), lambda: "second") == "second"


def test_what_waits_no_more_begins_to_wait_anew():
    """A replacement of pods that is called off leaves neither a beginning nor a reason behind."""
    record = ServiceRecord()
    record.deferred_since, record.deferred_for = 0.0, "an edit"
    record.stop_waiting()
    assert (record.deferred_since, record.deferred_for) == (None, "")
