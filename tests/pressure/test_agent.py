"""Memory pressure over the whole agent: objects in, conditions, Events and endpoints out."""

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
    """The usual host."""
    async with pressed_world() as world:
        yield world


async def test_a_browser_opens_and_closes(autojump_clock, world):
    """The least important service goes and comes back, its status and Events say why, and its siblings stay."""
    world.machine.memory.other = 20
    await world.until(running, ["chat", "embed"], world, seconds=30)
    await world.until(world.condition, lambda said: said[1] == "Evicted", "MemoryPressure", "draft")
    assert (await world.condition("MemoryPressure", "chat"))[0] in {"True", "False"}
    assert "Evicted because memory is critically short" in (await events(world, "Evicted"))["draft"]
    assert "cut short" in (await events(world, "Evicted"))["draft"]
    await trio.sleep(60)
    word, sentence = await why(world, "draft")
    assert word == "Evicted"
    assert "this host has only" in sentence
    assert (await world.condition("MemoryPressure", "chat"))[:2] == ("False", "Normal")
    assert await world.ready_addresses("draft") == 0
    world.machine.memory.other = 8
    await world.until(running, ["chat", "draft", "embed"], world, seconds=45)
    await world.until(world.condition, lambda said: said[:2] == ("False", "Normal"), "MemoryPressure", "draft")
    assert len(world.machine.starts("draft")) == 2
    assert len(world.machine.starts("chat")) == 1
    await world.until(events, lambda told: set(told) == {"draft"}, world, "Returned")
    assert (
        "Running again; before that: Evicted because memory is critically short"
        in (await events(world, "Returned"))["draft"]
    )
    assert world.machine.memory.lowest_bytes >= 0


async def test_what_does_not_fit_is_told_with_figures(autojump_clock):
    """A service above the room that is left waits, and its status says what it needs, what is free and who could go."""
    async with pressed_world({"chat": (26, "high"), "draft": (10, "high")}) as world:
        await serve(world, "big", 30, "high")
        await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "big", seconds=30)
        _, sentence = await why(world, "big")
        assert "needs 30.1 GiB" in sentence
        assert "free of 48.0 GiB (75 % of 64.0 GiB by default)" in sentence
        assert "stopping `chat` (priority high" in sentence
        await trio.sleep(1200)
        told = [one for one in (await world.client.list(Event)).items if one.reason == "InsufficientMemory"]
        assert [(one.involved_object.name, one.count) for one in told] == [("big", 1)]
        assert "needs 30.1 GiB" in told[0].message
        await world.delete("chat")
        await world.until(running, ["big", "draft"], world, seconds=30)
        await world.until(why, lambda said: not said[0], world, "big", seconds=10)


async def test_what_can_never_fit_is_not_downloaded(autojump_clock):
    """The header of a file that is elsewhere is enough to refuse it; with a smaller need its download begins."""
    async with pressed_world({}) as world:
        world.machine.fetch_seconds["https://models.example/huge.gguf"] = 3600.0
        await serve(world, "huge", 60)
        await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "huge", seconds=30)
        _, sentence = await why(world, "huge")
        assert "more than all models on this host may take together: 48.0 GiB" in sentence
        assert sentence.endswith("its file is not downloaded")
        await trio.sleep(4000)
        assert not world.machine.files
        world.machine.shapes["https://models.example/huge.gguf"] = shape_of(30)
        await trio.sleep(4000)
        await world.until(running, ["huge"], world, seconds=30)


async def test_a_model_above_its_own_budget_waits_for_an_edit(autojump_clock):
    """The Model's own budget is a bound of its own, with a message of its own, and an edit of it is heard."""
    async with pressed_world({}) as world:
        await serve(world, "chat", 20, budget="8Gi")
        await world.until(why, lambda said: "its own budget of 8.0 GiB" in str(said[1]), world, "chat", seconds=30)
        await serve(world, "chat", 20, budget="24Gi")
        await world.until(running, ["chat"], world, seconds=30)
        assert len(world.machine.spawned) == 1


async def test_a_model_without_a_known_size_is_refused_or_guessed(autojump_clock):
    """What cannot be sized is refused with its own word, and starts where the operator allows guesses."""
    async with pressed_world({}) as world:
        await world.apply("riddle", source="https://models.example/riddle.gguf")
        await world.until(why, lambda said: said[0] == "MemoryCheckFailed", world, "riddle", seconds=30)
        assert not world.machine.spawned
    async with pressed_world({}, memory_guesses=True) as world:
        await world.apply("riddle", source="https://models.example/riddle.gguf")
        await world.until(running, ["riddle"], world, seconds=30)


async def test_somebody_more_important_arrives(autojump_clock, world):
    """Room is made at the expense of the least important service, which is told for whom, and takes nothing back."""
    await serve(world, "chief", 12, "critical")
    await world.until(running, ["chat", "chief", "embed"], world, seconds=60)
    said = "Evicted to make room for chief (priority critical, needs 12.1 GiB); this service has priority low"
    assert said in (await events(world, "Displaced"))["draft"]
    assert "draft is evicted to make room for this service" in (await events(world, "Displacing"))["chief"]
    await trio.sleep(300)
    assert len(world.machine.starts("draft")) == 1
    assert (await world.condition("MemoryPressure", "draft"))[1] == "Normal"
    await world.delete("chief")
    await world.until(running, ["chat", "draft", "embed"], world, seconds=60)


async def test_requests_that_were_promised_their_end_and_are_cut_short_are_told_of(autojump_clock, world):
    """Who makes room for another may end its requests; when memory becomes critical meanwhile, an Event says so."""
    await world.until(world.ready_addresses, 1, "draft")
    (draft,) = world.machine.live("draft")
    draft.in_flight = 1
    await serve(world, "chief", 12, "critical")
    await world.until(events, lambda told: "draft" in told, world, "Displaced")
    await trio.sleep(5)
    assert draft.exit is None
    assert not await events(world, "RequestsCutShort")
    world.machine.memory.speak(Level.CRITICAL)
    await draft.wait()
    world.machine.memory.speak(None)
    told = await world.until(events, lambda told: "draft" in told, world, "RequestsCutShort", seconds=5)
    assert told["draft"] == "requests in flight cut short: memory is critically short"


async def test_a_kill_on_a_host_short_of_memory_is_suspected(autojump_clock, world):
    """An engine that the kernel kills while memory is short says so, and what needs less; else it does not."""
    await world.until(world.ready_addresses, 1, "draft")
    world.machine.kill("draft")
    await world.until(events, lambda told: "LLMKube did not send it" in told.get("draft", ""), world, "EngineExited")
    await world.until(world.ready_addresses, 1, "embed")
    world.machine.memory.speak(Level.WARNING)
    await trio.sleep(1)
    world.machine.kill("embed")
    told = await world.until(events, lambda told: "embed" in told, world, "EngineExited", seconds=5)
    world.machine.memory.speak(None)
    assert "memory was short" in told["embed"]
    assert "a smaller spec.contextSize" in told["embed"]


async def test_edits_of_priority_count_at_once_and_restart_nothing(autojump_clock, world):
    """Who was edited to be the least important is the next to go, and no engine restarts for an edit."""
    await serve(world, "draft", 10, "high", evictionProtection=True)
    await serve(world, "embed", 6, "batch")
    await trio.sleep(5)
    assert len(world.machine.spawned) == 3
    world.machine.memory.other = 19.5
    await world.until(running, ["chat", "draft"], world, seconds=30)


async def test_nobody_is_evicted_for_a_failed_reading(autojump_clock, world):
    """While memory cannot be read nobody goes and nobody comes, and the condition says Unknown."""
    world.machine.memory.broken = True
    await world.until(world.condition, lambda said: said[:2] == ("Unknown", "Unknown"), "MemoryPressure", "chat")
    await serve(world, "late", 2)
    await world.until(why, lambda said: said[0] == "MemoryCheckFailed", world, "late", seconds=30)
    await trio.sleep(600)
    assert await running(world) == ["chat", "draft", "embed"]
    world.machine.memory.broken = False
    await world.until(running, ["chat", "draft", "embed", "late"], world, seconds=30)


async def test_soft_pressure_waits_for_requests_and_critical_does_not(autojump_clock):
    """Under WARNING a victim's requests may end, for as long as the drain lasts; CRITICAL cuts them short."""
    async with pressed_world(drain_seconds=20) as world:
        world.machine.live("draft")[0].in_flight = 1
        world.machine.memory.other = 16.5
        await trio.sleep(70)
        assert await running(world) == ["chat", "draft", "embed"], "it drains"
        world.machine.memory.speak(Level.CRITICAL)
        await trio.sleep(3)
        assert await running(world) == ["chat", "embed"]
        world.machine.memory.speak()


async def test_a_victim_that_resists_is_not_waited_for(autojump_clock, world):
    """When a victim ignores TERM, KILL comes after its grace, and meanwhile nobody else goes."""
    world.machine.live("draft")[0].script = Script(stop_seconds=500)
    world.machine.memory.other = 20
    await trio.sleep(8)
    assert "draft" in await running(world)
    await world.until(running, ["chat", "embed"], world, seconds=10)


async def test_adopted_engines_are_in_the_books_of_the_next_agent(autojump_clock, world):
    """An agent that was killed under pressure finds its engines, counts them at once, and evicts the right one."""
    await world.kill_agent()
    world.machine.memory.other = 20
    await world.start_agent()
    await world.until(running, ["chat", "embed"], world, seconds=30)
    assert sum(each.total_bytes for each in world.agent.memory().reservations) > 32 * GIB
    await serve(world, "second", 20)
    await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "second", seconds=30)


async def test_an_adopted_engine_that_has_grown_is_counted_as_it_is(autojump_clock):
    """What an engine really holds counts within a second of its adoption, whatever the journal says of it."""
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


async def test_an_agent_that_restarts_while_somebody_is_evicted_takes_it_up_again(autojump_clock, world):
    """A service that was evicted waits under the next agent, and starts when there is room."""
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
    """Waiting for memory does not make a service deaf: an edit that fits starts, a deletion leaves nothing."""
    await serve(world, "big", 30, "low")
    await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "big", seconds=30)
    world.machine.shapes["https://models.example/small.gguf"] = shape_of(2)
    world.machine.memory.sizes["big"] = 2.1
    await world.apply("big", source="https://models.example/small.gguf", priority="low")
    await world.until(running, ["big", "chat", "draft", "embed"], world, seconds=30)
    await serve(world, "huge", 40, "low")
    await world.until(why, lambda said: said[0] == "InsufficientMemory", world, "huge", seconds=30)
    await world.delete("huge")
    await world.until(world.service, None, "huge", seconds=30)
    await trio.sleep(1)
    assert len(world.agent.services()) == 4


async def test_a_dry_run_only_says_who_would_go(autojump_clock):
    """With the switch on dry-run everybody stays, and the Event names whom it would have been."""
    async with pressed_world(memory_policy=Policy(mode=Mode.DRY_RUN)) as world:
        world.machine.memory.other = 20
        await trio.sleep(120)
        assert await running(world) == ["chat", "draft", "embed"]
        assert "default/draft would be evicted" in (await events(world, "EvictionSkipped"))["draft"]


async def test_what_was_learned_counts_at_the_next_start(autojump_clock):
    """An engine that took twice what was estimated is promised that much when it starts again."""
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


async def test_the_lease_says_the_budget_and_what_is_free(autojump_clock):
    """Other hosts read on the Lease how much models may take here, and how much one more could get."""
    async with pressed_world(lease_renew_seconds=5.0) as world:
        await trio.sleep(30)
        said = (await world.host_lease()).metadata.annotations
        assert int(said[MEMORY_BUDGET_ANNOTATION]) == 48 * GIB
        assert 5 * GIB < int(said[MEMORY_FREE_ANNOTATION]) < 6 * GIB


async def test_a_quiet_host_writes_nothing(autojump_clock, world):
    """Looks at the host's memory cost the API server nothing while nothing changes, and while a level flaps little."""
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
