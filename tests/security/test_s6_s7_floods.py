"""Findings S6 and S7: clients that flood `llmkube up`, and the service that other clients get meanwhile.

`benchmarks/flood.py` measures how long other clients wait; these tests check that they are answered. Before the fix,
the first two attacks silenced every program, and each of the others silenced all of `llmkube up` for seconds, minutes
or until a restart, ignoring SIGTERM.
"""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio

from e2e.up_process import DEMO, FREE_PORTS, open_up
from lengths import FLOOD_TIMES
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import open_client
from llmkube.k8s.crd.inferenceservice import InferenceService

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ATTACKER = Path(__file__).parents[2] / "benchmarks" / "http_load" / "attacks.py"
ASK = json.dumps({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "What is LLMKube?"}]})
TIMES, ANSWER_SECONDS, END_SECONDS = FLOOD_TIMES, 30.0, 30.0
MEMORY_BYTES = 1 << 30
"""More than the limit of all bodies together, and half of what thirty of them took before the fix."""


async def kill(process):
    process.kill()


async def answered(method, url, body=b""):
    """Fail unless a new client gets a successful answer."""
    with trio.fail_after(ANSWER_SECONDS):
        async with open_http_client() as http:
            headers = Headers.of({"Content-Type": "application/json"})
            answer = await http.request(method, url, headers=headers, body=body)
    assert answer.status == 200, answer.body


@pytest.mark.parametrize(
    "attacks",
    [
        pytest.param(("idle", "held"), id="s6"),
        pytest.param(("arrays", "api_arrays", "patch", "duplicates", "pattern"), id="s7"),
    ],
)
async def test_floods_silence_nothing(tmp_path, attacks):
    """Under attack every server answers new clients, memory is bounded, and SIGTERM ends the program."""
    state = tmp_path / "state"
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(DEMO)) as up:
        api, gateway, probes = await up.urls()
        await up.wait_for("out", r"default/demo: Ready\n")
        ports = [url.rpartition(":")[2] for url in (gateway, api)]
        async with trio.open_nursery() as nursery:
            attackers = [
                await nursery.start(
                    partial(
                        trio.run_process,
                        [sys.executable, ATTACKER, name, *ports, state / "kubeconfig"],
                        check=False,
                        stderr=subprocess.DEVNULL,
                        deliver_cancel=kill,  # Trio's own warns if the end takes five seconds
                    )
                )
                for name in attacks
            ]
            await trio.sleep(2)  # the attackers have connected and created their objects
            for _ in range(TIMES):
                await answered("POST", f"{gateway}/v1/chat/completions", ASK.encode())
                await answered("GET", f"{probes}/healthz")
                with trio.fail_after(ANSWER_SECONDS):
                    async with open_client(load_config(str(state / "kubeconfig"))) as client:
                        assert (await client.list(InferenceService)).items
                assert psutil.Process(up.process.pid).memory_info().rss < MEMORY_BYTES
            assert [each.returncode for each in attackers] == [None] * len(attacks), "an attacker gave up"
            up.process.send_signal(signal.SIGTERM)
            with trio.fail_after(END_SECONDS):
                assert await up.process.wait() == 0, up.err
            nursery.cancel_scope.cancel()
