"""What pods write, and the way to their engines, from a machine that is not on the network of the pods."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from node.images import reference
from node.running_node import Node, line_of
from node.services import ANSWER, model, read, service, wait
from waiting import until

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("release")]

MAC = "mac2"  # nobody pulls out its cable


def llmkube(node: Node, namespace: str, *words: str, kubeconfig: Path | None = None) -> list[str]:
    """Return the command that runs ours on the Mac, which reaches the API server and no pod."""
    variables = (f"KUBECONFIG={kubeconfig or node.kubeconfig}", "LLMKUBE_STATE_DIR=/tmp/llmkube-mac", "NO_COLOR=1")
    return node.inside("env", *variables, sys.executable, "-m", "llmkube", *words, "-n", namespace, machine=MAC)


async def run(node: Node, namespace: str, *words: str, kubeconfig: Path | None = None) -> tuple[int, str, str]:
    done = await trio.run_process(
        llmkube(node, namespace, *words, kubeconfig=kubeconfig), capture_stdout=True, capture_stderr=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def pods_of(node: Node, namespace: str, name: str) -> list[str]:
    return [each["metadata"]["name"] for each in (await read(node, namespace, f"pods -l app={name}"))["items"]]


@asynccontextmanager
async def following(node: Node, namespace: str, *words: str) -> AsyncIterator[list[bytes]]:
    """Run a command that stays; the block sees what it has printed."""
    pieces: list[bytes] = []
    async with trio.open_nursery() as nursery:
        command = llmkube(node, namespace, *words)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "deliver_cancel": _kill}
        process = await nursery.start(partial(trio.run_process, command, check=False, **options))

        async def read_all() -> None:
            async for piece in process.stdout:
                pieces.append(piece)  # noqa: PERF401 (the block reads them as they come)

        nursery.start_soon(read_all)
        yield pieces
        nursery.cancel_scope.cancel()


async def _kill(process: trio.Process) -> None:  # noqa: ASYNC124 (trio awaits it)
    """End the command and not only the nsenter that waits for it: a port would be taken until the node ends."""
    for each in (*psutil.Process(process.pid).children(recursive=True), process):
        each.kill()


async def printed(pieces: list[bytes], text: bytes) -> None:
    with trio.fail_after(60):
        await until(lambda: text in b"".join(pieces))


async def test_the_log_of_pods_is_read_from_anywhere(node: Node, namespace: str):
    """K7: two replicas by their names, the last lines, a run before this one, and a container that cannot start."""
    await node.apply(namespace, model("demo"), service("logged", modelRef="demo", replicas=2))
    await wait(node, namespace, "isvc/logged", "condition=Available")
    first, second = await pods_of(node, namespace, "logged")
    code, out, err = await run(node, namespace, "logs", "logged", "--tail", "2")
    assert (code, err) == (0, "")
    assert {line.partition(" ")[0] for line in out.splitlines()} == {f"[{first}]", f"[{second}]"}
    assert len(out.splitlines()) == 4

    code, _, err = await run(node, namespace, "logs", "logged", "--previous")
    assert code == 1
    assert "has no previous run" in err
    async with following(node, namespace, "logs", "logged", "-f", "--tail", "1") as pieces:
        for name in (first, second):  # it follows both, however long it takes to start
            await printed(pieces, f"[{name}]".encode())
        begun = b"".join(pieces).count(b"listening")
        engine = next(each for each in node.processes("python") if "--alias logged" in line_of(each))
        engine.kill()
        with trio.fail_after(60):  # the run after the kill, from its beginning
            await until(lambda: b"".join(pieces).count(b"listening") > begun)
    await wait(node, namespace, "isvc/logged", "condition=Available")
    code, out, _ = await run(node, namespace, "logs", "logged", "--previous", "--tail", "1")
    assert code == 0
    assert out.count("\n") == 1

    stuck = service("stuck", modelRef="demo", image="192.0.2.1/no/such:image")
    await node.apply(namespace, stuck)
    with trio.fail_after(90):
        while True:
            code, _, err = await run(node, namespace, "logs", "stuck")
            if "ImagePullBackOff" in err or "ErrImagePull" in err:
                break
            await trio.sleep(1)
    assert code == 1
    assert "container llama-server" in err


async def test_a_user_without_the_right_is_told_which(node: Node, namespace: str, tmp_path: Path):
    """K7: one who may see services and pods, and neither logs nor port-forwards, reads the verb that is missing."""
    await node.apply(namespace, model("demo"), service("tiny", modelRef="demo"))
    await wait(node, namespace, "isvc/tiny", "condition=Available")
    await node.kubectl("create", "serviceaccount", "reader", "-n", namespace)
    groups = "pods,endpointslices.discovery.k8s.io,inferenceservices.inference.llmkube.dev,models.inference.llmkube.dev"
    verbs = ("--verb=get,list,watch", f"--resource={groups}")
    await node.kubectl("create", "role", "reader", "-n", namespace, *verbs)
    subject = f"--serviceaccount={namespace}:reader"
    await node.kubectl("create", "rolebinding", "reader", "-n", namespace, "--role=reader", subject)
    config = json.loads(await node.kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    token = (await node.kubectl("create", "token", "reader", "-n", namespace)).strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    kubeconfig = tmp_path / "reader.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    code, _, err = await run(node, namespace, "logs", "tiny", kubeconfig=kubeconfig)
    assert code == 1
    assert f"you may not get pods/log in namespace {namespace}" in err
    code, _, err = await run(node, namespace, "chat", "tiny", "Hi?", kubeconfig=kubeconfig)
    assert code == 1
    assert "verbs get and create on pods/portforward" in err


async def test_a_pod_is_asked_through_the_api_server(node: Node, namespace: str):
    """K7: chat and port-forward reach an engine whose address the Mac does not; with keys, too."""
    await node.kubectl("create", "secret", "generic", "keys", "-n", namespace, "--from-literal=api-key=CanaryKey0")
    keyed = service("keyed", modelRef="demo", apiKeySecretRef={"name": "keys", "key": "api-key"})
    await node.apply(namespace, model("demo"), service("tiny", modelRef="demo"), keyed)
    for name in ("tiny", "keyed"):
        await wait(node, namespace, f"isvc/{name}", "condition=Available")
        code, out, err = await run(node, namespace, "chat", name, "What is LLMKube?", "--temperature", "0")
        assert code == 0, err
        assert ANSWER in out
    async with following(node, namespace, "port-forward", "tiny", "18080") as pieces:
        await printed(pieces, b"Forwarding 127.0.0.1:18080")
        ask = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:18080/health').status)"
        assert (await node.run("python3", "-c", ask, machine=MAC)).strip() == "200"


def test_the_image_of_the_tests_is_ours():
    """The engine that these tests ask is the bundled one, in an image that the Dockerfile makes."""
    assert reference("llmkube-llama") == service("x")["spec"]["image"]
