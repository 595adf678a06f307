"""A value is computed once for each input; the queue for GPUs is ordered by priority, then by age."""

import random

import pytest

from llmkube.controller.reconcile.context import GpuQueue, Memo, QueuedService, ServiceRecord, number_waiting
from llmkube.k8s.resource import Key


def test_a_value_is_made_again_only_from_something_else():
    """Equal inputs do not compute the value again, whether they are the same objects or not; others do."""
    value, made = Memo(), []

    def make():
        made.append(len(made))
        return made[-1]

    assert [value.get((1, ["x"]), make) for _ in range(3)] == [0, 0, 0]
    assert value.get((2, ["x"]), make) == 1
    assert value.get((1, ["x"]), make) == 2, "only the newest is kept"


def test_an_error_is_not_kept():
    """The computation is retried after a failure, and the last value applies until then."""
    value = Memo()

    def fail():
        raise ValueError("not now")

    value.get((1,), lambda: "first")
    with pytest.raises(ValueError, match="not now"):
        value.get((2,), fail)
    assert value.get((1,), fail) == "first"
    assert value.get((2,), lambda: "second") == "second"


def test_a_cancelled_wait_starts_again():
    """A cancelled replacement of pods leaves neither a start time nor a reason behind."""
    record = ServiceRecord()
    record.deferred_since, record.deferral_reason = 0.0, "an edit"
    record.clear_deferral()
    assert (record.deferred_since, record.deferral_reason) == (None, "")


def waiting(name, weight=10_000, since="2025-06-01T11:00:00Z", namespace="ml"):
    return QueuedService(Key(namespace, name), weight, since, "nvidia.com/gpu: 1")


def order(*those):
    shuffled = random.Random(3).sample(those, len(those))
    numbered = sorted((position, key.name) for key, (_, position) in number_waiting(shuffled).items())
    assert [position for position, _ in numbered] == list(range(1, len(those) + 1))
    return [name for _, name in numbered]


def test_priority_comes_before_age():
    """A newer service of a higher priority precedes an older one."""
    assert order(waiting("old", since="2025-01-01T00:00:00Z"), waiting("vital", 1_000_000)) == ["vital", "old"]


def test_of_equals_the_oldest_is_first_and_a_second_is_shared_by_name():
    """Equal priority is ordered by creation, and those of one second by namespace and name."""
    those = waiting("b"), waiting("a"), waiting("z", since="2025-05-01T00:00:00Z"), waiting("c", namespace="aa")
    assert order(*those) == ["z", "c", "a", "b"]


def test_only_services_that_move_up_are_notified():
    """When the first one is removed, those behind it are notified; when the last one is, none is."""
    queue = GpuQueue()
    for one in (waiting("a"), waiting("b"), waiting("c")):
        assert queue.put(one.key, one) == frozenset()
    assert [queue.position(Key("ml", name)) for name in "abc"] == [1, 2, 3]
    assert queue.put(Key("ml", "c"), None) == frozenset()
    assert queue.put(Key("ml", "a"), None) == {Key("ml", "b")}
    assert (queue.position(Key("ml", "b")), queue.position(Key("ml", "a"))) == (1, 0)


def test_a_repeated_state_moves_no_service():
    """A repeated state changes nothing."""
    queue = GpuQueue()
    queue.put(Key("ml", "a"), waiting("a"))
    assert queue.put(Key("ml", "a"), waiting("a")) == frozenset()
    assert queue.put(Key("ml", "x"), None) == frozenset()
    assert len(queue) == 1
