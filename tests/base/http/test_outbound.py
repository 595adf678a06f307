"""Certificates that add to the system's list, and requests through a real proxy."""

import os
import ssl
import threading
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio

from base.http.certificates import make_pair
from forward_proxy import open_forward_proxy
from llmkube.base.http import outbound
from llmkube.base.http.client import HttpClient
from llmkube.base.http.dial import ProxyDialer, TlsDialer, dial
from llmkube.base.http.egress import Egress
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Headers, encode_request_head
from llmkube.base.http.outbound import OutboundClient, OutboundDialer, trusted_context
from llmkube.router.dispatch.transport import open_transport
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.guarded_transport import open_transport_with
from llmkube.weights.urls import parse_url


def subjects(context):
    return {value for each in context.get_ca_certs() for ((name, value),) in each["subject"] if name == "commonName"}


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A system whose only certificate is in a file of its distribution; none where OpenSSL looks."""
    make_pair(tmp_path / "system.pem", "system", is_authority=True)
    paths = ssl.get_default_verify_paths()._replace(openssl_cafile="/no/cert.pem", openssl_capath="/no/certs")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.setattr(outbound, "BUNDLES", ("/no/other.pem", str(tmp_path / "system.pem")))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return tmp_path


def test_a_ca_adds_to_the_list_of_any_system(system, monkeypatch):
    """Both by the variable, with which OpenSSL replaces the list, and by the setting."""
    for name in ("variable", "setting"):
        make_pair(system / f"{name}.pem", name, is_authority=True)
    assert subjects(trusted_context()) == {"system"}
    monkeypatch.setenv("SSL_CERT_FILE", str(system / "variable.pem"))
    assert subjects(trusted_context(system / "setting.pem")) == {"system", "variable", "setting"}


def test_a_system_without_certificates_gets_the_package_s(system, monkeypatch):
    """An image of a single program often has none."""
    monkeypatch.setattr(outbound, "BUNDLES", ())
    assert len(trusted_context().get_ca_certs()) > 50


def test_a_missing_file_of_the_variable_is_logged(system, monkeypatch):
    """A pod's may be in a ConfigMap that its namespace does not have; the system's are trusted nevertheless."""
    monkeypatch.setenv("SSL_CERT_FILE", "/no/ca.crt")
    with structlog.testing.capture_logs() as logs:
        assert subjects(trusted_context()) == {"system"}
    assert "SSL_CERT_FILE: cannot read certificates from /no/ca.crt" in logs[0]["error"]


async def test_certificates_are_read_in_a_thread_and_once(system, monkeypatch, autojump_clock):
    """By a router that opens, by a download, and at each connection to a proxy; changed files are read again."""
    threads = []
    trust_system = outbound.trust_system
    monkeypatch.setattr(
        outbound, "trust_system", lambda context: (threads.append(threading.get_ident()), trust_system(context))
    )
    make_pair(system / "own.pem", "own", is_authority=True)

    async def refuse(host, port):
        raise OSError("refused")

    egress = Egress(ca_file=system / "own.pem")
    async with open_transport(egress=egress):
        pass
    downloads = open_transport_with(dial=refuse, egress=egress)(AddressPolicy(from_operator=True))
    with pytest.raises(ConnectError):
        await downloads.get(parse_url("https://127.0.0.1:1/x")[0], {})
    to_proxy = ProxyDialer("https://127.0.0.1:1", refuse, partial(trusted_context, egress.ca_file))
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            await to_proxy("host", 443)
    assert len(threads) == 1
    make_pair(system / "own.pem", "other", is_authority=True)
    os.utime(system / "own.pem", ns=(0, 1))
    with pytest.raises(OSError, match="refused"):
        await to_proxy("host", 443)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def serve(stream):
    """Answer each request with its head."""
    async with stream:
        received = b""
        while piece := await stream.receive_some():
            received += piece
            while b"\r\n\r\n" in received:
                head, _, received = received.partition(b"\r\n\r\n")
                text = head.replace(b"\r\n", b"|")
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


async def ask(client, host, port):
    head = encode_request_head("GET", "/x?y=1", Headers.of({"Host": host}))
    answer = await client.start((host, port), "GET", head, b"")
    text = await answer.receive_some()
    assert client.release_nowait(answer)
    return text


@pytest.mark.parametrize("secure_proxy", [False, True])
async def test_plain_http_names_the_whole_url_and_https_is_tunnelled(tmp_path, secure_proxy):
    """The proxy gets its password, which no server behind a tunnel sees; connections are reused."""
    server_ca, proxy_ca = (make_pair(tmp_path / f"{each}.pem", "localhost") for each in ("server", "proxy"))
    (tmp_path / "ca.pem").write_text(server_ca + proxy_ca)
    contexts = {}
    for name in ("server", "proxy"):
        contexts[name] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        contexts[name].load_cert_chain(tmp_path / f"{name}.pem")
    async with trio.open_nursery() as nursery:
        [plain] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        start_tls = partial(
            trio.serve_ssl_over_tcp, serve, 0, contexts["server"], host="127.0.0.1", https_compatible=True
        )
        [secure] = await nursery.start(start_tls)
        ports = {
            "a.example:80": plain.socket.getsockname()[1],
            "a.example:443": secure.transport_listener.socket.getsockname()[1],
        }
        context = contexts["proxy"] if secure_proxy else None
        async with open_forward_proxy(ports, context=context, host="localhost") as proxy:
            egress = Egress.of((), None, {"ALL_PROXY": proxy.url})
            trusted = trusted_context(Path(tmp_path / "ca.pem"))
            through = {each: OutboundDialer(egress, each, dial, lambda: trusted) for each in ("http", "https")}
            clients = {
                80: OutboundClient(egress, through["http"]),
                443: HttpClient(TlsDialer(trusted, "localhost", through["https"])),
            }
            answers = [await ask(clients[port], "a.example", port) for port in (80, 80, 443, 443)]
            assert [answer.split(b"|")[0] for answer in answers] == [
                *[b"GET http://a.example:80/x?y=1 HTTP/1.1"] * 2,
                *[b"GET /x?y=1 HTTP/1.1"] * 2,
            ]
            assert b"Proxy-Authorization" not in answers[2]
            assert proxy.asked == ["GET http://a.example:80/x?y=1 HTTP/1.1", "CONNECT a.example:443 HTTP/1.1"]
            wrong = Egress.of((), None, {"ALL_PROXY": proxy.plain_url})
            for scheme, plain_egress in (("http", wrong), ("https", Egress())):
                client = OutboundClient(plain_egress, OutboundDialer(wrong, scheme, dial, lambda: trusted))
                with pytest.raises(ConnectError, match=r"answered 407.*; write its user and password into its URL"):
                    await ask(client, "a.example", 443)
            for client in clients.values():
                await client.aclose()
            nursery.cancel_scope.cancel()
