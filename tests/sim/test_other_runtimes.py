"""Engines of other runtimes are admitted, evicted, returned, watched and drained like those of llama.cpp."""

import attrs
import pytest
import trio

from llmkube.runtimes.allowances import Allowances, EngineTemplate
from llmkube.runtimes.process import host_runtimes
from llmkube.runtimes.process.host_runtime import EngineQueries
from sim import connection
from sim.machine import Script
from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world

RUNTIMES = ("mlx-lm", "vllm-metal", "generic")
OWN_ARGS = ("--served-model-name", "other", "--host", "{host}", "--port", "{port}")
OWN = EngineTemplate("own", OWN_ARGS, memory="25Gi", formats=("mlx",), ready_pattern="loading")
OTHER = "hf://org/mlx"


def mac(**settings):
    allowances = Allowances(engines={"own": OWN})
    return open_world(settings=agent_settings(allowances=allowances, **settings), memory=SimMemory)


def prepare(world, gib=25.0):
    """Install the programs, and set the sizes of both models."""
    world.machine.programs |= {*RUNTIMES, "generic/own"} - {"generic"}
    world.machine.shapes |= {"builtin://demo": shape_of(30.0), OTHER: attrs.evolve(shape_of(gib), format="mlx")}
    world.machine.memory.sizes |= {"other": gib, "chat": 30.0}


async def serve_other(world, runtime, **spec):
    own = {"engine": {"name": "own"}} if runtime == "generic" else {}
    await world.apply("other", source=OTHER, weights="mlx", runtime=runtime, **own, **spec)


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_it_is_displaced_and_returns(autojump_clock, runtime):
    """A more important service gets the memory of the displaced process, which returns when that one is gone."""
    async with mac() as world:
        prepare(world)
        await serve_other(world, runtime, priority="low")
        await world.until(world.ready_addresses, 1, "other")
        await world.apply("chat", priority="critical")
        await world.until(world.ready_addresses, 1, "chat", seconds=300)
        assert world.machine.live("other") == []
        assert await world.ready_addresses("other") == 0
        assert world.machine.memory.lowest_bytes >= 0
        await world.delete("chat")
        await world.until(world.ready_addresses, 1, "other", seconds=600)


async def test_the_runtime_in_the_status_is_the_one_that_the_host_has_chosen(autojump_clock):
    """The API server writes llamacpp into a spec without a runtime; weights in mlx get mlx-lm."""
    async with mac() as world:
        prepare(world)
        await world.serve("other", source=OTHER, weights="mlx")
        await world.until(world.service, lambda seen: seen["status"].get("runtime") == "mlx-lm", "other")
        assert (await world.service("other"))["spec"]["runtime"] == "llamacpp"


async def test_a_model_that_is_too_large_is_never_started(autojump_clock):
    """The estimate from its headers is used as for llama.cpp: no process, and the figures in the condition."""
    async with mac() as world:
        prepare(world, gib=100.0)
        await serve_other(world, "mlx-lm")
        await trio.sleep(60)
        assert world.machine.spawned == []
        _, reason, _ = await world.condition(name="other")
        assert reason == "ExceedsMemory"


async def test_a_host_without_the_program_names_its_package(autojump_clock):
    """A service whose runtime is missing waits, and is started when the program is installed."""
    async with mac() as world:
        prepare(world)
        world.machine.programs -= {"mlx-lm"}
        await serve_other(world, "mlx-lm")
        await trio.sleep(60)
        assert world.machine.spawned == []
        world.machine.programs |= {"mlx-lm"}
        await world.until(world.ready_addresses, 1, "other", seconds=120)


async def end_first(runtime):
    """Delete a service with a request in flight: it gets TERM only afterwards."""
    async with mac(drain_seconds=30.0) as world:
        prepare(world)
        await serve_other(world, runtime)
        await world.until(world.ready_addresses, 1, "other")
        (child,) = world.machine.live("other")
        child.in_flight = 1
        await world.delete("other")
        await trio.sleep(15)
        assert child.exit is None, "the request was cut"
        child.in_flight = 0
        await trio.sleep(5)
        assert child.exit is not None


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_requests_in_flight_end_first(autojump_clock, runtime):
    """Its own metrics show that a request is in flight."""
    await end_first(runtime)


async def test_requests_in_flight_of_an_engine_that_does_not_count_them_end_first(autojump_clock, monkeypatch):
    """A later version has other metrics: the proxy in front of it reports requests in flight."""
    monkeypatch.setitem(connection.METRICS, "vllm", "vllm:of_a_later_version {} {}\n")
    await end_first("vllm-metal")


@pytest.mark.soak
async def test_mutant_an_engine_whose_numbers_are_not_read(autojump_clock, monkeypatch):
    """Without metrics of the engine and without a proxy, a request is cut short."""
    monkeypatch.setitem(connection.METRICS, "proxy", "")
    monkeypatch.setitem(
        host_runtimes.HOST_RUNTIMES,
        "mlx-lm",
        attrs.evolve(host_runtimes.HOST_RUNTIMES["mlx-lm"], queries=EngineQueries(metrics_path="/metrics")),
    )
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="the request was cut"), flatten_subgroups=True):
        await end_first("mlx-lm")


async def test_an_engine_that_this_host_does_not_have_waits_for_its_owner(autojump_clock):
    """The message names the table to add; the objects are valid."""
    async with mac() as world:
        prepare(world)
        await world.apply("other", source=OTHER, weights="mlx", runtime="generic", engine={"name": "theirs"})
        await trio.sleep(60)
        assert world.machine.spawned == []
        _, reason, message = await world.condition(name="other")
        assert reason == "EngineNotFound"
        assert 'engine "theirs" is not configured on this host; add [engines.theirs] to config.toml' in message


async def test_an_engine_of_the_owners_serves_once_its_log_has_the_line(autojump_clock):
    """A health check that answers is not enough; without the line the engine gets no request."""
    async with mac() as world:
        prepare(world)
        world.machine.plans["other"] = Script(words=("hello",))
        await serve_other(world, "generic")
        await trio.sleep(60)
        assert await world.ready_addresses("other") == 0
        (child,) = world.machine.live("other")
        child.script = attrs.evolve(child.script, words=("hello", "loading"))
        await world.until(world.ready_addresses, 1, "other")


async def test_vllm_listens_on_loopback_behind_a_proxy_with_keys(autojump_clock):
    """An engine without keys of its own listens on the loopback address, and clients connect to the proxy."""
    async with mac() as world:
        prepare(world)
        await serve_other(world, "vllm-metal")
        await world.until(world.ready_addresses, 1, "other")
        (child,) = world.machine.live("other")
        host = child.argv[child.argv.index("--host") + 1]
        assert host == "127.0.0.1"
        assert child.address != (host, child.port)
        assert not {"--api-key", "--api-key-file"} & set(child.argv)
