"""What an Ollama does that its owner and several services share: it restarts, forgets, moves, lies, falls silent.

Rows O3. A service on it has to be right about itself all the while, and as wished when its owner has mended it.
"""

import trio

from sim.stage import NotNow, fault, span


def shared(stage, rng):
    """The daemon of a host on which services use it; what their fronts do from now on may be its fault."""
    found = [(host, child) for host in stage.world.hosts.values() for child in host.machine.live() if child.keeper]
    if not found:
        raise NotNow
    host, _ = rng.choice(found)
    for each, child in found:
        child.odd = child.odd or each is host
    return host.machine.ollama.shared


def name_of(daemon, rng):
    """A model of ours that it lists as loaded."""
    if not daemon.loaded:
        raise NotNow
    return rng.choice(sorted(daemon.loaded))


@fault("O3", "Ollama says that it has unloaded, and keeps the processes until its owner quits it")
async def ollama_keeps_what_it_unloads(stage, rng):
    daemon = shared(stage, rng)
    daemon.lies = True
    await trio.sleep(span(rng, 10, 600))
    daemon.restart()


@fault("O3", "Ollama restarts by itself")
async def ollama_restarts(stage, rng):
    daemon = shared(stage, rng)
    daemon.stop()
    await trio.sleep(span(rng, 0.1, 120))
    daemon.start(daemon.version)


@fault("O3", "Ollama upgrades itself")
async def ollama_upgrades(stage, rng):
    daemon = shared(stage, rng)
    daemon.stop()
    await trio.sleep(span(rng, 0.1, 20))
    daemon.start(f"0.18.{rng.randint(0, 9)}")


@fault("O3", "Ollama loses its models")
async def ollama_loses_its_models(stage, rng):
    daemon = shared(stage, rng)
    daemon.stop()
    daemon.store.clear()
    daemon.start(daemon.version)
    await trio.lowlevel.checkpoint()


@fault("O3", "Ollama listens at another port for a while")
async def ollama_changes_its_port(stage, rng):
    daemon = shared(stage, rng)
    daemon.stop()
    daemon.port += 1
    daemon.start(daemon.version)
    await trio.sleep(span(rng, 5, 600))
    daemon.restart()


@fault("O3", "Ollama listens and answers nothing")
async def ollama_hangs(stage, rng):
    daemon = shared(stage, rng)
    daemon.hangs = True
    await trio.sleep(span(rng, 5, 400))
    daemon.hangs = False


@fault("O3", "another client unloads a model, again and again")
async def ollama_is_used_by_others(stage, rng):
    daemon = shared(stage, rng)
    for _ in range(rng.randint(1, 5)):
        daemon.drop(name_of(daemon, rng))
        await trio.sleep(span(rng, 5, 60))


@fault("O3 C19", "the kernel kills the process that holds a model")
async def ollamas_process_killed(stage, rng):
    daemon = shared(stage, rng)
    daemon.kill_runner(name_of(daemon, rng))
    await trio.lowlevel.checkpoint()


@fault("O3", "Ollama is killed, and leaves the processes of its models until its owner ends them")
async def ollama_killed(stage, rng):
    daemon = shared(stage, rng)
    daemon.stop(killed=True)
    await trio.sleep(span(rng, 0.1, 20))
    daemon.start(daemon.version)
    await trio.sleep(span(rng, 1, 300))
    daemon.restart()
