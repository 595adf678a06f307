"""Engines behind keys: what other users, pods and strangers can reach of `llmkube up` and `llmkube agent`."""

import base64
import json
import os
import signal
import stat
from functools import partial

import psutil
import pytest

from e2e.separate_programs import chat, eventually, open_cluster
from e2e.up_process import (
    ANSWER,
    DEMO,
    FREE_PORTS,
    command_line,
    engines_in,
    is_open,
    open_up,
    processes_in,
    proxies_in,
)
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ASK = json.dumps({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "What is LLMKube?"}]})
SECRETS = ("/slots", "/props", "/metrics", "/v1/completions", "/completion", "/tokenize")
"""Paths at which llama.cpp's server reveals or computes something for an authorized client."""


async def statuses(url, headers=NO_HEADERS):
    """Return the status of each of a stranger's requests to an engine."""
    got = {}
    async with open_http_client() as http:
        for path in (*SECRETS, "/health", "/v1/models"):
            got[path] = (await http.request("GET", url + path, headers=headers)).status
        answer = await http.request("POST", f"{url}/v1/chat/completions", headers=headers, body=ASK.encode())
        got["chat"] = answer.status
    return got


def listeners(pids):
    """Return the addresses on which these processes accept connections."""
    found = set()
    for pid in pids:
        try:
            connections = psutil.Process(pid).net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        found |= {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}
    return found


def keys_in(folder):
    """Return every key that is on disk below a folder."""
    return [line for path in folder.rglob("keys/*") for line in path.read_text().split()]


def assert_closed(got):
    assert {path: got[path] for path in (*SECRETS, "chat")} == dict.fromkeys((*SECRETS, "chat"), 401)
    assert got["/health"] == 200


async def test_s4_the_engines_own_port_asks_for_a_key_and_answers_no_page(tmp_path):
    """A user or a page that finds the engine's port gets 401; the gateway answers; the key is in one private file."""
    state = tmp_path / "state"
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(DEMO)) as up:
        _, gateway, _ = await up.urls()
        await up.wait_for("out", r"default/demo: Ready\n")
        (engine,) = engines_in(state)
        words = command_line(engine)
        url = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
        assert_closed(await statuses(url))
        (key,) = keys_in(state)
        assert_closed(await statuses(url, Headers.of({"Authorization": f"Bearer {key[:-1]}x"})))
        assert (await statuses(url, Headers.of({"Authorization": f"Bearer {key}"})))["chat"] == 200
        async with open_http_client() as http:
            page = Headers.of({"Origin": "https://evil.example", "Authorization": f"Bearer {key}"})
            answer = await http.request("GET", f"{url}/v1/models", headers=page)
            assert "access-control-allow-origin" not in answer.headers
            theirs = Headers.of({"Authorization": "Bearer a client's own"})
            answer = await http.request("POST", f"{gateway}/v1/chat/completions", headers=theirs, body=ASK.encode())
            assert answer.status == 200
        (path,) = state.rglob("keys/*")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        everything = " ".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        assert key not in everything + up.out + up.err
        assert key not in "".join(log.read_text() for log in state.rglob("*.log*"))
        assert all(where.ip in ("127.0.0.1", "::1") for where in listeners([up.process.pid, engine.pid]))
        up.process.send_signal(signal.SIGTERM)
        assert await up.process.wait() == 0, up.err
    assert not keys_in(state)


async def test_s5_the_host_itself_reaches_a_published_engine_without_a_key(tmp_path, address):
    """Its own host gets answers although no network is named, `/slots` excepted; nothing else listens outside."""
    async with open_cluster(tmp_path) as cluster:
        async with cluster.open_agent(address) as agent:
            await cluster.apply_demo()
            await cluster.wait_ready()
            _, host, port = await cluster.slice()
            url = f"http://{host}:{port}"
            got = await statuses(url)
            assert got == {**dict.fromkeys(got, 200), "/slots": 401} | {
                path: got[path] for path in ("/v1/completions", "/completion", "/tokenize")
            }
            assert await chat(url) == ANSWER
            (engine,), (proxy,) = engines_in(tmp_path / "agent"), proxies_in(tmp_path / "agent")
            outside = {where for where in listeners([agent.process.pid, engine.pid]) if where.ip != "127.0.0.1"}
            assert outside == set()
            assert {tuple(where) for where in listeners([proxy.pid])} == {(host, port)}
            words = command_line(engine)
            assert_closed(await statuses(f"http://127.0.0.1:{words[words.index('--port') + 1]}"))
            agent.process.send_signal(signal.SIGTERM)
            assert await agent.process.wait() == 0
        assert not processes_in(tmp_path / "agent")
        assert not list((tmp_path / "agent").glob("proxies/*"))


async def test_insecure_lan_accepts_every_request_and_logs_it(tmp_path, address):
    """With --insecure-lan the engine itself is published and requires no key, which the log reports at the start."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address, "--insecure-lan") as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        _, _, port = await cluster.slice()
        assert (await statuses(f"http://{address}:{port}"))["/slots"] == 200
        assert not proxies_in(tmp_path / "agent")
        assert '"msg":"published engines accept requests from any address without a key"' in agent.err


async def test_an_answer_outlives_the_agent_and_the_next_agent_adopts_the_proxy(tmp_path, address):
    """SIGKILL of the agent cuts no stream through a proxy; the next agent adopts it; a killed proxy is replaced."""
    async with open_cluster(tmp_path) as cluster:
        body = {"model": "demo", "stream": True, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}
        async with cluster.open_agent(address) as agent:
            await cluster.apply_demo()
            await cluster.wait_ready()
            _, _, port = await cluster.slice()
            (engine,), (proxy,) = engines_in(tmp_path / "agent"), proxies_in(tmp_path / "agent")
            url = f"http://{address}:{port}/v1/chat/completions"
            data = json.dumps(body).encode()
            async with open_http_client() as http, http.open_stream("POST", url, body=data) as answer:
                received = await answer.receive_some()
                agent.process.kill()
                await agent.process.wait()
                while piece := await answer.receive_some():
                    received += piece
            assert received.endswith(b"data: [DONE]\n\n")
            async with cluster.open_agent(address):
                await cluster.wait_ready()
                assert await eventually(cluster.slice, lambda state: state[0]) == (True, address, port)
                assert [each.pid for each in engines_in(tmp_path / "agent")] == [engine.pid]
                assert [each.pid for each in proxies_in(tmp_path / "agent")] == [proxy.pid]
                os.kill(proxy.pid, signal.SIGKILL)
                await until(lambda: proxies_in(tmp_path / "agent") not in ([], [proxy]))
                await until(partial(is_open, f"http://{address}:{port}"))
                assert await chat(f"http://{address}:{port}") == ANSWER
                assert [each.pid for each in engines_in(tmp_path / "agent")] == [engine.pid]


async def test_a_service_with_a_secret_is_reached_with_each_of_its_keys(tmp_path, address):
    """The engine itself is published: 401 without a key, 200 with each one; no key is in a command line or a log."""
    first, second = "CanaryFirst1", "CanarySecond2"
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
        value = base64.b64encode(f"{first}\n{second}\n".encode()).decode()
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys", "namespace": "default"}}
        await cluster.client.apply(Secret, secret | {"data": {"api-key": value}}, field_manager="user")
        await cluster.apply_demo()
        patch = {"spec": {"apiKeySecretRef": {"name": "chat-keys"}}}
        await cluster.client.patch(InferenceService, Key("default", "demo"), patch)
        await until(lambda: any("--no-slots" in command_line(each) for each in engines_in(tmp_path / "agent")))
        await until(lambda: not proxies_in(tmp_path / "agent"))
        _, host, port = await eventually(cluster.slice, lambda state: state[0])
        url = f"http://{host}:{port}"
        assert_closed(await statuses(url))
        for key in (first, second):
            got = await statuses(url, Headers.of({"Authorization": f"Bearer {key}"}))
            assert got["chat"] == 200
            assert got["/slots"] != 200
        everything = " ".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        everything += agent.out + agent.err + "".join(log.read_text() for log in tmp_path.rglob("*.log*"))
        everything += "".join(path.read_text() for path in tmp_path.rglob("journal/*/*.json"))
        assert first not in everything
        assert second not in everything
