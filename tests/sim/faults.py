"""All that may happen in a random timeline: the table of faults, and what users do."""

import trio

from sim import faults_agent, faults_api, faults_daemon, faults_host, faults_owner
from sim.stage import CONTEXTS, FAULTS, RUNTIMES, SOURCES, Inject, span

__all__ = ["FAULTS", "USERS", "faults_agent", "faults_api", "faults_daemon", "faults_host", "faults_owner"]


async def _edit(stage, rng):
    await stage.edit(rng, stage.wished(rng))


async def _create(stage, rng):
    name, runtime = rng.choice(stage.wishes.names), rng.choice(RUNTIMES)
    await stage.wishes.apply(stage.world, name, contextSize=rng.choice(CONTEXTS), extraArgs=[], runtime=runtime)


async def _scale(stage, rng):
    replicas = rng.choice((0, 1, 1, 2)[: 2 + len(stage.world.hosts)])
    await stage.wishes.apply(stage.world, stage.wished(rng), replicas=replicas)


async def _suspend(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), suspend=rng.random() < 0.5)


async def _refuse(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), extraArgs=["--port", "1"])


async def _source(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), source=rng.choice(SOURCES))


async def _runtime(stage, rng):
    await stage.wishes.apply(stage.world, stage.wished(rng), runtime=rng.choice(RUNTIMES), extraArgs=[])


async def _label(stage, rng):
    name = stage.wished(rng)
    stage.wishes.labels[name] = rng.choice(("red", "blue"))
    await stage.wishes.apply(stage.world, name)


async def _delete(stage, rng):
    await stage.wishes.delete(stage.world, stage.wished(rng))


async def _delete_all(stage, rng):
    """Everything goes, and most of it comes back, as with a folder of manifests."""
    specs = dict(sorted(stage.wishes.specs.items()))
    for name in specs:
        await stage.wishes.delete(stage.world, name)
        await trio.sleep(span(rng, 0.001, 0.1))
    await trio.sleep(span(rng, 0.1, 60))
    for name, spec in specs.items():
        if rng.random() < 0.8:
            await stage.wishes.apply(stage.world, name, **spec)


async def _edits_in_a_row(stage, rng):
    name = stage.wished(rng)
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
"""What users do, by name."""
