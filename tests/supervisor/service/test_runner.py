from types import SimpleNamespace

import trio

from llmkube.supervisor.service.runner import PROPAGATION_SECONDS, EngineNursery


class Attempt:
    """An engine that loads for some seconds, and then serves."""

    def __init__(self, load_seconds):
        self.load_seconds = load_seconds
        self.scope = trio.CancelScope()
        self.context = SimpleNamespace(settings=SimpleNamespace(withdraw_seconds=2.0), status_manager=self)

    async def wait_endpoint_applied(self):
        await trio.sleep_forever()

    def set_task_status(self, task_status):
        self.task_status = task_status

    async def run(self):
        with self.scope:
            await trio.sleep(self.load_seconds)
            self.task_status.started()
            await trio.sleep_forever()


async def test_a_start_returns_when_the_engine_serves(autojump_clock):
    """It then runs in the nursery, and its scope ends it."""
    alive, engine, start = [], Attempt(3), trio.current_time()
    async with trio.open_nursery() as nursery:
        engines = EngineNursery(nursery, alive)
        await engines.start(engine)
        assert (alive, trio.current_time() - start) == ([engine], 3)
        engine.scope.cancel()
    assert alive == []


async def test_a_cancelled_start_ends_the_engine(autojump_clock):
    """A successor that is not wanted any more leaves nothing."""
    alive = []
    async with trio.open_nursery() as nursery:
        engines = EngineNursery(nursery, alive)
        with trio.move_on_after(1):
            await engines.start(Attempt(3))
        assert alive == []


async def test_a_replaced_engine_ends_when_clients_have_followed(autojump_clock):
    """The API server is waited for in bounded time."""
    engine, start = Attempt(0), trio.current_time()
    async with trio.open_nursery() as nursery:
        engines = EngineNursery(nursery, [])
        await engines.start(engine)
        engines.retire(engine)
    assert trio.current_time() - start == 2.0 + PROPAGATION_SECONDS
