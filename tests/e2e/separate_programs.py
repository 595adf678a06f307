"""API server, controller and agent as three processes that share nothing but a kubeconfig, as in a cluster."""

import json
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs
import psutil
import trio

from e2e.up_process import Program, engines_in, open_program
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import NotFoundError, TransportError
from llmkube.k8s.resource import Key
from llmkube.programs.server_side_apply import Applier

T = TypeVar("T")

DEMO = Key("default", "demo")
SLICE = Key("default", "demo.box")  # --host-name box
REAL_ENGINE = f"{shlex.quote(sys.prefix)}/bin/llmkube-llama-server"
"""The bundled engine, quoted for a shell script."""
QUESTION = "What is LLMKube?"


@attrs.define(eq=False)
class Cluster:
    """A running API server and controller, and a client for it."""

    folder: Path
    kubeconfig: Path
    client: Client
    server: Program
    url: str
    controller: Program

    @asynccontextmanager
    async def open_agent(
        self, address: str, *args: str, folder: str = "agent", prefix: tuple[str, ...] = (), kills: bool = True
    ) -> AsyncIterator[Program]:
        """Run an agent; a second one in the same folder is the same host. `prefix`: see `open_program`.

        If `kills`, its engines and proxies are killed after the block.
        """
        state = self.folder / folder
        state.mkdir(exist_ok=True)
        where = ("--host-ip", address, "--host-name", "box", "--state-dir", str(state), "--port", "0")
        args = ("agent", "--accelerator", "cpu", *where, *args)
        async with open_program(state, *args, kubeconfig=self.kubeconfig, prefix=prefix, runs_engines=kills) as agent:
            await agent.wait_for("err", '"msg":"agent started"')
            yield agent

    async def apply_demo(self, **spec: Any) -> None:
        """Apply the demo's objects, with changes to the service's spec."""
        applied = await Applier(self.client).apply_all(demo_manifests(), lambda _: None)
        assert not any(each.error for each in applied), applied
        if spec:
            await self.client.patch(InferenceService, DEMO, {"spec": spec})

    async def wait_service(self, accept: Callable[[InferenceService], object]) -> InferenceService:
        """Return the demo's service once it is accepted; retry while the API server is away."""
        return await eventually(lambda: self.client.get(InferenceService, DEMO), accept)

    async def wait_ready(self) -> InferenceService:
        """Return the demo's service once the controller reports it Ready."""
        return await self.wait_service(lambda service: service.status.phase == "Ready")

    async def slice(self) -> tuple[bool, str, int]:
        """Return whether the endpoint of the demo's slice is ready, its address and its port."""
        return endpoint_of(await self.client.get(EndpointSlice, SLICE))

    @asynccontextmanager
    async def open_slices(self) -> AsyncIterator[list[tuple[bool, str, int]]]:
        """Collect every state of the demo's slice from now on, without repetitions."""
        seen: list[tuple[bool, str, int]] = []
        listing = await self.client.list(EndpointSlice, namespace=DEMO.namespace)

        async def collect(task_status: trio.TaskStatus[None]) -> None:
            version = listing.resource_version
            async with self.client.open_watch(EndpointSlice, namespace="default", resource_version=version) as watch:
                task_status.started()
                while (event := await watch.next_event()) is not None:
                    if event.type == "MODIFIED" and endpoint_of(event.object) not in seen[-1:]:
                        seen.append(endpoint_of(event.object))

        async with trio.open_nursery() as nursery:
            await nursery.start(lambda *, task_status: collect(task_status))
            yield seen
            nursery.cancel_scope.cancel()

    def engine(self, folder: str = "agent") -> psutil.Process:
        """The only running engine."""
        (engine,) = engines_in(self.folder / folder)
        return engine


@asynccontextmanager
async def open_cluster(folder: Path, *controller_args: str, server_port: str = "0") -> AsyncIterator[Cluster]:
    """Run the embedded API server and the controller, with these additional arguments."""
    async with (
        open_server(folder, server_port) as (server, url),
        open_client(load_config(folder / "server" / "kubeconfig", None)) as client,
        open_controller(folder, *controller_args) as controller,
    ):
        yield Cluster(folder, folder / "server" / "kubeconfig", client, server, url, controller)


@asynccontextmanager
async def open_server(folder: Path, port: str = "0") -> AsyncIterator[tuple[Program, str]]:
    """Run the API server on a state directory in the folder; the block starts when it listens."""
    state = folder / "server"
    state.mkdir(exist_ok=True)
    async with open_program(state, "apiserver", "--state-dir", str(state), "--port", port) as server:
        url = (await server.wait_for("out", r"Kubernetes API on (\S+)\n"))[1]
        yield server, url


@asynccontextmanager
async def open_controller(folder: Path, *more: str) -> AsyncIterator[Program]:
    """Run the controller."""
    state = folder / "controller"
    state.mkdir(exist_ok=True)
    args = ("controller", "--accelerator", "cpu", "--state-dir", str(state), *more)
    async with open_program(state, *args, kubeconfig=folder / "server" / "kubeconfig") as controller:
        await controller.wait_for("err", '"msg":"controller started"')
        yield controller


def endpoint_of(piece: EndpointSlice) -> tuple[bool, str, int]:
    """Return whether the slice's endpoint is ready, its address and its port; `(False, "", 0)` for an empty one."""
    if not piece.endpoints:
        return False, "", 0
    (endpoint,), (port,) = piece.endpoints, piece.ports
    return bool(endpoint.conditions.ready), endpoint.addresses[0], port.port or 0


def logs(program: Program, message: str) -> list[dict[str, Any]]:
    """Return the JSON log lines with this message."""
    lines = [json.loads(line) for line in program.err.splitlines() if line.startswith("{")]
    return [line for line in lines if line["msg"] == message]


async def eventually(read: Callable[[], Awaitable[T]], accept: Callable[[T], object]) -> T:
    """Return the first accepted value; retry while the server is away or the object does not exist."""
    while True:
        try:
            value = await read()
        except (TransportError, NotFoundError):
            pass
        else:
            if accept(value):
                return value
        await trio.sleep(0.05)


async def chat(url: str, model: str = "demo", *, stream: bool = False) -> str:
    """Send the demo's question to an engine or a gateway at temperature 0; return the answer's text."""
    body = {"model": model, "temperature": 0, "stream": stream, "messages": [{"role": "user", "content": QUESTION}]}
    async with open_http_client() as http:
        headers, data = Headers.of({"Content-Type": "application/json"}), json.dumps(body).encode()
        response = await http.request("POST", f"{url}/v1/chat/completions", headers=headers, body=data)
    assert response.status == 200, response.body
    if not stream:
        return str(json.loads(response.body)["choices"][0]["message"]["content"])
    lines = response.body.decode().splitlines()  # among comments while the model is loaded
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert len(deltas) > 10  # in pieces, not all at once
    return "".join(delta.get("content") or "" for delta in deltas)
