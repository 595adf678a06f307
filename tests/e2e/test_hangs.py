"""A real engine that is stopped is replaced; one that computes is not."""

import json
import os
import signal
import struct
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from cookies import new_cookie
from e2e.addresses import own_address
from e2e.separate_programs import DEMO, chat, logs, open_cluster
from e2e.up_process import ANSWER
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.k8s.builtins import Event
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import plan_for
from llmkube.supervisor.engine import health
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.values.desired import Desired, Launch
from llmkube.supervisor.values.liveness import Limits
from llmkube.supervisor.values.ports import Command, Grace, Shutdown
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.store.blobs import WeightsFile
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ENGINE = f"{sys.prefix}/bin/llmkube-llama-server"
MODEL = Path(__file__).parents[2] / "src" / "llmkube" / "weights" / "builtin" / "demo.gguf"
HASTY = Limits(tick_seconds=0.7, probe_seconds=1.5, still_seconds=2.0)
PROMPT_TOKENS = 17 * 700


async def test_a_stopped_engine_is_withdrawn_and_replaced(tmp_path):
    """After SIGSTOP the slice is not ready, and then a new engine answers behind it."""
    address = own_address()
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        first = cluster.engine()
        async with cluster.open_slices() as seen:
            first.send_signal(signal.SIGSTOP)
            with trio.fail_after(60):
                await until(lambda: seen and not seen[0][0])
            await until(lambda: seen[-1][0])
        assert cluster.engine().pid != first.pid
        assert not first.is_running()
        assert await chat(f"http://{address}:{seen[-1][2]}") == ANSWER
        events = (await cluster.client.list(Event, namespace=DEMO.namespace)).items
        assert any("the process has been stopped (state T)" in one.message for one in events if one.reason == "Hung")
    (failed,) = logs(agent, "inference service failed")
    assert failed["reason"] == "Hung"


def settings(tmp_path, **changes):
    return AgentSettings("box", tmp_path / "state", tmp_path / "store", ENGINE, **changes)


def long_model(tmp_path):
    """Return the demo model with a longer trained context: it computes nonsense, but takes as long as a real one."""
    data, key = bytearray(MODEL.read_bytes()), b"llama.context_length"
    at = data.index(key) + len(key) + 4
    data[at : at + 4] = struct.pack("<I", 2 * PROMPT_TOKENS)
    path = tmp_path / "long.gguf"
    path.write_bytes(data)
    return path


@asynccontextmanager
async def real_engine(tmp_path, model):
    """Run a bundled engine; yield its process, its client and a function that samples it."""
    engines = LocalEngines(settings(tmp_path))
    port = free_port()
    program = await engines.info()
    launch = launched(model, program)
    argv = launch.plan.render(program, model=str(model), host="127.0.0.1", port=port, keys="")
    command = Command(argv, {}, tmp_path / "work", tmp_path / "log", cookie=new_cookie())
    async with open_http_client() as http, engines.open_child(command, Shutdown(), Grace(0.2, 0.2)) as child:
        engine = health.Engine(http, f"http://127.0.0.1:{port}", launch.plan)
        await health.wait_ready(http, engine.ready_url)
        yield child, engine, partial(child.read_stats, "127.0.0.1", port, loading=False)


def desired(**spec):
    names = {"name": "chat", "namespace": "default"}
    model = {"metadata": names, "spec": {"source": "builtin://demo", "hardware": {"accelerator": "cpu"}}}
    service = {"metadata": names, "spec": {"modelRef": "chat", **spec}}
    return Desired(decode(InferenceService, service), decode(Model, model))


def launched(model, engine, **spec):
    wanted, facts = desired(contextSize=2 * PROMPT_TOKENS, **spec), read_header(model)
    weights = WeightsFile(model, model.stat().st_size, None, "test")
    plan = plan_for(PlanInputs(wanted.service, wanted.model, weights, facts, engine, alias="chat", asks_key=False))
    return Launch(plan, weights)


async def test_a_long_prompt_is_no_hang_and_a_stop_during_one_is(tmp_path):
    """An engine that computes for longer than the limits is not hung until it is stopped."""
    async with real_engine(tmp_path, long_model(tmp_path)) as (child, engine, sample), trio.open_nursery() as nursery:
        verdict = []

        async def watch():
            verdict.append(await health.watch(engine, sample, lambda _: None, HASTY))

        async def prompt():
            body = {"model": "chat", "prompt": "What is LLMKube? " * (PROMPT_TOKENS // 17), "max_tokens": 1}
            json_type = Headers.of({"Content-Type": "application/json"})
            url = f"{engine.url}/v1/completions"
            return await engine.http.request("POST", url, headers=json_type, body=json.dumps(body).encode())

        nursery.start_soon(watch)
        for _ in range(2):
            assert (await prompt()).status == 200
        assert verdict == []
        nursery.start_soon(prompt)
        await trio.sleep(0.2)
        os.kill(child.pid, signal.SIGSTOP)
        with trio.fail_after(60):
            await until(lambda: verdict)
        assert "state T" in verdict[0]
        nursery.cancel_scope.cancel()
