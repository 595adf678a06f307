"""Actions of a host's owner: `llmkube agent cordon`, with `--for` or without, combined with other faults.

Rows O1 and O2 test promise 11 (`docs/reference/promises.md`). A cordon without an end stays after the faults where
another host can serve; one with an end expires by itself.
"""

import trio

from sim.stage import api_away, fault, span


def cordon(stage, host, seconds=None):
    """Cordon a host as `llmkube agent cordon` does, and check the invariants at once."""
    host.cordon(seconds)
    stage.monitor.look()


def uncordon(stage, host):
    """Uncordon a host as `llmkube agent uncordon` does."""
    host.machine.cordon = None
    stage.monitor.look()


@fault("O1", "the owner cordons a host, and uncordons it")
async def cordoned(stage, rng):
    host = stage.host(rng)
    cordon(stage, host)
    await trio.sleep(span(rng, 1, 900))
    uncordon(stage, host)


@fault("O1", "the owner cordons a host for a while, and does nothing else")
async def cordoned_for_a_while(stage, rng):
    cordon(stage, stage.host(rng), span(rng, 5, 1200))
    await trio.lowlevel.checkpoint()


@fault("O1", "the owner cordons a host, and then for a while")
async def cordon_gets_an_end(stage, rng):
    host = stage.host(rng)
    cordon(stage, host)
    await trio.sleep(span(rng, 1, 120))
    cordon(stage, host, span(rng, 1, 300))


@fault("O1 C20", "requests do not finish while a host is cordoned")
async def cordoned_while_busy(stage, rng):
    host, child = stage.engine(rng, ready=True)
    child.in_flight = 2
    cordon(stage, host)
    await trio.sleep(span(rng, 5, 120))
    child.in_flight = 0
    uncordon(stage, host)


@fault("O1 B3", "the agent of a cordoned host is killed, and a new one starts")
async def agent_killed_while_cordoned(stage, rng):
    host = stage.host_with_agent(rng)
    cordon(stage, host)
    await trio.sleep(span(rng, 0.05, 60))
    if host.running and host.name not in stage.busy:
        async with stage.away(host, "kill"):
            await trio.sleep(span(rng, 0.05, 120))
    await trio.sleep(span(rng, 1, 300))
    uncordon(stage, host)


@fault("O1 B3", "a host is cordoned while its agent is away, which has left its engines")
async def cordoned_while_the_agent_is_away(stage, rng):
    host = stage.host_with_agent(rng)
    async with stage.away(host, rng.choice(("kill", "keep"))):
        await trio.sleep(span(rng, 0.05, 30))
        cordon(stage, host, span(rng, 60, 600))
        await trio.sleep(span(rng, 0.05, 60))


@fault("O1 A1", "a host is cordoned while it cannot reach the API server")
async def cordoned_while_cut_off(stage, rng):
    host = stage.host(rng)
    cordon(stage, host, span(rng, 30, 600))
    await api_away(stage, span(rng, 10, 300), host)


@fault("O2 N4", "a cordoned host sleeps, perhaps beyond the end of its cordon")
async def asleep_while_cordoned(stage, rng):
    host = stage.host(rng)
    cordon(stage, host, span(rng, 30, 4 * 3600))
    await trio.sleep(span(rng, 0.05, 60))
    with stage.api_faults(host, kind="half-open"):
        host.network.hush()
        await trio.sleep(span(rng, 1, 30))
        host.asleep_seconds += span(rng, 30, 8 * 3600)
        stage.monitor.look()


@fault("O1", "one host is cordoned after the other", hosts=2)
async def cordoned_in_turn(stage, rng):
    for host in stage.world.hosts.values():
        cordon(stage, host)
        await trio.sleep(span(rng, 5, 300))
        uncordon(stage, host)
