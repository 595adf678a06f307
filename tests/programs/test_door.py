"""The door over real sockets: which requests it admits, holds, forwards and refuses, by what its agent sends."""

import json
import math
import os
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import pytest
import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.k8s.resource import Key
from llmkube.programs.door import serve
from llmkube.programs.program import Stop
from llmkube.router import front_door
from llmkube.router.backends import HELD_HEADER
from llmkube.router.dispatch import holds
from llmkube.runtimes.devices import Offload
from llmkube.supervisor.engine.door import MAX_SOCKET_PATH, HostDoor, LineReader, socket_path
from llmkube.supervisor.values.door_state import DoorConfig, DoorEntry, DoorReport, dump_line, load_line, port_of
from llmkube.supervisor.values.lifecycle import ServiceView

CHAT = Key("default", f"chat-{os.getpid()}")  # a door elsewhere on this machine would take its ports
IDLE = DoorEntry(ServiceView("Idle", "not loaded", on_request=True), "127.0.0.1")
HERE = ("127.0.0.1/32",)


class Agent:
    """The agent's side of a door; reports are the newest ones."""

    def __init__(self, stream):
        self.stream, self.reports, self.changed = stream, {}, trio.Event()

    async def read(self):
        reader = LineReader(self.stream)
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while lines := await reader.read_lines():
                self.reports |= dict(load_line(DoorReport, line) for line in lines)
                self.changed.set()
                self.changed = trio.Event()

    async def send(self, entry, key=CHAT):
        await self.stream.send_all(dump_line(key, entry))

    async def report(self, accept, key=CHAT):
        with trio.fail_after(60):
            while not ((report := self.reports.get(key)) and accept(report)):
                await self.changed.wait()
        return report


@asynccontextmanager
async def door(tmp_path, allowed=HERE):
    """Run a door; yield what connects an agent to it, and its stop."""
    path, stop = tmp_path / "door.socket", Stop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, DoorConfig(str(path), allowed), stop)
        agents = []

        async def connect():
            with trio.fail_after(60):
                while True:
                    try:
                        stream = await trio.open_unix_socket(path)
                    except OSError:  # the kernel has no event for a socket that begins to accept
                        await trio.sleep(0.01)
                    else:
                        break
            agents.append(agent := Agent(stream))
            nursery.start_soon(agent.read)
            return agent

        yield connect, stop
        stop.request_nowait("test")
        for agent in agents:
            await agent.stream.aclose()


@asynccontextmanager
async def engine(view=IDLE.view):
    """Run an engine with a process of its own; yield its view, the process, and the heads of its requests."""
    seen = []

    async def answer(exchange):
        seen.append(exchange.head)
        if b'"stream": true' in exchange.body:
            await exchange.respond(
                Response(200, Headers.of({"Content-Type": "text/event-stream"}), b"data: [DONE]\n\n")
            )
        else:
            await exchange.respond(Response.json(200, {"model": "chat", "choices": []}))

    listeners = await open_listeners("127.0.0.1", 0)
    port = listeners[0].socket.getsockname()[1]
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, check=False))
        nursery.start_soon(partial(run_server, answer, listeners))
        where = {"host": "127.0.0.1", "port": port, "pid": process.pid, "alias": "chat", "api_key": "of-the-engine"}
        yield attrs.evolve(view, reason="Loaded", **where), process, seen
        process.kill()
        nursery.cancel_scope.cancel()


async def ask(http, report, *, key="", path="/v1/chat/completions", method="POST", stream=False, lines=()):
    headers = Headers.of(dict(lines) | ({"Authorization": f"Bearer {key}"} if key else {}))
    host, port = report.listen
    body = json.dumps({"model": "any", "messages": [], "stream": stream}).encode() if method == "POST" else b""
    return await http.request(method, f"http://{host}:{port}{path}", headers=headers, body=body)


@pytest.mark.parametrize(
    ("allowed", "keys", "sent", "is_admitted"),
    [
        (HERE, (), "", True),
        ((), (), "", False),
        ((), (), "of-the-engine", True),
        (HERE, ("of-a-client",), "", False),
        (HERE, ("of-a-client",), "another", False),
        ((), ("of-a-client",), "of-a-client", True),
    ],
)
async def test_networks_and_keys_are_checked_before_a_request_is_held(tmp_path, allowed, keys, sent, is_admitted):
    """As at a published engine: without a key from an admitted network only, and never if clients have keys."""
    entry = attrs.evolve(IDLE, keys=keys)
    async with door(tmp_path, allowed) as (connect, _), engine() as (view, _, seen), open_http_client() as http:
        agent = await connect()
        await agent.send(entry)
        report = await agent.report(lambda each: each.listen)
        assert (await ask(http, report, path="/health", method="GET")).status == 200
        assert (await ask(http, report, path="/props", key=sent, method="GET")).status == (
            503 if is_admitted and sent != "of-the-engine" else 401
        )
        if sent == "of-the-engine":  # known while one runs
            await agent.send(attrs.evolve(entry, view=view))
            await agent.report(lambda each: each.engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(expect, http, report, 200 if is_admitted else 401, key=sent))
            if is_admitted and sent != "of-the-engine":
                await agent.report(lambda each: each.requests == 1)
                await agent.send(attrs.evolve(entry, view=view))
        assert (await agent.report(lambda each: not each.requests)).arrived == int(is_admitted)
        assert [each.lines.get("authorization") for each in seen] == ["Bearer of-the-engine"] * is_admitted


async def expect(http, report, status, **more):
    assert (await ask(http, report, **more)).status == status


async def test_a_request_is_held_until_another_agent_sends_an_engine_and_after_that_has_exited(tmp_path):
    """The next agent reads how many wait; an engine that exits while no agent runs gets no further request."""
    async with door(tmp_path) as (connect, stop), engine() as (view, process, seen), open_http_client() as http:
        agent = await connect()
        await agent.send(IDLE)
        report = await agent.report(lambda each: each.listen)
        assert report.listen == ("127.0.0.1", port_of(CHAT, 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, http, report, 200)
            await agent.report(lambda each: each.requests == 1)
            await agent.stream.aclose()
            agent = await connect()
            known = await agent.report(lambda each: each.requests == 1)
            assert (known.arrived, known.running, known.listen) == (1, 0, report.listen)
            await agent.send(attrs.evolve(IDLE, view=view))
        await agent.report(lambda each: each.engine == view.port and not each.requests)
        assert (await ask(http, report, path="/metrics", method="GET")).status == 200
        process.kill()
        await agent.report(lambda each: not each.engine)
        await agent.send(attrs.evolve(IDLE, view=attrs.evolve(view, message="sent before the agent knew")))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, http, report, 503)
            await agent.report(lambda each: each.requests == 1)
            stop.request_nowait("test")  # requests that wait are answered
        assert len(seen) == 2


async def test_a_request_is_reported_as_running_before_its_engine_has_it(tmp_path, monkeypatch):
    """Otherwise an engine that is being unloaded would end between the look-up of its address and the connection."""
    routed, rename = trio.Event(), front_door.replace_model

    async def rename_late(*args):
        await routed.wait()
        return await rename(*args)

    monkeypatch.setattr(front_door, "replace_model", rename_late)
    async with door(tmp_path) as (connect, _), engine() as (view, _, seen), open_http_client() as http:
        agent = await connect()
        await agent.send(attrs.evolve(IDLE, view=view))
        report = await agent.report(lambda each: each.listen and each.engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, http, report, 200)
            await agent.report(lambda each: each.requests == 1)
            await agent.send(attrs.evolve(IDLE, view=attrs.evolve(view, reason="Stopping")))
            assert (await agent.report(lambda each: not each.engine)).running == 1
            nursery.start_soon(expect, http, report, 200)
            assert (await agent.report(lambda each: each.requests == 2)).running == 1
            assert seen == []
            routed.set()
            await agent.report(lambda each: (each.requests, each.running) == (1, 0))
            await agent.send(attrs.evolve(IDLE, view=view))


async def test_a_failed_load_is_answered_at_once_and_repeated_once_its_back_off_has_ended(tmp_path):
    """As at the gateway; a spec that was refused is never repeated."""
    failed = attrs.evolve(IDLE, view=attrs.evolve(IDLE.view, reason="LoadStalled", message="too slow"))
    async with door(tmp_path) as (connect, _), open_http_client() as http:
        agent = await connect()
        for entry in (attrs.evolve(failed, retry_at=3600.0), failed):
            await agent.send(entry)
            report = await agent.report(lambda each: each.listen)
            answer = await ask(http, report)
            assert (answer.status, json.loads(answer.body)["error"]["reason"]) == (503, "LoadStalled")
        await agent.send(attrs.evolve(failed, retry_at=-1.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, http, report, 503)
            await agent.report(lambda each: each.requests == 1)
            await agent.send(attrs.evolve(failed, retry_at=3600.0))
        await agent.send(IDLE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, http, report, 503)  # a service that is gone
            await agent.report(lambda each: each.requests == 1)
            await agent.send(None)


@asynccontextmanager
async def two_doors(tmp_path, *, allowed=HERE, keys=()):
    """Run the doors of two hosts with an idle service; yield their agents."""
    for name in "ab":
        (tmp_path / name).mkdir()
    async with door(tmp_path / "a") as (connect, _), door(tmp_path / "b", allowed) as (connect_other, _):
        agents = await connect(), await connect_other()
        for agent in agents:
            await agent.send(attrs.evolve(IDLE, keys=keys))
            await agent.report(lambda each: each.listen)
        yield agents


@pytest.fixture
def heads_at_once(monkeypatch):
    monkeypatch.setattr(holds, "HEAD_SECONDS", 0.0)


def moved_to(agent):
    """Return the line that an agent, which does not have the clients' keys any more, sends about a moved service."""
    return DoorEntry(ServiceView("Pending"), "127.0.0.1", ("",), moved_to=agent.reports[CHAT].listen)


@pytest.mark.usefixtures("heads_at_once")
@pytest.mark.parametrize(
    ("allowed", "keys", "sent", "stream"),
    [(HERE, (), "", False), (HERE, (), "of-no-service", True), ((), ("other", "of-a-client"), "of-a-client", False)],
)
async def test_a_request_is_forwarded_to_the_host_that_has_its_service(tmp_path, allowed, keys, sent, stream):
    """It waits there, with the client's key if the service has keys; a stream that has begun is continued."""
    async with two_doors(tmp_path, allowed=allowed, keys=keys) as (agent, other), engine() as (view, _, seen):
        async with open_http_client() as http, trio.open_nursery() as nursery:
            answers = []

            async def collect():
                answers.append(await ask(http, agent.reports[CHAT], key=sent, stream=stream))

            nursery.start_soon(collect)
            await agent.report(lambda each: each.requests == 1)
            await agent.send(moved_to(other))
            await other.report(lambda each: each.requests == 1)
            assert not seen
            await other.send(attrs.evolve(IDLE, keys=keys, view=view))
            await agent.report(lambda each: each.arrived == 1 and not each.requests)
            assert (await ask(http, agent.reports[CHAT], path="/v1/models", method="GET")).status == 200
            assert (await ask(http, agent.reports[CHAT], key="unknown")).status == (401 if keys else 200)
        ((status, body),) = [(each.status, each.body) for each in answers]
        assert status == 200
        assert body.count(b"data: [DONE]") == stream
        assert seen[0].lines.get("authorization") == "Bearer of-the-engine"
        assert float(seen[0].lines.get(HELD_HEADER)) >= 0


async def test_a_client_that_leaves_withdraws_its_request_at_both_hosts(tmp_path):
    async with two_doors(tmp_path) as (agent, other), open_http_client() as http, trio.open_nursery() as nursery:
        nursery.start_soon(ask, http, agent.reports[CHAT])
        await agent.report(lambda each: each.requests == 1)
        await agent.send(moved_to(other))
        await other.report(lambda each: each.requests == 1)
        nursery.cancel_scope.cancel()
        with trio.fail_after(60, shield=True):
            for each in (other, agent):
                await each.report(lambda each: each.arrived == 1 and not each.requests)


async def test_a_request_is_forwarded_once(tmp_path):
    """Each of two hosts believes that the other one has the service: the client gets an answer, and may retry."""
    async with two_doors(tmp_path) as (agent, other), open_http_client() as http:
        await agent.send(moved_to(other))
        await other.send(moved_to(agent))
        async with trio.open_nursery() as nursery:
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/props")):
                nursery.start_soon(partial(expect, http, agent.reports[CHAT], 503, method=method, path=path))
        assert (await other.report(lambda each: each.arrived)).arrived == 1


async def test_a_host_that_is_not_admitted_by_the_other_one_gets_no_401(tmp_path):
    """Its client is admitted, and is answered by the other host when it retries."""
    async with two_doors(tmp_path, allowed=()) as (agent, other), open_http_client() as http:
        await agent.send(moved_to(other))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, http, other.reports[CHAT], 401)
            answer = await ask(http, agent.reports[CHAT])
        assert (answer.status, answer.headers.get("retry-after")) == (503, "2")


async def test_the_wait_at_another_host_is_a_part_of_the_longest_wait(tmp_path):
    async with door(tmp_path) as (connect, _), open_http_client() as http:
        agent = await connect()
        await agent.send(attrs.evolve(IDLE, view=attrs.evolve(IDLE.view, hold_seconds=60.0)))
        report = await agent.report(lambda each: each.listen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(expect, http, report, 503, lines={HELD_HEADER: "nan"}))
            await agent.report(lambda each: each.requests == 1)
            await expect(http, report, 503, lines={HELD_HEADER: "60"})
            assert (await agent.report(lambda each: each.arrived == 2 and each.requests == 1)).running == 0
            await agent.send(None)


PATHS = (
    ("POST", "/api/chat", True, 200),
    ("POST", "/v1/chat/completions", True, 200),
    ("POST", "/completion", True, 200),
    ("POST", "/api/show", False, 503),
    ("GET", "/api/tags", False, 503),
    ("GET", "/api/ps", False, 503),
    ("POST", "/lora-adapters", False, 503),
    ("POST", "/api/generate", False, 404),
    ("POST", "/models/load", False, 404),
    ("POST", "/v1/models/unload", False, 404),
    ("GET", "/v1/health", False, 200),
    ("GET", "/v1/models", False, 200),
)


@pytest.mark.parametrize(("method", "path", "loads", "status"), PATHS)
async def test_each_path_is_that_of_the_engine(tmp_path, method, path, loads, status):
    """Once loaded the engine answers every request, as without a door; before, those that compute load it."""
    async with door(tmp_path) as (connect, _), engine() as (view, _, seen), open_http_client() as http:
        agent = await connect()
        await agent.send(IDLE)
        report = await agent.report(lambda each: each.listen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(expect, http, report, status, path=path, method=method))
            if loads:
                await agent.report(lambda each: each.requests == 1)
                await agent.send(attrs.evolve(IDLE, view=view))
        assert len(seen) == loads
        await agent.send(attrs.evolve(IDLE, view=view))
        await agent.report(lambda each: each.engine == view.port and not each.requests)
        await expect(http, report, 200, path=path, method=method)
        assert [(each.method, each.path) for each in seen] == [(method, path)] * (loads + 1)


async def test_a_port_of_another_program_is_not_used(tmp_path):
    """The service gets the next one that is free."""
    listeners = await open_listeners("127.0.0.1", port_of(CHAT, 0))
    async with listeners[0], door(tmp_path) as (connect, _):
        agent = await connect()
        await agent.send(IDLE)
        (_, port) = (await agent.report(lambda each: each.listen)).listen
        assert port in {port_of(CHAT, tries) for tries in range(1, 20)}  # other programs may have some


def test_lines_have_everything_and_other_versions_are_read():
    entry = attrs.evolve(IDLE, keys=("a", "b"), view=attrs.evolve(IDLE.view, pid=7, hold_seconds=9.0))
    assert load_line(DoorEntry, dump_line(CHAT, entry)) == (CHAT, entry)
    more = {"adapters": (("poems", 0.5),), "offload": Offload("CUDA0", 1, 2), "given_up": ("spec.contextSize",)}
    loaded = attrs.evolve(entry, view=attrs.evolve(entry.view, **more))
    assert load_line(DoorEntry, dump_line(CHAT, loaded)) == (CHAT, entry)
    assert load_line(DoorEntry, dump_line(CHAT, entry))[1].retry_at == -math.inf
    assert load_line(DoorReport, dump_line(CHAT, None)) == (CHAT, None)
    newer = json.loads(dump_line(CHAT, DoorReport(listen=("::1", 1))))
    newer[1]["added"] = 1
    assert load_line(DoorReport, json.dumps(newer).encode()) == (CHAT, DoorReport(listen=("::1", 1)))


def test_a_long_state_directory_has_its_socket_elsewhere(tmp_path):
    long = tmp_path / ("x" * MAX_SOCKET_PATH)
    assert socket_path(tmp_path).parent == tmp_path
    assert len(bytes(socket_path(long))) <= MAX_SOCKET_PATH
    assert socket_path(long) != socket_path(long / "y")


async def test_no_key_is_sent_to_the_socket_of_another_user(tmp_path, monkeypatch):
    """Another user may have created the folder in /tmp that a long path of the state directory leads to."""
    async with door(tmp_path) as (connect, _):
        await connect()
        monkeypatch.setattr(os, "getuid", lambda: 54321)
        with pytest.raises(PermissionError, match="belongs to another user"):
            await HostDoor(None, tmp_path / "door.socket").connect()
