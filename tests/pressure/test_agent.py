"""Memory pressure with the whole agent: objects in, conditions, Events and endpoints out."""

import pytest
import trio

from llmkube.k8s.builtins import Event
from llmkube.k8s.wire.names import MEMORY_BUDGET_ANNOTATION, MEMORY_FREE_ANNOTATION
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.policy import Mode, Policy
from pressure.hosts import events, pressed_world, running, serve, why
from sim.machine import Script
from sim.memory import GIB, shape_of

pytestmark = pytest.mark.ci


@pytest.fixture
async def world():
    """Run the usual host."""
    async with pressed_world() as world:
        yield world


async def test_a_browser_opens_and_closes(autojump_clock, world):
    """The least important service is evicted and returns, with the reason in status and Events; the others continue."""
    world.machine.memory.other = 20
    await world.until(running, ["chat", "embed"], world, seconds=30)
    await world.until(world.condition, lambda one: one[1] == "Evicted", "MemoryPressure", "draft")
    assert (await world.condition("MemoryPressure", "chat"))[0] in {"True", "False"}
    assert "Stopped because memory is critically short" in (await events(world, "Evicted"))["draft"]
    assert "cut short" in (await events(world, "Evicted"))["draft"]
    await trio.sleep(60)
    word, sentence = await why(world, "draft")
    assert word == "Evicted"
    assert "this machine has only" in sentence
    assert (await world.condition("MemoryPressure", "chat"))[:2] == ("False", "Normal")
    assert await world.ready_addresses("draft") == 0
    world.machine.memory.other = 8
    await world.until(running, ["chat", "draft", "embed"], world, seconds=45)
    await world.until(world.condition, lambda one: one[:2] == ("False", "Normal"), "MemoryPressure", "draft")
    assert len(world.machine.starts("draft")) == 2
    assert len(world.machine.starts("chat")) == 1
    await world.until(events, lambda found: set(found) == {"draft"}, world, "Returned")
    assert (
        "Running again; before that: Stopped because memory is critically short"
        in (await events(world, "Returned"))["draft"]
    )
    assert world.machine.memory.lowest_bytes >= 0


async def test_insufficient_memory_is_reported_with_figures(autojump_clock):
    """A service that does not fit waits; its status has its need, the free memory and the possible victims."""
    async with pressed_world({"chat": (26, "high"), "draft": (10, "high")}) as world:
        await serve(world, "big", 30, "high")
        await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "big", seconds=30)
        _, sentence = await why(world, "big")
        assert "needs 30.1 GiB" in sentence
        assert "free of 48.0 GiB (75 % of 64.0 GiB by default)" in sentence
        assert "stopping `chat` (priority high" in sentence
        await trio.sleep(1200)
        found = [one for one in (await world.client.list(Event)).items if one.reason == "InsufficientMemory"]
        assert [(one.involved_object.name, one.count) for one in found] == [("big", 1)]
        assert "needs 30.1 GiB" in found[0].message
        await world.delete("chat")
        await world.until(running, ["big", "draft"], world, seconds=30)
        await world.until(why, lambda one: not one[0], world, "big", seconds=10)


async def test_a_model_that_can_never_fit_is_not_downloaded(autojump_clock):
    """The header of a remote file is enough to refuse it; with a smaller need its download begins."""
    async with pressed_world({}) as world:
        world.machine.fetch_seconds["https://models.example/huge.gguf"] = 3600.0
        await serve(world, "huge", 60)
        await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "huge", seconds=30)
        _, sentence = await why(world, "huge")
        assert "more than all models on this machine may use together: 48.0 GiB" in sentence
        assert sentence.endswith("its file is not downloaded")
        await trio.sleep(4000)
        assert not world.machine.files
        world.machine.shapes["https://models.example/huge.gguf"] = shape_of(30)
        await trio.sleep(4000)
        await world.until(running, ["huge"], world, seconds=30)


async def test_a_model_above_its_own_budget_waits_for_an_edit(autojump_clock):
    """The Model's own budget is a separate limit with a separate message, and an edit of it applies."""
    async with pressed_world({}) as world:
        await serve(world, "chat", 20, budget="8Gi")
        await world.until(why, lambda one: "its own budget of 8.0 GiB" in str(one[1]), world, "chat", seconds=30)
        await serve(world, "chat", 20, budget="24Gi")
        await world.until(running, ["chat"], world, seconds=30)
        assert len(world.machine.spawned) == 1


async def test_a_model_without_a_known_size_is_refused_or_guessed(autojump_clock):
    """A model of unknown size is refused with a reason of its own, and starts where the operator allows guesses."""
    async with pressed_world({}) as world:
        await world.apply("riddle", source="https://models.example/riddle.gguf")
        await world.until(why, lambda one: one[0] == "MemoryCheckFailed", world, "riddle", seconds=30)
        assert not world.machine.spawned
    async with pressed_world({}, memory_guesses=True) as world:
        await world.apply("riddle", source="https://models.example/riddle.gguf")
        await world.until(running, ["riddle"], world, seconds=30)


async def test_a_more_important_service_arrives(autojump_clock, world):
    """The least important service is displaced, its Event names the new service, and it displaces nothing itself."""
    await serve(world, "chief", 12, "critical")
    await world.until(running, ["chat", "chief", "embed"], world, seconds=60)
    message = "Stopped to make room for chief (priority critical, needs 12.1 GiB); this service has priority low"
    assert message in (await events(world, "Displaced"))["draft"]
    assert "draft is evicted to make room for this service" in (await events(world, "Displacing"))["chief"]
    await trio.sleep(300)
    assert len(world.machine.starts("draft")) == 1
    assert (await world.condition("MemoryPressure", "draft"))[1] == "Normal"
    await world.delete("chief")
    await world.until(running, ["chat", "draft", "embed"], world, seconds=60)


async def test_requests_of_a_displaced_service_that_are_cut_short_are_reported(autojump_clock, world):
    """The requests of a displaced service may finish; if memory becomes critical meanwhile, an Event reports it."""
    await world.until(world.ready_addresses, 1, "draft")
    (draft,) = world.machine.live("draft")
    draft.in_flight = 1
    await serve(world, "chief", 12, "critical")
    await world.until(events, lambda found: "draft" in found, world, "Displaced")
    await trio.sleep(5)
    assert draft.exit is None
    assert not await events(world, "RequestsCutShort")
    world.machine.memory.speak(Level.CRITICAL)
    await draft.wait()
    world.machine.memory.speak(None)
    found = await world.until(events, lambda found: "draft" in found, world, "RequestsCutShort", seconds=5)
    assert found["draft"] == "requests in flight cut short: memory is critically short"


async def test_a_kill_on_a_host_short_of_memory_is_suspected(autojump_clock, world):
    """If the kernel kills an engine while memory is short, the Event names that and a smaller need."""
    await world.until(world.ready_addresses, 1, "draft")
    world.machine.kill("draft")
    await world.until(events, lambda found: "LLMKube did not send it" in found.get("draft", ""), world, "EngineExited")
    await world.until(world.ready_addresses, 1, "embed")
    world.machine.memory.speak(Level.WARNING)
    await trio.sleep(1)
    world.machine.kill("embed")
    found = await world.until(events, lambda found: "embed" in found, world, "EngineExited", seconds=5)
    world.machine.memory.speak(None)
    assert "memory was short" in found["embed"]
    assert "reduce spec.contextSize" in found["embed"]


async def test_edits_of_priority_apply_at_once_and_restart_nothing(autojump_clock, world):
    """A service edited to be the least important is the next victim, and no engine restarts for the edit."""
    await serve(world, "draft", 10, "high", evictionProtection=True)
    await serve(world, "embed", 6, "batch")
    await trio.sleep(5)
    assert len(world.machine.spawned) == 3
    world.machine.memory.other = 19.5
    await world.until(running, ["chat", "draft"], world, seconds=30)


async def test_a_failed_reading_evicts_nothing(autojump_clock, world):
    """While memory cannot be read no service is evicted or started, and the condition is Unknown."""
    world.machine.memory.broken = True
    await world.until(world.condition, lambda one: one[:2] == ("Unknown", "Unknown"), "MemoryPressure", "chat")
    await serve(world, "late", 2)
    await world.until(why, lambda one: one[0] == "MemoryCheckFailed", world, "late", seconds=30)
    await trio.sleep(600)
    assert await running(world) == ["chat", "draft", "embed"]
    world.machine.memory.broken = False
    await world.until(running, ["chat", "draft", "embed", "late"], world, seconds=30)


async def test_soft_pressure_waits_for_requests_and_critical_does_not(autojump_clock):
    """Under WARNING a victim's requests may finish within the drain timeout; CRITICAL cuts them short."""
    async with pressed_world(drain_seconds=20) as world:
        world.machine.live("draft")[0].in_flight = 1
        world.machine.memory.other = 16.5
        await trio.sleep(70)
        assert await running(world) == ["chat", "draft", "embed"], "it drains"
        world.machine.memory.speak(Level.CRITICAL)
        await trio.sleep(3)
        assert await running(world) == ["chat", "embed"]
        world.machine.memory.speak()


async def test_a_victim_that_ignores_term_is_killed(autojump_clock, world):
    """KILL follows TERM after the grace period, and meanwhile no other service is evicted."""
    world.machine.live("draft")[0].script = Script(stop_seconds=500)
    world.machine.memory.other = 20
    await trio.sleep(8)
    assert "draft" in await running(world)
    await world.until(running, ["chat", "embed"], world, seconds=10)


async def test_adopted_engines_are_in_the_ledger_of_the_next_agent(autojump_clock, world):
    """An agent that replaces one killed under pressure adopts the engines and evicts the right one."""
    await world.kill_agent()
    world.machine.memory.other = 20
    await world.start_agent()
    await world.until(running, ["chat", "embed"], world, seconds=30)
    assert sum(each.total_bytes for each in world.agent.memory().reservations) > 32 * GIB
    await serve(world, "second", 20)
    await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "second", seconds=30)


async def test_an_adopted_engine_that_has_grown_is_measured(autojump_clock):
    """Within a second of its adoption the ledger has the measured size of an engine, not that of the journal."""
    async with pressed_world({}) as world:
        await serve(world, "liar", 10)
        world.machine.memory.sizes["liar"] = 20
        await world.until(running, ["liar"], world, seconds=60)
        await world.kill_agent()
        await world.start_agent()
        await trio.sleep(1)
        (engine,) = world.agent.memory().reservations
        assert engine.need.estimated_bytes < 11 * GIB
        assert engine.total_bytes >= 20 * GIB


async def test_a_restarted_agent_starts_an_evicted_service_again(autojump_clock, world):
    """A service that was evicted waits under the next agent, and starts when memory is free."""
    world.machine.memory.other = 20
    await world.until(running, ["chat", "embed"], world, seconds=30)
    await world.kill_agent()
    await world.start_agent()
    await trio.sleep(60)
    assert await running(world) == ["chat", "embed"]
    assert (await why(world, "draft"))[0] == "InsufficientMemory"
    world.machine.memory.other = 8
    await world.until(running, ["chat", "draft", "embed"], world, seconds=30)


async def test_a_service_that_waits_can_be_deleted_and_changed(autojump_clock, world):
    """While a service waits for memory, an edit that fits starts it, and a deletion leaves nothing."""
    await serve(world, "big", 30, "low")
    await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "big", seconds=30)
    world.machine.shapes["https://models.example/small.gguf"] = shape_of(2)
    world.machine.memory.sizes["big"] = 2.1
    await world.apply("big", source="https://models.example/small.gguf", priority="low")
    await world.until(running, ["big", "chat", "draft", "embed"], world, seconds=30)
    await serve(world, "huge", 40, "low")
    await world.until(why, lambda one: one[0] == "InsufficientMemory", world, "huge", seconds=30)
    await world.delete("huge")
    await world.until(world.service, None, "huge", seconds=30)
    await trio.sleep(1)
    assert len(world.agent.services()) == 4


async def test_a_dry_run_only_names_the_victim(autojump_clock):
    """In dry-run mode nothing is evicted, and the Event names the victim."""
    async with pressed_world(memory_policy=Policy(mode=Mode.DRY_RUN)) as world:
        world.machine.memory.other = 20
        await trio.sleep(120)
        assert await running(world) == ["chat", "draft", "embed"]
        assert "default/draft would be evicted" in (await events(world, "EvictionSkipped"))["draft"]


async def test_a_learned_need_applies_at_the_next_start(autojump_clock):
    """An engine that took twice its estimate gets a reservation of that size at its next start."""
    async with pressed_world({}) as world:
        await serve(world, "liar", 10)
        world.machine.memory.sizes["liar"] = 20
        await world.until(running, ["liar"], world, seconds=60)
        await trio.sleep(60)
        world.machine.kill("liar")
        await world.until(running, ["liar"], world, seconds=60)
        (engine,) = world.agent.memory().reservations
        assert engine.need.estimated_bytes < 11 * GIB
        assert engine.total_bytes >= 20 * GIB


async def test_the_lease_has_the_budget_and_the_free_memory(autojump_clock):
    """Other hosts read on the Lease the budget of this host, and the largest reservation that still fits."""
    async with pressed_world(lease_renew_seconds=5.0) as world:
        await trio.sleep(30)
        annotations = (await world.host_lease()).metadata.annotations
        assert int(annotations[MEMORY_BUDGET_ANNOTATION]) == 48 * GIB
        assert 5 * GIB < int(annotations[MEMORY_FREE_ANNOTATION]) < 6 * GIB


async def test_an_idle_host_writes_nothing(autojump_clock, world):
    """Memory samples cause no writes to the API server while nothing changes, or while a level flaps little."""
    await trio.sleep(120)
    before = (await world.service("chat"))["metadata"]["resourceVersion"]
    await trio.sleep(600)
    assert (await world.service("chat"))["metadata"]["resourceVersion"] == before
    for _ in range(20):
        world.machine.memory.speak(Level.WARNING)
        await trio.sleep(1)
        world.machine.memory.speak()
        await trio.sleep(1)
    seen = (await world.service("chat"))["status"]["conditions"]
    assert next(one for one in seen if one["type"] == "MemoryPressure")["reason"] == "Warning"
