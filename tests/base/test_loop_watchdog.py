import threading
import time

import pytest
import structlog
import trio
from prometheus_client import CollectorRegistry, generate_latest

from llmkube.base import loop_watchdog
from llmkube.base.loop_watchdog import TICK_SECONDS, CpuSample, is_busy, open_loop_watchdog
from waiting import until

pytestmark = pytest.mark.ci

STALLED, RESUMED = "event loop stalled", "event loop resumed"


def hold_the_loop(seconds, token="hf_topsecret"):
    until_moment = time.monotonic() + seconds
    while time.monotonic() < until_moment:
        pass


def scrape(watchdog):
    registry = CollectorRegistry()
    registry.register(watchdog)
    return generate_latest(registry).decode()


def counted(watchdog, suffix="_count", bound=None):
    samples = [sample for family in watchdog.lag.collect() for sample in family.samples]
    return next(each.value for each in samples if each.name.endswith(suffix) and each.labels.get("le") == bound)


def watching():
    return [thread for thread in threading.enumerate() if thread.name == "loop-watchdog"]


async def test_a_blocked_loop_is_reported_once_with_the_function():
    """The log names the blocking function, with no value; then the duration; the metrics have both."""
    with structlog.testing.capture_logs() as logs:
        async with open_loop_watchdog() as watchdog:
            await trio.sleep(0.05)
            hold_the_loop(1.2)
            await until(lambda: len(logs) == 2)
            text = scrape(watchdog)
    stalled, resumed = logs
    assert (stalled["event"], resumed["event"]) == (STALLED, RESUMED)
    assert stalled["stack"].splitlines()[-1].endswith(" hold_the_loop")
    assert test_a_blocked_loop_is_reported_once_with_the_function.__name__ in stalled["stack"]
    assert "topsecret" not in stalled["stack"]
    assert 0.9 <= resumed["seconds"] <= 3
    assert "llmkube_event_loop_stalls_total 1.0" in text
    assert 'llmkube_event_loop_lag_seconds_bucket{le="1.0"}' in text


async def test_a_slow_loop_is_not_a_blocked_one():
    """Turns of 0.4 s each are not reported, for any number of them."""
    with structlog.testing.capture_logs() as logs:
        async with open_loop_watchdog():
            for _ in range(4):
                hold_the_loop(0.4)
                await trio.lowlevel.checkpoint()
    assert logs == []


async def test_an_idle_loop_is_not_reported(monkeypatch):
    """It is not reported, and the thread sleeps once the work is over: only the tick is compared with the clock."""
    monkeypatch.setattr(loop_watchdog, "WINDOW_SECONDS", 0.0)
    with structlog.testing.capture_logs() as logs:
        async with open_loop_watchdog() as watchdog:
            await trio.sleep(1.5)
            measured = counted(watchdog)
    assert logs == []
    assert measured <= 5  # at the start, and by a tick that came along


async def test_a_blocked_idle_program_is_reported_by_its_tick(monkeypatch):
    """A tick that does not come is enough."""
    monkeypatch.setattr(loop_watchdog, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(loop_watchdog, "TICK_SECONDS", 0.3)
    monkeypatch.setattr(loop_watchdog, "ANSWER_SECONDS", 0.2)
    with structlog.testing.capture_logs() as logs:
        async with open_loop_watchdog():
            await trio.sleep(0.5)
            time.sleep(1.2)  # noqa: ASYNC251 (the defect that is to be reported)
            await until(lambda: logs)
    assert logs[0]["event"] == STALLED


async def test_each_tick_is_measured(autojump_clock):
    """Its lateness, in the clock of the loop; a skipped tick is not late."""
    async with open_loop_watchdog() as watchdog:
        await trio.sleep(TICK_SECONDS * 5)
        assert counted(watchdog, "_bucket", "0.001") >= 4


@pytest.mark.parametrize("error", [None, KeyError("x")])
async def test_the_thread_is_gone_at_the_end(error):
    """At any exit from the block; and it is none that an ending interpreter would cut off."""
    try:
        async with open_loop_watchdog():
            (thread,) = watching()
            assert not thread.daemon
            if error is not None:
                raise error
    except* KeyError:
        pass
    assert watching() == []


def test_a_twentieth_of_a_core_is_work():
    """Below that, a program is idle."""
    assert is_busy(CpuSample(0.0, 1.0), CpuSample(1.0, 1.06))
    assert not is_busy(CpuSample(0.0, 1.0), CpuSample(10.0, 1.4))
