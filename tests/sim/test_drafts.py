from pathlib import Path

import attrs
import pytest
import trio

from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.weights.errors import SourceNotAllowedError
from model_shapes import decoder
from sim.machine import HELP_FLAGS
from sim.memory import SimMemory
from sim.world import open_world

BUILD = ("sim", HELP_FLAGS | {"-md", "--spec-draft-model", "--spec-type"})
DRAFT = {"speculativeDecoding": {"type": "draft-simple", "draftModelRef": "small"}}
KEY = Key("default", "chat")
VOCABULARY = ("loading", "the target and draft vocabs are not compatible")
BODY = {"source": "builtin://small", "hardware": {"accelerator": "metal"}}


@pytest.mark.parametrize("spec", [DRAFT, {"extraArgs": ["--spec-draft-model", "small", "--spec-type", "draft-simple"]}])
async def test_a_draft_model_is_fetched_and_handed_to_the_engine(autojump_clock, spec):
    """A service without its draft Model reports it; once that is created, the engine gets its file."""
    async with open_world() as world:
        world.machine.build = BUILD
        world.machine.shapes |= dict.fromkeys(("builtin://demo", "builtin://small"), decoder())
        await world.apply(**spec)
        await trio.sleep(120)
        assert not world.machine.spawned
        _, reason, message = await world.condition()
        assert reason == "ModelNotFound"
        assert "the draft model: Model small not found in namespace default" in message
        await world.apply_model("small", BODY)
        await world.until(world.phase, "Ready", seconds=10)
        argv = world.machine.live("chat")[0].argv
        assert argv[argv.index("-md") + 1] == "/sim/builtin:__small"
        assert "builtin://small" in world.machine.files
        estimate = world.machine.entries[Key("default", "chat")].launch.estimate
        assert estimate.certain
        assert "draft model" in {component.name for component in estimate.components}


async def test_a_draft_that_the_engine_gives_up_is_reported_and_its_memory_is_free(autojump_clock):
    """`SpecHonoured` has the line of the engine's log, also under the next agent, and the reservation shrinks."""
    async with open_world(memory=SimMemory) as world:
        world.machine.build = BUILD
        world.machine.shapes |= dict.fromkeys(("builtin://demo", "builtin://small"), decoder())
        world.machine.default = attrs.evolve(world.machine.default, words=VOCABULARY)
        await world.apply_model("small", BODY)
        await world.serve(**DRAFT)
        for _ in range(2):
            found = await world.until(world.condition, lambda seen: seen and seen[0] == "False", "SpecHonoured")
            assert found[1] == "FieldsIgnored"
            assert "spec.speculativeDecoding.draftModelRef (the engine's log: the target and draft vocabs" in found[2]
            held = world.agent.activator.gate_of(KEY).ledger.book.records.serving(KEY)
            estimate = world.machine.entries[KEY].launch.estimate
            draft = sum(each.size_bytes for each in estimate.components if each.name == "draft model")
            assert held.need.total_bytes == estimate.total_bytes - draft
            await world.kill_agent()
            await world.start_agent()
            await trio.sleep(60)
        assert len(world.machine.spawned) == 1


async def test_another_draft_is_another_engine(autojump_clock):
    """An edit of the draft Model replaces the engine; its deletion does not."""
    async with open_world() as world:
        world.machine.build = BUILD
        await world.apply_model("small", BODY)
        await world.serve(**DRAFT)
        await world.apply_model("small", {**BODY, "source": "builtin://other"})
        await trio.sleep(120)
        assert [child.argv[child.argv.index("-md") + 1] for child in world.machine.live("chat")] == [
            "/sim/builtin:__other"
        ]
        assert len(world.machine.spawned) == 2
        await world.client.delete(Model, Key("default", "small"))
        await trio.sleep(600)
        assert len(world.machine.spawned) == 2
        assert await world.ready_addresses() == 1


async def test_a_draft_by_path_follows_the_rules_for_files(autojump_clock):
    """A file outside the owner's folders is refused like a Model's source; the engine continues."""
    async with open_world() as world:
        world.machine.build = BUILD
        world.machine.broken["/etc/shadow"] = SourceNotAllowedError.of_path(Path("/etc/shadow"))
        await world.serve()
        await world.apply(extraArgs=["--spec-draft-model", "/etc/shadow", "--spec-type", "draft-simple"])
        await trio.sleep(120)
        _, reason, message = await world.condition("UpToDate")
        assert reason == "SourceNotAllowed"
        assert message.startswith("the newest spec was refused (the draft model: ")
        assert "--allow-local-sources" in message
        assert len(world.machine.spawned) == 1
        await world.apply(extraArgs=["--spec-draft-model", "/models/d.gguf", "--spec-type", "draft-simple"])
        await trio.sleep(120)
        argv = world.machine.live("chat")[0].argv
        assert argv[argv.index("-md") + 1] == "/sim/_models_d.gguf"
