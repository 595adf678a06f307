"""A host's Lease, and its reactions to sleep, wake and new addresses."""

import attrs
import pytest
import trio

from llmkube.apiserver.storage.revisions import Ref
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Event, Service
from llmkube.k8s.codec import decode
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_LABEL
from llmkube.supervisor.values.host_addresses import HostAddress
from migration.leavings import agents_objects
from sim.invariants import WatchedStore
from sim.machine import Script
from sim.world import ADDRESS, agent_settings, open_world

pytestmark = pytest.mark.ci

QUICK = agent_settings(lease_renew_seconds=5.0, bind_address=ADDRESS)
LAN = "192.0.2.77"


def at(address, *others, problem=""):
    """Return the address of a host."""
    return HostAddress(address, address or "127.0.0.1", "of a test", problem, frozenset({address, *others} - {None}))


async def serving_at(world, reach):
    """Run a host with this address and one service that is ready."""
    await world.stop_agent()
    world.machine.reach = reach
    await world.start_agent()
    await world.serve()


async def test_the_lease_of_a_host_describes_it(autojump_clock):
    """It has accelerators, engine, agent, memory, services and address, and is renewed every 5 s, not more often."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        await trio.sleep(70)
        lease = await world.host_lease()
        annotations = {name.partition("/")[2]: value for name, value in lease.metadata.annotations.items()}
        assert annotations["accelerators"] == "metal"
        assert annotations["engine"] == "llama-server sim"
        assert annotations["agent-version"]
        assert (int(annotations["memory-total-bytes"]), int(annotations["memory-free-bytes"])) == (64 << 30, 32 << 30)
        assert (annotations["services"], annotations["address"]) == ("1", ADDRESS)
        assert lease.spec.lease_duration_seconds == 20
        seen = set()
        for _ in range(600):
            seen.add((await world.host_lease()).metadata.resource_version)
            await trio.sleep(0.1)
        assert 11 <= len(seen) <= 13


async def test_a_wake_kills_nothing_and_reapplies_everything(autojump_clock):
    """After eight hours of sleep the engine is unchanged, and other clients' changes to its endpoint are reverted."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        before = list(world.machine.spawned)
        world.faults.kind = "half-open"  # asleep: nothing is sent, and connections die silently
        world.network.sever()
        await world.until(world.ready_addresses, 0, seconds=60)
        world.first.asleep_seconds = 8 * 3600.0
        world.faults.kind = ""
        await world.until(world.ready_addresses, 1, seconds=15)
        assert world.machine.spawned == before
        await world.until(world.phase, "Ready", seconds=10)


async def test_a_sleep_without_a_failed_request_is_noticed(autojump_clock):
    """Other clients' changes to an endpoint are reverted at the wake, although every renewal was answered."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        (piece,) = (await world.client.list(EndpointSlice)).items
        await world.client.delete(EndpointSlice, piece.key)
        await trio.sleep(30)
        assert await world.ready_addresses() == 0
        world.first.asleep_seconds = 3600.0
        await world.until(world.ready_addresses, 1, seconds=10)


async def test_a_change_during_a_sleep_is_applied_at_the_wake(autojump_clock):
    """An edit that a dead watch never reported is applied within seconds of the wake, not at the watch's timeout."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        world.network.hush()
        await world.apply(contextSize=512)
        await trio.sleep(20)
        assert len(world.machine.spawned) == 1
        world.first.asleep_seconds = 600.0
        await world.until(lambda: len(world.machine.spawned), 2, seconds=8)


async def test_a_clock_that_is_set_kills_nothing(autojump_clock):
    """The wall clock jumps an hour back and two ahead: no engine restarts, and the service stays Ready."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        for jump in (-3600.0, 7200.0, 0.0):
            world.first.asleep_seconds = jump
            await trio.sleep(60)
            assert await world.ready_addresses() == 1
        assert len(world.machine.spawned) == 1
        assert await world.phase() == "Ready"


async def test_slices_follow_a_new_address_within_seconds(autojump_clock):
    """When the old address is lost, the slice has the new one within 5 s, and the engine is restarted on it once."""
    async with open_world(settings=QUICK) as world:
        await serving_at(world, at(ADDRESS))
        world.machine.reach = at(LAN)
        await world.until(world.slices, lambda seen: [one[1] for one in seen] == [LAN], seconds=5, step_seconds=0.1)
        await world.until(world.slices, [("sim", LAN, True)], seconds=15)
        await trio.sleep(60)
        (engine,) = world.machine.live()
        assert engine.address[0] == LAN
        assert len(world.machine.spawned) == 2


async def test_a_new_gateway_moves_the_slice_and_no_engine(autojump_clock):
    """Behind a virtual machine's gateway engines listen on the loopback address: only the endpoint changes."""
    async with open_world(settings=QUICK) as world:
        await serving_at(world, HostAddress(ADDRESS, "127.0.0.1", "a gateway"))
        world.machine.reach = HostAddress(LAN, "127.0.0.1", "another gateway")
        await world.until(world.slices, [("sim", LAN, True)], seconds=5, step_seconds=0.1)
        await trio.sleep(60)
        assert len(world.machine.spawned) == 1


async def test_a_new_route_does_not_restart_an_engine_whose_address_is_still_here(autojump_clock):
    """A second network appears and the route moves there: the engine stays, and its slice keeps its address."""
    async with open_world(settings=QUICK) as world:
        await serving_at(world, at(ADDRESS))
        world.machine.reach = at(LAN, ADDRESS)
        await trio.sleep(60)
        assert await world.slices() == [("sim", ADDRESS, True)]
        assert len(world.machine.spawned) == 1


async def test_a_host_without_a_network_for_a_while_unloads_nothing(autojump_clock):
    """No address at all for ten minutes, then the old one again: the engine is the same."""
    async with open_world(settings=QUICK) as world:
        await serving_at(world, at(ADDRESS))
        world.machine.reach = at(None, problem="no route")
        await trio.sleep(600)
        world.machine.reach = at(ADDRESS)
        await trio.sleep(30)
        assert len(world.machine.spawned) == 1
        assert await world.slices() == [("sim", ADDRESS, True)]


async def test_another_family_is_another_slice(autojump_clock):
    """From IPv4 to IPv6, the old slice is deleted and the new one has the engine's IPv6 address."""
    async with open_world(settings=QUICK) as world:
        await serving_at(world, at(ADDRESS))
        world.machine.reach = at("2001:db8::7")
        await world.until(world.slices, [("sim", "2001:db8::7", True)], seconds=20)
        (engine,) = world.machine.live()
        assert engine.address[0] == "2001:db8::7"


async def test_the_next_engine_leaves_no_slice_of_the_other_family(autojump_clock):
    """A route of the other family moves no engine; when the next one starts there, the old slice is deleted."""
    store, written = WatchedStore(), []
    async with open_world(settings=attrs.evolve(QUICK, reassert_seconds=60.0), store=store) as world:
        await serving_at(world, at("2001:db8::7"))
        world.machine.reach = at(LAN, "2001:db8::7")
        await trio.sleep(30)
        world.machine.kill("chat")
        await world.until(world.slices, [("sim", LAN, True)], seconds=20)
        await world.delete()
        await trio.sleep(30)
        store.listener = lambda change: written.append(change.ref)
        await trio.sleep(300)
        assert [ref for ref in written if ref.key.name.startswith("chat")] == []


async def test_a_deletion_without_effect_is_repeated(autojump_clock):
    """If something that is no API server answered the deletion of a slice, it is repeated when that one is back."""
    async with open_world(settings=QUICK) as world:
        await serving_at(world, at(ADDRESS))
        world.faults.kind = "no object"
        world.machine.reach = at("2001:db8::7")
        await trio.sleep(20)
        world.faults.kind = ""
        await trio.sleep(40)
        assert await world.slices() == [("sim", "2001:db8::7", True)]


async def test_an_unreachable_host_reports_it(autojump_clock):
    """Without an address to advertise there are a condition, an Event and an annotation on the Lease."""
    async with open_world(settings=agent_settings(lease_renew_seconds=5.0, advertise_address=None)) as world:
        await world.stop_agent()
        world.machine.reach = at(None, problem="nothing here is reachable")
        await world.start_agent()
        await world.apply()
        await world.until(world.condition, lambda seen: seen and seen[:2] == ("False", "NoAddress"), "Published")
        found = [(one.reason, one.message) for one in (await world.client.list(Event)).items]
        assert ("NoAddress", "nothing here is reachable") in found
        annotations = (await world.host_lease()).metadata.annotations
        assert annotations["inference.llmkube.dev/address-reason"] == "nothing here is reachable"
        await world.until(world.condition, lambda seen: seen[0] == "True")
        await world.until(world.phase, "Failed", seconds=10)
        assert (await world.condition("Available"))[:2] == ("False", "NoAddress")
        world.machine.reach = at(LAN)
        await world.until(world.slices, [("sim", LAN, True)], seconds=30)
        await world.until(world.condition, lambda seen: seen[0] == "True", "Published")
        await world.until(world.phase, "Ready", seconds=10)


@pytest.mark.parametrize("api", ["endpointslices", "endpoints"])
async def test_a_strangers_service_is_not_changed(autojump_clock, api):
    """A Service of that name with another owner is not changed, and ours is published when it is deleted."""
    labels, key = {"metadata": {"name": "chat", "namespace": "default"}}, Key("default", "chat")
    async with open_world(settings=attrs.evolve(QUICK, endpoints_api=api)) as world:
        ports = [{"name": "web", "port": 80}]
        subsets = [{"addresses": [{"ip": "192.0.2.99"}], "ports": ports}]
        await world.client.create(decode(Service, labels | {"spec": {"selector": {"app": "shop"}, "ports": ports}}))
        await world.client.create(decode(Endpoints, labels | {"subsets": subsets}))
        before = [await world.client.get(kind, key) for kind in (Service, Endpoints)]
        await world.apply()
        seen = await world.until(world.condition, lambda seen: seen and seen[0] == "False", "Published")
        assert seen[1] == "NameTaken"
        assert "Service default/chat" in seen[2] or "Endpoints default/chat" in seen[2]
        await world.until(world.phase, "Failed", seconds=60)
        assert not await world.ready_addresses()
        assert [await world.client.get(kind, key) for kind in (Service, Endpoints)] == before
        await world.delete()
        await trio.sleep(60)
        assert [await world.client.get(kind, key) for kind in (Service, Endpoints)] == before
        await world.apply()
        await world.until(world.condition, lambda seen: seen and seen[0] == "False", "Published")
        for kind in (Service, Endpoints):
            await world.client.delete(kind, key)
        await world.until(world.condition, lambda seen: seen[0] == "True", "Published", seconds=90)


async def test_a_slice_follows_at_once_where_an_earlier_agents_service_becomes_ours(autojump_clock):
    """A policy forbids slices of Services that are not ours, and a role forbids their adoption, until it is fixed.

    Clients use the earlier agent's engine until ours is published, and the Service keeps its address.
    """
    key, fixed = Key("default", "chat"), trio.Event()
    async with open_world(settings=QUICK) as world:
        for kind, body in zip(
            (Service, EndpointSlice, Endpoints), agents_objects("chat", address=ADDRESS, port=50123), strict=True
        ):
            await world.client.create(decode(kind, body))
        before = await world.client.get(Service, key)

        async def is_adopted():
            return SERVICE_LABEL in (await world.client.get(Service, key)).metadata.labels

        def forbids(request):
            if request.url.path.endswith("/services/chat"):
                return request.method == "PATCH" and not fixed.is_set()
            service = world.store.get(Ref(Service.RESOURCE.full_name, key))
            return "/endpointslices/chat." in request.url.path and SERVICE_LABEL not in service["metadata"]["labels"]

        async def ready_slices():
            listing = await world.client.list(EndpointSlice)
            return {one.metadata.name for one in listing.items if any(end.conditions.ready for end in one.endpoints)}

        world.faults.forbids = forbids
        world.machine.default = Script(load_seconds=30)
        await world.apply()
        await trio.sleep(40)
        assert len(world.machine.live()) == 1
        fixed.set()
        while not await is_adopted():
            assert await ready_slices() == {"chat"}
            await trio.sleep(0.1)
        await world.until(ready_slices, lambda names: "chat.sim" in names, seconds=1, step_seconds=0.1)
        await world.until(ready_slices, {"chat.sim"}, seconds=5)
        assert (await world.client.get(Service, key)).spec.cluster_ip == before.spec.cluster_ip


async def test_services_deleted_during_a_slow_cleanup_end_no_agent(autojump_clock):
    """On a slow API server the search for an earlier agent's endpoints skips services that are deleted meanwhile."""
    names = [f"s{number}" for number in range(4)]
    async with open_world() as world:
        world.faults.slow_seconds = 4.0
        for name in names:
            await world.apply(name)
        for name in names:
            await world.until(world.ready_addresses, 1, name, seconds=60)
        for name in names:
            await world.delete(name)
        await trio.sleep(60)
        await world.apply()
        await world.until(world.phase, "Ready", seconds=60)


async def test_the_slice_of_an_earlier_agent_is_withdrawn_even_without_a_journal(autojump_clock):
    """Journal and engine are lost: the slice is gone within 200 ms, before an engine is started."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        await world.kill_agent()
        world.machine.kill("chat")
        world.machine.entries.clear()
        world.machine.fetch_seconds["builtin://demo"] = 60.0
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=0.2, step_seconds=0.02)
        await world.until(world.ready_addresses, 1, seconds=90)


async def test_a_service_that_is_no_longer_served_here_is_withdrawn(autojump_clock):
    """The next agent withdraws the slice of a service that this host no longer serves."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        await world.kill_agent()
        world.machine.kill("chat")
        world.machine.entries.clear()
        world.first.settings = agent_settings(lease_renew_seconds=5.0, accelerators=frozenset({"cpu"}))
        await world.start_agent()
        await world.until(world.slices, [], seconds=0.2, step_seconds=0.02)


async def test_engines_are_probed_at_once_when_the_host_wakes(autojump_clock):
    """An idle engine, which is probed every four minutes, is probed within two seconds of the wake."""
    async with open_world(settings=QUICK) as world:
        await world.serve()
        await trio.sleep(1000 - trio.current_time() % 960)  # 40 s after a probe, 200 s before the next one
        (engine,) = world.machine.live()
        asked = engine.asked
        await trio.sleep(30)
        assert engine.asked == asked
        world.first.asleep_seconds = 3600.0
        await trio.sleep(5 + 2)
        assert engine.asked > asked
