"""Agents that are killed, stopped and replaced while their engines work: the effects on clients and the cluster."""

import signal
from contextlib import asynccontextmanager

import pytest
import trio

from e2e.separate_programs import chat, eventually, logs, open_cluster
from e2e.up_process import ANSWER, command_line, engines_in, run_program
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]


@asynccontextmanager
async def asking(url, clients=3):
    """Query an engine from several clients; yield the answers and a scope that stops them. A lost request fails."""
    answers = []
    body = b'{"messages": [{"role": "user", "content": "What is LLMKube?"}], "temperature": 0, "max_tokens": 8}'
    headers = Headers.of({"Content-Type": "application/json"})

    async def ask(http):
        while True:
            answer = await http.request("POST", f"{url}/v1/chat/completions", headers=headers, body=body)
            assert answer.status == 200, answer
            answers.append(answer)

    async with open_http_client() as http, trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(ask, http)
        yield answers, nursery.cancel_scope
        nursery.cancel_scope.cancel()


def port_of(engine):
    """Return an engine's own port, behind its proxy."""
    words = command_line(engine)
    return int(words[words.index("--port") + 1])


async def kill(agent):
    agent.process.kill()
    await agent.process.wait()


async def test_a_killed_agent_loses_no_request(tmp_path, address):
    """The next agent adopts the engine, which is ready throughout and answers every request.

    The agent notices when the adopted engine exits. After an edit while no agent runs, the adopted engine serves until
    its successor answers.
    """
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        engine, (_, _, port) = cluster.engine(), await cluster.slice()
        async with cluster.open_slices() as seen, asking(f"http://{address}:{port}") as (answers, clients):
            await until(lambda: len(answers) > 5)
            await kill(agent)
            killed_at = trio.current_time()
            async with cluster.open_agent(address) as successor:
                await until(lambda: logs(successor, "registered endpoint"))
                in_time = trio.current_time() - killed_at < 15  # a host is withdrawn after 20 s
                (line,) = logs(successor, "adopted inference service")
                assert (line["pid"], line["port"]) == (engine.pid, port)
                count = len(answers)
                await until(lambda: len(answers) > count + 5)
                clients.cancel(reason="no client may outlive the engine")
                assert cluster.engine() == engine
                assert not in_time or all(ready for ready, _, _ in seen), seen
                assert not logs(successor, "starting inference service")
                engine.kill()
                _, _, old_port = await eventually(cluster.slice, lambda state: state[0] and state[2] != port)
                assert await chat(f"http://{address}:{old_port}") == ANSWER
                await kill(successor)
                old = cluster.engine()
                await cluster.apply_demo(contextSize=256)
                async with cluster.open_agent(address):
                    while (state := await cluster.slice())[2] in (0, old_port):
                        assert state[0] or state == (False, "", 0)
                        assert len(engines_in(tmp_path)) <= 2
                        await trio.sleep(0.02)
                    await until(lambda: len(engines_in(tmp_path)) == 1)
                    assert cluster.engine() != old
                    assert "256" in command_line(cluster.engine())


async def test_an_edit_loses_no_answer(tmp_path, address):
    """Clients that follow the slice are all answered while one engine replaces another."""
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address) as agent:
        await cluster.apply_demo()
        await cluster.wait_ready()
        inner_port, (_, _, port), ports = port_of(cluster.engine()), await cluster.slice(), []

        async def ask():
            while True:
                ready, host, where = await cluster.slice()
                assert ready
                assert await chat(f"http://{host}:{where}") == ANSWER
                ports.append(where)

        async with trio.open_nursery() as clients:
            for _ in range(3):
                clients.start_soon(ask)
            await until(lambda: len(ports) > 5)
            await cluster.apply_demo(contextSize=256)
            await until(lambda: ports[-1] != port and len(engines_in(tmp_path)) == 1)
            count = len(ports)
            await until(lambda: len(ports) > count + 5)
            clients.cancel_scope.cancel()
        assert "256" in command_line(cluster.engine())
        assert len(set(ports)) == 2
        assert not logs(agent, "requests in flight cut short")
        old_log, log = (tmp_path / "agent" / "logs" / "default" / name for name in ("demo.log.1", "demo.log"))
        assert f":{inner_port}" in old_log.read_text()
        assert f":{port_of(cluster.engine())}" in log.read_text()


async def test_sigterm_with_on_exit_keep_leaves_the_engines_running(tmp_path, address):
    """SIGTERM stops only the agent; `llmkube agent stop` stops the next one with its engines."""
    keep = ("--on-exit", "keep")
    async with open_cluster(tmp_path) as cluster:
        async with cluster.open_agent(address, *keep) as agent:
            await cluster.apply_demo()
            await cluster.wait_ready()
            engine, (_, _, port) = cluster.engine(), await cluster.slice()
            agent.process.send_signal(signal.SIGTERM)
            assert await agent.process.wait() == 0, agent.err
            assert cluster.engine() == engine
            assert (await cluster.slice())[0] is True
            async with cluster.open_agent(address, *keep) as successor:
                await until(lambda: logs(successor, "adopted inference service"))
                assert await chat(f"http://{address}:{port}") == ANSWER
                folder = str(tmp_path / "agent")
                code, out, err = await run_program(tmp_path, "agent", "stop", "--state-dir", folder)
                assert (code, err) == (0, "")
                assert out == f"agent stopped (pid {successor.process.pid})\n"
                assert not engines_in(tmp_path)
                assert (await cluster.slice())[0] is False
        code, _, err = await run_program(tmp_path, "agent", "stop", "--state-dir", folder)
        assert code == 3
        assert err == f"Error: no agent is running with the state directory {folder}\n"
