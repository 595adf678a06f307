"""Random timelines of Macs: their faults among all others, on the kernels of macOS 14, 15, 26 and 27.

`python -m tests.sim --macs` runs any number of seeds, and replays one by its number.
"""

from functools import partial

import pytest
import trio

from lengths import MAC_SEEDS, QUIET_MINUTES, sample_rows
from llmkube.supervisor.host import mach
from llmkube.supervisor.host.darwin import DarwinMemory
from llmkube.supervisor.service import metal
from mac.macs import RELEASES
from sim import machine, score
from sim.faults_mac import MAC_FAULTS
from sim.macs import mac_of
from sim.world import agent_settings, open_world


@pytest.mark.parametrize("seed", range(MAC_SEEDS))
def test_a_seed_of_macs_violates_nothing(seed):
    """Half an hour of faults ends in the desired state, without writes afterwards and without violations."""
    result = score.run_seed(seed, macs=True, quiet_minutes=QUIET_MINUTES)
    assert not result.violations, f"replay it with: python -m tests.sim --macs --seed {seed}"
    assert result.faults.keys() & MAC_FAULTS.keys()


def played(*names, release=27):
    """Run a timeline of one Mac with two services and these faults, and return the violations."""
    events = [score.Happening(1.0, "create", 1), score.Happening(2.0, "create", 5)]
    events += [score.Happening(120.0 + 300 * number, name, 3) for number, name in enumerate(names)]
    timeline = score.Timeline(
        1, 1, 30.0, False, True, tuple(events), busy_seconds=300.0 * len(names) + 120, release=release
    )
    result = score.play(timeline, quiet_minutes=2)
    assert result.violations or set(result.faults) == set(names), "a fault found nothing to break"
    return {one.column for one in result.violations}


@pytest.mark.ci
@pytest.mark.parametrize("name", sorted(MAC_FAULTS))
def test_each_fault_of_macs_is_repaired(name):
    """Each fault is injected twice in a row, without others."""
    assert played(name, name) == set()


@pytest.mark.parametrize("release", sample_rows(RELEASES))
def test_each_release_serves(release):
    """A failing GPU and hidden exits are handled on each release."""
    assert played("latched-error", "hidden-exit", release=release) == set()


async def restarted_during_an_exit():
    """Kill an engine on a Mac, and its agent while the kernel still frees the GPU's wired memory."""
    memory = partial(mac_of, 26, score.SHAPES)
    async with open_world(settings=agent_settings(metal=True, memory_guesses=True), memory=memory) as world:
        await world.apply()
        await world.until(world.ready_addresses, 1)
        (engine,) = world.machine.live("chat")
        engine.mac_exit.seconds = 60.0
        engine.end(-9)
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(4)
        assert world.machine.live("chat") == [engine], "a second one is started before the first has ended"
        await world.until(world.ready_addresses, 1)
        assert engine.exit is not None


async def test_an_agent_that_finds_an_exiting_engine_waits_for_its_exit(autojump_clock):
    """ESRCH is no exit: the next engine is started when the memory of this one is free."""
    await restarted_during_an_exit()


@pytest.mark.soak
async def test_mutant_esrch_is_taken_for_the_end(autojump_clock, monkeypatch):
    """Two engines then hold the memory of one."""

    async def ended_at_once(events, pid, has_ended):
        try:
            await events.wait(pid, 0)
        except ProcessLookupError:
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(machine, "wait_exit", ended_at_once)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        await restarted_during_an_exit()


def failed_gpu_is_not_seen(patch):
    patch.setattr(metal, "failure_of", lambda lines, words, refused="": None)


def refused_count_is_not_repeated(patch):
    patch.setattr(mach, "MIG_ARRAY_TOO_LARGE", 0)


def unread_memory_crashes(patch):
    async def sample(self):
        await trio.lowlevel.checkpoint()
        return self.read_sample(trio.current_time())

    patch.setattr(DarwinMemory, "sample", sample)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mutant", "faults", "columns"),
    [
        (failed_gpu_is_not_seen, ("latched-error",), {"stuck"}),
        (refused_count_is_not_repeated, (), {"stuck"}),
        (unread_memory_crashes, ("counts-refused",), {"bugs"}),
    ],
)
def test_mutants_are_seen(monkeypatch, mutant, faults, columns):
    """Each deliberate bug is recorded in its column of the scorecard."""
    mutant(monkeypatch)
    assert played(*faults) & columns
