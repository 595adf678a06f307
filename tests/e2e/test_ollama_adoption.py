"""The real agent with a scripted Ollama: models are pulled, adopted and released while agents are killed."""

import json
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from e2e.addresses import own_address
from e2e.separate_programs import DEMO, eventually, logs, open_cluster
from e2e.test_adoption import asking, kill
from e2e.up_process import engines_in
from gguf_corpus import DEMO as DEMO_FILE
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from programs.daemon_engine.fake_ollama import LIBRARY_BLOB, FakeDaemon, shown_header
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]


@attrs.define(eq=False)
class Host:
    """A cluster with one host, on which an Ollama runs.

    Attributes:
        cluster: The API server and controller.
        daemon: The Ollama.
        port: The port of the daemon.
        address: The address of the host.
    """

    cluster: object
    daemon: FakeDaemon
    port: int
    address: str

    def open_agent(self, version="0.17.4"):
        """Run an agent; Ollama's program reports this version."""
        program = self.cluster.folder / f"ollama-{version}"
        program.write_text(f'#!/bin/sh\necho "ollama version is {version}"\n')
        program.chmod(0o755)
        prefix = ("env", f"OLLAMA_HOST=127.0.0.1:{self.port}")
        flags = ("--ollama", str(program), "--allow-ollama-sources", "tiny")
        return self.cluster.open_agent(self.address, *flags, prefix=prefix)

    async def apply(self):
        """Apply a model of Ollama's library and its service."""
        specs = {
            Model: {"source": "ollama://tiny", "hardware": {"accelerator": "cpu"}},
            InferenceService: {"modelRef": DEMO.name, "runtime": "ollama", "contextSize": 512},
        }
        for kind, spec in specs.items():
            metadata = {"name": DEMO.name, "namespace": DEMO.namespace}
            manifest = {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind, "metadata": metadata}
            await self.cluster.client.apply(kind, {**manifest, "spec": spec}, field_manager="user")

    async def engine(self):
        """Return the engine in the service's status."""
        return str((await self.cluster.client.get(InferenceService, DEMO)).status.engine)


@asynccontextmanager
async def open_host(tmp_path):
    fake = FakeDaemon(shows={LIBRARY_BLOB: shown_header(DEMO_FILE)}, hidden=True)
    (listener,) = await open_listeners("127.0.0.1", 0, field="--port")
    port = listener.socket.getsockname()[1]

    async def handle(exchange):
        if not fake.answers:
            raise ConnectionResetError  # like a closed port: the connection ends without an answer
        await fake.handle(exchange)

    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, handle, [listener]))
        yield Host(cluster, fake, port, own_address())
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_killed_agent_loses_no_answer_of_ollama(tmp_path):
    """The model is pulled once; the next agent adopts the front, which is ready throughout."""
    async with open_host(tmp_path) as host, host.open_agent() as agent:
        await host.apply()
        await host.cluster.wait_ready()
        assert await eventually(host.engine, lambda state: state != "None") == "ollama 0.17.4 (gguf)"
        front, (_, _, port) = host.cluster.engine(), await host.cluster.slice()
        async with host.cluster.open_slices() as seen, asking(f"http://{host.address}:{port}") as (answers, clients):
            await until(lambda: len(answers) > 5)
            await kill(agent)
            loads = host.daemon.calls.count("/api/generate")
            async with host.open_agent("0.18.0") as successor:
                await until(lambda: logs(successor, "registered endpoint"))
                (line,) = logs(successor, "adopted inference service")
                assert (line["pid"], line["port"]) == (front.pid, port)
                count = len(answers)
                await until(lambda: len(answers) > count + 5)
                clients.cancel(reason="no client may outlive the engine")
                assert {json.loads(answer.body)["model"] for answer in answers} == {DEMO.name}
                await until(lambda: logs(successor, "started inference service"))
                assert await eventually(host.engine, lambda state: state != "None") == "ollama 0.17.4 (gguf)"
                assert not any(not ready for ready, _, _ in seen), seen
                assert host.daemon.calls.count("/api/pull") == 1
                assert host.daemon.calls.count("/api/generate") <= loads + 1  # a renewal
                assert len(host.daemon.held) == 1
                await host.cluster.client.delete(InferenceService, DEMO)
                await until(lambda: not host.daemon.held)
                assert host.daemon.answers


async def test_the_status_has_the_build_that_serves_now(tmp_path):
    """Ollama is upgraded behind the front, once before and once after another agent has adopted it."""
    async with open_host(tmp_path) as host, host.open_agent() as agent:
        await host.apply()
        await host.cluster.wait_ready()
        front = host.cluster.engine()
        assert await eventually(host.engine, lambda state: state != "None") == "ollama 0.17.4 (gguf)"
        host.daemon.start("0.18.0")  # the new version has the model loaded
        await eventually(host.engine, lambda state: state == "ollama 0.18.0 (gguf)")
        await kill(agent)
        async with host.open_agent() as successor:
            await until(lambda: logs(successor, "started inference service"))
            assert await eventually(host.engine, lambda state: state != "None") == "ollama 0.18.0 (gguf)"
            host.daemon.start("0.19.0")
            await eventually(host.engine, lambda state: state == "ollama 0.19.0 (gguf)")
            served = await host.cluster.client.get(InferenceService, DEMO)
            (loaded,) = [each.message for each in served.status.conditions if each.type == "Loaded"]
            assert loaded == "the model is loaded; ollama is now 0.19.0 (was 0.18.0)"
            assert host.cluster.engine() == front
            assert len(host.daemon.held) == 1


async def test_an_ollama_that_stopped_while_no_agent_ran_is_noticed(tmp_path):
    """The next agent adopts the front, and publishes it when it has its model again."""
    async with open_host(tmp_path) as host, host.open_agent() as agent:
        await host.apply()
        await host.cluster.wait_ready()
        front = host.cluster.engine()
        await kill(agent)
        host.daemon.stop()
        await trio.sleep(6.0)  # the front checks its daemon meanwhile
        async with host.open_agent() as successor:
            await until(lambda: logs(successor, "adopted inference service"))
            await eventually(host.cluster.slice, lambda state: not state[0])
            host.daemon.start()
            await eventually(host.cluster.slice, lambda state: state[0])
            assert host.cluster.engine() == front
            assert len(host.daemon.held) == 1


async def test_a_killed_front_is_replaced_without_a_second_copy(tmp_path):
    """The new front adopts the model that the killed one has left in Ollama."""
    async with open_host(tmp_path) as host, host.open_agent():
        await host.apply()
        await host.cluster.wait_ready()
        front = host.cluster.engine()
        front.kill()
        await until(lambda: not front.is_running())
        await until(lambda: engines_in(tmp_path))
        await eventually(host.engine, lambda state: state == "ollama 0.17.4 (gguf)")
        assert host.cluster.engine() != front
        assert len(host.daemon.held) == 1
        assert host.daemon.calls.count("/api/pull") == 1
