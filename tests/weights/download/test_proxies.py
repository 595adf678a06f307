"""Downloads through a proxy: the target is judged by the rules for addresses, the proxy is not."""

import contextlib
import importlib.resources
import ipaddress
import os
import ssl
import sys
from functools import partial

import pytest
import trio

from base.http.certificates import make_pair
from forward_proxy import open_forward_proxy
from llmkube.base.http.egress import Egress
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.guarded_transport import open_transport_with
from llmkube.weights.errors import BlockedAddressError, FetchError
from llmkube.weights.urls import parse_url
from weights.hostile import NO_TRUST, PUBLIC, Network, answers, gguf, open_bench, serves

DATA = gguf(1000)
DEMO = importlib.resources.files("llmkube.weights").joinpath("builtin/demo.gguf").read_bytes()
PROXY = "10.7.7.7"
ADDRESSES = {"proxy.corp": [PROXY], "private.example": ["10.0.0.1"], "metadata.example": ["169.254.169.254"]}
ADDRESSES |= {name: [] for name in ("vault.internal", "metadata.google.internal", "vault", "db.ml.svc", "a.local")}


def behind_proxy(tmp_path, script, **environ):
    """Open a downloader behind a proxy; names of `ADDRESSES` without an address, and `.invalid`, are not resolved."""
    egress = Egress.of((), None, {"HTTP_PROXY": "http://me:pw@proxy.corp:3128", **environ})
    return open_bench(tmp_path / "store", script, addresses=ADDRESSES, egress=egress)


@pytest.mark.parametrize("host", ["files.example", "files.invalid"])
async def test_the_proxy_gets_the_whole_url(tmp_path, autojump_clock, host):
    """Also of a name that this host cannot resolve. The proxy's own private address needs no permission."""
    async with behind_proxy(tmp_path, serves(DATA)) as bench:
        found = await bench.get(f"http://{host}/m.gguf")
    assert found.path.read_bytes() == DATA
    assert [each.target for each in bench.network.requests] == [f"http://{host}:80/m.gguf"]
    assert bench.network.requests[0].headers["proxy-authorization"] == "Basic bWU6cHc="
    assert bench.network.dialled == [PROXY]


async def test_an_exception_is_dialled_directly(tmp_path, autojump_clock):
    async with behind_proxy(tmp_path, serves(DATA), NO_PROXY=".example") as bench:
        await bench.get("http://files.example/m.gguf")
    assert bench.network.requests[0].target == "/m.gguf"
    assert "proxy-authorization" not in bench.network.requests[0].headers
    assert bench.network.dialled == [PUBLIC]


@pytest.mark.parametrize(
    ("host", "rule", "by_operator"),
    [
        ("private.example", "private network", True),
        ("10.0.0.1", "private network", True),
        ("metadata.example", "cloud metadata service", False),
        ("169.254.169.254", "cloud metadata service", False),
        ("metadata.google.internal", "cloud metadata service", False),
        ("vault.internal", "private domain", True),
        ("a.local", "private domain", True),
        ("db.ml.svc", "names of a cluster", True),
        ("vault", "a name without a domain", True),
    ],
)
async def test_the_target_is_judged_and_the_proxy_not_asked(tmp_path, autojump_clock, host, rule, by_operator):
    """By its addresses, and by its name where only the proxy could resolve it; an operator has the usual rights."""
    async with behind_proxy(tmp_path, serves(DATA)) as bench:
        with pytest.raises(BlockedAddressError) as refused:
            await bench.get(f"http://{host}/m.gguf")
        assert f"({rule})" in str(refused.value)
        assert bench.network.dialled == []
        get = partial(bench.get, f"http://{host}/m.gguf", policy=AddressPolicy(from_operator=True))
        if by_operator:
            assert (await get()).path.read_bytes() == DATA
        else:
            with pytest.raises(BlockedAddressError, match="no setting allows it"):
                await get()


@pytest.mark.parametrize("first", ["files.example", "files.invalid"])
async def test_a_redirect_to_a_private_server_is_refused_behind_a_proxy_too(autojump_clock, first):
    """Even to a network that the operator has allowed, and after a name that only the proxy can resolve."""
    network = Network(answers(200), ADDRESSES)
    egress = Egress.of((), None, {"HTTP_PROXY": "http://proxy.corp:3128"})
    opened = open_transport_with(resolve=network.resolve, dial=network.dial, ssl_context=NO_TRUST, egress=egress)
    transport = opened(AddressPolicy(allowed=(ipaddress.ip_network("10.0.0.0/8"),)))
    public, private = (parse_url(f"http://{host}/m.gguf")[0] for host in (first, "private.example"))
    async with network.open():
        for url in (private, public):
            answer = await transport.get(url, {"Host": url.host})
            await answer.stream.aclose()
        with pytest.raises(BlockedAddressError, match="behind a redirect from a public server"):
            await transport.get(private, {"Host": private.host})


async def test_a_proxy_that_cannot_be_used_fails_the_download_with_its_variable(tmp_path, autojump_clock):
    async with behind_proxy(tmp_path, serves(DATA), http_proxy="socks5://me:secret@s:1") as bench:
        with pytest.raises(FetchError, match=r"http_proxy: socks5://s:1 is not a proxy.*; write http://") as refused:
            await bench.get("http://files.example/m.gguf")
    assert "secret" not in str(refused.value)


async def serve_file(stream):
    """Serve the demo model to each request of a connection; some clients only read its header."""
    with contextlib.suppress(trio.BrokenResourceError):
        while b"\r\n\r\n" in await stream.receive_some():
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DEMO) + DEMO)


@pytest.mark.parametrize(
    ("words", "in_settings"),
    [
        (["fetch", "--to", "{0}/m", "--model-store", "{0}/s", "--termination-log", "{0}/log"], False),
        (["fetch", "--to", "{0}/m", "--model-store", "{0}/s", "--termination-log", "{0}/log"], True),
        (["cache", "preload"], False),
        (["inspect"], True),
    ],
)
async def test_commands_use_the_proxy_and_the_authority(tmp_path, nursery, words, in_settings):
    """By CONNECT with a password, for a name that only the proxy knows; by variables, and by LLMKube's settings."""
    (tmp_path / "ca.pem").write_text(make_pair(tmp_path / "pair.pem", "models.invalid"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pair.pem")
    start = partial(trio.serve_ssl_over_tcp, serve_file, 0, context, host="127.0.0.1", https_compatible=True)
    [listener] = await nursery.start(start)
    port = listener.transport_listener.socket.getsockname()[1]
    async with open_forward_proxy({"models.invalid:443": port}) as proxy:
        environ = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        if in_settings:
            environ = {"LLMKUBE_PROXY": f"*={proxy.url}", "LLMKUBE_CA_FILE": str(tmp_path / "ca.pem")}
            environ |= {"HTTPS_PROXY": "http://127.0.0.1:1"}
        environ |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLMKUBE_STATE_DIR": str(tmp_path / "state")}
        command = [sys.executable, "-m", "llmkube", *(each.format(tmp_path) for each in words)]
        done = await trio.run_process(
            [*command, "https://models.invalid/demo.gguf"],
            env=environ,
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    assert set(proxy.asked) == {"CONNECT models.invalid:443 HTTP/1.1"}
    assert "s3cr" not in output
    nursery.cancel_scope.cancel()
