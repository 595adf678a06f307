"""Faults of an Ollama or oMLX that several services share: it restarts, loses models, moves, lies, or hangs.

Rows O3. A service on it always reports its true state, and is as desired after the owner has fixed the daemon.
"""

import trio

from sim.stage import NotApplicable, fault, span


def shared(stage, rng, able=lambda server: True):
    """Return the daemon of a host that services use; misbehavior of their fronts may be its fault from now on."""
    found = [
        (daemons, child)
        for host in stage.world.hosts.values()
        for daemons in host.machine.daemons.values()
        for child in host.machine.live()
        if daemons.is_front(child) and able(daemons.shared)
    ]
    if not found:
        raise NotApplicable
    daemons, _ = rng.choice(found)
    for each, child in found:
        child.odd = child.odd or each is daemons
    return daemons.shared


def name_of(server, rng):
    """Return a model of ours that it lists as loaded."""
    if not server.fake.loaded:
        raise NotApplicable
    return rng.choice(sorted(server.fake.loaded))


@fault("O3", "a daemon reports an unload, and keeps the memory until its owner quits it")
async def daemon_keeps_what_it_unloads(stage, rng):
    server = shared(stage, rng)
    server.fake.lies = True
    await trio.sleep(span(rng, 10, 600))
    server.restart()


@fault("O3", "a daemon reports a load, and loads nothing")
async def daemon_loads_nothing(stage, rng):
    server = shared(stage, rng)
    server.fake.hollow = True
    server.fake.drop(name_of(server, rng))
    await trio.sleep(span(rng, 5, 300))
    server.fake.hollow = False


@fault("O3", "a daemon restarts by itself")
async def daemon_restarts(stage, rng):
    server = shared(stage, rng)
    server.stop()
    await trio.sleep(span(rng, 0.1, 120))
    server.start()


@fault("O3", "a daemon upgrades itself")
async def daemon_upgrades(stage, rng):
    server = shared(stage, rng)
    server.stop()
    await trio.sleep(span(rng, 0.1, 20))
    server.start(f"0.18.{rng.randint(0, 9)}")


@fault("O3", "a daemon loses its models")
async def daemon_loses_its_models(stage, rng):
    server = shared(stage, rng)
    server.stop()
    server.engine.forget(server.fake)
    server.start()
    await trio.lowlevel.checkpoint()


@fault("O3", "another model gets the name of ours, and is loaded")
async def daemon_has_another_model(stage, rng):
    server = shared(stage, rng)
    name = name_of(server, rng)
    server.fake.drop(name)
    server.engine.replace_model(server.fake, name)
    await trio.sleep(span(rng, 5, 600))
    server.restart()


@fault("O3", "a daemon listens at another port for a while")
async def daemon_changes_its_port(stage, rng):
    server = shared(stage, rng)
    server.stop()
    server.port += 1
    server.start()
    await trio.sleep(span(rng, 5, 600))
    server.restart()


@fault("O3", "a daemon requires another key")
async def daemon_asks_for_another_key(stage, rng):
    server = shared(stage, rng, lambda server: hasattr(server.fake, "key"))
    server.fake.key = "CanaryKeyOfTheOwner"
    await trio.sleep(span(rng, 5, 600))
    server.fake.key = ""


@fault("O3", "a daemon listens and answers nothing")
async def daemon_hangs(stage, rng):
    server = shared(stage, rng)
    server.fake.hangs = True
    await trio.sleep(span(rng, 5, 400))
    server.fake.hangs = False


@fault("O3", "another client unloads a model, again and again")
async def daemon_is_used_by_others(stage, rng):
    server = shared(stage, rng)
    server.fake.drop(name_of(server, rng))
    for _ in range(rng.randint(0, 4)):
        await trio.sleep(span(rng, 5, 60))
        if server.fake.loaded:
            server.fake.drop(name_of(server, rng))
    await trio.lowlevel.checkpoint()


@fault("O3", "a daemon that an engine of ours has started is killed")
async def own_daemon_killed(stage, rng):
    own = [
        (server, child)
        for host in stage.world.hosts.values()
        for daemons in host.machine.daemons.values()
        for child in host.machine.live()
        for server in daemons.servers[1:]
        if daemons.is_front(child) and child.keeper.adapter.url.endswith(f":{server.port}")
    ]
    if not own:
        raise NotApplicable
    server, child = rng.choice(own)
    child.odd = True
    server.stop(killed=True)
    await trio.lowlevel.checkpoint()


@fault("O3 C19", "the kernel kills the process that holds a model, and its daemon does not notice")
async def daemons_process_killed(stage, rng):
    server = shared(stage, rng, lambda server: hasattr(server.fake, "kill_runner"))
    server.fake.kill_runner(name_of(server, rng))
    await trio.lowlevel.checkpoint()


@fault("O3", "a daemon is killed, and leaves the processes of its models until its owner ends them")
async def daemon_killed(stage, rng):
    server = shared(stage, rng)
    server.stop(killed=True)
    await trio.sleep(span(rng, 0.1, 20))
    server.start()
    await trio.sleep(span(rng, 1, 300))
    server.restart()
