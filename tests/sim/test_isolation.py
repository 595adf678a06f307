"""Promise 1: a bug at any checkpoint of one service's task affects no sibling, and costs that service a back-off.

The life of a service is run once to find the checkpoints at which its tasks stop, and then again with an exception
raised at one of them. `_Driver` runs all tasks of the service, and passes values between them and Trio; an exception is
raised from the very `await` at which the task had stopped, after Trio has completed it. The exceptions are those of a
bug: of no class that the supervisor knows.

Every other line of code at which a task stops is tried once; `make soak` tries every checkpoint of the life, some 300.
"""

import types
from collections import defaultdict
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from unittest.mock import patch

import attrs
import pytest
import trio
from structlog.testing import capture_logs

import llmkube
from lengths import BUG_LINES, BUGS, SOAK
from llmkube.k8s.builtins import EndpointSlice
from llmkube.supervisor.services import Services
from sim.machine import Script
from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world
from virtual_clock import virtual_clock

VICTIM, SIBLING = "chat", "embed"
OURS = str(Path(llmkube.__file__).parent)

ATOMIC = {"_nested_child_finished"}
"""Trio's own waits: no bug of ours can occur between them and their callers, and they must be left in order."""

SIMULATED = {"_owned"}
"""The end of a simulated process replaces code that has separate tests; it is not the service's."""


class InjectedError(Exception):
    """A bug: no code expects its class."""


@attrs.define
class Injector:
    """Counts the checkpoints of a service's tasks, and makes one of them fail."""

    at: int = -1
    places: list[str] = attrs.field(factory=list)

    @property
    def struck(self):
        """The place of the injected failure; "" before it."""
        return self.places[self.at] if 0 <= self.at < len(self.places) else ""

    def raises_here(self, coroutine):
        """Count the checkpoint at which a task has stopped; return whether to raise there."""
        place = _place(coroutine)
        if not place:
            return False
        self.places.append(place)
        return len(self.places) - 1 == self.at


injector: ContextVar[Injector | None] = ContextVar("injector", default=None)


@attrs.frozen
class _Driver:
    """Runs a coroutine, and raises at the checkpoint that the injector chooses."""

    coroutine: types.CoroutineType
    injector: Injector

    def __await__(self):
        step = partial(self.coroutine.send, None)
        while True:
            try:
                trap = step()
            except StopIteration as end:
                return end.value
            raises = self.injector.raises_here(self.coroutine)
            answer = yield trap
            step = partial(self.coroutine.throw, InjectedError()) if raises else partial(self.coroutine.send, answer)


def _place(coroutine):
    """Return the line of ours at which a task has stopped; "" where no bug of ours can be."""
    here, place = coroutine, ""
    while here is not None:
        if isinstance(here, types.CoroutineType):
            frame, inner = here.cr_frame, here.cr_await
        elif isinstance(here, types.AsyncGeneratorType):
            frame, inner = here.ag_frame, here.ag_await
        elif isinstance(here, types.GeneratorType):
            frame, inner = here.gi_frame, here.gi_yieldfrom
        else:
            frame, inner = None, None
        if frame is None:
            break
        name = frame.f_code.co_name
        if name in ATOMIC | SIMULATED:
            return ""
        if frame.f_code.co_filename.startswith(OURS):
            file = Path(frame.f_code.co_filename).relative_to(OURS)
            place = f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}"
        # The object that drives a generator inside `async with` does not give access to it.
        manager = frame.f_locals.get("self") if frame.f_code.co_filename.endswith("contextlib.py") else None
        here = manager.gen if hasattr(manager, "gen") else inner
    return place


@contextmanager
def driven(bug):
    """Run every task of the victim in a driver, from the agent's first line about it to its last."""
    start_soon, start_now, look_after = trio.Nursery.start_soon, trio.Nursery.start, Services._supervise

    async def drive(fn, *args, **status):
        await _Driver(fn(*args, **status), bug)

    async def be_free(fn, *args, **status):
        injector.set(None)
        await fn(*args, **status)

    async def begin(nursery, fn, *args, name=None):
        if injector.get() is None:
            return await start_now(nursery, fn, *args, name=name)
        ours = nursery.parent_task.context.get(injector) is not None
        return await start_now(nursery, drive if ours else be_free, fn, *args, name=name or fn)

    def start(nursery, fn, *args, name=None):
        if injector.get() is None:
            start_soon(nursery, fn, *args, name=name)
        elif nursery.parent_task.context.get(injector) is None:  # a task of the simulated world
            start_soon(nursery, be_free, fn, *args, name=name or fn)
        else:
            start_soon(nursery, drive, fn, *args, name=name or fn)

    async def look_after_victim(agent, key, running, left):
        if key.name == VICTIM:
            injector.set(bug)
            await _Driver(look_after(agent, key, running, left), bug)
        else:
            await look_after(agent, key, running, left)

    with (
        patch.object(trio.Nursery, "start_soon", start),
        patch.object(trio.Nursery, "start", begin),
        patch.object(Services, "_supervise", look_after_victim),
    ):
        yield


async def play(bug, memory):
    """A service is created, edited, crashes twice and is deleted, with a sibling that must not be affected."""
    async with open_world(settings=agent_settings(drain_seconds=2.0), memory=memory) as world:
        machine = world.machine
        machine.shapes["builtin://demo"] = shape_of(1)
        machine.default = Script(load_seconds=1.0, stop_seconds=0.2)
        await world.serve(SIBLING)
        before = await sibling_state(world)
        with driven(bug):
            machine.fetch_seconds["builtin://demo"] = 1.0
            await world.apply(VICTIM)
            await serving(world)
            await world.apply(VICTIM, contextSize=512)
            await serving(world, "512")
            await world.until(alone, True, world)
            for _ in range(2):
                machine.kill(VICTIM)
                await serving(world)
            await world.delete(VICTIM)
            await world.until(world.service, None, VICTIM)
            await world.until(gone, True, world)
        assert await sibling_state(world) == before
        assert machine.counts() == {SIBLING: 1}
        assert not machine.doubles
        if [key.name for key in machine.entries] != [SIBLING]:
            assert "_supervise" in bug.struck, "only a bug in the very removal leaves an entry, for the next agent"
            await world.kill_agent()
            await world.start_agent()
            await trio.sleep(1)
            assert [key.name for key in machine.entries] == [SIBLING]
            assert machine.counts() == {SIBLING: 1}


async def serving(world, word=""):
    """Wait until the victim has one engine, with a word in its arguments, that is ready and published."""

    async def is_so():
        await trio.lowlevel.checkpoint()
        return [child.ready for child in world.machine.live(VICTIM) if not word or word in child.argv] == [True]

    await world.until(is_so, True, seconds=120)
    await world.until(world.ready_addresses, 1, VICTIM)
    await world.until(world.phase, "Ready", VICTIM)


async def alone(world):
    """Return whether no replaced engine of the victim is left."""
    await trio.lowlevel.checkpoint()
    return len(world.machine.live(VICTIM)) == 1


async def sibling_state(world):
    """Return the sibling's state and status, without times and counts."""
    slices = [one for one in (await world.client.list(EndpointSlice)).items if one.metadata.name.startswith(SIBLING)]
    return (
        [child.pid for child in world.machine.live(SIBLING)],
        [(one.metadata.uid, one.metadata.resource_version) for one in slices],
        (await world.service(SIBLING))["status"],
    )


async def gone(world):
    """Return whether the victim has no engine, no slice and no claim left."""
    return not (world.machine.live(VICTIM) or await world.slices(VICTIM) or await world.claims(VICTIM))


def run(memory, at=-1):
    """Run the life with a bug at one of its checkpoints; the order of tasks is the same each time."""
    core, bug = trio._core._run, Injector(at)
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    state = core._r.getstate()
    core._r.seed(5)
    try:
        with capture_logs():  # formatting a traceback of this depth takes longer than the life
            trio.run(play, bug, memory, clock=virtual_clock())
    finally:
        core._r.setstate(state)
    return bug


PACKAGES = {"supervisor", "supervisor/service", "supervisor/engine", "supervisor/cluster"}
"""The packages that run the life of a service."""


def package(place):
    """Return the package of a line of code."""
    return str(Path(place.partition(":")[0]).parent)


@pytest.mark.ci
@pytest.mark.parametrize("memory", [None, SimMemory], ids=["one engine after the other", "two engines at once"])
def test_a_bug_in_one_service_changes_nothing_for_another(memory):
    """Wherever a bug occurs, the sibling's engine, slice and status stay, and the service starts again and ends."""
    life = run(memory).places
    assert len(life) > 250
    elsewhere = set() if SOAK or memory is None else set(run(None).places)  # tested in the other life
    visits = defaultdict(list)
    for at, place in enumerate(life):
        if place not in elsewhere:
            visits[place].append(at)
    packages = defaultdict(list)
    for place, at in visits.items():
        packages[package(place)].append(at[:BUGS])
    struck = [run(memory, at).struck for lines in packages.values() for some in lines[::BUG_LINES] for at in some]
    assert all(struck), "a life with a bug was shorter than the one without, up to where it should have struck"
    assert elsewhere or {package(place) for place in struck} >= PACKAGES
