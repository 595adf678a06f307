"""Adoption by a new agent of the engines that the last one left: adopt, replace, or stop."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from llmkube.k8s.builtins import EndpointSlice, Event
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.label_selectors import parse_selector
from llmkube.k8s.resource import Key
from llmkube.supervisor.values.host_addresses import NetworkView, choose
from sim import faults_agent
from sim.machine import Script
from sim.stage import at
from sim.world import ADDRESS, agent_settings, open_world


@asynccontextmanager
async def every_change(world, name):
    """Collect whether the endpoint of a service is ready, at every write to its slice."""
    seen = []
    listing = await world.client.list(EndpointSlice)

    async def follow():
        async with world.client.open_watch(EndpointSlice, resource_version=listing.resource_version) as watch:
            while (event := await watch.next_event()) is not None:
                if event.type != "BOOKMARK" and event.key.name.startswith(f"{name}."):
                    endpoints = event.object.endpoints
                    seen.append(bool(endpoints and endpoints[0].conditions.ready))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        yield seen
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def left_by_its_agent(*names, **options):
    """Run a host whose agent was killed while it served; `chat` if no service is named."""
    async with open_world(**options) as world:
        await world.serve(*names)
        await world.kill_agent()
        yield world


async def test_a_new_agent_reports_the_serving_engine(autojump_clock):
    """The reported build is the started one, though the program was upgraded meanwhile; without an engine: none."""
    async with open_world() as world:
        await world.serve("chat")
        started = {"runtime": "llamacpp", "build": "sim", "weightsFormat": "gguf"}
        assert (await world.service())["status"]["engine"] == started
        await world.kill_agent()
        world.machine.build = ("newer", world.machine.build[1])
        await world.start_agent()
        await trio.sleep(60)
        assert len(world.machine.spawned) == 1
        assert (await world.service())["status"]["engine"] == started
        assert {view.build for view in world.agent.services().values()} == {"sim"}
        world.machine.default = Script(load_seconds=30)
        world.machine.kill("chat")
        await trio.sleep(20)
        assert "engine" not in (await world.service())["status"]
        await trio.sleep(60)
        assert (await world.service())["status"]["engine"]["build"] == "newer"
        await world.apply("chat", replicas=0)
        await trio.sleep(60)
        assert "engine" not in (await world.service())["status"]


async def test_a_killed_agent_costs_nothing(autojump_clock):
    """Through SIGKILL of the agent and the start of the next, the engine is the same and never out of service."""
    async with open_world() as world:
        await world.serve("chat", "embed")
        before = list(world.machine.spawned)
        async with every_change(world, "chat") as seen:
            await world.kill_agent()
            await world.start_agent()
            await trio.sleep(60)
        assert world.machine.spawned == before
        assert all(seen)
        assert (await world.condition())[:2] == ("True", "Loaded")


async def test_an_adopted_engine_that_is_slow_to_answer_stays_in_service(autojump_clock):
    """On a busy machine, an engine that is silent for a second after the start is not withdrawn."""
    async with left_by_its_agent() as world:
        (child,) = world.machine.live("chat")
        child.slow_seconds = 1.0
        async with every_change(world, "chat") as seen:
            await world.start_agent()
            await trio.sleep(60)
        assert all(seen)


async def test_an_adopted_engine_whose_port_refuses_is_withdrawn_at_once(autojump_clock):
    """A live process that does not listen is out of service with the first write of the new agent."""
    async with left_by_its_agent() as world:
        (child,) = world.machine.live("chat")
        child.closed = True
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=0.2, step_seconds=0.01)


async def test_an_adopted_engine_is_supervised_like_any_other(autojump_clock):
    """An adopted engine that dies is withdrawn and replaced; one whose service is deleted is stopped."""
    async with left_by_its_agent("chat", "embed") as world:
        await world.start_agent()
        await trio.sleep(10)
        world.machine.kill("chat")
        await world.until(world.ready_addresses, 0, seconds=1)
        await world.until(world.ready_addresses, 1, seconds=10)
        assert len(world.machine.starts("chat")) == 2
        await world.delete("embed")
        await world.until(lambda: world.machine.live("embed"), [], seconds=5)
        assert len(world.machine.starts("embed")) == 1


async def test_an_edit_while_no_agent_runs_replaces_the_engine_once(autojump_clock):
    """An engine of another plan is stopped before its successor starts, and there is exactly one successor."""
    async with left_by_its_agent() as world:
        await world.apply("chat", contextSize=512)
        await world.start_agent()
        await world.until(world.ready_addresses, 1)
        await trio.sleep(30)
        (child,) = world.machine.live("chat")
        assert "512" in child.argv
        assert len(world.machine.starts("chat")) == 2


async def test_a_service_deleted_while_no_agent_ran_is_stopped(autojump_clock):
    """A service that is gone at the start of the new agent is stopped with its endpoint, and stays deleted."""
    async with left_by_its_agent("chat", "embed", "code") as world:
        await world.delete("chat")
        await world.start_agent()
        await world.until(lambda: world.machine.live("chat"), [], seconds=10)
        assert await world.ready_addresses("chat") == 0
        assert len(world.machine.live()) == 2
        await trio.sleep(1)
        await world.stop_agent()
        assert Key("default", "chat") not in world.machine.entries
        await world.start_agent()


async def test_an_engine_that_died_while_no_agent_ran_is_started_again(autojump_clock):
    """An engine that exited unseen is not adopted, its endpoint is withdrawn at once, and a new engine follows."""
    async with open_world() as world:
        world.machine.default = Script(load_seconds=20)
        await world.serve("chat")
        await world.kill_agent()
        world.machine.kill("chat")
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=0.2, step_seconds=0.02)
        await world.until(world.ready_addresses, 1, seconds=30)
        assert len(world.machine.starts("chat")) == 2


async def test_an_engine_that_was_still_loading_is_adopted_without_being_called_ready(autojump_clock):
    """An adopted engine that does not answer yet is not ready until it does, and is not started again."""
    async with open_world() as world:
        world.machine.default = Script(load_seconds=120)
        await world.apply()
        await world.until(lambda: len(world.machine.live()), 1)
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(60)
        assert await world.ready_addresses() == 0
        await world.until(world.ready_addresses, 1, seconds=70)
        assert len(world.machine.spawned) == 1


async def test_an_engine_that_became_silent_unseen_is_adopted_without_being_called_ready(autojump_clock):
    """An engine that no longer answers is out of service within 2.2 s of a new agent, until it answers."""
    async with open_world() as world:
        engine = await world.serve("chat")
        await world.kill_agent()
        engine.slow_seconds = 3.0
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=2.2, step_seconds=0.01)
        engine.slow_seconds = 0.0
        await world.until(world.ready_addresses, 1, seconds=10)
        assert world.machine.spawned == [engine]


async def test_another_program_on_the_port_of_an_adopted_engine_is_not_called_ready(autojump_clock):
    """The process is the one in the journal, but another program has its port: it is replaced."""
    async with open_world() as world:
        engine = await world.serve("chat")
        await world.kill_agent()
        engine.script = attrs.evolve(engine.script, intruder=True, stop_seconds=8.0)
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=1, step_seconds=0.1)
        assert engine.exit is None
        await engine.wait()
        await world.until(world.ready_addresses, 1, seconds=30)
        assert len(world.machine.spawned) == 2


async def requests_end(engine, *, after_seconds):
    """Assert that an engine lives as long as its requests, and no longer."""
    await trio.sleep(after_seconds)
    assert engine.exit is None
    engine.in_flight = 0
    with trio.fail_after(5):
        await engine.wait()


@pytest.mark.ci
@pytest.mark.parametrize("change", ["deleted", "suspended", "edited"])
async def test_an_adopted_engine_that_is_not_wanted_ends_with_its_requests(autojump_clock, change):
    """A change made while no agent ran is applied before the engine is known to answer: it still drains."""
    async with open_world() as world:
        engine = await world.serve("chat", "embed", "other")
        await world.kill_agent()
        engine.slow_seconds, engine.in_flight = 0.1, 1
        await (world.delete() if change == "deleted" else world.apply(**CHANGES[change]))
        await world.start_agent()
        await world.until(world.ready_addresses, 0, seconds=3)
        await requests_end(engine, after_seconds=15)


@pytest.mark.parametrize(
    "narrower", [{"selector": parse_selector("team=ml")}, {"accelerators": frozenset({"cpu"})}, {"namespace": "other"}]
)
async def test_services_excluded_by_new_settings_end_with_their_requests(autojump_clock, narrower):
    """An agent with narrower settings than its predecessor withdraws the other services, and lets requests finish."""
    async with open_world() as world:
        engine = await world.serve("chat")
        engine.in_flight = 1
        world.first.agent.keep_engines()
        await world.stop_agent()
        assert engine.exit is None
        world.first.settings = attrs.evolve(world.first.settings, **narrower)
        await world.start_agent()
        assert Key("default", "chat") in world.machine.entries
        await world.until(world.ready_addresses, 0, seconds=20)
        await requests_end(engine, after_seconds=5)
        await trio.sleep(60)
        assert world.machine.spawned == [engine]
        assert world.machine.entries == {}


CHANGES = {"suspended": {"suspend": True}, "edited": {"contextSize": 512}}


async def test_an_agent_that_exits_with_keep_changes_nothing(autojump_clock):
    """With `keep`, a stopped agent withdraws nothing, and the next one adopts."""
    async with open_world() as world:
        await world.serve("chat")
        world.agent.keep_engines()
        await world.stop_agent()
        assert len(world.machine.live()) == 1
        assert await world.ready_addresses() == 1
        await trio.sleep(20)
        await world.start_agent()
        await trio.sleep(10)
        assert await world.ready_addresses() == 1
        assert len(world.machine.spawned) == 1


@pytest.mark.ci
async def test_an_agent_without_an_api_server_serves_the_last_known_services(autojump_clock):
    """Without the API server, an agent adopts and starts engines from the journal, and reapplies state later."""
    async with left_by_its_agent("chat", "embed") as world:
        world.faults.down = True
        world.machine.kill("embed")
        await world.start_agent()
        await trio.sleep(60)
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        assert len(world.machine.starts("chat")) == 1
        world.machine.kill("chat")
        await trio.sleep(3600)
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        assert len(world.machine.starts("chat")) == 2
        world.faults.down = False
        await world.until(world.ready_addresses, 1, "chat", seconds=60)
        await world.until(world.ready_addresses, 1, "embed", seconds=60)
        assert world.machine.counts() == {"chat": 1, "embed": 1}


async def test_an_empty_list_right_after_the_start_ends_nothing(autojump_clock):
    """A server that has lost its data for a moment does not stop the engines that the new agent has adopted."""
    async with left_by_its_agent("chat", "embed") as world:
        saved = [await world.service(name) for name in ("chat", "embed")]
        for name in ("chat", "embed"):
            await world.delete(name)
        await world.start_agent()
        await trio.sleep(5)
        for one in saved:
            metadata = {"name": one["metadata"]["name"], "namespace": "default"}
            await world.client.apply(
                InferenceService, {**one, "metadata": metadata, "status": None}, field_manager="restore"
            )
        await trio.sleep(60)
        assert world.machine.counts() == {"chat": 1, "embed": 1}
        assert len(world.machine.spawned) == 2


async def test_a_suspended_service_does_not_come_back_with_a_new_agent(autojump_clock):
    """A service scaled to zero is not started from the journal, even if the API server stays away."""
    async with open_world() as world:
        await world.serve("chat")
        await world.apply("chat", replicas=0)
        await world.until(world.machine.live, [])
        await world.kill_agent()
        world.faults.down = True
        await world.start_agent()
        await trio.sleep(600)
        assert not world.machine.live()
        world.faults.down = False


async def test_an_edit_that_restarts_nothing_is_known_to_the_next_agent(autojump_clock):
    """A new priority, protection and uid are in the journal, although the engine stays."""
    async with open_world() as world:
        await world.serve("chat")
        await world.apply(priority="high", evictionProtection=True)
        await trio.sleep(30)
        service = world.machine.entries[Key("default", "chat")].desired.service
        assert (service.spec.priority, service.spec.eviction_protection) == ("high", True)
        await world.kill_agent()
        world.faults.down = True
        await world.start_agent()
        await trio.sleep(30)
        world.faults.down = False
        await world.apply(priority="low")
        await trio.sleep(60)
        assert world.machine.entries[Key("default", "chat")].desired.service.spec.priority == "low"
        assert len(world.machine.spawned) == 1


@pytest.mark.parametrize("online", [True, False])
async def test_a_suspension_in_the_last_moments_of_an_agent_is_carried_out(autojump_clock, online):
    """A suspension that has reached the journal but not the engine is carried out, with or without an API server."""
    async with left_by_its_agent() as world:
        key = Key("default", "chat")
        entry = world.machine.entries[key]
        service = attrs.evolve(entry.desired.service, spec=attrs.evolve(entry.desired.service.spec, suspend=True))
        world.machine.entries[key] = attrs.evolve(entry, desired=attrs.evolve(entry.desired, service=service))
        await world.apply("chat", suspend=True)
        world.faults.down = not online
        await world.start_agent()
        await trio.sleep(60)
        assert not world.machine.live()
        world.faults.down = False
        await world.until(world.ready_addresses, 0, seconds=60)


async def test_no_route_at_the_start_of_an_agent_ends_no_engine(autojump_clock):
    """The host has its address and no route to the API server: engines on that address stay."""
    async with left_by_its_agent(reach=at(ADDRESS)) as world:
        world.faults.down = True
        world.machine.reach = choose(None, NetworkView(frozenset({ADDRESS})))
        await world.start_agent()
        await trio.sleep(60)
        assert len(world.machine.spawned) == 1
        world.faults.down = False
        world.machine.reach = at(ADDRESS)
        await trio.sleep(60)
        assert await world.ready_addresses() == 1
        assert len(world.machine.spawned) == 1


async def test_a_slow_first_scan_of_the_network_ends_no_engine(autojump_clock):
    """Until the resolver has answered, an agent does not know its address, and no engine has lost it."""
    async with left_by_its_agent(settings=agent_settings(lease_renew_seconds=5.0), reach=at(ADDRESS)) as world:
        world.machine.look_seconds = 3.0
        world.first.settings = attrs.evolve(world.settings, advertise_address=None, bind_address="127.0.0.1")
        await world.start_agent()
        await trio.sleep(60)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1


async def test_requests_in_flight_end_before_the_engine_does(autojump_clock):
    """A replaced engine is out of service at once, but gets TERM only when its requests have finished."""
    async with open_world() as world:
        old = await world.serve("chat")
        old.in_flight = 2
        await world.apply("chat", contextSize=512)
        await world.until(world.ready_addresses, 0, seconds=2)
        await trio.sleep(10)
        assert world.machine.live() == [old]
        old.in_flight = 0
        await world.until(world.ready_addresses, 1, seconds=10)
        assert world.machine.live() != [old]


async def test_a_request_that_never_ends_does_not_block_a_stop_forever(autojump_clock):
    """The drain has a timeout, and an Event reports when it was too short."""
    async with open_world() as world:
        old = await world.serve("chat")
        old.in_flight = 1
        before = trio.current_time()
        await world.delete()
        await world.until(world.machine.live, [], seconds=60)
        assert 29 < trio.current_time() - before < 35
        messages = [one.message for one in (await world.client.list(Event)).items if one.reason == "RequestsCutShort"]
        assert messages == ["requests in flight cut short: not finished within 30 s"]


@pytest.mark.parametrize("late_seconds", [3, 60])
async def test_another_cluster_decides_with_its_second_list(autojump_clock, late_seconds):
    """Engines continue in a cluster that has the same manifests in time, and are stopped where it has none."""
    async with open_world() as world:
        await world.serve("chat", "embed")
        before = list(world.machine.spawned)
        world.first.agent.keep_engines()
        await world.first.stop_agent()
        for name in ("chat", "embed"):
            await world.delete(name)
        await faults_agent._empty(world.client)
        await world.start_agent()
        await trio.sleep(late_seconds)
        assert bool(world.machine.live()) == (late_seconds < 10)
        for name in ("chat", "embed"):
            await world.apply(name)
        for name in ("chat", "embed"):
            await world.until(world.ready_addresses, 1, name)
        await trio.sleep(60)
        assert (world.machine.live() == before) == (late_seconds < 10)
