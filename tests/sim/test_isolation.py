"""Promise 1: a bug at any checkpoint of one service's task costs its siblings nothing, and itself a back-off.

The life of a service is played once to see at which checkpoints its tasks stop, and then again with an exception raised
at one of them. All tasks that the service has made are driven through `_Driver`, which hands on what they say to Trio
and what Trio says to them; what it throws comes out of the very `await` at which the task had stopped, after Trio has
done what it was asked. The exceptions are those of a bug: of no class that the supervisor knows.

Every second line of code at which a task stops is tried once; `make soak` tries every checkpoint of the life, some 300.
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
"""Trio's own waits between which and their callers nothing of ours can go wrong, and which it has to leave in order."""

SIMULATED = {"_owned"}
"""The end of a simulated process stands for code that has tests of its own; it is not the service's."""


class InjectedError(Exception):
    """A bug; nobody expects it by its class."""


@attrs.define
class Injector:
    """Counts the checkpoints of a service's tasks, and makes one of them fail."""

    at: int = -1
    places: list[str] = attrs.field(factory=list)

    @property
    def struck(self):
        """Where it made one fail; "" as long as it has not."""
        return self.places[self.at] if 0 <= self.at < len(self.places) else ""

    def raises_here(self, coroutine):
        """Count the checkpoint at which a task has stopped; whether to raise there."""
        place = _place(coroutine)
        if not place:
            return False
        self.places.append(place)
        return len(self.places) - 1 == self.at


injector: ContextVar[Injector | None] = ContextVar("injector", default=None)


@attrs.frozen
class _Driver:
    """Runs a coroutine, and raises at the checkpoint that the injector says."""

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
    """The line of ours at which a task has stopped; "" where no bug of ours can be."""
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
        # A generator inside `async with` is driven by an object that does not say what it drives.
        manager = frame.f_locals.get("self") if frame.f_code.co_filename.endswith("contextlib.py") else None
        here = manager.gen if hasattr(manager, "gen") else inner
    return place


@contextmanager
def driven(bug):
    """Every task of the victim, from the agent's first line about it to its last, is driven."""
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
    """A service comes, is edited, crashes twice and goes, beside a sibling that nothing of this concerns."""
    async with open_world(settings=agent_settings(drain_seconds=2.0), memory=memory) as world:
        machine = world.machine
        machine.shapes["builtin://demo"] = shape_of(1)
        machine.default = Script(load_seconds=1.0, stop_seconds=0.2)
        await world.serve(SIBLING)
        before = await told(world)
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
        assert await told(world) == before
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
    """The victim has one engine, with a word in its arguments; it is ready, published, and said to be so."""

    async def is_so():
        await trio.lowlevel.checkpoint()
        return [child.ready for child in world.machine.live(VICTIM) if not word or word in child.argv] == [True]

    await world.until(is_so, True, seconds=120)
    await world.until(world.ready_addresses, 1, VICTIM)
    await world.until(world.phase, "Ready", VICTIM)


async def alone(world):
    """Whether no engine of the victim is left that has been replaced."""
    await trio.lowlevel.checkpoint()
    return len(world.machine.live(VICTIM)) == 1


async def told(world):
    """Everything that is true or said of the sibling; not when, nor how often."""
    slices = [one for one in (await world.client.list(EndpointSlice)).items if one.metadata.name.startswith(SIBLING)]
    return (
        [child.pid for child in world.machine.live(SIBLING)],
        [(one.metadata.uid, one.metadata.resource_version) for one in slices],
        (await world.service(SIBLING))["status"],
    )


async def gone(world):
    """Whether nothing of the victim is left to see: no engine, no slice, no claim."""
    return not (world.machine.live(VICTIM) or await world.slices(VICTIM) or await world.claims(VICTIM))


def run(memory, at=-1):
    """Play the life with a bug at one of its checkpoints; the order of tasks is drawn alike each time."""
    core, bug = trio._core._run, Injector(at)
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    state = core._r.getstate()
    core._r.seed(5)
    try:
        with capture_logs():  # a traceback of this depth takes longer to draw than the life to play
            trio.run(play, bug, memory, clock=virtual_clock())
    finally:
        core._r.setstate(state)
    return bug


ROOMS = {"supervisor", "supervisor/service", "supervisor/engine", "supervisor/cluster"}
"""The packages through which the life of a service goes."""


def room(place):
    """The package of a line of code."""
    return str(Path(place.partition(":")[0]).parent)


@pytest.mark.ci
@pytest.mark.parametrize("memory", [None, SimMemory], ids=["one engine after the other", "one beside the other"])
def test_a_bug_in_one_service_changes_nothing_for_another(memory):
    """Wherever a bug strikes, the sibling's engine, slice and status stay, and the service comes up again and goes."""
    life = run(memory).places
    assert len(life) > 250
    elsewhere = set() if SOAK or memory is None else set(run(None).places)  # struck in the other life
    visits = defaultdict(list)
    for at, place in enumerate(life):
        if place not in elsewhere:
            visits[place].append(at)
    rooms = defaultdict(list)
    for place, at in visits.items():
        rooms[room(place)].append(at[:BUGS])
    struck = [run(memory, at).struck for lines in rooms.values() for some in lines[::BUG_LINES] for at in some]
    assert all(struck), "a life with a bug was shorter than the one without, up to where it should have struck"
    assert elsewhere or {room(place) for place in struck} >= ROOMS
