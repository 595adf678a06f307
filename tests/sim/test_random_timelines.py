"""Timelines that nobody thought of: Hypothesis draws what happens, the invariants of the system must hold regardless.

A failing timeline shrinks to a few steps and is replayed by its seed. `LLMKUBE_SIM_EXAMPLES` sets how many are drawn.
"""

import logging
import math
import os

import structlog
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from sim.machine import NetworkDownError, Script
from sim.world import open_world

EXAMPLES = int(os.environ.get("LLMKUBE_SIM_EXAMPLES", "25"))
NAMES = ("a", "b", "c")
CALM = Script(load_seconds=3, stop_seconds=1)

names = st.sampled_from(NAMES)
scripts = st.builds(
    Script,
    load_seconds=st.sampled_from([0.0, 3.0, 40.0, math.inf]),
    life_seconds=st.sampled_from([0.0, 1.0, 30.0, math.inf]),
    stop_seconds=st.sampled_from([0.0, 5.0, math.inf]),
)
steps = st.one_of(
    st.tuples(st.just("sleep"), st.floats(0, 400)),
    st.tuples(st.just("apply"), names, st.sampled_from([512, 1024, 2048])),
    st.tuples(st.just("refuse"), names),
    st.tuples(st.just("scale"), names, st.integers(0, 1)),
    st.tuples(st.just("source"), names, st.sampled_from(["builtin://one", "builtin://two"])),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("kill"), names),
    st.tuples(st.just("script"), names, scripts),
    st.tuples(st.just("api"), st.booleans()),
    st.tuples(st.just("errors"), st.integers(1, 30)),
    st.tuples(st.just("fetch"), st.booleans()),
)


class Wishes:
    """What the user has asked for last, and so what must be true in the end."""

    def __init__(self):
        self.specs = {}

    async def apply(self, world, name, **changes):
        self.specs[name] = {**self.specs.get(name, {"source": "builtin://one"}), **changes}
        await world.apply(name, **self.specs[name])


async def take(world, wishes, step):  # noqa: C901 - a table, one row a step
    """Let one thing happen."""
    match step:
        case ("sleep", seconds):
            await trio.sleep(seconds)
        case ("apply", name, context):
            await wishes.apply(world, name, contextSize=context, extraArgs=[])
        case ("refuse", name):
            await wishes.apply(world, name, extraArgs=["--port", "1"])
        case ("scale", name, replicas):
            await wishes.apply(world, name, replicas=replicas)
        case ("source", name, source):
            await wishes.apply(world, name, source=source)
        case ("delete", name) if wishes.specs.pop(name, None):
            await world.delete(name)
        case ("kill", name) if world.machine.live(name):
            world.machine.kill(name)
        case ("script", name, script):
            world.machine.scripts[name] = script
        case ("api", down):
            world.faults.down = down
            world.network.sever()
        case ("errors", count):
            world.faults.errors = count
        case ("fetch", broken):
            world.machine.broken = {"builtin://two": NetworkDownError("the disk is away")} if broken else {}


async def converge(world, wishes):
    """Stop all faults; a little later the world must be as it was last wished."""
    world.faults.down, world.faults.errors, world.machine.broken = False, 0, {}
    world.machine.scripts = dict.fromkeys(NAMES, CALM)
    await trio.sleep(2000)  # an earlier script may load for ever: its attempt ends after 1800 s
    for name in NAMES:
        spec = wishes.specs.get(name)
        live = world.machine.live(name)
        wanted = spec is not None and spec.get("replicas", 1) > 0
        if spec is not None and spec.get("extraArgs"):
            continue  # refused: whatever ran before may go on, nothing has to
        assert len(live) == wanted, f"{name}: {len(live)} engines, wanted {wanted}"
        assert await world.ready_addresses(name) == wanted
        if wanted:
            context = str(spec.get("contextSize", 4096))
            assert live[0].argv[live[0].argv.index("--ctx-size") + 1] == context, "an edit was lost"
            assert await world.phase(name) == "Ready"
        elif spec is not None:
            assert await world.phase(name) == "Stopped"


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(timeline=st.lists(steps, max_size=25), seed=st.integers(0, 2**16))
def test_any_timeline_ends_as_it_was_wished(timeline, seed):
    """Whatever happens in whatever order, never two engines for one service, and in the end exactly what was wished."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def main():
        wishes = Wishes()
        async with open_world(seed=seed) as world:
            for step in timeline:
                await take(world, wishes, step)
            await converge(world, wishes)

    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        structlog.reset_defaults()
