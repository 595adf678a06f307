"""Real downloads in Jobs of the cluster: a web server on the node's wire, a claim that is a folder of the node."""

import hashlib
import json
from pathlib import Path

import pytest
import trio

import llmkube
from e2e.web import open_web
from node.objects import Object, volume
from node.release import Release
from node.running_node import Node, line_of
from node.services import model, read, service, wait
from node.wiring import ADDRESS, STATE

pytestmark = pytest.mark.node

DEMO = (Path(llmkube.__file__).parent / "weights" / "builtin" / "demo.gguf").read_bytes()
PORT = 18080
PATIENCE_SECONDS = 120


def demo_and_more() -> bytes:
    """Half of it is more than a download syncs at once (`checkpoint_bytes`): a kill costs what came since then."""
    return DEMO + bytes(300 * 2**20)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_killed_job_resumes_where_it_stopped(node: Node, release: Release, namespace: str):
    """The pod that fetches is killed in the middle; the next one asks for the rest, and the whole has its digest."""
    padded = demo_and_more()
    async with open_web(ADDRESS, big=padded) as web:
        web.held.add("big.gguf")
        await node.apply(namespace, model("big", f"{web.url}/big.gguf", sha256=digest(padded)))
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if kept := await kept_bytes(node, namespace):
                    break
                await trio.sleep(0.2)
        web.held.clear()
        fetching = [each for each in node.descendants() if " fetch --to " in line_of(each)]
        assert fetching
        (name,) = [each["metadata"]["name"] for each in (await read(node, namespace, "pods"))["items"]]
        await node.kubectl("delete", "-n", namespace, f"pod/{name}", "--grace-period=0", "--force")
        with trio.fail_after(PATIENCE_SECONDS):  # the object goes first, and the container a moment later
            while True:
                if not any(each.is_running() for each in fetching):
                    break
                await trio.sleep(0.1)
        web.resume.set()
        await wait(node, namespace, "model/big", "jsonpath={.status.phase}=Ready")
        assert (await read(node, namespace, "model/big"))["status"]["sha256"] == digest(padded)
        ranges = [each.headers.get("range", "") for each in web.requests]
        assert [each.start for each in web.requests if (each.start or 0) >= kept] != [], (kept, ranges)


async def kept_bytes(node: Node, namespace: str) -> int:
    """Return the synced bytes in the record of the partial file."""
    text = await node.run("sh", "-c", f"cat {STATE}/volumes/{namespace}/.store/partial/*.json", check=False)
    return int(json.loads(text)["syncedBytes"]) if text.startswith("{") else 0


async def test_a_wrong_digest_fails_the_model_with_both_digests(node: Node, release: Release, namespace: str):
    """Expected and actual digest are in the message, and no file of that name is left to be served."""
    async with open_web(ADDRESS, tiny=DEMO) as web:
        await node.apply(namespace, model("tiny", f"{web.url}/tiny.gguf", sha256="5" * 64))
        await wait(node, namespace, "model/tiny", "jsonpath={.status.phase}=Failed")
    text = str((await read(node, namespace, "model/tiny"))["status"]["conditions"])
    assert "5" * 64 in text
    assert digest(DEMO) in text


async def test_a_full_volume_is_reported(node: Node, release: Release, namespace: str):
    """A claim smaller than the file: the Model says that the volume is full, at the first try."""
    await node.run("mount", "-t", "tmpfs", "-o", "size=8m,mode=777", "full", f"{STATE}/volumes/{namespace}")
    async with open_web(ADDRESS, big=demo_and_more()) as web:
        await node.apply(namespace, model("big", f"{web.url}/big.gguf"))
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if "space" in await condition_messages(node, namespace, "big"):
                    break
                await trio.sleep(0.2)


async def condition_messages(node: Node, namespace: str, name: str) -> str:
    """Return the messages of the Model's conditions, joined."""
    status = (await read(node, namespace, f"model/{name}")).get("status", {})
    return " ".join(each["message"] for each in status.get("conditions", []))


async def test_a_failing_download_names_the_cause_at_its_first_failure(node: Node, release: Release, namespace: str):
    """The Model tells that nothing answers while its first pod still tries, and is Ready once a server is there."""
    await node.apply(namespace, model("tiny", f"http://{ADDRESS}:{PORT}/tiny.gguf"))
    text = ""
    with trio.move_on_after(PATIENCE_SECONDS):
        while "cannot connect" not in text:
            text = await condition_messages(node, namespace, "tiny")
    assert "cannot connect" in text
    phase = (await read(node, namespace, "model/tiny"))["status"]["phase"]
    assert (phase, len((await read(node, namespace, "pods"))["items"])) == ("Downloading", 1)
    async with open_web(ADDRESS, PORT, tiny=DEMO):
        await wait(node, namespace, "model/tiny", "jsonpath={.status.phase}=Ready", "240s")


def claim(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


async def test_weights_on_a_claim_that_waits_for_its_first_pod_are_served(node: Node, release: Release, namespace: str):
    """`pvc://` with WaitForFirstConsumer: the engine's pod binds the claim, and answers."""
    folder = node.state / "volumes" / f"{namespace}-own"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(DEMO)
    await node.apply(
        "default", volume(f"{namespace}-own", f"{STATE}/volumes/{folder.name}", claim="own", namespace=namespace)
    )
    await node.apply(namespace, claim("own"), model("tiny", "pvc://own/model.gguf"), service("tiny"))
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    await node.kubectl("wait", "-n", namespace, "pvc/own", "--for=jsonpath={.status.phase}=Bound", "--timeout=60s")
