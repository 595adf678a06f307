"""What an engine on a shared daemon has left there, as it was killed, is unloaded while the next one waits for memory.

Where the next one fits beside it, that one takes it over, and loads nothing.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import WorldError, innermost
from llmkube.runtimes.plan import UNLOAD_LEFT
from llmkube.runtimes.process.host_runtimes import holds_elsewhere
from llmkube.supervisor.nouns.desired import Launch
from llmkube.supervisor.nouns.lifecycle import Exit
from llmkube.supervisor.nouns.ports import Grace
from llmkube.supervisor.service.context import ServiceContext

PROGRAM_SECONDS: Final = 60.0
"""For the program: it gives an unload eight seconds, and a slow disk may have to give it Python first."""

AGAIN: Final = Backoff(base_seconds=10.0, cap_seconds=300.0)
"""Between two tries while the daemon does not answer, or does not let go."""


@asynccontextmanager
async def leftover_unloaded(context: ServiceContext, launch: Launch, refused: trio.Event) -> AsyncIterator[None]:
    """Have unloaded, while the body waits for memory, what a killed engine of this launch has left in a shared daemon.

    Args:
        context: What the engines of the service share.
        launch: What is to start.
        refused: Set once there is no memory for it.
    """
    if not holds_elsewhere(launch.plan.runtime):
        yield
        return

    async def unload_once_refused() -> None:
        await refused.wait()
        await unload_left(context, launch)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(unload_once_refused)
        yield
        nursery.cancel_scope.cancel(reason="it has its memory")


async def unload_left(context: ServiceContext, launch: Launch) -> None:
    """Return once nothing is loaded that a killed engine of this launch has left; try again, ever later, until then.

    Cancelled, it ends its program in order first: nothing is unloaded after it.
    """
    failures = 0
    while True:
        try:
            ended = await _program(context, launch)
        except* WorldError as group:
            ended, why = Exit(None), str(innermost(group))
        else:
            why = str(ended)
        if ended.code == 0:
            return
        failures += 1
        delay = AGAIN.delay(failures, context.ports.rng)
        said = "what a killed engine may have left in the daemon is not unloaded"
        context.log.warning(said, reason=why, retry_seconds=round(delay, 1))
        await trio.sleep(delay)


async def _program(context: ServiceContext, launch: Launch) -> Exit:
    """Run the program of the engine, told to unload alone; return how it has ended."""
    engines = context.ports.engines
    engine, cookie = await engines.info(launch.plan.runtime), f"{context.ports.rng.getrandbits(64):016x}"
    command = context.command(launch, engine, cookie, host="127.0.0.1", port=0)
    command = attrs.evolve(command, argv=(*command.argv, UNLOAD_LEFT))
    seconds = context.settings.grace_seconds
    async with engines.open_child(command, context.shutdown, Grace(seconds, seconds)) as child:
        with trio.move_on_after(PROGRAM_SECONDS):
            return await child.wait()
        return Exit(None)
