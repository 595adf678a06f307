"""Providers and token issuers are reached through the proxies of the environment, engines directly."""

import contextlib
import ssl
from functools import partial

import attrs
import pytest
import trio

from base.http.certificates import make_pair
from forward_proxy import open_forward_proxy
from llmkube.base.http.dial import dial
from llmkube.base.http.egress import Egress
from llmkube.router.config.routing_config import Auth
from router.auth.token_lab import TOKENS
from router.proxy.router_lab import answer, cloud, config_of, local, open_lab


async def serve(stream):
    """Answer each request of a connection; a client may distrust the certificate."""
    with contextlib.suppress(trio.BrokenResourceError):
        while b"\r\n\r\n" in await stream.receive_some():
            await stream.send_all(answer())


@pytest.fixture
async def ports(tmp_path, nursery):
    """The ports of one server, plain and with a certificate for api.invalid."""
    (tmp_path / "ca.pem").write_text(make_pair(tmp_path / "pair.pem", "api.invalid"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair.pem")
    [plain] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    start_tls = partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1", https_compatible=True)
    [secure] = await nursery.start(start_tls)
    yield plain.socket.getsockname()[1], secure.transport_listener.socket.getsockname()[1]
    nursery.cancel_scope.cancel()


async def test_a_provider_behind_a_proxy(tmp_path, ports):
    """By CONNECT for https and by the whole URL for http; an authority of the setting is trusted inside the tunnel."""
    names = {"api.invalid:80": ports[0], "api.invalid:443": ports[1]}
    async with open_forward_proxy(names) as proxy:
        egress = Egress.of((), tmp_path / "ca.pem", {"ALL_PROXY": proxy.url})
        for scheme in ("https", "http"):
            config = config_of(cloud("a", base_url=f"{scheme}://api.invalid/v1"))
            async with open_lab(config, connect=dial, egress=egress) as lab:
                assert [(await lab.ask()).status for _ in range(2)] == [200, 200]
        path = "/v1/chat/completions"
        plain = f"POST http://api.invalid:80{path} HTTP/1.1"
        assert proxy.asked == ["CONNECT api.invalid:443 HTTP/1.1", plain]


async def test_an_engine_is_never_behind_a_proxy(tmp_path, ports):
    """A service has an address in the cluster, whatever the environment says."""
    async with open_forward_proxy({}) as proxy:

        async def connect(host, port):
            return await dial("127.0.0.1", ports[0] if host == "chat.svc" else port)

        egress = Egress.of(("*=" + proxy.url,), None, {"ALL_PROXY": proxy.url})
        async with open_lab(
            config_of(local("a", base_url="http://chat.svc/v1")), connect=connect, egress=egress
        ) as lab:
            assert (await lab.ask()).status == 200
        assert proxy.asked == proxy.refused == []


@pytest.mark.parametrize(
    ("variable", "detail"), [("", "answered 407 to CONNECT"), ("socks5://me:s3cr@s:1", "ALL_PROXY: ")]
)
async def test_a_proxy_that_does_not_serve_is_a_failed_attempt(tmp_path, ports, variable, detail):
    """The audit log says why, without the password."""
    async with open_forward_proxy({"api.invalid:443": ports[1]}) as proxy:
        egress = Egress.of((), None, {"ALL_PROXY": variable or proxy.plain_url})
        async with open_lab(
            config_of(cloud("a", base_url="https://api.invalid/v1")), connect=dial, egress=egress
        ) as lab:
            assert (await lab.ask()).status == 502
            [attempt] = lab.audit[0]["attempts"]
    assert detail in attempt["detail"]
    assert "s3cr" not in str(lab.lines)


async def test_the_keys_of_an_issuer_are_fetched_through_the_proxy(ports):
    """Its address is outside, as a provider's is."""
    async with open_forward_proxy({"id.invalid:443": ports[1]}) as proxy:
        tokens = attrs.evolve(TOKENS, jwks_file="", jwks_uri="https://id.invalid/keys")
        egress = Egress.of((), None, {"https_proxy": proxy.url})
        async with open_lab(config_of(cloud("a"), auth=Auth(tokens=tokens)), connect=dial, egress=egress):
            with trio.fail_after(60):
                await proxy.until_asked("CONNECT id.invalid:443 HTTP/1.1")
