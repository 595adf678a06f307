"""Connections to backends: none without a permit, https is verified, and redirects are not followed."""

import json
import ssl
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from base.http.certificates import make_pair
from http_lab import MemoryListener
from llmkube.base.http.dial import dial
from llmkube.base.http.egress import Egress
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.outbound import CertificateFileError, trusted_context
from llmkube.base.http.server import run_server
from llmkube.router.auth.key_files import BackendKeys
from llmkube.router.backends import Backend as Engine
from llmkube.router.backends import UnavailableModel
from llmkube.router.dispatch.attempt import Attempts, ClientRequest
from llmkube.router.dispatch.transport import Address, open_transport
from llmkube.router.health.health_state import Reply
from llmkube.router.policy.permits import Permit, permits_for
from llmkube.router.policy.request_facts import RequestFacts
from router.proxy.router_lab import answer, cloud, config_of, local, open_lab


@pytest.mark.parametrize(
    ("url", "secure", "origin", "host", "path"),
    [
        ("https://api.openai.com/v1", True, ("api.openai.com", 443), "api.openai.com", "/v1"),
        ("http://10.0.0.1:8080", False, ("10.0.0.1", 8080), "10.0.0.1:8080", ""),
        ("http://[::1]/v1/", False, ("::1", 80), "[::1]", "/v1"),
    ],
)
def test_parts_of_a_base_url(url, secure, origin, host, path):
    """A default port is not in the Host header: some providers do not expect it."""
    assert Address.of(url) == Address(secure, origin, host, path)


@pytest.mark.parametrize("url", ["ftp://x/", "https://u:p@x/", "x", "", "https:///v1", "https://x/?key=1"])
def test_what_is_no_base_url(url):
    """Credentials in a URL would be logged."""
    with pytest.raises(ValueError, match="not a base URL"):
        Address.of(url)


@pytest.mark.parametrize("forged", [None, cloud("a"), "http://a/", object()])
async def test_without_a_permit_nothing_is_dialled(forged):
    """No backend, address or other object replaces a permit."""
    dialled = []

    async def connect(host, port):
        dialled.append(host)
        await trio.lowlevel.checkpoint()
        raise OSError

    async with open_transport(connect) as transport:
        with pytest.raises(TypeError, match="Permit"):
            await transport.start(forged, "/chat/completions", b"", b"")
    assert not dialled


def test_a_permit_is_made_by_policy_alone():
    """A look-alike cannot be made."""
    with pytest.raises(TypeError):
        Permit(cloud("a"), object())
    config = config_of(cloud("a"), local("b"))
    facts = RequestFacts(model="m", classes=frozenset({"pii"}))
    assert list(permits_for(config, facts).allowed) == ["b"]


async def serve_tls(context, listener_count, connection):
    stream = trio.SSLStream(connection, context, server_side=True, https_compatible=True)
    try:
        listener_count.append(1)
        while b"\r\n\r\n" in await stream.receive_some():
            await stream.send_all(answer())
    except (trio.BrokenResourceError, ssl.SSLError):
        pass


async def test_https_is_verified_and_a_file_adds_authorities(tmp_path):
    """An unknown authority is a failed attempt; with the authority in --ca-file the backend answers."""
    public = make_pair(tmp_path / "server.pem", "localhost")
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text(public)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    connections = []
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, partial(serve_tls, context, connections), listeners)
        for host, trusted, status in (
            ("localhost", None, 502),
            ("localhost", ca_file, 200),
            ("127.0.0.1", ca_file, 502),
        ):
            config = config_of(cloud("a", base_url=f"https://{host}:{port}/v1"))
            before = len(connections)
            async with open_lab(config, connect=dial, egress=Egress(ca_file=trusted)) as lab:
                assert (await lab.ask()).status == status, (host, trusted)
                if status == 200:
                    assert (await lab.ask()).status == 200
                    assert len(connections) == before + 1  # the connection is reused
                else:
                    assert "certificate" in lab.audit[0]["attempts"][0]["detail"].lower()
        nursery.cancel_scope.cancel()


def test_a_file_without_certificates_is_refused_with_its_flag(tmp_path):
    """It is not treated as an empty bundle."""
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(CertificateFileError, match="PEM") as refused:
        trusted_context(file)
    assert refused.value.field == "--ca-file"


ENGINE = Engine("engine", 1234, "own-name", b"Authorization: Bearer k\r\n")


class Directory:
    """A directory of one service in a given state."""

    def __init__(self, found):
        self.found = found

    def lookup(self, model_id):
        return self.found if model_id == "default/m" else None


@asynccontextmanager
async def attempts_over(found, model="default/m"):
    """Yield attempts at one service of a directory, a permit for them, and the requests that its engine received."""
    listener, asked = MemoryListener(), []

    async def handle(exchange):
        asked.append((exchange.request.target, exchange.request.headers.get("authorization"), exchange.body))
        await exchange.respond(Response(200, Headers.of({"Server": "llama.cpp"}), b"[]"))

    async def connect(host, port):
        assert (host, port) == ("engine", 1234)
        return await listener.connect(host, port)

    permit = permits_for(config_of(local("a", model=model)), RequestFacts(model="m")).allowed["a"]
    async with trio.open_nursery() as nursery, open_transport(connect, directory=Directory(found)) as transport:
        await nursery.start(run_server, handle, [listener])
        yield Attempts(transport, BackendKeys()), permit, asked
        nursery.cancel_scope.cancel()


async def test_a_services_engine_is_dialled_at_the_directorys_address_with_its_own_key_and_name():
    """Requests and health probes do not use the backend's address, which is the gateway's."""
    async with attempts_over(ENGINE) as (attempts, permit, asked):
        assert await attempts.ask(permit, "/slots") == Reply(200, "llama.cpp", body=b"[]")
        request = ClientRequest(
            path="/chat/completions", body={"model": "m", "messages": []}, size=9, request_id="r", trace={}
        )
        await attempts.make(permit, request, 60.0)
    (_, key, _), (path, own, body) = asked
    assert (key, path, own) == ("Bearer k", "/v1/chat/completions", "Bearer k")
    assert json.loads(body)["model"] == "own-name"


async def test_the_health_of_an_engine_that_is_not_there():
    """A stopped engine is treated like one that loads; a missing service does not answer."""
    async with attempts_over(UnavailableModel("ScaledToZero", "it was stopped")) as (attempts, permit, asked):
        assert (await attempts.ask(permit, "/slots")).is_loading
    async with attempts_over(ENGINE, model="default/other") as (attempts, permit, asked):
        with pytest.raises(ConnectError):
            await attempts.ask(permit, "/slots")
        assert not asked
