"""A failing reconcile delays its own key alone; a cancellation is never swallowed."""

import itertools
import random

import pytest
import trio
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from llmkube.base.errors import ExternalError, UserError, leaves
from llmkube.controller.metrics import ReconcileMetrics
from llmkube.controller.reconciler import RECONCILE_SECONDS, Reconciler, new_queue
from llmkube.k8s.resource import Key

CHAT, EMBED = Key("ml", "chat"), Key("ml", "embed")


class Bench:
    """A reconciler whose reconcile the test sets, and a record of its runs."""

    def __init__(self, reconcile):
        self.registry = CollectorRegistry()
        self.runs = []
        self.queue = new_queue(random.Random(0))
        self._reconcile = reconcile
        self.reconciler = Reconciler("test", self.reconcile, ReconcileMetrics(self.registry), self.queue)

    async def reconcile(self, key):
        self.runs.append((key, trio.current_time()))
        await self._reconcile(key)

    def count(self, result):
        return self.registry.get_sample_value("llmkube_reconcile_total", {"controller": "test", "result": result}) or 0

    async def run_for(self, seconds, *keys, workers=2):
        for key in keys:
            self.queue.add_nowait(key)
        with trio.move_on_after(seconds):
            await self.reconciler.run(workers)


def failing(times, error):
    left = dict.fromkeys([CHAT], times)

    async def reconcile(key):
        await trio.lowlevel.checkpoint()
        if left.get(key, 0):
            left[key] -= 1
            raise error

    return reconcile


@pytest.mark.parametrize(
    ("error", "result", "level"),
    [
        (ExternalError("the API server is away"), "retry", "warning"),
        (trio.TooSlowError(), "retry", "warning"),
        (UserError("no such field"), "error", "error"),
        (ZeroDivisionError("a bug"), "error", "error"),
        (
            ExceptionGroup("two", [ExternalError("away"), ExceptionGroup("", [ExternalError("too")])]),
            "retry",
            "warning",
        ),
        (ExceptionGroup("two", [ExternalError("away"), KeyError("a bug")]), "error", "error"),
    ],
)
async def test_failures_are_logged_counted_and_tried_again(autojump_clock, error, result, level):
    """After any error of a reconcile, its key is retried after growing pauses, and the log names the key."""
    bench = Bench(failing(3, error))
    with capture_logs() as logs:
        await bench.run_for(60.0, CHAT, EMBED)
    chat = [when for key, when in bench.runs if key == CHAT]
    assert len(chat) == 4
    pauses = [later - sooner for sooner, later in itertools.pairwise(chat)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= 0.4
    assert [key for key, _ in bench.runs if key == EMBED] == [EMBED]
    assert (bench.count(result), bench.count("success")) == (3, 2)
    assert [(line["log_level"], line["key"]) for line in logs] == [(level, "ml/chat")] * 3


async def test_a_bug_is_logged_with_its_traceback(autojump_clock):
    """The log of a bug has the traceback, that of an environment error does not."""
    with capture_logs() as logs:
        await Bench(failing(1, ZeroDivisionError("a bug"))).run_for(5.0, CHAT)
        await Bench(failing(1, ExternalError("away"))).run_for(5.0, CHAT)
    bug, world = logs
    assert bug["event"] == "reconcile crashed"
    assert isinstance(leaves(bug["exc_info"])[0], ZeroDivisionError)
    assert "exc_info" not in world


async def test_a_success_resets_the_backoff(autojump_clock):
    """After a success the next failure waits the shortest pause again."""
    script = iter([ExternalError("1"), ExternalError("2"), None, ExternalError("3"), None])

    async def reconcile(key):
        await trio.lowlevel.checkpoint()
        error = next(script)
        if error:
            raise error

    bench = Bench(reconcile)
    await bench.run_for(10.0, CHAT)
    await bench.run_for(10.0, CHAT)
    times = [when for _, when in bench.runs]
    assert len(times) == 5
    assert times[4] - times[3] <= 0.5


async def test_a_silent_server_does_not_hold_a_worker(autojump_clock):
    """A reconcile without a response is given up and retried, while other keys continue."""

    async def reconcile(key):
        if key == CHAT:
            await trio.sleep_forever()

    bench = Bench(reconcile)
    await bench.run_for(RECONCILE_SECONDS + 5, CHAT, EMBED, workers=1)
    assert [key for key, _ in bench.runs] == [CHAT, EMBED, CHAT]
    assert bench.count("retry") == 1


async def test_cancellation_passes_through_a_reconcile_that_fails_while_it_unwinds(autojump_clock):
    """An error in a group with a Cancelled is handled, and the worker still stops."""

    async def reconcile(key):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ExternalError("the connection broke while closing")

    bench = Bench(reconcile)
    with capture_logs() as logs, trio.move_on_after(1.0) as scope:
        await bench.run_for(2.0, CHAT)
    assert scope.cancelled_caught
    assert trio.current_time() < RECONCILE_SECONDS
    assert all(line["event"] == "reconcile failed, will be retried" for line in logs)


async def test_no_key_is_reconciled_twice_at_once(autojump_clock):
    """A key that is woken during its reconcile is reconciled once more afterwards, however often it was woken."""
    busy, most = set(), 0

    async def reconcile(key):
        nonlocal most
        assert key not in busy
        busy.add(key)
        most = max(most, len(busy))
        await trio.sleep(1.0)
        busy.discard(key)

    bench = Bench(reconcile)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.run_for, 10.0, CHAT, EMBED)
        await trio.sleep(0.5)
        for _ in range(5):
            bench.queue.add_nowait(CHAT)
    assert sorted(key for key, _ in bench.runs) == [CHAT, CHAT, EMBED]
    assert most == 2


def test_metrics_are_named_as_in_the_reference():
    """The series are `llmkube_reconcile_total` and `llmkube_reconcile_duration_seconds`, once per registry."""
    registry = CollectorRegistry()
    metrics = ReconcileMetrics(registry)
    metrics.observe("model", "success", 0.02)
    assert registry.get_sample_value("llmkube_reconcile_total", {"controller": "model", "result": "success"}) == 1
    assert registry.get_sample_value("llmkube_reconcile_duration_seconds_sum", {"controller": "model"}) == 0.02
    with pytest.raises(ValueError, match="Duplicated"):
        ReconcileMetrics(registry)
