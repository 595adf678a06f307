import json
import random
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from cli.cli_objects import service
from cli.commands.inference.test_conversation import piece
from cli.memory_cluster import open_cluster_client
from k8s.auth.test_transport import Authority
from k8s.test_port_forward import Kubelet, cluster, echo_server, serving
from llmkube.base.http.client import open_http_client
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.inference.conversation import Route
from llmkube.cli.commands.inference.port_forward import (
    DIAL_SECONDS,
    WAIT_SECONDS,
    Ports,
    PortsType,
    dial_engine,
    open_engines,
    relay,
    run_one_model,
    run_tunnel,
)
from llmkube.cli.view.locations import Engine
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.errors import ForbiddenError, TransportError
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError

HERE = Engine("mac", "10.0.0.5", 51234, ready=True)


async def here():
    await trio.lowlevel.checkpoint()
    return HERE


def dial_to(stream, dialled=None):
    async def dial(destination):
        await trio.lowlevel.checkpoint()
        if dialled is not None:
            dialled.append(destination)
        return stream

    return dial


async def test_bytes_go_both_ways_and_ends_are_passed_on():
    """Request, half-close and response all arrive; then both connections are closed."""
    client, near = trio.testing.memory_stream_pair()
    engine, far = trio.testing.memory_stream_pair()
    dialled = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay, near, here, pytest.fail, dial_to(far, dialled))
        await client.send_all(b"question")
        await client.send_eof()
        assert b"".join([piece async for piece in engine]) == b"question"
        await engine.send_all(b"answer")
        await engine.send_eof()
        assert b"".join([piece async for piece in client]) == b"answer"
    assert dialled == [HERE]


async def test_a_broken_side_ends_the_other():
    """A client that disconnects closes the engine's connection, which stops the work."""
    client, near = trio.testing.memory_stream_pair()
    engine, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay, near, here, pytest.fail, dial_to(far))
        await client.send_all(b"question")
        assert await engine.receive_some() == b"question"
        await trio.aclose_forcefully(client)
        await engine.send_all(b"an unread answer")
    with pytest.raises(trio.BrokenResourceError):
        await engine.send_all(b"more")


class PodEnd(trio.abc.Stream):
    """A stream without half-close, like a pod's; `error` is the cause of its end."""

    def __init__(self, inner, error=None):
        self.inner = inner
        self.error = error

    async def send_all(self, data):
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        piece = await self.inner.receive_some(max_bytes)
        if not piece and self.error is not None:
            raise trio.BrokenResourceError from self.error
        return piece

    async def aclose(self):
        await self.inner.aclose()


async def test_client_that_disconnects_closes_the_pod_connection():
    """Without half-close the client's end closes the connection, which stops the engine's work."""
    client, near = trio.testing.memory_stream_pair()
    engine, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay, near, here, pytest.fail, dial_to(PodEnd(far)))
        await client.send_all(b"question")
        assert await engine.receive_some() == b"question"
        await client.aclose()
        assert await engine.receive_some() == b""


async def test_an_error_of_the_kubelet_is_reported():
    """The client's connection is closed, and the error is printed."""
    client, near = trio.testing.memory_stream_pair()
    engine, far = trio.testing.memory_stream_pair()
    lines = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay, near, here, lines.append, dial_to(PodEnd(far, TransportError("connection refused"))))
        await engine.send_all(b"half an answer")
        await engine.aclose()
        assert b"".join([piece async for piece in client]) == b"half an answer"
    assert lines == ["connection lost: connection refused"]


async def not_allowed(destination):
    await trio.lowlevel.checkpoint()
    raise ForbiddenError('pods "chat-0" is forbidden: cannot create pods/portforward')


async def refused(destination):
    await trio.lowlevel.checkpoint()
    raise ConnectionRefusedError(111, "Connection refused")


async def silent(destination):
    await trio.sleep_forever()


async def nowhere():
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("find", "dial", "words", "seconds"),
    [
        (here, refused, "10.0.0.5:51234 cannot be reached (Connection refused)", 0),
        (here, not_allowed, 'connection closed: pods "chat-0" is forbidden', 0),
        (here, silent, "10.0.0.5:51234 did not answer within 10 s", DIAL_SECONDS),
        (nowhere, refused, "no engine became ready within 30 s", WAIT_SECONDS),
    ],
)
async def test_a_connection_that_leads_nowhere_is_closed(autojump_clock, find, dial, words, seconds):
    """Whatever fails at the other end, the client is closed in time and the cause is reported."""
    client, near = trio.testing.memory_stream_pair()
    lines = []
    began = trio.current_time()
    await relay(near, find, lines.append, dial)
    assert trio.current_time() - began == seconds
    assert (len(lines), words in lines[0]) == (1, True)
    assert await client.receive_some() == b""


async def test_the_engine_is_followed(autojump_clock, capsys):
    """New connections follow the slices, and wait while no engine is ready."""
    random.seed(7)
    async with open_cluster_client() as client:
        apply = partial(client.apply, EndpointSlice, field_manager="test")
        await apply(piece("a", "10.0.0.4", ready=True))
        async with open_engines(client, Key("default", "chat"), "a") as current:
            assert str(await current.find()) == "10.0.0.4:51234"
            await apply(piece("a", "10.0.0.4", ready=False))
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(5) as waiting:
                await current.find()
            assert waiting.cancelled_caught
            await apply(piece("b", "10.0.0.5", ready=True))
            assert str(await current.find()) == "10.0.0.5:51234"
    assert capsys.readouterr().err == "the engine is now at 10.0.0.5:51234\n"


async def test_of_several_replicas_the_chosen_one_is_followed():
    """Connections go to the chosen host, and to another one only while it is not ready."""
    async with open_cluster_client() as client:
        apply = partial(client.apply, EndpointSlice, field_manager="test")
        for host, address in (("a", "10.0.0.4"), ("b", "10.0.0.5")):
            await apply(piece(host, address, ready=True))
        async with open_engines(client, Key("default", "chat"), "b") as current:
            assert (await current.find()).host == "b"
            await apply(piece("b", "10.0.0.5", ready=False))
            await trio.testing.wait_all_tasks_blocked()
            assert (await current.find()).host == "a"


@pytest.mark.parametrize(
    ("text", "ports"),
    [("9000", Ports(9000)), ("9000:8080", Ports(9000, 8080)), (":51234", Ports(0, 51234)), ("0", Ports(0))],
)
def test_ports_are_read_as_kubectl_reads_them(text, ports):
    """LOCAL alone, both, and REMOTE alone are understood; 0 or nothing takes a free port."""
    assert PortsType().convert(text, None, None) == ports


@pytest.mark.parametrize("text", ["x", "1:y", "70000", "9000:0", "-1", "1:2:3"])
def test_other_ports_are_usage_errors(run, text):
    """An invalid port is refused before anything listens."""
    assert run("port-forward", "--", "demo", text).exit_code == 2


def test_a_taken_port_and_a_wrong_one_are_reported(run):
    """REMOTE must be a port of the service, and the service must be ready."""
    done = run("port-forward", "demo", "0")
    assert (done.exit_code, "is not ready" in done.output) == (1, True)

    async def serve(client):
        slice_ = piece("a", "10.0.0.4", ready=True)
        slice_["metadata"]["labels"]["kubernetes.io/service-name"] = "demo"
        await client.apply(EndpointSlice, slice_, field_manager="test")

    done = run("port-forward", "demo", "0:99", prepare=serve)
    assert (done.exit_code, "has no port 99; it has 8080, 51234" in done.output) == (1, True), done.output
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("port-forward", "demo", str(port), prepare=serve)
    assert (done.exit_code, f"LOCAL: cannot listen on 127.0.0.1:{port}" in done.output) == (1, True), done.output


@pytest.fixture
def _stop_at_target(monkeypatch):
    async def find(listeners, find, report, dial):
        for listener in listeners:
            await listener.aclose()
        raise CommandError(f"found {await find()}")

    monkeypatch.setattr("llmkube.cli.commands.inference.port_forward.run_tunnel", find)


@pytest.mark.usefixtures("_stop_at_target")
def test_the_port_of_an_engine_chooses_it(run):
    """With two replicas, REMOTE selects the one with this port, not the first by name."""

    async def serve(client):
        for host, port in (("a", 51234), ("b", 51235)):
            slice_ = piece(host, "10.0.0.4", ready=True)
            slice_["metadata"]["labels"]["kubernetes.io/service-name"] = "demo"
            slice_["ports"][0]["port"] = port
            await client.apply(EndpointSlice, slice_, field_manager="test")

    for remote, host in ((51234, "a"), (51235, "b")):
        done = run("port-forward", "demo", f":{remote}", prepare=serve)
        assert f"-> 10.0.0.4:{remote} (default/demo on {host})" in done.output, done.output
        assert f"found 10.0.0.4:{remote}" in done.output


@pytest.mark.usefixtures("_stop_at_target")
def test_a_pod_is_named_by_its_name(run):
    """A pod is reached and printed by name; its address is valid only inside the cluster."""

    async def serve(client):
        slice_ = piece("a", "10.244.0.7", ready=True)
        slice_["metadata"]["labels"] = {"kubernetes.io/service-name": "demo"}
        slice_["endpoints"][0]["targetRef"] = {"kind": "Pod", "name": "demo-5f7", "namespace": "default"}
        await client.apply(EndpointSlice, slice_, field_manager="test")

    done = run("port-forward", "demo", prepare=serve)
    assert "-> port 51234 of pod default/demo-5f7 (default/demo on a node)" in done.output, done.output
    assert "found port 51234 of pod default/demo-5f7" in done.output


async def test_a_pod_is_reached_through_the_api_server():
    """A connection to the local port reaches the pod's port by the API server's WebSocket."""
    ca, question, answer = Authority(), bytes(range(256)) * 1000, b""
    destination = Engine("", "10.244.0.7", 8080, ready=True, pod=Key("default", "chat-0"))
    listeners = await open_listeners("127.0.0.1", 0, field="LOCAL")

    async def find():
        await trio.lowlevel.checkpoint()
        return destination

    async with echo_server() as port:
        kubelet = Kubelet(port)
        with serving(kubelet, ca) as url:
            async with cluster(url, ca) as client, trio.open_nursery() as nursery:
                nursery.start_soon(run_tunnel, listeners, find, pytest.fail, partial(dial_engine, client))
                stream = await trio.open_tcp_stream(*listeners[0].socket.getsockname())
                nursery.start_soon(stream.send_all, question)
                while len(answer) < len(question):
                    answer += await stream.receive_some()
                await stream.aclose()
                while not kubelet.left:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
    assert answer == question
    assert str(destination) == "port 8080 of pod default/chat-0"
    assert [request.path for request in kubelet.requests] == [
        "/api/v1/namespaces/default/pods/chat-0/portforward?ports=8080"
    ]


CHAT = "/v1/chat/completions"
LISTED = [{"id": "other", "meta": {"n_ctx": 1}}, {"id": "chat", "meta": {"n_ctx": 512}}, {"id": "nick", "meta": {}}]


async def gateway(exchange):
    """Return the model of the request, or the list of models."""
    if exchange.head.method == "GET":
        await exchange.respond(Response.json(200, {"data": LISTED}))
    else:
        await exchange.respond(Response.json(200, {"asked": json.loads(exchange.body)["model"]}))


class Port:
    def __init__(self, url, http):
        self.url, self.http = url, http

    async def get(self, path, **headers):
        return await self.http.request("GET", self.url + path, headers=Headers.of(headers))

    async def post(self, path, body, **headers):
        lines = Headers.of({"Content-Type": "application/json", **headers})
        return await self.http.request("POST", self.url + path, headers=lines, body=json.dumps(body).encode())


@pytest.fixture
async def port():
    found = service("chat")
    found = attrs.evolve(found, spec=attrs.evolve(found.spec, aliases=("nick",)))
    behind = await open_listeners("127.0.0.1", 0, field="TEST")
    listeners = await open_listeners("127.0.0.1", 0, field="LOCAL")
    route = Route("127.0.0.1", behind[0].socket.getsockname()[1], "default/chat", "the gateway")

    async def find():
        await trio.lowlevel.checkpoint()
        return route

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, gateway, behind))
        nursery.start_soon(run_one_model, listeners, found, route, find)
        async with open_http_client() as http:
            yield Port(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", http)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("named", [{}, {"model": "chat"}, {"model": "default/chat"}, {"model": "nick"}])
async def test_ids_of_the_model_or_none_select_it(port, named):
    """A request without a model means this one, as at an engine's port."""
    answer = await port.post(CHAT, named)
    assert (answer.status, json.loads(answer.body)) == (200, {"asked": "default/chat"})


async def test_another_model_is_not_there(port):
    """Other models of the gateway are refused by name, and the list has only this model, with its context."""
    answer = await port.post(CHAT, {"model": "other"})
    assert (answer.status, "no model 'other'; available: 'chat'" in answer.body.decode()) == (404, True)
    listed = json.loads((await port.get("/v1/models")).body)["data"]
    assert [(each["id"], each["meta"]["n_ctx"]) for each in listed] == [("chat", 512), ("nick", 512)]


async def test_a_page_from_elsewhere_may_not_use_it(port):
    """Web pages of other hosts are refused as by the gateway; local ones are allowed."""
    refused = await port.post(CHAT, {}, Origin="https://evil.example")
    assert (refused.status, "may not use this gateway" in refused.body.decode()) == (403, True)
    own = await port.post(CHAT, {}, Origin="http://localhost:8000")
    assert (own.status, own.headers.get("Access-Control-Allow-Origin")) == (200, "http://localhost:8000")
