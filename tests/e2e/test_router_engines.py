"""A router in front of real engines: a stopped one is skipped, one that reads a long prompt is not."""

import contextlib
import json
import os
import re
import signal
import struct
from functools import partial

import pytest
import trio

from e2e.router_lab import DEMO, open_engine, open_router
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from waiting import stop_process

pytestmark = pytest.mark.e2e

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: two}
spec:
  backends:
    - name: one
      inferenceServiceRef: {name: one}
    - name: two
      inferenceServiceRef: {name: two}
      healthCheck: {intervalSeconds: 1}
  rules:
    - name: all
      route: {backends: [one, two]}
  policy: {auditLog: {sink: file, filePath: AUDIT}}
"""
LONG = 65536


def long_model(folder):
    """Return the demo's model with a longer trained context: its answers mean nothing."""
    data, key = DEMO.read_bytes(), b"llama.context_length"
    at = data.index(key) + len(key)
    kind, trained = struct.unpack("<II", data[at : at + 8])
    assert (kind, trained) == (4, 512)
    path = folder / "long.gguf"
    path.write_bytes(data[: at + 4] + struct.pack("<I", LONG) + data[at + 8 :])
    return path


@contextlib.asynccontextmanager
async def open_two(folder, **first):
    """Run a router over two engines; yield one engine and functions for requests, status, audit log and metrics."""
    ports = {"one": free_port(), "two": free_port()}
    audit = folder / "audit.log"
    for name in ports:
        (folder / name).mkdir()
    async with (
        open_engine(folder / "one", ports["one"], **first) as process,
        open_engine(folder / "two", ports["two"]),
        open_router(folder, ROUTER.replace("AUDIT", str(audit)), services=ports) as router,
        open_http_client() as http,
    ):

        async def ask(prompt, **more):
            body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 1} | more).encode()
            answer = await http.request("POST", f"{router.url}/v1/completions", body=body)
            assert answer.status == 200, answer.body
            return answer.headers.get("x-llmkube-backend"), json.loads(answer.body)

        async def states():
            answer = json.loads((await http.request("GET", f"{router.admin}/backends")).body)["backends"]
            return {each["name"]: each["message"] for each in answer}

        async def attempts(requests):
            """Return the attempts of this many requests; a line is written when its client has the answer."""
            while True:
                lines = [json.loads(line) for line in audit.read_text().splitlines()]
                decided = [line for line in lines if line["kind"] == "decision"]
                if len(decided) >= requests:
                    return [[(each["backend"], each["result"]) for each in line["attempts"]] for line in decided]
                await trio.sleep(0.1)

        async def metric(name):
            """Return the value of a series without labels, or None."""
            answer = (await http.request("GET", f"{router.admin}/metrics")).body.decode()
            found = re.search(rf"^{name} (\S+)$", answer, re.MULTILINE)
            return float(found[1]) if found else None

        yield process, ask, states, attempts, metric


@pytest.mark.ci
async def test_a_stopped_engine_is_skipped_and_comes_back(tmp_path):
    """After SIGSTOP the next permitted engine answers, and the first gets no request until SIGCONT."""
    async with open_two(tmp_path) as (engine, ask, states, attempts, _):
        with trio.fail_after(120):
            assert (await ask("hello"))[0] == "one"
            await stop_process(engine.pid)
            try:
                assert (await ask("hello"))[0] == "two"
                assert "frozen" in (await states())["one"]
                assert (await ask("hello"))[0] == "two"
            finally:
                os.kill(engine.pid, signal.SIGCONT)
            while True:
                if not (await states())["one"]:
                    break
                await trio.sleep(0.2)
            assert (await ask("hello"))[0] == "one"
            found = await attempts(4)
    assert found == [
        [("one", "answered")],
        [("one", "frozen"), ("two", "answered")],
        [("one", "circuit_open"), ("two", "answered")],
        [("one", "answered")],
    ]


@pytest.mark.ci
async def test_an_engine_that_reads_a_long_prompt_is_not_skipped(tmp_path):
    """On one thread it reads for longer than the timeout of a frozen engine, and answers."""
    flags = ("--ctx-size", str(LONG), "-b", "512", "-t", "1", "--parallel", "1")
    async with open_two(tmp_path, model=long_model(tmp_path), flags=flags) as (_, ask, _, attempts, _):
        with trio.fail_after(600):
            name, answer = await ask("hello world " * 600)
            assert name == "one"
            assert answer["usage"]["prompt_tokens"] > 7000
            found = await attempts(1)
    assert found == [[("one", "answered")]]
    if answer["timings"]["prompt_ms"] < 9000:
        pytest.skip("this machine reads 7,000 tokens on one thread before a frozen engine would be skipped")


@pytest.mark.ci
async def test_the_use_of_the_kv_cache_is_the_engines_own(tmp_path):
    """Absent before a request, a fraction while the engine writes, 0 when it is idle, absent when it has exited."""
    flags = ("--ctx-size", str(LONG), "-t", "1", "--parallel", "1")
    async with open_two(tmp_path, model=long_model(tmp_path), flags=flags) as (engine, ask, _, _, metric):
        with trio.fail_after(300):
            assert await metric("vllm:kv_cache_usage_perc") is None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(ask, "hello", max_tokens=60_000, ignore_eos=True))
                assert 0 < await wait_usage(metric, lambda use: use) < 1
                nursery.cancel_scope.cancel()
            await wait_usage(metric, lambda use: use == 0)
            engine.kill()
            await wait_usage(metric, lambda use: use is None)


async def wait_usage(metric, holds):
    """Wait until the usage is accepted; return it."""
    while True:
        if holds(use := await metric("vllm:kv_cache_usage_perc")):
            return use
        await trio.sleep(0.2)
