"""A Model of Ollama's library, in the simulated world: pulled by a scripted daemon, planned, served."""

from contextlib import asynccontextmanager

import pytest
import trio

from gguf_corpus import DEMO
from llmkube.programs.daemon_engine.ollama_api import OllamaApi
from llmkube.programs.ollama_library import OllamaLibrary
from llmkube.supervisor.local import LocalWeights
from llmkube.weights.ollama_model import AllowedModels
from programs.daemon_engine.fake_ollama import LIBRARY_BLOB, URL, FakeDaemon, answers, blob_of, client_of, shown_header
from sim.machine import Machine
from sim.world import open_world

SOURCE = "ollama://tiny"
DIGEST = LIBRARY_BLOB.removeprefix("sha256-")


def fetch_with(weights, others):
    def fetch(machine, model, progress):
        of_library = model.spec.source.startswith("ollama://")
        return weights.fetch(model, progress) if of_library else others(machine, model, progress)

    return fetch


@pytest.fixture
def open_host(monkeypatch):
    @asynccontextmanager
    async def opened(fake, *allowed):
        fake.shows, allowed = {LIBRARY_BLOB: shown_header(DEMO)}, allowed or ("*",)
        async with client_of(fake) as client, open_world() as world:
            library = OllamaLibrary(OllamaApi(client, URL), AllowedModels(allowed), free=fake.free)
            weights = LocalWeights(*[None] * 7, library=library)
            monkeypatch.setattr(Machine, "fetch", fetch_with(weights, Machine.fetch))
            world.machine.programs |= {"ollama"}
            yield world

    return opened


async def fetched(world, name="chat"):
    conditions = ((await world.model(name)) or {}).get("status", {}).get("conditions", [])
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == "Fetched"), ("", ""))


async def reason(world, name="chat"):
    return (await fetched(world, name))[0]


async def test_it_is_pulled_and_served(open_host, autojump_clock):
    """The pull shows in the Model's status; the engine gets the model's name; its memory is an estimate."""
    fake = FakeDaemon(pull_seconds=5.0)
    async with open_host(fake) as world:
        await world.apply(source=SOURCE, runtime="ollama")
        await trio.sleep(20)
        assert (await fetched(world))[0] == "Fetching"
        assert (await fetched(world))[1].startswith("downloading: 30 B of 100 B (30 %)")
        await world.until(world.ready_addresses, 1)
        (child,) = world.machine.live("chat")
        assert child.argv[child.argv.index("--model") + 1] == "ollama://tiny:latest"
        status = (await world.model())["status"]
        assert (status["sha256"], status["gguf"]["architecture"]) == (DIGEST, "llama")
        launch = next(iter(world.machine.entries.values())).launch
        assert launch.estimate.certain
        assert launch.estimate.total_bytes > launch.weights.size_bytes
        await world.apply(source=SOURCE, runtime="ollama", priority="high")
        await trio.sleep(600)
        assert fake.calls.count("/api/pull") == 1
        assert world.machine.live("chat") == [child]


@pytest.mark.ci
async def test_a_pull_that_fails_is_repeated_with_growing_pauses(open_host, autojump_clock):
    """Never without a pause, and the error is in the Model's status."""
    fake = FakeDaemon(faults={"/api/pull": [answers(500, b'{"error": "no space left on device"}')] * 1000})
    async with open_host(fake) as world:
        await world.apply(source=SOURCE, runtime="ollama")
        await trio.sleep(3600)
        assert 3 < fake.calls.count("/api/pull") < 100
        assert "Ollama failed to pull tiny:latest" in (await fetched(world))[1]
        fake.faults.clear()
        await world.until(world.ready_addresses, 1)


async def test_a_service_of_another_runtime_pulls_nothing(open_host, autojump_clock):
    """The fix is in its condition."""
    fake = FakeDaemon()
    async with open_host(fake) as world:
        await world.apply(source=SOURCE)
        await trio.sleep(60)
        held, why, message = await world.condition("Accepted")
        assert (held, why) == ("False", "Invalid")
        assert "set spec.runtime to ollama" in message
        assert "/api/pull" not in fake.calls
        await world.apply("other", speculativeDecoding={"type": "draft", "draftModelRef": "chat"})
        await trio.sleep(60)
        assert "llamacpp needs a file, but ollama://tiny is not one" in (await world.condition("Loaded", "other"))[2]
        assert "/api/pull" not in fake.calls


@pytest.mark.parametrize(
    ("changes", "why", "words"),
    [
        ({"sha256": "00" * 32}, "DigestMismatch", "use another tag, or correct the digest"),
        (
            {"sourceSecretRef": {"name": "hf"}},
            "FetchFailed",
            "spec.sourceSecretRef: not supported: Ollama pulls without",
        ),
        ({"files": ["a.gguf"]}, "InvalidFileSet", "remove spec.files"),
        ({"source": "ollama://other"}, "SourceNotFound", "check name and tag at https://ollama.com/library"),
    ],
)
async def test_unsupported_fields_are_refused(open_host, autojump_clock, changes, why, words):
    """Each with the fix; nothing starts."""
    async with open_host(FakeDaemon()) as world:
        await world.apply_model("chat", {"source": SOURCE, "hardware": {"accelerator": "metal"}, **changes})
        await world.apply_service("chat", {"modelRef": "chat", "runtime": "ollama"})
        await world.until(reason, why, world)
        assert words in (await fetched(world))[1]
        assert world.machine.spawned == []


async def test_a_pull_that_the_owner_does_not_allow_is_reported_with_the_fix(open_host, autojump_clock):
    """Model and service report it; Ollama gets no request, however long it lasts."""
    fake = FakeDaemon()
    async with open_host(fake, "llama*") as world:
        await world.apply(source=SOURCE, runtime="ollama")
        await world.until(reason, "SourceNotAllowed", world)
        assert "allow it on this machine with --allow-ollama-sources tiny:latest (allow" in (await fetched(world))[1]
        held, why, words = await world.condition()
        assert (held, why) == ("False", "SourceNotAllowed")
        assert "--allow-ollama-sources tiny:latest" in words
        await trio.sleep(3600)
        assert fake.calls == []
        assert world.machine.spawned == []


@pytest.mark.ci
async def test_a_model_that_does_not_fit_on_the_disk_disturbs_nothing(open_host, autojump_clock):
    """It is reported with the bytes and not pulled again; running engines continue; it serves once there is space."""
    mib, big = 1 << 20, "ollama://big"
    fake = FakeDaemon(layers={"big:latest": [400 * mib, mib]}, free_bytes=300 * mib)
    fake.library["big:latest"] = big_blob = blob_of(b"big")
    async with open_host(fake) as world:
        fake.shows[big_blob] = fake.shows[LIBRARY_BLOB]
        await world.apply(source=SOURCE, runtime="ollama")
        await world.until(world.ready_addresses, 1)
        (child,) = world.machine.live("chat")
        await world.apply("other", source=big, runtime="ollama")
        await world.until(reason, "NoSpace", world, "other")
        await trio.sleep(3600)
        assert "420.0 MiB needed, 300.0 MiB free" in (await fetched(world, "other"))[1]
        assert (await world.condition(name="other"))[1] == "NoSpace"
        assert fake.calls.count("/api/pull") <= 1 + 7  # once in ten minutes
        assert fake.fetched_bytes <= 100 + 7 * 40 * mib
        await world.apply(source=big, runtime="ollama")  # an edit of what serves
        await trio.sleep(120)
        assert world.machine.live("chat") == [child]
        assert await world.ready_addresses() == 1
        fake.free_bytes = 900 * mib
        await world.until(world.ready_addresses, 1, "other", seconds=300)
