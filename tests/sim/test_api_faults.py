"""Faults of the API server stop no engine, and the state is written again when it has recovered."""

from contextlib import asynccontextmanager

import pytest
import trio

from llmkube.k8s.builtins import Event, Lease
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CREDENTIAL_ANNOTATION, host_id
from llmkube.supervisor.values.host_credential import CredentialState
from sim.world import ANSWERS, agent_settings, open_world

QUICK = agent_settings(lease_renew_seconds=5.0)
KINDS = (*ANSWERS, "half-open")


@asynccontextmanager
async def two_services():
    """Run a host that serves `chat` and `embed`."""
    async with open_world(settings=QUICK) as world:
        await world.serve("chat", "embed")
        yield world


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_answer_stops_no_service(autojump_clock, kind):
    """For ten minutes of wrong answers engines serve and restart; afterwards their state is written."""
    async with two_services() as world:
        world.faults.kind = kind
        world.network.sever()
        await trio.sleep(300)
        world.machine.kill("embed")
        await trio.sleep(300)
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        assert len(world.machine.starts("chat")) == 1
        assert len(world.machine.starts("embed")) == 2
        world.faults.kind = ""
        for name in ("chat", "embed"):
            await world.until(world.ready_addresses, 1, name, seconds=60)
            await world.until(world.phase, "Ready", name, seconds=30)
        assert len(world.machine.spawned) == 3


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_that_starts_among_wrong_answers_serves(autojump_clock, kind):
    """A new agent that gets only wrong answers adopts running engines and starts the last known ones."""
    async with two_services() as world:
        await world.kill_agent()
        world.machine.kill("embed")
        world.faults.kind = kind
        await world.start_agent()
        await trio.sleep(60)
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        assert len(world.machine.starts("chat")) == 1
        world.faults.kind = ""
        await world.until(world.ready_addresses, 1, "embed", seconds=90)


async def test_an_agent_that_may_not_list_a_kind_reports_it(autojump_clock):
    """Engines of an earlier agent keep running, and /readyz names the kind that cannot be listed, and the cause."""
    async with two_services() as world:
        await world.kill_agent()
        world.faults.kind = "403"
        await world.start_agent()
        await trio.sleep(20)
        ready, why = world.agent.ready()
        assert not ready
        assert "cannot list Models: " in why
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        world.faults.kind = ""
        await trio.sleep(60)
        assert world.agent.ready() == (True, "ok")


async def test_a_refused_credential_is_known_within_one_renewal(autojump_clock):
    """A new agent reports it as well, and the recovery is reported as soon."""
    async with two_services() as world:
        assert world.agent.credential.value.value.state is CredentialState.ACCEPTED
        world.faults.kind = "401"
        await trio.sleep(2 * QUICK.lease_renew_seconds)
        assert world.agent.credential.value.value.state is CredentialState.REFUSED
        ready, why = world.agent.ready()
        assert not ready
        assert "renews what the agent's kubeconfig names" in why
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(QUICK.lease_renew_seconds)
        assert world.agent.credential.value.value.state is CredentialState.REFUSED
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        world.faults.kind = ""
        await trio.sleep(60)
        assert world.agent.credential.value.value.state is CredentialState.ACCEPTED
        assert world.agent.ready()[0]


async def test_a_token_that_cannot_be_renewed_is_reported_on_the_lease(autojump_clock):
    """While the token is valid the agent is ready, and reports the fix; after a renewal it reports nothing."""
    async with two_services() as world:
        key = Key(QUICK.lease_namespace, host_id(QUICK.host_name))

        async def reason():
            return (await world.client.get(Lease, key)).metadata.annotations.get(CREDENTIAL_ANNOTATION, "")

        world.agent.credential.mark_not_renewed("no answer")
        await trio.sleep(2 * QUICK.lease_renew_seconds)
        assert "was not renewed: no answer" in await reason()
        assert world.agent.ready()[0]
        world.agent.credential.set_expiry(1.8e9)
        await trio.sleep(2 * QUICK.lease_renew_seconds)
        assert await reason() == ""


async def test_a_slow_server_stops_no_service(autojump_clock):
    """With ten seconds per answer, engines and endpoints stay, and a new service still starts."""
    async with two_services() as world:
        world.faults.slow_seconds = 3.0
        world.network.sever()
        await trio.sleep(300)
        assert await world.ready_addresses("chat") == 1
        await world.apply("late")
        await world.until(world.phase, "Ready", "late", seconds=120)
        assert len(world.machine.spawned) == 3


@pytest.mark.parametrize("kind", ["empty lists", "old lists"])
async def test_a_list_that_denies_most_services_is_read_again_first(autojump_clock, kind):
    """A list without known services stops none of them if a second list, 10 s later, has them again."""
    async with two_services() as world:
        world.faults.kind = kind
        world.first.asleep_seconds = 60.0  # a wake: everything is listed again
        await trio.sleep(8)
        assert await world.ready_addresses("chat") == 1
        world.faults.kind = ""
        await trio.sleep(60)
        assert len(world.machine.spawned) == 2
        assert await world.ready_addresses("chat") == await world.ready_addresses("embed") == 1


async def test_a_watch_that_denies_every_service_is_checked_with_a_list_first(autojump_clock):
    """A watch that reports the deletion of every service stops none of them: a list, 10 s later, has them all."""
    async with two_services() as world:
        world.faults.denies = True
        world.network.sever()
        await trio.sleep(4)
        assert await doubted(world) == {"chat", "embed"}
        world.faults.denies = False
        await trio.sleep(60)
        assert len(world.machine.spawned) == 2
        assert await world.ready_addresses("chat") == await world.ready_addresses("embed") == 1


async def test_deleting_everything_ends_everything_ten_seconds_later(autojump_clock):
    """Of three services that are deleted together, the first stops at once, the others once a list confirms it."""
    async with two_services() as world:
        await world.serve("third")
        for name in ("chat", "embed", "third"):
            await world.delete(name)
        await trio.sleep(9)
        assert world.machine.counts() == {"embed": 1, "third": 1}
        assert await doubted(world) == {"embed", "third"}
        await trio.sleep(4)
        assert world.machine.counts() == {}


async def test_single_deletions_apply_at_once(autojump_clock):
    """A service that is deleted stops at once, even the last one or a new one."""
    async with open_world(settings=QUICK) as world:
        for name in ("one", "two", "three"):
            await world.serve(name)
            await world.delete(name)
            await trio.sleep(1.5)
            assert world.machine.counts() == {}
            assert await doubted(world) == set()


async def doubted(world):
    """Return the services whose deletion an Event reports as doubtful."""
    events = (await world.client.list(Event)).items
    return {event.involved_object.name for event in events if event.reason == "DeletionDoubted"}


async def test_a_host_with_an_empty_first_list_keeps_its_claims(autojump_clock):
    """Without a journal and with an empty first list, a claim is released only when a read finds no service."""
    async with open_world(settings=QUICK) as world:
        await world.add_host("mini")
        await world.serve("chat", "embed")
        name = (await world.claims("embed"))[0]
        host = world.hosts[name]
        await host.kill_agent()
        host.machine.entries.clear()
        host.faults.kind = "no services"
        await host.start_agent()
        await trio.sleep(8)
        host.faults.kind = ""
        assert await world.claims("embed") == {0: name}
        await trio.sleep(60)
        assert await world.claims("embed") == {0: name}
        assert world.live("embed") == [name]
        await world.delete("embed")
        await world.until(world.claims, {}, "embed", seconds=5)


async def test_services_that_two_lists_have_denied_come_back(autojump_clock):
    """A server that denies most services for half a minute stops them, and each runs again two minutes later."""
    async with two_services() as world:
        world.faults.kind = "empty lists"
        world.first.asleep_seconds = 60.0  # a wake: everything is listed again
        await trio.sleep(30)
        world.faults.kind = ""
        assert world.machine.counts() == {}
        await trio.sleep(120)
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        assert await world.phase("chat") == await world.phase("embed") == "Ready"


async def test_deleting_everything_is_believed_after_the_second_list(autojump_clock):
    """Services that were deleted without a watch are stopped once two lists, 10 s apart, lack them."""
    async with two_services() as world:
        world.faults.down = True
        world.network.sever()
        await trio.sleep(5)
        for name in ("chat", "embed"):
            await world.delete(name)
        world.faults.down = False
        world.first.asleep_seconds = 60.0
        await trio.sleep(9)
        assert len(world.machine.live()) == 2
        await world.until(world.machine.live, [], seconds=60)


async def test_endpoints_withdrawn_during_an_outage_are_published_again_at_once(autojump_clock):
    """Endpoints that were withdrawn during a partition of the host are ready again on its return."""
    async with two_services() as world:
        world.faults.down = True
        world.network.sever()
        await trio.sleep(60)
        with_slices = await world.slices("chat")
        assert [ready for *_, ready in with_slices] == [False], "a silent host has no ready endpoint"
        world.faults.down = False
        await world.until(world.slices, lambda seen: [ready for *_, ready in seen] == [True], "chat", seconds=20)


async def test_a_kind_that_is_no_longer_served_ends_no_service(autojump_clock):
    """All services continue without the definitions; once these are back without objects, all of them end."""
    names = [f"chat{number}" for number in range(6)]

    async def serving():
        await trio.sleep(300)
        return [name for name in names if [child for child in world.machine.live(name) if child.serves]]

    async with open_world() as world:
        await world.serve(*names)
        definitions = all_crds()
        for each in definitions:
            name = each["metadata"]["name"]
            await world.client.request_json("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        assert await serving() == names
        await world.kill_agent()
        await world.start_agent()
        assert await serving() == names
        for each in definitions:
            await world.client.request_json(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=each
            )
        assert await serving() == []
