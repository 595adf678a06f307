"""The first timelines: actions of users, faults, and the expected state."""

import datetime
import math
from itertools import pairwise

import pytest
import trio

from llmkube.k8s.builtins import Event
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from sim.machine import Script
from sim.world import open_world, utcnow

HOUR = 3600.0

of_hours = pytest.mark.parametrize("seconds", [HOUR, pytest.param(24 * HOUR, marks=pytest.mark.soak)])
"""Faults for an hour, or for a day: each back-off has reached its limit within half an hour."""


async def test_an_inferenceservice_becomes_ready(autojump_clock):
    """A new service is loaded, published and Ready, and its Model describes the file."""
    async with open_world() as world:
        await world.apply()
        await world.until(world.phase, "Ready", seconds=10)
        assert await world.ready_addresses() == 1
        assert (await world.condition())[:2] == ("True", "Loaded")
        assert (await world.condition("Available"))[0] == "True"
        model = await world.model()
        assert model["status"]["phase"] == "Ready"
        assert model["status"]["gguf"]["architecture"] == "llama"
        assert len(world.machine.spawned) == 1


async def test_objects_that_appear_together_make_one_engine(autojump_clock):
    """Ten services and Models in the first lists of an agent get exactly one task each."""
    async with open_world() as world:
        world.faults.down = True
        world.network.sever()
        for number in range(10):
            await world.apply(f"s{number}")
        world.faults.down = False
        await world.until(lambda: len(world.machine.live()), 10, seconds=120)
        await trio.sleep(60)
        assert len(world.machine.spawned) == 10


async def test_an_endpoint_is_not_ready_before_the_engine_answers(autojump_clock):
    """While a model loads, its slice has no ready endpoint, and the phase is Creating."""
    async with open_world() as world:
        world.machine.default = Script(load_seconds=60)
        await world.apply()
        await world.until(world.phase, "Creating", seconds=10)
        assert await world.ready_addresses() == 0
        await world.until(world.phase, "Ready", seconds=61)


async def test_a_killed_engine_is_replaced_and_its_endpoint_withdrawn_meanwhile(autojump_clock):
    """After SIGKILL the endpoint is not ready until a new engine answers; the Service keeps its ClusterIP."""
    async with open_world() as world:
        await world.apply()
        await world.until(world.ready_addresses, 1)
        before = await world.cluster_ip()
        world.machine.kill("chat")
        await world.until(world.ready_addresses, 0, seconds=1)
        await world.until(world.ready_addresses, 1, seconds=10)
        assert await world.cluster_ip() == before is not None
        assert len(world.machine.spawned) == 2


@pytest.mark.ci
@of_hours
async def test_a_crash_loop_stays_calm_and_affects_no_other_service(seconds, autojump_clock):
    """For hours a crashing engine is retried at most once a minute, and its sibling never restarts."""
    async with open_world() as world:
        words = ("error: unknown argument", "exiting")
        world.machine.scripts["bad"] = Script(load_seconds=math.inf, life_seconds=0.1, words=words)
        await world.apply("bad")
        await world.apply("good")
        await trio.sleep(seconds)
        starts = world.machine.starts("bad")
        assert seconds / 62 < len(starts) < seconds / 47
        gaps = [after - before for before, after in pairwise(starts)]
        assert gaps[0] < 1
        assert max(gaps) < 62
        status, reason, message = await world.condition(name="bad")
        assert (status, reason) == ("False", "CrashLoopBackOff")
        assert "error: unknown argument" in message
        assert await world.phase("bad") == "Failed"
        assert await world.phase("good") == "Ready"
        assert len(world.machine.starts("good")) == 1


async def test_the_next_attempt_comes_when_it_was_announced(autojump_clock):
    """The next attempt that a crash loop announces is the time at which the engine is started again."""
    async with open_world() as world:
        world.machine.scripts["chat"] = Script(load_seconds=math.inf, life_seconds=0.1)
        await world.apply()
        loaded = await world.until(world.condition, lambda seen: seen and seen[2].startswith("4 failures"), seconds=30)
        announced = datetime.datetime.fromisoformat(loaded[2].split()[8].rstrip(":"))
        before = len(world.machine.spawned)
        await world.until(lambda: len(world.machine.spawned), before + 1, step_seconds=0.1)
        assert abs((announced - utcnow()).total_seconds()) < 1.5


async def test_a_load_a_crash_and_a_refusal_are_reported_as_events(autojump_clock):
    """Each leaves an Event on the service, with the engine's own output."""
    async with open_world() as world:
        world.machine.default = Script(words=("out of memory",))
        await world.serve()
        world.machine.kill("chat")
        await trio.sleep(60)
        await world.apply(extraArgs=["--port", "1"])
        await trio.sleep(60)
        events = (await world.client.list(Event)).items
        found = {(one.type, one.reason): one.message for one in events if one.involved_object.name == "chat"}
        assert ("Normal", "Loaded") in found
        assert "out of memory" in found["Warning", "EngineExited"]
        assert "--port" in found["Warning", "Invalid"]


@pytest.mark.ci
async def test_a_crash_loop_ends_when_the_spec_changes(autojump_clock):
    """An edit restarts a crash-looping service at once, however long its back-off has become."""
    async with open_world() as world:
        world.machine.scripts["chat"] = Script(load_seconds=math.inf, life_seconds=0.1)
        await world.apply()
        await trio.sleep(1800)
        world.machine.scripts["chat"] = Script()
        before = len(world.machine.spawned)
        await world.apply(contextSize=2048)
        await trio.sleep(1)
        assert len(world.machine.spawned) == before + 1
        await world.until(world.phase, "Ready", seconds=10)


async def test_a_spec_change_restarts_exactly_once_and_keeps_the_service(autojump_clock):
    """A new context size replaces the engine once; the Service and its ClusterIP stay."""
    async with open_world() as world:
        await world.serve(contextSize=1024)
        before = await world.cluster_ip()
        await world.apply(contextSize=2048)
        await world.until(lambda: len(world.machine.spawned), 2)
        await world.until(world.phase, "Ready")
        await trio.sleep(3600)
        assert [child.argv[child.argv.index("--ctx-size") + 1] for child in world.machine.spawned] == ["1024", "2048"]
        assert await world.cluster_ip() == before


async def test_a_change_without_effect_on_the_plan_restarts_nothing(autojump_clock):
    """Fields that do not change the engine's command line restart no running model."""
    async with open_world() as world:
        await world.serve()
        await world.apply(nodeSelector={"a": "b"}, priority="high")
        await world.until(world.condition, lambda seen: seen and seen[1] == "FieldsIgnored", "SpecHonoured")
        assert "nodeSelector" in (await world.condition("SpecHonoured"))[2]
        await trio.sleep(600)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1


async def test_an_upgraded_engine_program_gets_only_flags_that_it_has(autojump_clock):
    """After an upgrade while it serves, a service that dies is started with the flags of the new build."""
    async with open_world() as world:
        await world.serve()
        version, flags = world.machine.build
        world.machine.build = version, flags - {"--flash-attn"}
        world.machine.plans["--flash-attn"] = Script(life_seconds=0.1, words=("error: unknown argument",))
        world.machine.kill("chat")
        await trio.sleep(120)
        assert await world.phase() == "Ready"
        assert "--flash-attn" not in world.machine.spawned[-1].argv


async def test_an_upgrade_that_changes_no_flag_restarts_nothing(autojump_clock):
    """A build with another name and the same command line replaces no engine."""
    async with open_world() as world:
        await world.serve()
        world.machine.build = "newer", world.machine.build[1] | {"--unheard-of"}
        await trio.sleep(600)
        assert len(world.machine.spawned) == 1


async def test_a_refused_spec_does_not_stop_the_running_engine(autojump_clock):
    """An edit without a valid plan is reported with its field, and the old engine keeps serving."""
    async with open_world() as world:
        await world.serve()
        await world.apply(extraArgs=["--port", "1"])
        await world.until(world.condition, lambda seen: seen and seen[0] == "False", "Accepted")
        _, reason, message = await world.condition("Accepted")
        assert reason == "Invalid"
        assert "spec.extraArgs" in message
        assert "--port" in message
        await trio.sleep(600)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1
        await world.apply()
        await world.until(world.condition, lambda seen: seen and seen[0] == "True", "Accepted")
        assert len(world.machine.spawned) == 1


@pytest.mark.parametrize("after_seconds", [0.0, 0.5, 3.0, 5.0, 5.01])
async def test_delete_during_start_leaves_nothing(autojump_clock, after_seconds):
    """A service leaves no process, slice or Service, whenever during its start it is deleted."""
    async with open_world() as world:
        await world.apply()
        await trio.sleep(after_seconds)
        await world.delete()
        await trio.sleep(30)
        assert not world.machine.live()
        assert not world.agent.services()
        assert await world.service() is None
        assert await world.ready_addresses() == 0
        assert await world.cluster_ip() is None


async def test_delete_and_create_again_at_once(autojump_clock):
    """An object that is replaced by one of the same name has exactly one engine."""
    async with open_world() as world:
        await world.serve()
        await world.delete()
        await world.serve(contextSize=512)
        await trio.sleep(60)
        (child,) = world.machine.live()
        assert "512" in child.argv
        assert await world.ready_addresses() == 1


async def test_zero_replicas_stop_the_process_and_one_brings_it_back(autojump_clock):
    """replicas: 0 stops the engine, withdraws the endpoint and keeps the Service; 1 starts it again."""
    async with open_world() as world:
        await world.serve()
        before = await world.cluster_ip()
        await world.apply(replicas=0)
        await world.until(world.phase, "Stopped")
        await world.until(lambda: len(world.machine.live()), 0, seconds=5)
        assert await world.ready_addresses() == 0
        await world.serve(replicas=1)
        assert await world.cluster_ip() == before


async def test_suspend_is_a_phase_of_its_own(autojump_clock):
    """A suspended service has no process, and the phase is Suspended."""
    async with open_world() as world:
        await world.apply(suspend=True)
        await world.until(world.phase, "Suspended")
        assert not world.machine.spawned


@pytest.mark.ci
@of_hours
async def test_an_api_outage_of_hours_costs_no_engine(seconds, autojump_clock):
    """While the API server is away the engine continues; afterwards its state is written."""
    async with open_world() as world:
        await world.serve()
        world.faults.down = True
        world.network.sever()
        await trio.sleep(seconds)
        assert len(world.machine.live("chat")) == 1
        world.machine.kill("chat")
        await trio.sleep(60)
        assert len(world.machine.live("chat")) == 1, "restarts do not need the API server"
        world.faults.down = False
        await world.until(world.phase, "Ready", seconds=120)
        await world.until(world.ready_addresses, 1, seconds=60)
        assert len(world.machine.spawned) == 2


async def test_a_burst_of_server_errors_kills_nothing(autojump_clock):
    """Fifty answers of 503 in a row change nothing about a running engine."""
    async with open_world() as world:
        await world.serve()
        world.faults.errors = 50
        world.network.sever()
        await trio.sleep(1200)
        assert len(world.machine.spawned) == 1
        assert await world.ready_addresses() == 1


async def test_a_deleted_model_does_not_stop_its_service(autojump_clock):
    """Deleting the Model of a running service does not stop the engine."""
    async with open_world() as world:
        await world.serve(model="weights")
        await world.client.delete(Model, Key("default", "weights"))
        await trio.sleep(600)
        assert len(world.machine.live("chat")) == 1
        assert len(world.machine.spawned) == 1


async def test_a_model_that_is_created_again_gets_its_status(autojump_clock):
    """A new Model of the old spec is Ready at once, although its service is refused; one of another spec is not."""
    async with open_world() as world:
        await world.serve()
        await world.apply(extraArgs=["--port", "1"])
        for source, ready in (("builtin://demo", True), ("builtin://other", False)):
            await world.client.delete(Model, Key("default", "chat"))
            await trio.sleep(5)
            await world.apply(extraArgs=["--port", "1"], source=source)
            await trio.sleep(5)
            assert ((await world.model())["status"]["phase"] == "Ready") is ready


async def test_one_slow_fetch_delays_no_other_service(autojump_clock):
    """While one model takes an hour to arrive, another service starts in seconds."""
    async with open_world() as world:
        world.machine.fetch_seconds["builtin://slow"] = 3600
        await world.apply("slow", source="builtin://slow")
        await world.apply("fast")
        await world.until(world.phase, "Ready", "fast", seconds=10)
        _, reason, message = await world.condition(name="slow")
        assert reason == "Fetching"
        assert "%" in message
        await world.until(world.phase, "Ready", "slow", seconds=3700, step_seconds=10)


async def test_a_new_model_is_fetched_before_the_old_engine_stops(autojump_clock):
    """A changed source costs no downtime for the fetch: the old engine serves until the new file is there."""
    async with open_world() as world:
        await world.serve()
        world.machine.fetch_seconds["builtin://other"] = 600
        await world.apply(source="builtin://other")
        await trio.sleep(500)
        assert await world.ready_addresses() == 1
        assert len(world.machine.spawned) == 1
        await world.until(lambda: len(world.machine.spawned), 2, seconds=120)
        assert world.machine.spawned[1].argv != world.machine.spawned[0].argv
        await world.until(world.phase, "Ready", seconds=30)


async def test_stop_takes_one_grace_for_all(autojump_clock):
    """Twenty engines that ignore TERM are stopped side by side within one grace period."""
    async with open_world() as world:
        world.machine.default = Script(load_seconds=1, stop_seconds=math.inf)
        for number in range(20):
            await world.apply(f"s{number}")
        await world.until(lambda: len(world.machine.live()), 20)
        before = trio.current_time()
        await world.stop_agent()
        assert not world.machine.live()
        assert trio.current_time() - before < 16
        assert all(child.exit.code == -9 for child in world.machine.spawned)


@pytest.mark.ci
async def test_an_engine_that_never_gets_ready_is_given_up(autojump_clock):
    """A load without progress for two minutes is reported and tried again."""
    async with open_world() as world:
        world.machine.default = Script(load_seconds=math.inf, stalls_after=600)
        await world.apply()
        await trio.sleep(600 + 119)
        assert len(world.machine.spawned) == 1
        await world.until(lambda: len(world.machine.spawned), 2, seconds=15)
        await world.until(world.condition, lambda seen: seen[1] == "LoadStalled", seconds=800, step_seconds=0.1)
        assert await world.phase() == "Failed"
        assert await world.ready_addresses() == 0


async def test_a_service_that_no_host_can_serve_is_not_served(autojump_clock):
    """A service for an accelerator that no host has is ignored by this one."""
    async with open_world() as world:
        await world.apply(accelerator="cuda")
        await trio.sleep(120)
        assert not world.machine.spawned
