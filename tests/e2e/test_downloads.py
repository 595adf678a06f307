"""Models by URL with `llmkube up` and a web server, and the failures between the two."""

import hashlib
import json
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import trio

from e2e.separate_programs import chat, eventually
from e2e.test_mistakes import open_up_with
from e2e.up_process import ANSWER, FREE_PORTS, engines_in, open_up, run_program, run_up
from e2e.web import open_web
from gguf_corpus import DEMO as DEMO_FILE
from llmkube.base.http.client import open_http_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

DEMO = DEMO_FILE.read_bytes()
SHA256 = hashlib.sha256(DEMO).hexdigest()
OTHER = DEMO + bytes(4096)  # the store of `llmkube up` has the demo itself already, and needs no server for it


async def deploy(up, name, source, **spec):
    """Apply a Model by URL and its service."""
    for kind, body in (
        (Model, {"source": source, "hardware": {"accelerator": "cpu"}, **spec}),
        (InferenceService, {"modelRef": name, "contextSize": 512}),
    ):
        metadata = {"name": name, "namespace": "default"}
        manifest = {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind, "metadata": metadata}
        await up.client.apply(kind, {**manifest, "spec": body}, field_manager="user")


async def wait_fetched(up, name, *reasons):
    """Return a Model's `Fetched` condition once it has one of the reasons."""
    return await up.wait_condition(Model, name, "Fetched", lambda found: found.reason in reasons)


async def metrics(up):
    """Scrape the metrics."""
    async with open_http_client() as http:
        return (await http.request("GET", f"{up.probes}/metrics")).body.decode()


async def test_a_model_by_url_is_fetched_with_progress_and_served(tmp_path):
    """Conditions, metrics and `llmkube status` report the progress of the download, and then chat answers."""
    async with open_web(m=OTHER) as web:
        web.held.add("m.gguf")
        async with open_up_with(tmp_path) as up:
            await deploy(up, "web", f"{web.url}/m.gguf", sha256=hashlib.sha256(OTHER).hexdigest())
            half = "downloading: 468.9 KiB of 937.8 KiB (50 %)"
            reported = await up.wait_condition(Model, "web", "Fetched", lambda found: found.message.startswith(half))
            assert reported.reason == "Fetching"
            loaded = await up.wait_service("web", "Loaded", lambda found: found.message.startswith(half))
            assert loaded.reason == "Fetching"
            scraped = await metrics(up)
            assert f'llmkube_download_total_bytes{{source="{web.url}/m.gguf"}} {float(len(OTHER))}' in scraped
            assert f'llmkube_download_bytes{{source="{web.url}/m.gguf"}} {float(len(OTHER) // 2)}' in scraped
            kubeconfig = up.state / "kubeconfig"
            code, out, _ = await run_program(tmp_path, "status", "web", kubeconfig=kubeconfig)
            assert (code, half in out) == (0, True)
            web.resume.set()
            await up.wait_loaded("web", "Loaded")
            assert (await up.client.get(Model, Key("default", "web"))).status.size == "937.8 KiB"
            assert await chat(up.gateway, "web") == ANSWER
            assert "llmkube_download_bytes{" not in await metrics(up)
            assert len(web.downloads) == 1


async def test_a_model_of_a_registry_is_fetched_and_asked(tmp_path):
    """The manifest and then the blob of an `oci://` source are fetched, and chat answers."""
    digest = f"sha256:{hashlib.sha256(OTHER).hexdigest()}"
    layer = {"mediaType": "application/vnd.docker.ai.gguf.v3", "digest": digest, "size": len(OTHER)}
    manifest = json.dumps({"schemaVersion": 2, "layers": [layer]}).encode()
    async with open_web("127.0.0.1", m=OTHER) as web, open_up_with(tmp_path) as up:
        web.files["manifest"] = manifest
        web.names |= {"/v2/phi/manifests/q4": "manifest", f"/v2/phi/blobs/{digest}": "m.gguf"}
        await deploy(up, "web", f"oci://{web.url.removeprefix('http://')}/phi:q4")
        await up.wait_loaded("web", "Loaded")
        assert await chat(up.gateway, "web") == ANSWER
        assert [each.target for each in web.requests] == [*web.names]
        stored = [path.name for path in (up.state / "store" / "blobs" / "sha256").iterdir()]
        assert digest.partition(":")[2] in stored


async def test_a_wrong_digest_and_the_right_one(tmp_path):
    """The condition names both digests after one download, no file remains, and the right digest fixes it."""
    async with open_web(m=DEMO) as web, open_up_with(tmp_path) as up:
        await deploy(up, "web", f"{web.url}/m.gguf", sha256="0" * 64)
        reported = await wait_fetched(up, "web", "DigestMismatch")
        assert reported.message == (
            f"spec.sha256: {web.url}/m.gguf has the digest {SHA256}, but spec.sha256 is {'0' * 64} "
            "(downloaded once); correct the digest, or the source"
        )
        assert len(web.downloads) == 1
        assert list((up.state / "store" / "partial").iterdir()) == []
        assert (await up.wait_loaded("web", "DigestMismatch")).message == reported.message
        await deploy(up, "web", f"{web.url}/m.gguf", sha256=SHA256)
        await up.wait_loaded("web", "Loaded")
        assert await chat(up.gateway, "web") == ANSWER


async def test_an_edited_source_and_a_server_that_is_gone(tmp_path):
    """Another URL is another file and another engine; a stored file needs no server."""
    async with open_web(m=DEMO, n=OTHER) as web, open_up_with(tmp_path) as up:
        await deploy(up, "web", f"{web.url}/m.gguf")
        await up.wait_loaded("web", "Loaded")
        first = up.engine("web")
        await deploy(up, "web", f"{web.url}/n.gguf")
        digest = hashlib.sha256(OTHER).hexdigest()
        await up.wait_condition(Model, "web", "Fetched", lambda found: found.observed_generation == 2)
        await up.wait_service("web", "Loaded", lambda found: found.status == "True" and not first.is_running())
        assert any(part.endswith(digest) for part in up.engine("web").cmdline())
    async with open_up_with(tmp_path) as up:

        async def answer():
            try:
                return await chat(up.gateway, "web")
            except AssertionError:  # not loaded yet: the status is from the previous run
                return ""

        assert await eventually(answer, bool) == ANSWER


@contextmanager
def small_disk(path, kibibytes):
    """Mount a small file system there."""
    path.mkdir(parents=True)
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("needs mount(8)")
    options = f"size={kibibytes}k,mode=0700"
    done = subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a file system: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextmanager
def open_ballast(folder):
    """Yield functions that fill a small disk to the last byte and free it again."""
    ballast = folder / "ballast"

    def fill():
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    yield fill, ballast.unlink


async def test_a_full_disk_is_reported_until_it_has_space(tmp_path):
    """The condition names both sizes, no partial file remains, and the download succeeds once there is space."""
    state = tmp_path / "state"
    with small_disk(state / "store", 4096):
        async with open_web(m=DEMO + bytes(1 << 20)) as web, open_up_with(tmp_path) as up:
            await up.wait_loaded("demo", "Loaded")
            ballast = state / "store" / "ballast"
            ballast.write_bytes(bytes(1 << 20))
            await deploy(up, "web", f"{web.url}/m.gguf")
            reported = await wait_fetched(up, "web", "NoSpace")
            assert reported.message.startswith("no space in the model store: 2.9 MiB needed, ")
            assert f"free in {state / 'store'}" in reported.message
            assert "llmkube cache prune" in reported.message
            assert list((state / "store" / "partial").iterdir()) == []
            assert len(list((state / "store" / "blobs" / "sha256").iterdir())) == 1
            assert await chat(up.gateway) == ANSWER
            ballast.unlink()
            await up.wait_loaded("web", "Loaded")
            assert await chat(up.gateway, "web") == ANSWER


@pytest.mark.parametrize("left", [(), ("journal",)], ids=["first start", "after one that failed"])
async def test_up_on_a_full_disk_prints_one_sentence(tmp_path, left):
    """Neither a first start nor the next one prints a traceback, but the path, free and needed bytes, and a fix."""
    state = tmp_path / "state"
    with small_disk(state, 64):
        for name in left:
            (state / name).mkdir()
        command = [sys.executable, "-m", "llmkube", "up", "--state-dir", str(state), *FREE_PORTS]
        done = await trio.run_process(command, capture_stderr=True, capture_stdout=True, check=False)
    reported = (done.stdout + done.stderr).decode()
    assert done.returncode == 1
    assert "Traceback" not in reported
    assert f"the disk of the state directory {state} is full: " in reported
    assert "and LLMKube needs 4.0 MiB to start" in reported
    assert "choose another disk with --state-dir" in reported


async def test_a_disk_that_fills_up_while_an_engine_runs_is_reported_with_a_fix(tmp_path):
    """Commands and logs report the full disk, its path and a fix; once there is space, all work resumes."""
    state = tmp_path / "state"
    reported = f"the disk of {state} is full (0 B free); free some space on it, and work resumes automatically"
    with small_disk(state, 12_000), open_ballast(state) as (fill, empty):
        async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS) as up:
            await up.urls()
            run = partial(run_program, tmp_path, kubeconfig=state / "kubeconfig")
            deploy = ("deploy", "demo", "--source", "builtin://demo", "--context-size", "512")
            assert (await run(*deploy))[0] == 0
            fill()
            code, _, err = await run("scale", "demo", "0")
            assert (code, reported in err, "Traceback" in err) == (1, True, False), err
            (engine,) = engines_in(state)
            engine.kill()
            await up.wait_for("err", "engine not started: .*demo.json cannot be written: the disk of")
            for command in (("list",), ("status", "demo")):
                code, out, err = await run(*command)
                assert (code, reported in err) == (0, True), err
                assert "the output may be out of date" in err
                assert reported not in out
            empty()
            await eventually(partial(run, *deploy), lambda done: done[0] == 0)
            chat_once = partial(run, "chat", "demo", "What is LLMKube?")
            await eventually(chat_once, lambda done: done[0] == 0)  # a "Loaded" may be from before the full disk
            assert "full" not in (await run("list"))[2]


async def test_cloud_metadata_is_never_requested(tmp_path):
    """No setting lets a Model reach the metadata service; a narrowed list of networks is enforced."""
    async with open_web(m=DEMO) as web, open_up_with(tmp_path, "--allow-private-sources", "10.0.0.0/8") as up:
        await deploy(up, "cloud", "http://169.254.169.254/m.gguf")
        reported = await wait_fetched(up, "cloud", "AddressBlocked")
        assert reported.message.endswith("refused (cloud metadata service); no setting allows it; use another source")
        await deploy(up, "web", f"{web.url}/m.gguf")
        reported = await wait_fetched(up, "web", "AddressBlocked")
        assert "loopback" in reported.message
        assert "--allow-private-sources" in reported.message
        assert web.requests == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("--allow-private-sources", "home"),
            "--allow-private-sources: 'home' is not a network such as 192.168.0.0/16",
        ),
        (("--hf-token-file", "/nowhere/token"), "--hf-token-file: /nowhere/token cannot be read (No such file"),
        (("--hub-endpoint", "huggingface.co"), "--hub-endpoint: the hub's address 'huggingface.co' is not valid"),
    ],
)
async def test_invalid_settings_end_the_start(tmp_path, args, words):
    """A wrong network, token file or hub ends the start with one sentence that names the flag."""
    code, _, err = await run_up(tmp_path, "--state-dir", str(tmp_path / "state"), *args)
    assert code == 1
    assert err.startswith(f"Error: {words}")
    assert "Traceback" not in err


async def test_preload_then_serve_offline(tmp_path):
    """`cache preload` fetches by URL and shows its progress; a service then starts without the server."""
    state = tmp_path / "state"
    async with open_web(m=DEMO) as web:
        url = f"{web.url}/m.gguf"
        preload = ("cache", "preload", url, "--sha256", SHA256, "--state-dir", str(state))
        code, out, err = await run_program(tmp_path, *preload)
        assert (code, out) == (0, f"{url} is in the store: 933.8 KiB at {state}/store/blobs/sha256/{SHA256}\n")
        assert "downloading" in err
        web.files.clear()
        async with open_up_with(tmp_path) as up:
            await deploy(up, "web", url)
            await up.wait_loaded("web", "Loaded")
        assert len(web.downloads) == 1
