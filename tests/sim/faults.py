"""All events of a random timeline: the table of faults, and the actions of users."""

import trio

from sim import faults_agent, faults_api, faults_daemon, faults_host, faults_owner
from sim.stage import CONTEXTS, FAULTS, RUNTIMES, SOURCES, Inject, span

__all__ = ["FAULTS", "USERS", "faults_agent", "faults_api", "faults_daemon", "faults_host", "faults_owner"]


async def _edit(stage, rng):
    await stage.edit(rng, stage.pick_desired(rng))


async def _create(stage, rng):
    name, runtime = rng.choice(stage.desired.names), rng.choice(RUNTIMES)
    await stage.desired.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[], runtime=runtime)


async def _scale(stage, rng):
    replicas = rng.choice((0, 1, 1, 2)[: 2 + len(stage.world.hosts)])
    await stage.desired.apply(stage.world, stage.pick_desired(rng), replicas=replicas)


async def _suspend(stage, rng):
    await stage.desired.apply(stage.world, stage.pick_desired(rng), suspend=rng.random() < 0.5)


async def _refuse(stage, rng):
    await stage.desired.apply(stage.world, stage.pick_desired(rng), extraArgs=["--port", "1"])


async def _source(stage, rng):
    await stage.desired.apply(stage.world, stage.pick_desired(rng), source=rng.choice(SOURCES))


async def _runtime(stage, rng):
    await stage.desired.apply(stage.world, stage.pick_desired(rng), runtime=rng.choice(RUNTIMES), extraArgs=[])


async def _label(stage, rng):
    name = stage.pick_desired(rng)
    stage.desired.labels[name] = rng.choice(("red", "blue"))
    await stage.desired.apply(stage.world, name)


async def _delete(stage, rng):
    await stage.desired.delete(stage.world, stage.pick_desired(rng))


async def _delete_all(stage, rng):
    """Delete all services, and create most of them again, as with a folder of manifests."""
    specs = dict(sorted(stage.desired.specs.items()))
    for name in specs:
        await stage.desired.delete(stage.world, name)
        await trio.sleep(span(rng, 0.001, 0.1))
    await trio.sleep(span(rng, 0.1, 60))
    for name, spec in specs.items():
        if rng.random() < 0.8:
            await stage.desired.apply(stage.world, name, **spec)


async def _edits_in_a_row(stage, rng):
    name = stage.pick_desired(rng)
    for _ in range(rng.randint(2, 6)):
        await stage.edit(rng, name)
        await trio.sleep(span(rng, 0.01, 3))


USERS: dict[str, Inject] = {
    "create": _create,
    "edit": _edit,
    "edits-in-a-row": _edits_in_a_row,
    "scale": _scale,
    "suspend": _suspend,
    "refuse": _refuse,
    "source": _source,
    "runtime": _runtime,
    "label": _label,
    "delete": _delete,
    "delete-all": _delete_all,
}
"""Actions of users, by name."""
