"""Two workers and their parent under a clock; see `timelines`."""

import pytest
import trio

from router.workers.timelines import ALL
from router.workers.workers_lab import open_lab


@pytest.mark.parametrize("timeline", ALL, ids=lambda each: each.__name__)
async def test_it_holds_over_two_workers(timeline, autojump_clock):
    """As its sentence says."""
    await timeline()


class Spawned(trio.abc.Instrument):
    """The names of tasks that begin."""

    def __init__(self):
        self.names = []

    def task_spawned(self, task):
        self.names.append(task.name.rpartition(".")[2])


async def test_only_a_reservation_that_waits_has_a_task(autojump_clock):
    """Most wait for no disk, and are answered where they are read."""
    spawned = Spawned()
    async with open_lab() as lab:
        trio.lowlevel.add_instrument(spawned)
        await lab.workers[0].reserve()
        assert spawned.names == []
        lab.state.budgets.seconds = 1.0
        await lab.workers[0].reserve()
        trio.lowlevel.remove_instrument(spawned)
    assert spawned.names == ["_keep"]
