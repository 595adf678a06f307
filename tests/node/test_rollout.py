"""Pods that are replaced lose no request: with the bundled engine, and with stand-ins for foreign images."""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pytest
import trio

from node.images import reference
from node.objects import pod
from node.release import Release
from node.running_node import Node
from node.services import TRAFFIC, model, read, service, wait

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("release")]

EDIT = {"spec": {"extraArgs": ["--threads=1", "--context-shift", "--cache-ram=0"]}}
SLEEP = ["sleep", "3600"]
REACHED = "import sys, urllib.request; print(urllib.request.urlopen(f'{sys.argv[1]}/health', timeout=5).status)"
CLIENT_KEY = "CanaryClientKey0"

ENGINE = """
import http.server, json, os, sys, threading, time
loads, seconds, metrics = float(sys.argv[1]), float(sys.argv[2]), "metrics" in sys.argv
busy, lock = 0, threading.Lock()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = f"llamacpp:requests_processing {busy}\\nllamacpp:requests_deferred 0\\n".encode()
        found = metrics or self.path != "/metrics"
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        global busy
        with lock:
            busy += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wfile.write(b'data: {}\\n')
            time.sleep(0.1)
        self.wfile.write(b'data: {"stop":true}\\n')
        with lock:
            busy -= 1

    def log_message(self, *_):
        pass

time.sleep(loads)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
"""An engine that loads for a while, streams for a while, and ends at TERM at once: LOADS SECONDS [metrics].

As process 1 of its container Python ignores a TERM that it does not handle: the command puts a shell-less parent first.
"""

INIT = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: os._exit(143))\n"
    "exec(compile(sys.argv.pop(1), 'engine', 'exec'))\n"
)


def stand_in(name: str, loads: float, seconds: float, *words: str, **spec: Any) -> Mapping[str, Any]:
    """Return a service whose engine is a stand-in for a foreign image."""
    arguments = ["-uc", INIT, ENGINE, str(loads), str(seconds), *words]
    image = {"image": reference("llmkube"), "command": ["python3", *arguments], "extraArgs": []}
    return service(name, **{**image, **spec})


async def traffic(node: Node, namespace: str, name: str, seconds: float, tokens: int, *more: str) -> dict[str, Any]:
    """Stream answers from inside a pod; return how many were whole, and which were not."""
    words = (f"http://{name}:8080", str(seconds), str(tokens), *more)
    counts: dict[str, Any] = json.loads(await node.execute(namespace, "client", "python3", "-c", TRAFFIC, *words))
    return counts


async def rolled(node: Node, namespace: str, name: str) -> None:
    """Return when the newest template is all that is left of a Deployment."""
    while True:
        output = await node.kubectl(
            "rollout", "status", "-n", namespace, f"deployment/{name}", "--timeout=240s", check=False
        )
        if "successfully rolled out" in output:
            return
        await trio.sleep(0.5)


async def pods_of(node: Node, namespace: str, name: str) -> list[Any]:
    found: list[Any] = (await read(node, namespace, f"pods -l app={name}"))["items"]
    return found


async def start(node: Node, namespace: str, *services: Mapping[str, Any], models: tuple[str, ...] = ("demo",)) -> None:
    await node.apply(namespace, *map(model, models), pod("client", SLEEP))
    await node.apply(namespace, *services)
    for each in services:
        await wait(node, namespace, f"isvc/{each['metadata']['name']}", "condition=Available")
    await wait(node, namespace, "pod/client", "condition=Ready")
    for each in services:  # kube-proxy learns of an endpoint up to a second after the controller
        await until(partial(is_reached, node, namespace, each["metadata"]["name"]))


async def is_reached(node: Node, namespace: str, name: str) -> bool:
    """Whether a client in a pod gets an answer through the Service."""
    ask = ("python3", "-c", REACHED, f"http://{name}:8080")
    return "200" in await node.execute(namespace, "client", *ask, check=False)


async def count(node: Node, namespace: str, name: str, number: int) -> bool:
    """Whether a service has so many pods, those that are ending among them."""
    return len(await pods_of(node, namespace, name)) == number


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds."""
    with trio.fail_after(60):
        while True:
            if await holds():
                return
            await trio.sleep(0.2)


@pytest.mark.parametrize("keyed", [False, True])
async def test_an_edit_breaks_no_answer_of_the_bundled_engine(node: Node, namespace: str, keyed: bool):
    """K1: two replicas, long streams and short ones, an edit and a deleted pod meanwhile: all whole, none refused."""
    key = {"apiKeySecretRef": {"name": "keys", "key": "api-key"}} if keyed else {}
    if keyed:
        await node.kubectl(
            "create", "secret", "generic", "keys", "-n", namespace, f"--from-literal=api-key={CLIENT_KEY}"
        )
    edited = {"replicas": 2, "extraArgs": ["--threads=1", "--context-shift"], "modelRef": "demo"}
    await start(node, namespace, service("tiny", **edited, **key))
    shown = (CLIENT_KEY,) if keyed else ()
    found: list[dict[str, Any]] = []

    async def ask(tokens: int, workers: int) -> None:
        found.append(await traffic(node, namespace, "tiny", 50, tokens, str(workers), *shown))

    async with trio.open_nursery() as clients:
        clients.start_soon(ask, 6000, 2)
        clients.start_soon(ask, 20, 2)
        await trio.sleep(5)
        await node.kubectl("patch", "isvc", "tiny", "-n", namespace, "--type=merge", "-p", json.dumps(EDIT))
        await trio.sleep(2)
        await rolled(node, namespace, "tiny")
        metadata = [each["metadata"] for each in await pods_of(node, namespace, "tiny")]
        last = [each["name"] for each in metadata if "deletionTimestamp" not in each][-1]  # old ones may still end
        await node.kubectl("delete", "pod", "-n", namespace, last, "--wait=false")
    for each in found:
        assert each["broken"] == [], each
        assert each["whole"], each


async def test_an_image_without_metrics_drains_by_its_connections(node: Node, namespace: str):
    """K1: a container without metrics that ends at TERM: streams of 25 seconds outlive their pod's deletion."""
    engine = stand_in("anyone", 0, 25, modelRef="demo", runtime="generic")
    await start(node, namespace, engine)
    found: list[dict[str, Any]] = []

    async def ask() -> None:
        found.append(await traffic(node, namespace, "anyone", 5, 1, "3"))

    async with trio.open_nursery() as clients:
        clients.start_soon(ask)
        await trio.sleep(4)
        edit = {"spec": {"podAnnotations": {"example.org/edit": "1"}}}
        await node.kubectl("patch", "isvc", "anyone", "-n", namespace, "--type=merge", "-p", json.dumps(edit))
    (only,) = found
    assert (only["broken"], only["whole"]) == ([], 3)


async def test_what_comes_while_the_new_pod_loads_has_the_time_of_the_policy(node: Node, namespace: str):
    """K2: an edit waits for idle replicas; the old pod then takes a stream of 75 seconds, and is not killed busy."""
    policy = {"rolloutPolicy": {"waitForIdle": True, "idleTimeoutSeconds": 120}}
    engine = stand_in("slow", 8, 75, "metrics", modelRef="demo", **policy)
    await start(node, namespace, engine)
    (before,) = await pods_of(node, namespace, "slow")
    found: list[dict[str, Any]] = []

    async def ask() -> None:
        found.append(await traffic(node, namespace, "slow", 1, 1, "1"))

    async with trio.open_nursery() as clients:
        edit = {"spec": {"podAnnotations": {"example.org/edit": "1"}}}
        await node.kubectl("patch", "isvc", "slow", "-n", namespace, "--type=merge", "-p", json.dumps(edit))
        await until(partial(count, node, namespace, "slow", 2))
        clients.start_soon(ask)
    (only,) = found
    assert (only["broken"], only["whole"]) == ([], 1), only
    assert only["longest"] > 70
    await until(partial(count, node, namespace, "slow", 1))
    assert (await pods_of(node, namespace, "slow"))[0]["metadata"]["name"] != before["metadata"]["name"]


async def test_an_idle_pod_ends_soon_and_logs_the_reason(node: Node, namespace: str, release: Release):
    """An idle pod waits for the proxies alone; the container next to the engine logs a line for people."""
    await start(node, namespace, service("tiny", modelRef="demo"))
    (only,) = await pods_of(node, namespace, "tiny")
    name = only["metadata"]["name"]
    async with trio.open_nursery() as nursery:
        output: list[str] = []

        async def follow() -> None:
            output.append(await node.kubectl("logs", "-f", "-n", namespace, name, "-c", "drain", check=False))

        nursery.start_soon(follow)
        await node.kubectl("delete", "pod", "-n", namespace, name, "--timeout=120s")
    assert "it has no requests" in output[0], output
