"""Downloads by the whole agent: a scripted web server and hub, the real store, a virtual clock."""

import base64
import hashlib
import itertools
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import llmkube.weights
from llmkube.k8s.builtins import Secret
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.supervisor.credentials import SourceCredentials
from llmkube.supervisor.local import LocalWeights
from llmkube.weights.download.remote_header import read_remote_header
from llmkube.weights.download.retry import DownloadLimits
from sim.machine import Machine
from sim.memory import SimMemory, shape_of
from sim.world import agent_settings, open_world
from weights.hostile import FROM_OBJECT, inline, open_bench

DEMO = (Path(llmkube.weights.__file__).parent / "builtin" / "demo.gguf").read_bytes()
DEMO_SHA256 = hashlib.sha256(DEMO).hexdigest()
OTHER = DEMO + bytes(4096)
URL = "https://files.example/a.gguf"
PLAIN = "http://files.example/a.gguf"


def files(**by_path):
    """An honest server with these files, at `/NAME.gguf` and as the hub's `/o/r/resolve/main/NAME.gguf`."""

    async def script(wire, request):
        data = by_path.get(request.target.rpartition("/")[2].removesuffix(".gguf"))
        await (wire.answer(404) if data is None else wire.file(request, data))

    return script


class Slow:
    """An honest server that sends a file in pieces, a second after each other; it cannot resume."""

    def __init__(self, data=DEMO, pieces=20):
        self.data, self.pieces = data, pieces
        self.whole = 0

    async def __call__(self, wire, request):
        await wire.head(200, content_length=len(self.data), etag='W/"weak"')
        step = -(-len(self.data) // self.pieces)
        for at in range(0, len(self.data), step):
            await trio.sleep(1)
            self.whole += at + step >= len(self.data)
            await wire.send(self.data[at : at + step])


@attrs.define(eq=False)
class Host:
    """The simulated world, in which weights come from a scripted network."""

    world: object
    bench: object
    secrets_read: list

    async def deploy(self, name, source=PLAIN, model=None, **spec):
        """Apply a Model and its service."""
        body = {"source": source, "hardware": {"accelerator": "metal"}, **spec}
        await self.world._apply(Model, model or name, body)
        await self.world._apply(InferenceService, name, {"modelRef": model or name})

    async def fetched(self, name="chat"):
        """The Model's `Fetched` condition as (status, reason, message)."""
        conditions = ((await self.world.model(name)) or {}).get("status", {}).get("conditions", [])
        return next(((c["status"], c["reason"], c["message"]) for c in conditions if c["type"] == "Fetched"), None)

    async def wait_fetched(self, reason, name="chat", **kwargs):
        """Wait until the condition has that reason; return its message."""
        return (await self.world.until(self.fetched, lambda seen: seen and seen[1] == reason, name, **kwargs))[2]

    async def put_secret(self, name="hf", **data):
        """Create or replace a Secret."""
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}
        await self.world.client.apply(Secret, {**manifest, "data": encoded}, field_manager="user")


@pytest.fixture
def open_host(tmp_path, monkeypatch):
    @asynccontextmanager
    async def opened(script, policy=FROM_OBJECT, token_file=None, **options):
        read = []
        async with open_bench(tmp_path / "store", script, **options) as bench, open_world() as world:

            async def read_secret(key):
                read.append(key)
                return await world.client.get(Secret, key)

            limiter = trio.CapacityLimiter(1)
            tokens = SourceCredentials(read_secret, token_file, limiter)
            weights = LocalWeights(bench.store, limiter, bench.downloader, policy, tokens, inline, read_remote_header)
            monkeypatch.setattr(Machine, "fetch", lambda _, model, progress: weights.fetch(model, progress))
            yield Host(world, bench, read)

    return opened


async def test_a_download_reports_its_progress(open_host, autojump_clock):
    """The Model has bytes, share, rate and time left, at most every two seconds; its service does too."""
    async with open_host(Slow()) as host:
        await host.deploy("chat")
        seen = {}
        with trio.move_on_after(19):
            while True:
                now = await host.fetched()
                if now:
                    seen.setdefault(now[2], trio.current_time())
                await trio.sleep(0.25)
        reported = [line for line in seen if line.startswith("downloading") and "left" in line]
        assert 7 <= len(reported) <= 10
        assert reported[3].startswith("downloading: 420.2 KiB of 933.8 KiB (45 %), 46.7 KiB/s, 11")
        moments = [seen[line] for line in reported]
        assert min(b - a for a, b in itertools.pairwise(moments)) > 1.5
        status, reason, message = await host.world.condition("Loaded")
        assert (status, reason) == ("False", "Fetching")
        assert message.startswith("downloading: ")
        await host.wait_fetched("Fetched")
        assert (await host.world.model())["status"]["sha256"] == DEMO_SHA256
        await host.world.until(host.world.phase, "Ready")


async def test_services_of_one_file_share_its_header(open_host, autojump_clock):
    """A header of hundreds of tensors is in memory once, however many services run its file."""
    async with open_host(files(a=DEMO)) as host:
        await host.deploy("chat")
        await host.wait_fetched("Fetched")
        model = await host.world.client.get(Model, Key("default", "chat"))
        _, one = await Machine.fetch(None, model, lambda _: None)
        _, other = await Machine.fetch(None, model, lambda _: None)
        assert one is other


@pytest.mark.ci
async def test_a_wrong_digest_is_final_until_the_spec_changes(open_host, autojump_clock):
    """Both digests are named, the file is downloaded once in hours, and the right digest fixes it."""
    slow = Slow()
    async with open_host(slow) as host:
        await host.deploy("chat", sha256="0" * 64)
        message = await host.wait_fetched("DigestMismatch")
        assert DEMO_SHA256 in message
        assert "0" * 64 in message
        assert "downloaded once" in message
        await trio.sleep(4 * 3600)
        assert slow.whole == 1
        assert len(host.bench.network.requests) == 1
        assert host.bench.files() == []
        await host.deploy("chat", sha256=DEMO_SHA256)
        await host.wait_fetched("Fetched")
        assert slow.whole == 2


async def test_another_service_does_not_download_a_refused_file_again(open_host, autojump_clock):
    """A second service of a Model with a wrong digest requests the headers of the response and no more."""
    slow = Slow()
    async with open_host(slow) as host:
        await host.deploy("chat", sha256="0" * 64)
        await host.wait_fetched("DigestMismatch")
        await host.deploy("more", model="chat", sha256="0" * 64)
        seen = await host.world.until(
            host.world.condition, lambda seen: seen and seen[1] == "DigestMismatch", "Loaded", "more"
        )
        assert DEMO_SHA256 in seen[2]
        assert slow.whole == 1


async def test_an_edited_source_is_a_new_file(open_host, autojump_clock):
    """The engine keeps the old file until the new one is here, then runs from that; a bad edit changes nothing."""
    async with open_host(files(a=DEMO, b=OTHER)) as host:
        await host.deploy("chat")
        await host.world.until(host.world.phase, "Ready")
        (first,) = host.world.machine.live()
        await host.deploy("chat", "http://files.example/gone.gguf")
        assert "404" in await host.wait_fetched("SourceNotFound")
        assert host.world.machine.live() == [first]
        await host.deploy("chat", "http://files.example/b.gguf")
        await host.wait_fetched("Fetched")
        await host.world.until(host.world.phase, "Ready")
        (second,) = host.world.machine.live()
        names = [Path(child.argv[child.argv.index("--model") + 1]).name for child in (first, second)]
        assert names == [hashlib.sha256(data).hexdigest() for data in (DEMO, OTHER)]


@pytest.mark.ci
async def test_many_services_share_one_download(open_host, autojump_clock):
    """Ten services of three Models with one source are one request; a deleted service stops no other."""
    slow = Slow()
    async with open_host(slow) as host:
        for number in range(10):
            await host.deploy(f"chat{number}", model=f"model{number % 3}")
        await trio.sleep(5)
        await host.world.delete("chat0")
        for number in range(1, 10):
            await host.world.until(host.world.phase, "Ready", f"chat{number}")
        assert (slow.whole, len(host.bench.network.requests)) == (1, 1)


async def test_an_edit_during_a_download_does_not_restart_it(open_host, autojump_clock):
    """A service that is edited during its download gets the file from the same response, even without ranges."""
    slow = Slow()
    async with open_host(slow) as host:
        await host.deploy("chat")
        for slots in (2, 3, 4):
            await trio.sleep(4)
            await host.world._apply(InferenceService, "chat", {"modelRef": "chat", "parallelSlots": slots})
        await host.world.until(host.world.phase, "Ready")
        assert (slow.whole, len(host.bench.network.requests)) == (1, 1)
        (engine,) = host.world.machine.live()
        assert engine.argv[engine.argv.index("--parallel") + 1] == "4"


async def test_a_cached_file_starts_offline(open_host, autojump_clock):
    """After a restart without a network the same services are ready, and no server and no Secret was read."""
    async with open_host(files(a=DEMO)) as host:
        await host.put_secret(HF_TOKEN="hf_secret")
        await host.deploy("chat", "hf://o/r/a.gguf", sourceSecretRef={"name": "hf"})
        await host.world.until(host.world.phase, "Ready")
        asked, read = list(host.bench.network.requests), list(host.secrets_read)
        await host.world.client.delete(Secret, Key("default", "hf"))
        await host.world.stop_agent()
        host.bench.network.refusing.add("93.184.216.34")
        await host.world.start_agent()
        await host.deploy("again", "hf://o/r/a.gguf", sourceSecretRef={"name": "hf"})
        await host.world.until(host.world.phase, "Ready")
        await host.world.until(host.world.phase, "Ready", "again")
        assert (host.bench.network.requests, host.secrets_read) == (asked, read)


async def test_a_missing_secret_or_key_is_named(open_host, autojump_clock):
    """The condition names Secret, namespace and key; when they exist the fetch resumes by itself, with the token."""
    async with open_host(files(a=DEMO)) as host:
        await host.deploy("chat", "hf://o/r/a.gguf", sourceSecretRef={"name": "hf"})
        message = await host.wait_fetched("TokenUnavailable")
        assert message.startswith(
            "spec.sourceSecretRef: Secret hf in namespace default not found; create it with HF_TOKEN"
        )
        await host.put_secret(TOKEN="hf_secret")
        wanted = lambda seen: "has no key HF_TOKEN (it has TOKEN)" in seen[2]  # noqa: E731
        await host.world.until(host.fetched, wanted)
        assert host.bench.network.requests == []
        await host.put_secret(HF_TOKEN="hf_secret\n")
        await host.wait_fetched("Fetched")
        assert [request.headers.get("authorization") for request in host.bench.network.requests] == ["Bearer hf_secret"]
        everything = [
            encode(each) for kind in (Model, InferenceService) for each in (await host.world.client.list(kind)).items
        ]
        assert "hf_secret" not in str(everything)


async def test_the_token_is_for_the_hub_only(open_host, autojump_clock, tmp_path):
    """A file from another server is fetched without the Secret, which is not even read, or the operator's token."""
    (tmp_path / "token").write_text("hf_operator\n")
    async with open_host(files(a=DEMO), token_file=tmp_path / "token") as host:
        await host.deploy("chat", sourceSecretRef={"name": "hf"})
        await host.wait_fetched("Fetched")
        await host.deploy("hub", "hf://o/r/a.gguf")
        await host.wait_fetched("Fetched", "hub")
        assert host.secrets_read == []
        reported = [request.headers.get("authorization") for request in host.bench.network.requests]
        assert reported == [None, "Bearer hf_operator"]


async def test_files_picks_one_of_a_repository(open_host, autojump_clock):
    """`spec.files` selects the file that `spec.source` leaves open, and is refused if it can select nothing."""
    async with open_host(files(a=DEMO, b=OTHER)) as host:
        await host.deploy("chat", "o/r", files=["b.gguf"])
        await host.wait_fetched("Fetched")
        assert (await host.world.model())["status"]["sha256"] == hashlib.sha256(OTHER).hexdigest()
        await host.deploy("bad", files=["b.gguf"])
        assert (await host.wait_fetched("InvalidFileSet", "bad")).startswith(
            "spec.files: selects files of a Hugging Face"
        )
        await host.deploy("strange", "o/r", files=["b.gguf", "a.gguf"])
        assert "'a.gguf' is not a part of 'b.gguf'" in await host.wait_fetched("InvalidFileSet", "strange")


# -- engines built on MLX ---------------------------------------------------------------------------------------------

MLX = "hf://org/mlx"


@asynccontextmanager
async def a_mac(**settings):
    """A host with oMLX and mlx-lm, and a model in MLX's format."""
    async with open_world(settings=agent_settings(**settings), memory=SimMemory) as world:
        world.machine.programs |= {"omlx", "mlx-lm"}
        world.machine.shapes |= {"builtin://demo": shape_of(30.0), MLX: attrs.evolve(shape_of(25.0), format="mlx")}
        world.machine.memory.sizes |= {"other": 25.0, "chat": 30.0}
        yield world


@pytest.mark.parametrize("taken", ["omlx", "mlx-lm"])
async def test_mlx_on_metal_is_served_by_the_hosts_default_engine(autojump_clock, taken):
    """A service that names no engine gets that one; one that names the other gets the other."""
    named = {"omlx": "mlx-lm", "mlx-lm": "omlx"}[taken]
    async with a_mac(mlx_runtime=taken) as world:
        await world.apply("other", source=MLX, weights="mlx")
        await world.until(world.ready_addresses, 1, "other")
        assert f"/sim/{taken}" in world.machine.live("other")[0].argv
        await world.apply("other", source=MLX, weights="mlx", runtime=named)
        await world.until(lambda: _programs(world), lambda programs: f"/sim/{named}" in programs, seconds=300)


async def _programs(world):
    await trio.lowlevel.checkpoint()
    return [word for engine in world.machine.live("other") for word in engine.argv]


async def test_a_service_on_omlx_is_evicted_and_returns(autojump_clock):
    """Under memory pressure it is evicted like any other, and returns when memory is free."""
    async with a_mac() as world:
        await world.apply("other", source=MLX, weights="mlx", runtime="omlx", priority="low")
        await world.until(world.ready_addresses, 1, "other")
        await world.apply("chat", priority="critical")
        await world.until(world.ready_addresses, 1, "chat", seconds=300)
        assert world.machine.live("other") == []
        assert world.machine.memory.lowest_bytes >= 0
        await world.delete("chat")
        await world.until(world.ready_addresses, 1, "other", seconds=600)


async def test_a_server_that_says_nothing_is_stalled_within_a_minute(open_host, autojump_clock):
    """The condition has the reason `Stalled`, and names a next attempt only until that begins."""

    async def silent(wire, request):
        await trio.sleep_forever()

    async with open_host(silent, limits=DownloadLimits()) as host:
        await host.deploy("chat")
        message = await host.wait_fetched("Stalled", seconds=60)
        assert "files.example" in message
        assert "; next attempt at " in message
        await host.world.until(host.fetched, lambda seen: "next attempt" not in seen[2], seconds=10)
        await trio.sleep(30)
        _, reason, message = await host.fetched()
        assert (reason, "next attempt" in message) == ("Stalled", False), message


async def test_a_file_that_was_wrong_once_is_fetched_again(open_host, autojump_clock):
    """A server that sent a short file, and later the whole one, is asked again without an edit or a deletion."""
    data = DEMO[:50_000]

    async def script(wire, request):
        await wire.file(request, data)

    async with open_host(script) as host:
        await host.deploy("chat")
        assert "is the download complete?" in await host.wait_fetched("NotGGUF")
        await trio.sleep(120)
        before = len(host.bench.network.requests)
        data = DEMO
        await host.wait_fetched("Fetched", seconds=120)
        assert len(host.bench.network.requests) > before
        await host.world.until(host.world.phase, "Ready")
