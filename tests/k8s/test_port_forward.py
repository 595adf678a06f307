"""Port-forwards through a stand-in kubelet that speaks `v4.channel.k8s.io` by the `websockets` package.

In a cluster the kubelet is behind an API server; here both are one server, over TLS, with real credentials.
"""

import json
import socket
import ssl
import tempfile
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio
import trio.testing
from cryptography import x509
from websockets.exceptions import ConnectionClosed

from http_lab import serving_websockets
from k8s.auth.test_transport import Authority, server_context
from k8s.scripted import ScriptedServer, html, status_object
from llmkube.base.http.httpx_transport import HttpxTransport
from llmkube.k8s.auth.config import BearerToken, ClusterConfig, ExecPlugin, TlsSettings
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.errors import ForbiddenError, NotFoundError, TransportError, UnauthorizedError
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.port_forward import PROTOCOL, PortForwardError, connect_to_pod
from llmkube.k8s.resource import Key

POD = Key("default", "chat-0")
CALL = "GET /api/v1/namespaces/default/pods/chat-0/portforward"
PORT = (8080).to_bytes(2, "little")


@pytest.fixture(scope="module")
def ca():
    return Authority()


class Kubelet:
    """Dials `target` for each port-forward and pumps, as a kubelet's streaming server does; notes what it was asked."""

    def __init__(self, target=None):
        self.target = target
        self.requests = []
        self.left = []

    def __call__(self, connection):
        self.requests.append(connection.request)
        for channel in (b"\0", b"\1"):
            connection.send(channel + PORT)
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError as error:
            connection.send(b"\1error forwarding port 8080 to pod 1a2b, uid : " + str(error).encode())
            return
        with far:
            back = threading.Thread(target=self.pump_back, args=(connection, far))
            back.start()
            try:
                for message in connection:
                    assert message[0] == 0
                    far.sendall(message[1:])
            except ConnectionClosed:
                pass
            finally:
                self.left.append(connection.close_code)
                with suppress(OSError):
                    far.shutdown(socket.SHUT_RDWR)
                back.join()

    def pump_back(self, connection, far):
        try:
            while data := far.recv(50_000):
                connection.send(b"\0" + data)
            connection.close()
        except (ConnectionClosed, OSError):
            pass


@contextmanager
def serving(handler, ca, **options):
    """An API server that passes port-forwards on; yields its URL."""
    issued = ca.issue("server", x509.IPAddress(IPv4Address("127.0.0.1")))
    with tempfile.TemporaryDirectory() as folder:
        context = server_context(issued, ca, Path(folder))
    options = {"subprotocols": [PROTOCOL], "max_size": None, **options}
    with serving_websockets(handler, ssl=context, **options) as port:
        yield f"https://127.0.0.1:{port}"


@asynccontextmanager
async def cluster(url, ca, identity=None, **tls):
    config = ClusterConfig(
        server=url,
        tls=TlsSettings(ca=ca.pem, **tls),
        identity=identity or BearerToken("s3cret"),
        headers=(("Impersonate-User", "jane"),),
    )
    with trio.fail_after(60):
        async with open_client(config) as client:
            yield client


@asynccontextmanager
async def echo_server():
    """A pod's port: sends back what comes, and ends when the client does."""

    async def echo(stream):
        async for piece in stream:
            await stream.send_all(piece)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_bytes_go_to_the_port_and_back(ca):
    """Megabytes go both ways at once; the kubelet sees the path, the port and who asks, and no token in the URL."""
    sent, received = bytes(range(256)) * 12_000, b""
    async with echo_server() as port:
        kubelet = Kubelet(port)
        with serving(kubelet, ca) as url:
            async with cluster(url, ca) as client, await connect_to_pod(client, POD, 8080) as stream:  # noqa: SIM117
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.send_all, sent)
                    while len(received) < len(sent):
                        piece = await stream.receive_some(10_000)
                        assert 0 < len(piece) <= 10_000
                        received += piece
    assert received == sent
    [request] = kubelet.requests
    assert request.path == "/api/v1/namespaces/default/pods/chat-0/portforward?ports=8080"
    assert request.headers["Authorization"] == "Bearer s3cret"
    assert request.headers["Impersonate-User"] == "jane"
    assert request.headers["Sec-WebSocket-Protocol"] == PROTOCOL
    assert request.headers["Accept"] == "*/*"  # a kubelet answers 406 to a client that takes JSON alone
    assert kubelet.left == [1000]


async def test_the_end_of_the_pods_connection_is_the_end(ca):
    """The pod's last bytes arrive, then the end."""

    async def answer(stream):
        await stream.send_all(b"answer to " + await stream.receive_some())

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        with serving(Kubelet(listener.socket.getsockname()[1]), ca) as url:
            async with cluster(url, ca) as client, await connect_to_pod(client, POD, 8080) as stream:
                await stream.send_all(b"question")
                assert b"".join([piece async for piece in stream]) == b"answer to question"
        nursery.cancel_scope.cancel()


async def test_the_kubelets_error_is_reported(ca):
    """A port on which nothing listens is an error with the kubelet's own words."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        kubelet = Kubelet(unused.getsockname()[1])
        with serving(kubelet, ca) as url:
            async with cluster(url, ca) as client, await connect_to_pod(client, POD, 8080) as stream:
                with pytest.raises(trio.BrokenResourceError) as caught:
                    await stream.receive_some()
    assert isinstance(caught.value.__cause__, PortForwardError)
    assert str(caught.value.__cause__).startswith(f"{CALL}: error forwarding port 8080 to pod 1a2b, uid : [Errno")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([b"\0" + (9090).to_bytes(2, "little")], "another port"),
        ([b"\0" + (8080).to_bytes(2, "big")], "another port"),
        ([b"\0HTTP/1.1 200 OK"], "another port"),
        ([b"\2" + PORT], "does not follow"),
        ([b""], "does not follow"),
        (["text"], "does not follow"),
        ([b"\0" + PORT], "closed the connection before the first data"),
        ([], "closed the connection before the first data"),
    ],
)
async def test_who_does_not_speak_the_protocol_is_found_out(messages, why, ca):
    """Bytes that are no answer of a kubelet never reach the client's program."""

    def talk(connection):
        for message in messages:
            connection.send(message)

    with serving(talk, ca) as url:
        async with cluster(url, ca) as client, await connect_to_pod(client, POD, 8080) as stream:
            with pytest.raises(trio.BrokenResourceError) as caught:
                await stream.receive_some()
    assert why in str(caught.value.__cause__)


def refusing(code, reason):
    def refuse(connection, request):
        response = connection.respond(code, "")
        body = json.dumps(status_object(code, reason, f"pods {reason}")).encode()
        del response.headers["Content-Type"], response.headers["Content-Length"]
        response.headers["Content-Type"] = "application/json"
        response.headers["Content-Length"] = str(len(body))
        response.body = body
        return response

    return refuse


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [(403, "Forbidden", ForbiddenError), (404, "NotFound", NotFoundError), (401, "Unauthorized", UnauthorizedError)],
)
async def test_a_refusal_is_the_servers_own_error(code, reason, error, ca):
    """A response other than 101 is the error that any other call would raise."""
    with serving(Kubelet(), ca, process_request=refusing(code, reason)) as url:
        async with cluster(url, ca) as client:
            with pytest.raises(error, match=f"^pods {reason}$"):
                await connect_to_pod(client, POD, 8080)


async def test_a_server_without_websockets_is_recognised():
    """An answer without an upgrade is an error, whatever its status."""
    server = ScriptedServer(html())
    with pytest.raises(TransportError, match=f"^{CALL}: status 200 without a Kubernetes Status"):
        await connect_to_pod(server.client(), POD, 8080)


async def test_another_subprotocol_is_refused(ca):
    """A server that does not choose the protocol is reported in one sentence."""
    with serving(Kubelet(), ca, subprotocols=None) as url:
        async with cluster(url, ca) as client:
            with pytest.raises(
                TransportError, match=rf"^{CALL}: 127.0.0.1:\d+ .* does not support the subprotocol {PROTOCOL}$"
            ):
                await connect_to_pod(client, POD, 8080)


async def test_a_certificate_is_enough(ca):
    """A client certificate of the kubeconfig goes with the WebSocket as with any request."""
    seen = []

    def look(connection, request):
        seen.append(connection.socket.getpeercert()["subject"])

    ours = ca.issue("jane")
    tls = {"certificate": ours.certificate, "key": ours.key}
    with serving(Kubelet(), ca, process_request=look) as url:
        async with cluster(url, ca, **tls) as client, await connect_to_pod(client, POD, 8080):
            pass
    assert seen == [((("commonName", "jane"),),)]


async def test_a_plugin_is_asked_again_after_a_401(ca, tmp_path):
    """An exec plugin's token that the server refuses is renewed once, and the WebSocket opens with the new one."""
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho x >> {tmp_path}/runs\n"
        'printf \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": '
        f'{{"token": "token-%d"}}}}\' "$(wc -l < {tmp_path}/runs)"\n'
    )
    plugin.chmod(0o755)
    kubelet, refuse = Kubelet(), refusing(401, "Unauthorized")

    def judge(connection, request):
        return None if request.headers["Authorization"] == "Bearer token-2" else refuse(connection, request)

    identity = ExecPlugin(api_version="client.authentication.k8s.io/v1", argv=(str(plugin),))
    async with echo_server() as port:
        kubelet.target = port
        with serving(kubelet, ca, process_request=judge) as url:
            async with cluster(url, ca, identity) as client, await connect_to_pod(client, POD, 8080) as stream:
                await stream.send_all(b"x")
                assert await stream.receive_some() == b"x"


async def test_a_server_that_never_answers_is_given_up(autojump_clock):
    """The whole handshake has 30 s, and its connection is closed."""
    mine, theirs = trio.testing.memory_stream_pair()

    async def connect(host, port):
        await trio.lowlevel.checkpoint()
        return mine

    async with httpx.AsyncClient(
        transport=HttpxTransport(ssl.create_default_context(), connect=connect), base_url="http://api"
    ) as http:
        with pytest.raises(TransportError, match="did not complete within 30 s"):
            await connect_to_pod(Client(http), POD, 8080)
    assert trio.current_time() == pytest.approx(30)
    assert await theirs.receive_some(10_000)
    assert await theirs.receive_some() == b""


async def test_a_closed_stream_gives_its_place_back(ca):
    """While a stream is open, the transport that it came from keeps its TLS; afterwards it can be retired."""
    with serving(Kubelet(), ca) as url:
        async with AuthTransport(ClusterConfig(server=url, tls=TlsSettings(ca=ca.pem))) as transport:
            stream = await connect_to_pod(Client(TransportSender(transport, url)), POD, 8080)
            assert transport._pool._open_responses == 1
            await stream.aclose()
            assert transport._pool._open_responses == 0
