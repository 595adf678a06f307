"""Two machines of one name: the second one reports it and exits, and changes nothing for the first."""

from contextlib import contextmanager
from unittest.mock import patch

import attrs
import trio

from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.resource import Key
from llmkube.supervisor.agent import run_agent
from llmkube.supervisor.cluster.host_lease import EXPIRES_AFTER_RENEWALS, HostNameTakenError
from sim.machine import Machine
from sim.world import Host, agent_settings, open_world

RENEW_SECONDS = 5.0
LEASE = Key("llmkube-system", "sim")


@contextmanager
def machines(domains=()):
    """Give each machine an identity by the number of its state directory; yield the messages of agents that exited.

    The first agents are in these domains, in turn; the others in `local`.
    """
    messages, domains = [], iter(domains)

    async def run(client, settings, ports, **options):
        machine = f"{settings.host_name}.{next(domains, 'local')} ({settings.state_dir.name})"
        try:
            await run_agent(client, settings, attrs.evolve(ports, machine=machine), **options)
        except* HostNameTakenError as group:
            while isinstance(group, BaseExceptionGroup):
                (group,) = group.exceptions
            messages.append(str(group))

    with patch("sim.world.run_agent", run):
        yield messages


def settings(number=1):
    base = agent_settings(lease_renew_seconds=RENEW_SECONDS)
    return attrs.evolve(base, state_dir=base.state_dir / str(number), advertise_address=f"192.0.2.{9 + number}")


def double(world):
    """Return another machine with the first one's name."""
    other = settings(2)
    machine = Machine(world._nursery)
    return Host(other, machine, 99, world._transport, world._nursery)


async def slices(world):
    found = (await world.client.list(EndpointSlice)).items
    return [(one.metadata.uid, one.metadata.resource_version) for one in found]


async def test_a_second_machine_of_the_same_name_refuses_to_serve(autojump_clock):
    """It names the other machine and the flag within two renewals; the first one's engine, slices and Lease stay."""
    with machines() as messages:
        async with open_world(settings=settings()) as world:
            await world.serve()
            before = await slices(world)
            second = double(world)
            with trio.fail_after(2 * RENEW_SECONDS):
                await second.start_agent()
                await second.wait_stopped()
            (words,) = messages
            assert "sim.local (1) at 192.0.2.10" in words
            assert "--host-name" in words
            await trio.sleep(60)
            assert await slices(world) == before
            assert second.machine.spawned == []
            assert (await world.host_lease()).metadata.annotations["inference.llmkube.dev/machine"] == "sim.local (1)"
            assert await world.phase() == "Ready"
            assert len(world.machine.spawned) == 1


async def test_the_same_machine_is_no_rival_of_itself(autojump_clock):
    """An agent that was killed finds its own Lease and continues at once."""
    with machines() as messages:
        async with open_world(settings=settings()) as world:
            await world.serve()
            await world.kill_agent()
            version = (await world.host_lease()).metadata.resource_version
            await world.start_agent()
            await trio.sleep(1)
            assert (await world.host_lease()).metadata.resource_version != version
            assert messages == []


async def test_a_machine_that_was_renamed_is_the_same_one(autojump_clock):
    """A Mac takes another name from another network: its next agent continues at once under the same Lease."""
    with machines(domains=("local", "fritz.box")) as messages:
        async with open_world(settings=settings()) as world:
            await world.serve()
            await world.kill_agent()
            await world.start_agent()
            await trio.sleep(2)
            lease = await world.host_lease()
            assert lease.metadata.annotations["inference.llmkube.dev/machine"] == "sim.fritz.box (1)"
            assert messages == []
            assert len(world.machine.spawned) == 1


async def test_the_name_of_a_dead_machine_can_be_reused(autojump_clock):
    """A replacement under the dead machine's name waits until its Lease has expired, and then serves."""
    with machines() as messages:
        async with open_world(settings=settings()) as world:
            await world.serve()
            await world.first.die()
            second = world.hosts["second"] = double(world)
            await second.start_agent()
            await trio.sleep(EXPIRES_AFTER_RENEWALS * RENEW_SECONDS - 5)
            assert second.machine.spawned == []
            await world.until(world.slices, [("sim", "192.0.2.11", True)], seconds=60)
            assert messages == []


async def test_a_partitioned_machine_yields_to_its_successor(autojump_clock):
    """During a partition another machine has taken the name: on its return the first exits, and the other serves."""
    with machines() as messages:
        async with open_world(settings=settings()) as world:
            await world.serve()
            world.first.cut_off()
            second = world.hosts["second"] = double(world)
            await second.start_agent()
            await world.until(world.slices, [("sim", "192.0.2.11", True)], seconds=60)
            world.first.cut_off(False)
            with trio.fail_after(60):
                await world.first.wait_stopped()
            assert "sim.local (2) at 192.0.2.11" in messages[0]
            await trio.sleep(60)
            assert world.machine.live() == []
            assert await world.slices() == [("sim", "192.0.2.11", True)]
            assert len(second.machine.spawned) == 1


async def test_a_lease_that_was_deleted_is_created_again(autojump_clock):
    """The next renewal creates it: its version is not the expected one, and it names no machine."""
    with machines() as messages:
        async with open_world(settings=settings()) as world:
            await world.until(world.host_lease, lambda lease: lease is not None)
            await world.client.delete(Lease, LEASE)
            await world.until(world.host_lease, lambda lease: lease is not None, seconds=2 * RENEW_SECONDS)
            assert messages == []
