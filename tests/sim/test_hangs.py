"""Hangs are detected and working engines continue; slow loads are waited for; a wrong server is never ready.

The second half is deliberate bugs, each of which must make one of these timelines fail.
"""

import attrs
import pytest
import trio

from llmkube.base.http.message import NO_HEADERS
from llmkube.k8s.builtins import Event
from llmkube.supervisor.engine import health
from llmkube.supervisor.values import liveness
from sim.machine import Script, SimChild
from sim.mutation import assert_caught
from sim.world import open_world
from virtual_clock import virtual_clock

pytestmark = pytest.mark.ci

HOUR = 3600.0


async def stays(world, child, seconds):
    """Assert that a healthy engine stays, in service all the time."""
    for _ in range(int(seconds // 300)):
        await trio.sleep(300)
        assert world.machine.live(child.name) == [child], "an engine that works was ended"
        assert await world.ready_addresses(child.name) == 1, "an engine that works was taken out of service"


async def replaced(world, child, *, seconds):
    """Assert that the endpoint is withdrawn, the engine stopped and the next one serves; return the message."""
    await world.until(world.ready_addresses, 0, child.name, seconds=seconds)
    assert child.exit is None, "the engine was ended before its endpoint was withdrawn"
    await world.until(lambda: child.exit is not None, True, seconds=4)
    await world.until(world.ready_addresses, 1, child.name, seconds=20)
    return await event_message(world, "Hung")


async def event_message(world, reason):
    await trio.sleep(5)
    events = [one for one in (await world.client.list(Event)).items if one.reason == reason]
    assert events, "no event"
    return max((one.message for one in events), key=len)  # the controller reports its first line as well


# -- timelines ------------------------------------------------------------------------------------------------------


async def long_prompt(world):
    """An engine that answers nothing for an hour and a half while it computes is healthy."""
    child = await world.serve()
    child.mute, child.in_flight = True, 1
    await stays(world, child, 1.5 * HOUR)


async def on_a_gpu(world):
    """An engine that takes a two-thousandth of a core is healthy while batches finish."""
    child = await world.serve()
    child.in_flight, child.pace = 4, 0.0005
    await stays(world, child, HOUR / 2)


async def at_rest(world):
    """An idle engine is healthy, and is probed no more than once in four minutes."""
    child = await world.serve()
    await trio.sleep(HOUR / 4)
    before, tokens = child.asked, child.tokens_given
    await stays(world, child, HOUR)
    assert child.asked - before <= 15
    assert child.tokens_given == tokens


async def late_answers(world):
    """An idle engine that answers late, but computes a token on request, is healthy."""
    child = await world.serve()
    child.slow_seconds = 8
    await stays(world, child, HOUR / 2)
    assert child.tokens_given > 0


async def short_stop(world):
    """An engine that is stopped and continued within a few seconds is not replaced."""
    child = await world.serve()
    for _ in range(20):
        child.frozen = True
        await trio.sleep(3)
        child.frozen = False
        await trio.sleep(7.3)
    await stays(world, child, 600)


async def frozen(world):
    """An engine that is stopped by a signal is withdrawn within 10 seconds and replaced; its sibling is not touched."""
    other = await world.serve("embed")
    child = await world.serve()
    child.in_flight = 2
    await trio.sleep(1.7)
    child.frozen = True
    assert "state T" in await replaced(world, child, seconds=10)
    assert world.machine.live("embed") == [other]


async def stuck_queue(world):
    """An engine that answers every probe while its requests make no progress is replaced within two minutes."""
    child = await world.serve()
    child.in_flight, child.pace, child.counts = 3, 0.0, False
    message = await replaced(world, child, seconds=120)
    assert "3 requests wait without progress" in message
    assert message.endswith("loading")  # its last log line


async def mute(world):
    """An engine that accepts and never answers, and does not move, is replaced within six minutes."""
    child = await world.serve()
    await trio.sleep(600)
    child.mute = True
    assert "answers nothing, not even a request for one token" in await replaced(world, child, seconds=360)


async def port_lost(world):
    """An engine that no longer listens is withdrawn within twenty seconds and replaced after a minute."""
    child = await world.serve()
    child.closed = True
    await world.until(world.ready_addresses, 0, seconds=20)
    await world.until(lambda: child.exit is not None, True, seconds=75)
    await world.until(world.ready_addresses, 1, seconds=20)


async def slow_load(world):
    """A load of three hours with progress ends with a ready engine, the first that was started."""
    world.machine.default = Script(load_seconds=3 * HOUR, words=("load_tensors: loading model tensors",))
    await world.apply()
    await trio.sleep(HOUR)
    assert await world.phase() == "Creating"
    _, reason, message = await world.condition()
    assert reason == "Loading"
    assert message.startswith("loading tensors, for 3")
    await world.until(world.ready_addresses, 1, seconds=2 * HOUR + 60, step_seconds=30)
    assert len(world.machine.spawned) == 1


async def stalled_load(world):
    """A load without progress for two minutes has failed, and is tried again."""
    world.machine.default = Script(load_seconds=HOUR, stalls_after=30)
    await world.apply()
    await trio.sleep(140)
    assert len(world.machine.spawned) == 1
    world.machine.default = Script()
    await world.until(world.ready_addresses, 1, seconds=40)
    assert "no log line, no disk read" in await event_message(world, "LoadStalled")


async def intruder(world):
    """Another program on the engine's port is never called ready; three more ports are tried at once."""
    world.machine.default = Script(load_seconds=1, intruder=True)
    await world.apply()
    for _ in range(30):
        await trio.sleep(1)
        assert await world.ready_addresses() == 0, "a stranger's port was published"
    assert len(world.machine.spawned) >= 5
    starts = world.machine.starts("chat")
    assert starts[3] - starts[0] < 8  # a second to get ready, and one to stop
    await world.until(world.condition, lambda seen: seen[1] == "PortTaken", seconds=30)
    world.machine.default = Script(load_seconds=1)
    await world.until(world.ready_addresses, 1, seconds=90)


async def other_model(world):
    """An engine that serves another model than the requested one is never called ready."""
    world.machine.default = Script(load_seconds=1, model_id="somebody-else")
    await world.apply()
    await trio.sleep(30)
    assert await world.ready_addresses() == 0
    await world.until(world.condition, lambda seen: "serves somebody-else instead of chat" in seen[2], seconds=30)


TIMELINES = [
    long_prompt,
    on_a_gpu,
    at_rest,
    late_answers,
    short_stop,
    frozen,
    stuck_queue,
    mute,
    port_lost,
    slow_load,
    stalled_load,
    intruder,
    other_model,
]


def run(timeline):
    """Run a timeline in a separate world, on a virtual clock."""

    async def main():
        async with open_world() as world:
            await timeline(world)

    trio.run(main, clock=virtual_clock())


@pytest.mark.parametrize(
    "timeline",
    [pytest.param(one, marks=[pytest.mark.ci] * (one is slow_load), id=one.__name__) for one in TIMELINES],
)
def test_a_timeline_holds(timeline):
    run(timeline)


async def test_another_port_is_tried_at_once_when_one_is_taken(autojump_clock):
    """An engine whose port is taken gets another one at once, three times, and then with back-off."""
    async with open_world() as world:
        words = ("llmkube-llama-server: cannot listen on 127.0.0.1 port 40001: Address already in use",)
        world.machine.default = Script(life_seconds=0.5, words=words)
        await world.apply()
        await trio.sleep(30)
        starts = world.machine.starts("chat")
        assert starts[4] - starts[0] < 4  # three for the port, one as any first exit
        assert len(starts) < 10
        _, _, message = await world.until(world.condition, lambda seen: seen[1] == "PortTaken", seconds=30)
        assert "another process took its port: llmkube-llama-server: cannot listen on" in message


# -- deliberate bugs --------------------------------------------------------------------------------------------------


def seen_as(**changes):
    """Return a `step` with other input; `None` means the value of the sample before."""

    def step(watch, stats, now, limits, original=liveness.step):
        before = watch.stats or stats
        shown = {name: getattr(before, name) if given is None else given for name, given in changes.items()}
        return original(watch, attrs.evolve(stats, **shown), now, limits)

    return step


def judged(change):
    """Return a `step` with another verdict, computed from the watch, the right verdict, and the limits."""

    def step(watch, stats, now, limits, original=liveness.step):
        after, verdict = original(watch, stats, now, limits)
        return after, attrs.evolve(verdict, **change(after, verdict, limits))

    return step


def blind(watch, stats, now, limits, original=liveness.step):
    answer = stats.answer and attrs.evolve(stats.answer, counters=(0.0,))
    return original(watch, attrs.evolve(stats, answer=answer, cpu_seconds=1.0), now, limits)


def health_is_enough(watch, verdict, limits):
    return {} if watch.unanswered or watch.stopped_samples or not watch.reachable else {"hung": ""}


def hasty(watch, verdict, limits):
    return {"hung": "stopped"} if watch.stopped_samples else {}


def silence_is_enough(watch, verdict, limits):
    return {"hung": "silent"} if watch.unanswered >= 2 else {}


def rest_is_a_hang(watch, verdict, limits):
    return {"hung": "still"} if watch.still_seconds >= limits.still_seconds else {}


def no_tokens(watch, verdict, limits):
    return {"probe": liveness.Probe.COUNTERS} if verdict.probe is liveness.Probe.TOKEN else {}


def port_unseen(watch, stats, now, limits, original=liveness.step):
    answer = None if stats.answer and stats.answer.health == "gone" else stats.answer
    return original(watch, attrs.evolve(stats, answer=answer, listening=None), now, limits)


async def token_denied(engine):
    await trio.lowlevel.checkpoint()
    return liveness.ProbeResult("busy", token=False)


def load_with_a_clock(load, stats, now, limits, original=liveness.step_load):
    load, stalled = original(load, stats, now, limits)
    return load, stalled or ("too long" if now > 1800 else "")


def load_without_end(load, stats, now, limits):
    return load, ""


async def drained_first(engine, *args, original=health.watch, **kwargs):
    hung = await original(engine, *args, **kwargs)
    await engine.wait_idle()
    return hung


async def everything_is_its_own(child, port):
    await trio.lowlevel.checkpoint()
    return True


async def no_names(engine):
    await trio.lowlevel.checkpoint()
    return frozenset()


MUTANTS = {
    "CPU time is not seen": (health, "step", seen_as(cpu_seconds=None), long_prompt),
    "silence is a verdict": (health, "step", judged(silence_is_enough), long_prompt),
    "counters are not read": (health, "step", blind, on_a_gpu),
    "rest is a hang": (health, "step", judged(rest_is_a_hang), at_rest),
    "an idle engine is probed all the time": (liveness, "MAX_BACKOFF", 0, at_rest),
    "no chance to give a token": (health.Engine, "one_token", token_denied, late_answers),
    "one look at a stopped process is enough": (health, "step", judged(hasty), short_stop),
    "the state of the process is not read": (health, "step", seen_as(state="S"), frozen),
    "a hung engine is drained": (health, "watch", drained_first, frozen),
    "/health is believed": (health, "step", judged(health_is_enough), stuck_queue),
    "our own questions are signs of life": (health, "step", seen_as(asked=False), stuck_queue),
    "the request for a token is forgotten": (health, "step", judged(no_tokens), mute),
    "the port is not checked": (health, "step", port_unseen, port_lost),
    "a load has a clock": (health, "step_load", load_with_a_clock, slow_load),
    "a stalled load is waited for": (health, "step_load", load_without_end, stalled_load),
    "the owner of the port is not checked": (SimChild, "listens", everything_is_its_own, intruder),
    "questions show no key": (health, "bearer", lambda api_key: NO_HEADERS, stuck_queue),
    "the served model is not checked": (health.Engine, "model_names", no_names, other_model),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_deliberate_bug_is_caught(name, monkeypatch):
    """A program with this bug fails its timeline."""
    assert_caught(monkeypatch, MUTANTS[name], play=run)
