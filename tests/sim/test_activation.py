"""Services that are loaded when a request needs them: several, and too little memory to load each."""

from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.resource import Key
from llmkube.programs.one_machine import AgentDirectory
from llmkube.router.backends import Backend
from llmkube.router.dispatch.holds import HeldRequest, Holds
from llmkube.router.refusals import RefusedError
from llmkube.supervisor.engine.door import LineReader
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.values.door_state import DoorEntry, DoorReport, dump_line, load_line
from sim.clients import SimClient
from sim.machine import Script
from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world
from supervisor.service.known import Door

pytestmark = pytest.mark.ci

FIVE = ("a", "b", "c", "d", "e")
SETTINGS = agent_settings(advertise_address=None, activation="OnRequest")


@asynccontextmanager
async def activating(*names, gib=20, **spec):
    """Run a host like that of `llmkube up`, on which two of these services fit at a time."""
    memory = partial(SimMemory, sizes=dict.fromkeys(FIVE, gib))
    async with open_world(settings=SETTINGS, memory=memory) as world:
        world.machine.shapes |= {f"builtin://{name}": shape_of(gib) for name in FIVE}
        for name in names:
            await deploy(world, name, **spec)
        yield world


async def deploy(world, name, **spec):
    await world.apply(name, source=f"builtin://{name}", **spec)
    await world.until(loads, lambda count: count > 0, world, name, seconds=60)
    await world.until(world.phase, lambda phase: phase in {"Ready", "Idle"}, name, seconds=60)


def loads(world, name):
    return len(world.machine.starts(name))


def resident(world):
    return sorted(name for name in FIVE if world.machine.live(name))


def directory(world):
    return AgentDirectory(world.agent.services, lambda: world.agent.changed.version)


async def answered(world, name, *, seconds=0.0, limit=120.0, tenant=""):
    """Send a request as the gateway does; return its answer, the obstacle, or None if it has waited too long."""
    service, models = f"default/{name}", directory(world)
    await world.until(models.lookup, lambda found: found is not None, name)
    with trio.move_on_after(limit), world.agent.activator.using(service, tenant) as hold:
        if not isinstance(models.lookup(name), Backend):
            with hold():
                while (found := models.lookup(name)) and not isinstance(found, Backend) and found.wakes:
                    await world.agent.activator.wait_changed(service)
        found = models.lookup(name)
        if isinstance(found, Backend):
            (engine,) = world.machine.live(name)
            engine.in_flight += 1
            await trio.sleep(seconds)
            engine.in_flight -= 1
            assert engine.ready, "the answer was cut"
        return found
    return None


async def is_idle(world, name):
    available, loaded = await world.condition("Available", name), await world.condition("Loaded", name)
    model = directory(world).lookup(name)
    shown = not isinstance(model, Backend) and (model.reason, model.state.value, model.wakes)
    found = (available[:2], loaded[:2], await world.phase(name), shown)
    return found == (("True", "Idle"), ("False", "Idle"), "Idle", ("Idle", "unloaded", True))


async def test_five_models_and_memory_for_two(autojump_clock):
    """Each loads once when it is deployed, then requests to each in turn are answered; the others are idle."""
    async with activating(*FIVE) as world:
        assert [loads(world, name) for name in FIVE] == [1] * 5
        for name in FIVE + FIVE:
            assert isinstance(await answered(world, name, seconds=3), Backend)
        assert len(resident(world)) == 2
        assert world.machine.memory.lowest_bytes >= 0
        for name in set(FIVE) - set(resident(world)):
            await world.until(is_idle, True, world, name, seconds=10)
            status = (await world.service(name))["status"]
            assert (status["activation"], status["readyReplicas"]) == ("OnRequest", 0)
            assert directory(world).lookup(name).estimated_seconds >= 5


async def test_no_model_with_a_request_is_displaced(autojump_clock):
    """A third model waits until a request of the first two has ended; a client that leaves withdraws its request."""
    async with activating(*FIVE[:3]) as world, trio.open_nursery() as nursery:
        ends = {}

        async def ask(name, seconds):
            assert isinstance(await answered(world, name, seconds=seconds), Backend)
            ends[name] = trio.current_time()

        await answered(world, "a")
        nursery.start_soon(ask, "a", 60)
        nursery.start_soon(ask, "b", 100)
        await world.until(resident, ["a", "b"], world)
        before = loads(world, "c")
        assert await answered(world, "c", limit=20) is None
        await trio.sleep(1)
        await world.until(is_idle, True, world, "c", seconds=10)
        await ask("c", 0)
        assert (resident(world), loads(world, "c")) == (["b", "c"], before + 1)
        assert ends["a"] < ends["c"] < ends["a"] + 30  # it has been loaded a moment ago, twice


async def test_a_model_does_not_starve_beside_busy_ones(autojump_clock):
    """After a minute new requests to one of them wait, its answers end, the third is loaded, and all are answered."""
    async with activating(*FIVE[:3]) as world, trio.open_nursery() as nursery:
        done, models = trio.Event(), directory(world)

        async def chat(name):
            while not done.is_set():
                assert isinstance(await answered(world, name, seconds=20, limit=300), Backend)

        await answered(world, "a")
        await answered(world, "b")
        for name in ("a", "b"):
            nursery.start_soon(chat, name)
        await trio.sleep(10)
        for name in ("a", "b"):
            nursery.start_soon(chat, name)
        began_at, waits = trio.current_time(), {}

        async def ask():
            assert isinstance(await answered(world, "c", limit=300), Backend)
            waits["c"] = trio.current_time() - began_at

        nursery.start_soon(ask)
        await trio.sleep(5)
        assert "the swap is delayed by" in (await world.condition("Loaded", "c"))[2]
        assert 55 <= models.lookup("c").as_of(trio.current_time()).retry_seconds <= 65
        await trio.sleep(56)
        (closed,) = [found for name in ("a", "b") if not isinstance(found := models.lookup(name), Backend)]
        assert (closed.message, closed.wakes) == ("it is unloaded for `c` once its requests have ended", True)
        assert resident(world) == ["a", "b"]
        await world.until(waits.get, lambda wait: wait is not None, "c", seconds=60)
        assert 60 < waits["c"] < 60 + 20 + 15
        done.set()


@pytest.mark.parametrize(("tenants", "p95", "times"), [(("a", "a"), (60, 120), 6), (("a", "b"), (0, 30), 1)])
async def test_a_tenant_with_many_swaps_delays_another_one_by_a_bounded_time(autojump_clock, tenants, p95, times):
    """One uses four models all the time, the other a fifth one now and then: its p95 wait and its loads are fewer."""
    async with activating(*FIVE) as world, trio.open_nursery() as nursery:

        async def loop(name):
            while True:
                assert isinstance(await answered(world, name, seconds=20, limit=600, tenant=tenants[0]), Backend)

        for name in "abcd":
            nursery.start_soon(loop, name)
            await trio.sleep(10)
            nursery.start_soon(loop, name)
        await trio.sleep(120)
        waits, before = [], loads(world, "e")
        for _ in range(6):
            began_at = trio.current_time()
            assert isinstance(await answered(world, "e", seconds=8, limit=600, tenant=tenants[1]), Backend)
            waits.append(trio.current_time() - 8 - began_at)
            await trio.sleep(100)
        assert p95[0] < sorted(waits)[len(waits) * 95 // 100] < p95[1]
        assert loads(world, "e") - before <= times
        assert min(loads(world, name) for name in "abcd") > 2
        nursery.cancel_scope.cancel()


async def test_a_request_that_waits_for_its_own_model_to_end(autojump_clock):
    """A model asks one that needs its memory: that request ends at its bound, and the first one is answered."""
    async with activating(*FIVE[:2], gib=30) as world:
        await answered(world, "a")
        before = loads(world, "b")
        with world.agent.activator.using("default/a"):
            assert await answered(world, "b", limit=90) is None
            assert resident(world) == ["a"]
            assert (await answered(world, "a", limit=10)) is not None
        await trio.sleep(1)
        assert (resident(world), loads(world, "b")) == (["a"], before)
        assert isinstance(await answered(world, "b"), Backend)


async def test_a_request_on_its_way_to_the_engine_is_not_cut(autojump_clock):
    """An engine stops after the answers to all requests that were routed to it, also if it does not know of one yet."""
    async with activating("a") as world:
        with world.agent.activator.using("default/a"):
            assert isinstance(directory(world).lookup("a"), Backend)
            await world.apply("a", source="builtin://a", replicas=0)
            await world.until(directory(world).lookup, lambda found: not isinstance(found, Backend), "a")
            (engine,) = world.machine.live("a")
            await trio.sleep(10)
            assert (engine.in_flight, engine.ready) == (0, True)
        await trio.sleep(2)
        assert not resident(world)


async def ended_during(world, stop, seconds=100.0):
    """Send a request to `a`, call `stop` once the engine has it; return the answer, and the time until the exit."""
    async with trio.open_nursery() as nursery:
        (engine,), begun, found = world.machine.live("a"), trio.current_time(), []

        async def ask():
            found.append(await answered(world, "a", seconds=seconds))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        await stop()
        await engine.ended.wait()
    return found[0], trio.current_time() - begun


async def test_a_request_during_an_unload_is_not_cut(autojump_clock, monkeypatch):
    """It arrives after the decision, while the journal is written: it waits, and loads the model again."""
    async with activating("a") as world, trio.open_nursery() as nursery:
        (engine,), write = world.machine.live("a"), type(world.machine).write
        writing, written = trio.Event(), trio.Event()

        async def write_late(machine, entry):
            writing.set()
            await written.wait()
            await write(machine, entry)

        monkeypatch.setattr(type(world.machine), "write", write_late)
        world.agent.activator.unload("default/a")
        await writing.wait()
        nursery.start_soon(partial(answered, world, "a", seconds=100))
        await trio.testing.wait_all_tasks_blocked()
        assert (engine.in_flight, directory(world).lookup("a").wakes) == (0, True)
        written.set()
        await engine.ended.wait()
        await world.until(lambda: [each.in_flight for each in world.machine.live("a")], [1], seconds=60)


def evict_for_others(world, name, cause=Cause.WARNING):
    ledger = world.agent.activator.gate_of(Key("default", name)).ledger
    evict = Eviction(Key("default", name), cause, "memory is short")
    ledger.carry_out(ledger.book.evict(evict, trio.current_time()))


async def test_an_eviction_cuts_a_request_only_if_memory_is_critically_short(autojump_clock):
    """Otherwise it takes the time of the longest answer, and a client that leaves meanwhile leaves nothing to load."""
    for cause, longest in ((Cause.WARNING, 110), (Cause.CRITICAL, 10)):
        async with activating("a") as world:

            async def evict(cause=cause, world=world):
                evict_for_others(world, "a", cause)
                await trio.lowlevel.checkpoint()

            if cause is Cause.CRITICAL:
                with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="the answer was cut")):
                    await ended_during(world, evict)
            else:
                found, seconds = await ended_during(world, evict)
                assert (isinstance(found, Backend), 100 <= seconds <= longest) == (True, True)
                await world.until(is_idle, True, world, "a", seconds=20)


async def test_a_shorter_hold_applies_to_requests_that_wait_already(autojump_clock):
    """An edit of `maxHold` ends their wait at the new bound, although nothing else happens meanwhile."""
    async with activating("a") as world, trio.open_nursery() as nursery:
        world.agent.activator.unload("default/a")
        await world.until(is_idle, True, world, "a", seconds=30)
        world.machine.scripts["a"], ends = Script(load_seconds=300), []
        models, begun = directory(world), trio.current_time()

        async def ask():
            holds, held = Holds(models, world.agent.activator), HeldRequest("somebody", begun, SimClient(), None)
            with holds.using(models.lookup("a"), "") as hold, pytest.raises(RefusedError):
                await holds.wait("a", held, hold)
            ends.append(trio.current_time() - begun)

        nursery.start_soon(ask)
        await trio.sleep(20)
        await world.apply("a", source="builtin://a", activation={"maxHold": "40s"})
        await world.until(ends.copy, lambda found: len(found) == 1, seconds=400)
        assert ends == [pytest.approx(40, abs=1)]


async def test_idle_timeout_pin_and_unload(autojump_clock):
    """A model is unloaded after its timeout, never while it is in use; a pinned one stays; `unload` ends a pin."""
    async with activating("a", activation={"idleTimeout": "30s", "maxHold": "90s"}) as world:
        activator = world.agent.activator
        await trio.sleep(20)
        await answered(world, "a", seconds=60)
        await trio.sleep(25)
        assert resident(world) == ["a"]
        await world.until(is_idle, True, world, "a", seconds=10)
        assert directory(world).lookup("a").hold_seconds == 90
        activator.pin("default/a", None)
        await world.until(resident, ["a"], world)
        await trio.sleep(600)
        assert resident(world) == ["a"]
        for name in ("b", "c"):
            await world.apply(name, source=f"builtin://{name}", activation={"pin": name == "b"})
        await world.until(world.phase, "Ready", "b")
        assert await answered(world, "c") is None
        assert resident(world) == ["a", "b"]
        assert activator.unload("default/a")
        assert isinstance(await answered(world, "c"), Backend)
        assert resident(world) == ["b", "c"]
        assert not activator.unload("default/a")
        assert not activator.unload("default/none")
        await answered(world, "a")
        await trio.sleep(20)
        assert resident(world) == ["a", "b"]


async def test_a_client_that_keeps_a_model_does_not_reload_a_displaced_one(autojump_clock):
    """`keep_alive` takes effect at the end of an answer, when another model may have got the memory."""
    async with activating("a", "b") as world:
        activator = world.agent.activator
        activator.pin("default/b", None)
        with activator.using("default/a"):
            await world.apply("c", source="builtin://c", priority="high")
            await trio.sleep(20)
        activator.pin("default/a", 300)
        await world.until(is_idle, True, world, "a", seconds=60)


async def test_a_failed_load_is_not_repeated_by_itself(autojump_clock):
    """Requests fail at once with the engine's reason until the back-off has ended; an edit tries again."""
    async with activating("a") as world:
        activator = world.agent.activator
        activator.unload("default/a")
        await world.until(is_idle, True, world, "a", seconds=30)
        world.machine.scripts["a"] = Script(life_seconds=2)
        for _ in range(4):
            assert getattr(await answered(world, "a"), "reason", "") == "CrashLoopBackOff"
            started = loads(world, "a")
            assert getattr(await answered(world, "a", limit=0.01), "reason", "") == "CrashLoopBackOff"
            assert loads(world, "a") == started
            await trio.sleep(15)
        started = loads(world, "a")
        await world.until(world.phase, "Failed", "a")
        assert (await world.condition("Available", "a"))[:2] == ("False", "CrashLoopBackOff")
        await trio.sleep(600)
        await world.stop_agent()
        await world.start_agent()
        await trio.sleep(60)
        assert loads(world, "a") == started
        assert (await world.condition("Available", "a"))[:2] == ("False", "CrashLoopBackOff")
        world.machine.scripts["a"] = Script()
        await world.apply("a", source="builtin://a", priority="high")
        await world.until(world.phase, "Ready", "a")


async def test_a_failed_load_of_a_pinned_model_is_repeated(autojump_clock):
    """A pinned model stays loaded without requests, so that its engine is started again after a back-off."""
    async with activating("a", activation={"pin": True}) as world:
        world.machine.scripts["a"] = Script(life_seconds=2)
        world.machine.kill("a")
        await world.until(world.phase, "Failed", "a", seconds=600)
        world.machine.scripts["a"] = Script()
        await world.until(world.phase, "Ready", "a", seconds=600)


async def test_a_request_waits_while_a_load_is_repeated_at_once(autojump_clock):
    """Another program takes the port of the first engine: the second one gets another, and the request its answer."""
    async with activating("a") as world, trio.open_nursery() as nursery:
        world.agent.activator.unload("default/a")
        await world.until(is_idle, True, world, "a", seconds=30)
        world.machine.scripts["a"], found, count = Script(intruder=True), [], loads(world, "a")

        async def ask():
            found.append(await answered(world, "a"))

        nursery.start_soon(ask)
        await world.until(loads, count + 1, world, "a")
        world.machine.scripts["a"] = Script()
        await world.until(loads, count + 2, world, "a")
        await world.until(found.copy, lambda answers: len(answers) == 1)
        assert isinstance(found[0], Backend)


@pytest.mark.parametrize("verb", ["load", "run"])
async def test_a_load_of_what_is_loaded_ends_at_once(autojump_clock, verb):
    """The user waits for nothing any more: after an eviction for other programs the model is not loaded again."""
    async with activating("a") as world:
        world.agent.activator.load("default/a") if verb == "load" else await annotate(world, "a", "load")
        await trio.sleep(10)
        evict_for_others(world, "a")
        await trio.sleep(600)
        assert loads(world, "a") == 1
        await world.until(is_idle, True, world, "a")


async def test_a_request_for_a_model_that_never_fits_fails_at_once(autojump_clock):
    """Nothing makes room for it, however long a request waits."""
    async with activating() as world:
        world.machine.shapes["builtin://b"] = shape_of(100)
        await world.apply("b", source="builtin://b")
        await world.until(world.phase, "Failed", "b", seconds=60)
        begun = trio.current_time()
        assert ((await answered(world, "b")).reason, trio.current_time()) == ("ExceedsMemory", begun)


async def annotate(world, name, verb):
    at = f"{trio.current_time():020.6f}"
    body = {"metadata": {"annotations": {f"inference.llmkube.dev/{verb}-requested-at": at}}}
    await world.client.patch(InferenceService, Key("default", name), body)


async def test_a_user_unloads_a_model_until_the_next_request(autojump_clock):
    """`llmkube stop` cuts no request, also of a pinned model, and is not repeated by the next agent."""
    async with activating("a", activation={"pin": True}) as world, trio.open_nursery() as nursery:
        nursery.start_soon(partial(answered, world, "a", seconds=30))
        await trio.sleep(10)
        await annotate(world, "a", "unload")
        await trio.sleep(15)
        assert resident(world) == ["a"]
        await world.until(is_idle, True, world, "a", seconds=30)
        assert isinstance(await answered(world, "a"), Backend)
        await world.stop_agent()
        await world.start_agent()
        await trio.sleep(60)
        assert resident(world) == ["a"]


@pytest.mark.parametrize("mode", ["Always", "OnRequest"])
async def test_a_user_ends_a_back_off(autojump_clock, mode):
    """After several failures the next attempt is minutes away; `deploy` and `run` start it now."""
    async with activating("a", activation={"mode": mode}) as world:
        world.machine.scripts["a"] = Script(life_seconds=2)
        world.machine.kill("a")
        await trio.sleep(600)
        await world.until(world.phase, "Failed", "a", seconds=60)
        world.machine.scripts["a"] = Script()
        await trio.sleep(10)
        assert not resident(world)
        await annotate(world, "a", "load")
        await world.until(world.phase, "Ready", "a", seconds=10)


async def test_a_restart_keeps_what_is_resident_and_idle(autojump_clock):
    """The next agent adopts what was loaded, and loads nothing else, even without the API server."""
    async with activating(*FIVE[:3]) as world:
        before = resident(world), len(world.machine.spawned)
        await world.kill_agent()
        world.faults.down = True
        await world.start_agent()
        await trio.sleep(150)
        assert (resident(world), len(world.machine.spawned)) == before
        assert directory(world).lookup("a").estimated_seconds >= 5
        assert isinstance(await answered(world, "a"), Backend)
        world.faults.down = False
        await trio.sleep(60)
        assert "a" in resident(world)
        before = resident(world), len(world.machine.spawned)
        await world.stop_agent()
        await world.start_agent()
        await world.until(resident, before[0], world)
        await trio.sleep(60)
        assert (resident(world), len(world.machine.spawned)) == (before[0], before[1] + 2)


@pytest.mark.parametrize("at_once", [False, True])
async def test_an_engine_is_adopted_before_it_is_unloaded(autojump_clock, at_once):
    """The idle time of an adopted engine begins again; one that is unloaded before it is adopted is stopped."""
    async with activating("a", activation={"idleTimeout": "30s"}) as world:
        await trio.sleep(10)
        await world.kill_agent()
        await trio.sleep(100)
        await world.start_agent()
        while (gate := world.agent.activator.gate_of(Key("default", "a"))) is None:
            await trio.lowlevel.checkpoint()
        if at_once:
            gate.change(gate.activation.unload())
        else:
            await trio.sleep(25)
            assert resident(world) == ["a"]
        await world.until(resident, [], world, seconds=60)
        assert loads(world, "a") == 1


async def test_what_does_not_wake(autojump_clock):
    """A stopped service is not loaded by a request, nor an idle one by an edit; a start loads it."""
    async with activating("a") as world:
        world.agent.activator.unload("default/a")
        await world.until(is_idle, True, world, "a", seconds=30)
        await world.apply("a", source="builtin://a", contextSize=2048)
        await trio.sleep(30)
        assert (await world.condition("UpToDate", "a"))[0] == "True"
        assert (loads(world, "a"), await is_idle(world, "a")) == (1, True)
        await world.apply("a", source="builtin://a", contextSize=2048, replicas=0)
        await world.until(world.phase, "Stopped", "a")
        assert (await answered(world, "a")).reason == "ScaledToZero"
        assert not resident(world)
        await world.apply("a", source="builtin://a", contextSize=2048)
        await world.until(world.phase, "Ready", "a")


async def test_a_service_that_is_always_loaded(autojump_clock):
    """It is displaced by no equal, and displaces no equal; a more important one of either mode displaces it."""
    async with activating("a", "b", activation={"mode": "Always"}) as world:
        await world.apply("c", source="builtin://c")
        assert await answered(world, "c") is None
        assert resident(world) == ["a", "b"]
        assert directory(world).lookup("c").reason == "InsufficientMemory"
        await world.apply("d", source="builtin://d", priority="high")
        assert isinstance(await answered(world, "d"), Backend)
        assert len(resident(world)) == 2
        assert "d" in resident(world)


async def pool(world, *members, **spec):
    """Create or change a ModelPool, and wait until the host has it."""
    refs = [{"inferenceServiceRef": {"name": name}} for name in members]
    await world.apply_pool("slot", {"members": refs, **spec})
    await trio.sleep(5)


async def waits_for_pool(world, name):
    _, reason, message = await world.condition("Loaded", name)
    return reason == "WaitingForPool" and "ModelPool default/slot: its GPUs are used by `a`" in message


async def test_members_of_a_pool_take_turns_on_a_host(autojump_clock):
    """They are loaded on request one after the other, also a less important one; others are not affected."""
    async with activating("a", "b", "c", gib=8) as world:
        for name, priority in (("a", "high"), ("b", "low")):
            await world.apply(name, source=f"builtin://{name}", priority=priority, activation={"mode": "Always"})
        await pool(world, "a", "b", gpu=2)
        await trio.sleep(60)
        assert resident(world) == ["a", "b", "c"]
        await pool(world, "a", "b")
        await world.until(resident, ["a", "c"], world)  # b is less important
        for name in ("a", "c", "b", "a", "b"):
            assert isinstance(await answered(world, name, seconds=3, limit=900), Backend)
        assert resident(world) == ["b", "c"]
        assert (await world.service("b"))["status"]["activation"] == "OnRequest"
        await world.client.delete(ModelPool, Key("default", "slot"))
        await world.until(resident, ["a", "b", "c"], world)


@pytest.mark.parametrize(("policy", "waits"), [("sticky", True), ("priority", False)])
async def test_a_busy_member_leaves_after_the_swap_budget(autojump_clock, policy, waits):
    """No request is cut; with `priority`, its door is closed at once for a more important member."""
    async with activating("a", "b", gib=8) as world, trio.open_nursery() as nursery:
        await world.apply("b", source="builtin://b", priority="high")
        await pool(world, "a", "b", swapPolicy=policy, swapBudget="200s")
        done = trio.Event()

        async def chat():
            while not done.is_set():
                assert isinstance(await answered(world, "a", seconds=15, limit=900), Backend)

        await answered(world, "a", limit=900)
        await trio.sleep(60)
        nursery.start_soon(chat)
        await trio.sleep(1)
        begun = trio.current_time()
        nursery.start_soon(partial(answered, world, "b", limit=900))
        await world.until(waits_for_pool, True, world, "b")
        await world.until(resident, ["b"], world, seconds=400)
        assert (trio.current_time() - begun > 150) is waits
        done.set()


async def test_the_default_member_of_a_pool(autojump_clock):
    """It is loaded first, and again once the other one is unloaded; it displaces no service outside the pool."""
    async with activating("a", "b") as world:
        await world.apply("e", source="builtin://e", suspend=True)
        await pool(world, "a", "b", "e", default="a")
        await world.apply("b", source="builtin://b", activation={"idleTimeout": "30s"})
        await world.until(resident, ["a"], world)
        assert isinstance(await answered(world, "b", seconds=3, limit=900), Backend)
        assert resident(world) == ["b"]
        await world.until(resident, ["a"], world, seconds=120)
        async with trio.open_nursery() as nursery:
            for name in ("c", "d"):
                await deploy(world, name)
                nursery.start_soon(partial(answered, world, name, seconds=300, limit=900))
        await trio.sleep(600)
        assert resident(world) == ["c", "d"]


async def test_a_host_that_may_not_read_pools_serves(autojump_clock):
    """Its role is that of an earlier version."""
    async with open_world(settings=SETTINGS) as world:
        world.faults.forbids = lambda request: request.url.path.endswith("/modelpools")
        await world.stop_agent()
        await world.start_agent()
        await world.serve()


@asynccontextmanager
async def two_hosts():
    """Run two such hosts, `sim` and `mini`."""
    memory = partial(SimMemory, sizes=dict.fromkeys(FIVE, 20))
    async with open_world(settings=attrs.evolve(SETTINGS, lease_renew_seconds=5.0), memory=memory) as world:
        mini = await world.add_host("mini", memory=memory)
        for host in world.hosts.values():
            host.machine.shapes |= {f"builtin://{name}": shape_of(20) for name in FIVE}
        await trio.sleep(10)
        yield world, mini


async def test_an_idle_service_moves_to_a_host_that_can_load_it(autojump_clock):
    """Beside pinned models no request can load it: the other host gets its claim, and loads it for the next request.

    It stays while there are no requests, if the other host lacks the memory, and if that does not take it in time.
    """
    async with two_hosts() as (world, mini):
        mini.machine.memory.other = 62
        await trio.sleep(30)
        for name in "cab":
            await deploy(world, name, activation={"pin": name != "c"})
        await world.until(is_idle, True, world, "c", seconds=60)
        assert await answered(world, "c", limit=60) is None
        mini.machine.memory.other = 8
        await trio.sleep(60)
        assert await world.claims("c") == {0: "sim"}
        mini.cut_off()
        assert not isinstance(await answered(world, "c", limit=60), Backend)
        await world.until(world.claims, {}, "c", seconds=10)
        await world.until(world.claims, {0: "sim"}, "c", seconds=60)
        await world.until(is_idle, True, world, "c", seconds=60)
        mini.cut_off(False)
        await trio.sleep(60)
        assert not isinstance(await answered(world, "c", limit=60), Backend)
        await world.until(world.claims, {0: "mini"}, "c", seconds=10)
        await world.until(world.phase, "Idle", "c", seconds=10)
        with mini.agent.activator.using("default/c"):
            await world.until(world.live, ["mini"], "c", seconds=60)
        assert resident(world) == ["a", "b"]


async def test_requests_at_the_door_follow_a_service_that_moves(autojump_clock, nursery):
    """They wait at the first host until the other one accepts them; then its door is sent where."""
    door, key, seen = Door(), Key("default", "c"), []

    async def read():
        reader = LineReader(door.stream)
        while lines := await reader.read_lines():
            seen.extend(entry for of, entry in (load_line(DoorEntry, line) for line in lines) if of == key)

    async def report(requests):
        await door.stream.send_all(dump_line(key, DoorReport(requests, arrived=1)))

    async with two_hosts() as (world, mini):
        await world.stop_agent()
        world.first.door = door
        door.is_open.set()
        mini.machine.memory.other = 62
        await world.start_agent()
        await trio.sleep(30)
        for name in "cab":
            await deploy(world, name, activation={"pin": name != "c"})
        await world.until(is_idle, True, world, "c", seconds=60)
        mini.machine.memory.other = 8
        await trio.sleep(60)
        nursery.start_soon(read)
        await report(1)
        await world.until(world.claims, {0: "mini"}, "c", seconds=60)
        await trio.sleep(5)
        assert seen[-1].view.on_request
        assert not any(each is None or each.moved_to for each in seen)
        with mini.agent.activator.using("default/c"):
            await world.until(lambda: seen[-1].moved_to, bool, seconds=60)
        assert seen[-1].moved_to[0] == mini.settings.advertise_address
        await report(0)
        await world.until(lambda: seen[-1], None, seconds=5)


async def test_a_request_wakes_one_of_two_replicas(autojump_clock):
    """That of the host on which it arrives; the other one stays unloaded."""
    async with two_hosts() as (world, _):
        await world.apply("a", source="builtin://a", replicas=2, activation={"idleTimeout": "10s"})
        await world.until(world.claims, {0: "mini", 1: "sim"}, "a", seconds=60)
        await world.until(world.live, ["mini"], "a", seconds=60)  # loaded once, since it is new
        await world.until(world.live, [], "a", seconds=60)
        with world.agent.activator.using("default/a"):
            await world.until(world.live, ["sim"], "a", seconds=60)
            await trio.sleep(60)
            assert world.live("a") == ["sim"]
            assert (await world.condition("Available", "a"))[0] == "True"
