"""Several hosts, one cluster: each replica runs on one host, wherever hosts join, leave, race and become silent."""

import math
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
import trio

from llmkube.k8s.builtins import Lease
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.label_selectors import parse_selector
from llmkube.k8s.wire.names import CLAIM_LABEL
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.cluster import claims
from sim.machine import Script
from sim.world import agent_settings, open_world

pytestmark = pytest.mark.ci

QUICK = {"lease_renew_seconds": 5.0}


def two_hosts(**changes):
    return open_world(settings=agent_settings(**QUICK, **changes))


@asynccontextmanager
async def at_once():
    """Remove the delays of hosts: all hosts claim the same slot at the same moment."""
    with patch.object(claims, "delay_seconds", lambda *args, **kwargs: 0.0):
        yield


async def test_two_hosts_share_the_services_and_run_none_twice(autojump_clock):
    """Of ten services that two hosts could serve, each runs on exactly one, which its claim names."""
    async with two_hosts() as world:
        await world.add_host("mini")
        await trio.sleep(10)
        for number in range(10):
            await world.apply(f"s{number}")
        await trio.sleep(60)
        for number in range(10):
            hosts = world.live(f"s{number}")
            assert len(hosts) == 1
            assert await world.claims(f"s{number}") == {0: hosts[0]}
            assert await world.phase(f"s{number}") == "Ready"
        assert sum(len(host.machine.spawned) for host in world.hosts.values()) == 10


async def test_two_replicas_run_on_two_hosts(autojump_clock):
    """replicas: 2 is one engine on each of two hosts; both are counted, and the phase is Ready only with both."""
    async with two_hosts() as world:
        mini = await world.add_host("mini")
        mini.machine.default = Script(load_seconds=60)
        await trio.sleep(10)
        await world.apply(replicas=2)
        await world.until(world.phase, "Progressing")
        await trio.sleep(1)
        assert (await world.service())["status"]["readyReplicas"] == 1
        assert (await world.claims())[0] == "mini", "equal in everything, so the name decides"
        for _ in range(100):
            assert (await world.condition())[:2] == ("False", "Loading"), "only the first replica reports the condition"
            await trio.sleep(0.2)
        await world.until(world.phase, "Ready", seconds=70)
        assert (await world.service())["status"]["readyReplicas"] == 2
        assert world.live("chat") == ["mini", "sim"]
        assert set((await world.claims()).values()) == {"mini", "sim"}
        await world.apply(replicas=1)
        await world.until(world.live, lambda hosts: len(hosts) == 1, "chat")
        await world.until(world.claims, lambda claims: list(claims) == [0])
        assert await world.phase() == "Ready"
        assert sum(len(host.machine.spawned) for host in world.hosts.values()) == 2


async def test_more_replicas_than_hosts_are_reported(autojump_clock):
    """Three replicas on two hosts are two engines and the reason NoHost."""
    async with two_hosts() as world:
        await world.add_host("mini")
        await world.apply(replicas=3)
        await trio.sleep(30)
        assert world.live("chat") == ["mini", "sim"]
        assert await world.phase() == "Progressing"
        assert (await world.condition("Progressing"))[1] == "NoHost"


async def test_a_dead_host_is_replaced_within_a_minute(autojump_clock):
    """When the power of a host fails, its endpoint is withdrawn and another host serves, within 60 s."""
    async with two_hosts() as world:
        holder, other = await world.serve_on_one_of_two()
        await holder.die()
        died = trio.current_time()
        await world.until(world.live, [other.name], "chat", seconds=60)
        await world.until(world.slices, lambda seen: [one[0] for one in seen if one[2]] == [other.name], seconds=60)
        assert trio.current_time() - died < 60
        assert await world.claims() == {0: other.name}
        await world.until(world.phase, "Ready")
        assert sum(len(host.machine.spawned) for host in world.hosts.values()) == 2


async def test_endpoints_of_a_dead_host_are_withdrawn(autojump_clock):
    """They are withdrawn even if no other host can take over."""
    async with two_hosts() as world:
        await world.serve()
        await world.first.die()
        await world.until(world.ready_addresses, 0, seconds=45)
        assert await world.phase() == "Pending"
        await world.start_agent()
        await world.until(world.ready_addresses, 1, seconds=30)


async def test_a_successor_may_report_less_than_its_predecessor(autojump_clock):
    """After a takeover and a restart, an agent that knows less than it had reported still updates the status."""
    async with two_hosts() as world:
        await world.serve()
        second = await world.add_host("second")
        await world.first.die()
        await world.until(world.live, ["second"], "chat", seconds=120)
        await world.until(world.phase, "Ready", seconds=60)
        await world.apply(suspend=True)
        await world.until(world.live, [], "chat")
        await second.kill_agent()
        await world.apply(suspend=False, replicas=0)
        await second.start_agent()
        await trio.sleep(60)
        assert await world.condition("Loaded") == ("False", Reason.SCALED_TO_ZERO, "replicas=0")


async def test_an_agent_that_starts_alone_does_not_overwrite_the_status_of_the_one_that_serves(autojump_clock):
    """A host that was replaced writes nothing to the status, not for a moment, when its agent is back."""
    async with two_hosts() as world:
        host, other = await world.serve_on_one_of_two()
        await host.die()
        await world.until(world.live, [other.name], "chat")
        await world.until(fetched, f"the file is on {other.name}", world)
        host.cut_off()
        await host.start_agent()
        await trio.sleep(60)
        assert len(world.live("chat")) == 2, "it serves the last known services"
        host.cut_off(False)
        for _ in range(600):
            assert await fetched(world) == f"the file is on {other.name}"
            await trio.sleep(0.1)
        assert world.live("chat") == [other.name]


async def test_a_late_write_of_another_host_is_overwritten_at_once(autojump_clock):
    """A host that has lost its claim may write once more to the status; within seconds that is overwritten."""
    async with two_hosts() as world:
        serving, _ = await world.serve_on_one_of_two()
        await trio.sleep(30)
        old = (await world.model())["status"]["conditions"]
        late = [{**one, "message": "the file is elsewhere"} for one in old if one["type"] == "Fetched"]
        for pause in (3.0, 40.0):
            await write_status(world, Model, {"conditions": late})
            await trio.sleep(pause)
            assert await fetched(world) == f"the file is on {serving.name}"


async def fetched(world):
    """Return the message of the Model about its file."""
    conditions = (await world.model())["status"]["conditions"]
    return next(one["message"] for one in conditions if one["type"] == "Fetched")


async def write_status(world, kind, status):
    """Write into the status of `chat` as another client."""
    metadata = {"name": "chat", "namespace": "default"}
    manifest = {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind, "metadata": metadata}
    await world.client.apply(kind, manifest | {"status": status}, field_manager="somebody", subresource="status")


async def test_two_writers_do_not_overwrite_each_other_forever(autojump_clock):
    """A client that overwrites the status each second is answered at most twice a minute."""
    async with two_hosts() as world:
        await world.serve()
        await trio.sleep(30)
        now, answers = "2026-01-01T00:00:00Z", 0
        for number in range(120):
            loaded = {"type": "Loaded", "status": "False", "reason": "Nonsense", "message": f"{number}"}
            answers += (await world.condition())[1] == "Loaded"
            await write_status(world, InferenceService, {"conditions": [{**loaded, "lastTransitionTime": now}]})
            await trio.sleep(1.5)
        assert 4 <= answers <= 9
        await trio.sleep(35)
        assert (await world.condition())[:2] == ("True", "Loaded")


async def test_a_host_claims_nothing_before_its_own_lease_exists(autojump_clock):
    """A host that may not write its Lease yet is taken for dead, and leaves services to others; later it serves."""
    async with two_hosts() as world:
        await world.add_host("mini")
        await world.stop_agent()
        world.faults.forbids = lambda request: request.method == "PATCH" and request.url.path.endswith("/leases/sim")
        world.machine.files.add("builtin://demo")  # so it would be the first to claim
        await world.start_agent()
        for name in ("a", "b", "c"):
            await world.apply(name)
            for _ in range(100):
                assert "sim" not in (await world.claims(name)).values()
                await trio.sleep(0.1)
            assert world.live(name) == ["mini"]
        world.faults.forbids = lambda _: False
        await world.until(world.host_lease, lambda lease: lease is not None)
        await world.apply("d", replicas=2)
        await world.until(world.live, ["mini", "sim"], "d", seconds=60)


async def test_an_orderly_stop_hands_over_at_once(autojump_clock):
    """A host that is stopped in order is replaced before its Lease expires."""
    async with two_hosts() as world:
        holder, other = await world.serve_on_one_of_two()
        await holder.stop_agent()
        await world.until(world.live, [other.name], "chat", seconds=3)
        await holder.start_agent()
        await trio.sleep(60)
        assert world.live("chat") == [other.name]


async def test_a_partitioned_host_continues_and_yields_on_return(autojump_clock):
    """A partitioned host keeps its engine; once it sees that another one has taken over, it stops its own."""
    async with two_hosts() as world:
        holder, other = await world.serve_on_one_of_two()
        holder.cut_off()
        await trio.sleep(600)
        assert world.live("chat") == ["mini", "sim"], "both serve while neither can know of the other"
        ready = [host for host, _, ready in await world.slices() if ready]
        assert ready == [other.name]
        holder.cut_off(False)
        await world.until(world.live, [other.name], "chat", seconds=60)
        await trio.sleep(120)
        assert world.live("chat") == [other.name]
        assert await world.claims() == {0: other.name}
        assert await world.slices() == [(other.name, other.settings.advertise_address, True)]
        assert (await world.condition())[:2] == ("True", "Loaded")
        assert await world.phase() == "Ready"


async def test_a_service_that_another_host_has_taken_over_is_removed_from_the_journal(autojump_clock):
    """A host that died and finds its service on another host does not start it at its next start offline."""
    async with two_hosts() as world:
        host, other = await world.serve_on_one_of_two()
        await host.die()
        await world.until(world.live, [other.name], "chat", seconds=60)
        await host.start_agent()
        await trio.sleep(60)
        await host.kill_agent()
        host.faults.down = True
        await host.start_agent()
        await trio.sleep(120)
        assert world.live("chat") == [other.name]
        host.cut_off(False)


async def test_an_outage_for_all_changes_no_host(autojump_clock):
    """If no host has the API server for an hour, none is declared dead afterwards and no service moves."""
    async with two_hosts() as world:
        await world.add_host("mini")
        for name in ("a", "b", "c", "d"):
            await world.apply(name)
        await trio.sleep(30)
        before = {name: world.live(name) for name in "abcd"}
        for host in world.hosts.values():
            host.cut_off()
        await trio.sleep(600)
        for host in world.hosts.values():
            host.cut_off(False)
        await trio.sleep(120)
        assert {name: world.live(name) for name in "abcd"} == before
        assert sum(len(host.machine.spawned) for host in world.hosts.values()) == 4


async def test_the_host_with_the_file_comes_first_then_the_one_with_most_memory(autojump_clock):
    """A new service goes to the host that has its file already, else to the one with most free memory."""
    async with two_hosts() as world:
        mini = await world.add_host("mini")
        big = await world.add_host("big")
        big.machine.free_bytes = 100 << 30
        mini.machine.files.add("builtin://here")
        await trio.sleep(15)
        for number in range(4):
            await world.apply(f"there{number}", source="builtin://here")
            await world.apply(f"new{number}", source=f"builtin://new{number}")
        await trio.sleep(30)
        for number in range(4):
            assert world.live(f"there{number}") == ["mini"]
            assert world.live(f"new{number}") == ["big"]


async def test_a_race_for_one_slot_has_one_winner_and_no_noise(autojump_clock):
    """Equal hosts claim a service at the same moment: one gets it, the others write nothing more."""
    async with two_hosts() as world, at_once():
        for name in ("b", "c", "d"):
            await world.add_host(name)
        await trio.sleep(10)
        for number in range(5):
            await world.apply(f"s{number}")
        await trio.sleep(60)
        versions = {one.metadata.name: one.metadata.resource_version for one in (await all_claims(world))}
        assert len(versions) == 5
        assert sum(len(host.machine.spawned) for host in world.hosts.values()) == 5
        await trio.sleep(600)
        assert {one.metadata.name: one.metadata.resource_version for one in await all_claims(world)} == versions


async def all_claims(world):
    return (await world.client.list(Lease, label_selector="inference.llmkube.dev/claim")).items


async def test_a_killed_agent_keeps_its_claims(autojump_clock):
    """Through SIGKILL and restart of an agent with a rival, the engine stays, claimed all the time."""
    async with two_hosts() as world:
        holder, _ = await world.serve_on_one_of_two()
        versions = [one.metadata.resource_version for one in await all_claims(world)]
        await holder.kill_agent()
        await trio.sleep(10)
        await holder.start_agent()
        await trio.sleep(120)
        assert world.live("chat") == [holder.name]
        assert [one.metadata.resource_version for one in await all_claims(world)] == versions


async def test_a_deleted_service_leaves_no_claim(autojump_clock):
    """A deleted service has no claim; one scaled to zero keeps it, and the same host serves it again."""
    async with two_hosts() as world:
        await world.add_host("mini")
        await world.serve()
        before = world.live("chat")
        await world.apply(replicas=0)
        await world.until(world.phase, "Stopped")
        assert await world.claims() == {0: before[0]}
        await world.apply(replicas=1)
        await world.until(world.live, before, "chat")
        await world.delete()
        await world.until(world.claims, {}, seconds=10)


async def test_a_lost_claim_is_claimed_again_by_the_host_that_runs_it(autojump_clock):
    """When a client deletes a claim, the engine continues, and its host has the claim back before a rival."""
    async with two_hosts() as world:
        await world.add_host("mini")
        await world.serve()
        before = world.live("chat")
        (claim,) = await all_claims(world)
        await world.client.delete(Lease, claim.key)
        await trio.sleep(30)
        assert await world.claims() == {0: before[0]}
        assert world.live("chat") == before
        assert sum(len(host.machine.spawned) for host in world.hosts.values()) == 1


async def test_a_selector_limits_a_host_to_labelled_services(autojump_clock):
    """A host with --selector serves labelled services; one that no host selects is NotClaimed."""
    async with two_hosts(selector=parse_selector("team=ml")) as world:
        await world.apply("plain")
        await world.serve("chosen", labels={"team": "ml"})
        await trio.sleep(30)
        assert world.live("plain") == []
        assert await world.phase("plain") == "Pending"
        assert (await world.condition("Progressing", "plain"))[1] == "NotClaimed"
        await world.add_host("mini", selector=parse_selector(""))
        await world.until(world.phase, "Ready", "plain")
        assert world.live("plain") == ["mini"]
        assert world.live("chosen") == ["sim"]


async def test_a_service_that_is_no_longer_selected_reports_it(autojump_clock):
    """A service that loses its label stops, reports its last host and that none has claimed it, and can return."""
    async with two_hosts(selector=parse_selector("team=ml")) as world:
        for name in ("serves", "crashes"):
            world.machine.scripts["crashes"] = Script(load_seconds=math.inf, life_seconds=0.1)
            await world.apply(name, labels={"team": "ml"})
        await world.until(world.phase, "Ready", "serves")
        await world.until(world.phase, "Failed", "crashes")
        for name in ("serves", "crashes"):
            await world.apply(name, labels={"team": "web"})
            await world.until(world.phase, "Pending", name, seconds=30)
            assert (await world.condition("Loaded", name))[:2] == ("False", "Released")
            words = (await world.condition("Available", name))[2]
            assert words == "sim no longer serves it, and no other machine serves it"
        assert await world.slices("serves") == []
        await world.add_host("mini", selector=parse_selector("team=web"))
        await world.until(world.phase, "Ready", "serves")
        await trio.sleep(600)  # and no older message overwrites it
        assert await world.phase("serves") == "Ready"
        assert (await world.condition("Loaded", "serves"))[1] == "Loaded"


async def test_a_client_that_keeps_removing_a_claim_is_not_raced(autojump_clock):
    """A claim that a client removes at once is written once a second, and its engine continues."""
    async with two_hosts() as world:
        host, _ = await world.serve_on_one_of_two()
        removed = 0
        with trio.move_on_after(10):
            while True:
                for lease in (await world.client.list(Lease, label_selector=f"{CLAIM_LABEL}=chat")).items:
                    await world.client.delete(Lease, lease.key)
                    removed += 1
                await trio.sleep(0.01)
        assert 5 < removed < 15
        await world.until(world.claims, {0: host.name}, seconds=5)
        assert sum(len(one.machine.spawned) for one in world.hosts.values()) == 1


async def test_a_host_without_the_engine_leaves_the_service_to_one_that_has_it(autojump_clock):
    """Although it is better in everything else; and its claim is free as soon as another host has got the engine."""
    async with two_hosts() as world:
        mini = await world.add_host("mini")
        mini.machine.programs.discard("llamacpp")
        world.machine.programs.discard("llamacpp")
        await trio.sleep(120)
        await world.apply()
        await world.until(world.claims, {0: "mini"})
        await world.until(world.condition, lambda seen: seen and seen[1] == Reason.ENGINE_NOT_FOUND)
        await trio.sleep(120)
        assert await world.claims() == {0: "mini"}, "no host has it, so one reports why"
        world.machine.programs.add("llamacpp")
        await world.until(world.live, ["sim"], "chat", seconds=120)
        await world.until(world.phase, "Ready")
        assert await world.claims() == {0: "sim"}
        await world.apply("next", model="next")
        await world.until(world.phase, "Ready", "next")
        assert world.live("next") == ["sim"], "the name of mini comes first"
        mini.machine.programs.add("llamacpp")
        await trio.sleep(120)
        assert world.live("chat") == ["sim"]
        assert len(world.machine.spawned) == 2


async def test_an_engine_whose_program_is_gone_keeps_serving(autojump_clock):
    """A host gives up a service for the lack of its program only while no engine runs."""
    async with two_hosts() as world:
        holder, other = await world.serve_on_one_of_two()
        holder.machine.programs.discard("llamacpp")
        await trio.sleep(120)
        assert world.live("chat") == [holder.name]
        holder.machine.live("chat")[0].end(1)
        await world.until(world.live, [other.name], "chat", seconds=120)
        await world.until(world.phase, "Ready")
