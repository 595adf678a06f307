"""Over real TLS: both sides prove themselves, and certificates may change under way."""

import json
import ssl
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from k8s.scripted import Body, ScriptedServer, config_map, ok, status
from llmkube.k8s.auth.config import (
    BasicAuth,
    BearerToken,
    ClusterConfig,
    ConfigError,
    ExecPlugin,
    TlsSettings,
    TokenFile,
)
from llmkube.k8s.auth.transport import AuthTransport, ClientCertificate, make_context
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.errors import CredentialsError, TransportError, UnauthorizedError
from llmkube.k8s.resource import Key

KEY = Key("default", "a")
PLAIN = NoEncryption()


class Authority:
    """A certificate authority that lives as long as a test."""

    def __init__(self, name="test CA"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = self._sign(self._name, self._key, ca=True).public_bytes(Encoding.PEM)

    def _sign(self, subject, key, names=(), *, ca=False):
        now = datetime.now(tz=UTC)
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(self, name, *names, encryption=PLAIN):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, names)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        return ClientCertificate(signed.public_bytes(Encoding.PEM), pem)


@pytest.fixture(scope="module")
def ca():
    return Authority()


@pytest.fixture(scope="module")
def localhost(ca):
    return ca.issue("server", x509.IPAddress(IPv4Address("127.0.0.1")))


def server_context(pair, client_ca, folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "server.pem").write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(folder / "server.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=client_ca.pem.decode())
    return context


async def whoami(stream):
    """Answer every request with the common name of the client's certificate and its Authorization header."""
    try:
        while data := await stream.receive_some():
            peer = stream.getpeercert() or {}
            name = {key: value for ((key, value),) in peer.get("subject", ())}.get("commonName", "nobody")
            auth = httpx.Headers([line.split(b": ", 1) for line in data.split(b"\r\n")[1:] if b": " in line])
            body = f'{{"name":"{name}","authorization":"{auth.get("authorization", "")}"}}'.encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            await stream.send_all(head.encode() + body)
    except trio.BrokenResourceError:
        pass  # the client did not like our certificate, or went away


async def listen(nursery, context):
    """Serve `whoami` under TLS; return the port."""
    serve = partial(trio.serve_ssl_over_tcp, whoami, 0, context, host="127.0.0.1", https_compatible=True)
    (listener,) = await nursery.start(serve)
    return listener.transport_listener.socket.getsockname()[1]


@pytest.fixture
async def tls_port(ca, localhost, tmp_path, nursery):
    return await listen(nursery, server_context(localhost, ca, tmp_path))


async def ask(config, tls_port):
    config = ClusterConfig(server=f"https://127.0.0.1:{tls_port}", **config)
    with trio.fail_after(60):
        async with open_client(config) as client:
            return await client.get_json("/whoami")


async def test_inline_certificates_prove_us(ca, tls_port):
    """With certificate and key in the kubeconfig the server sees our name."""
    mine = ca.issue("alice")
    tls = TlsSettings(ca=ca.pem, certificate=mine.certificate, key=mine.key)
    assert (await ask({"tls": tls}, tls_port))["name"] == "alice"


async def test_certificate_files_prove_us(ca, tls_port, tmp_path):
    """Certificate, key and authority may be files, and a token goes along."""
    mine = ca.issue("bob")
    for name, data in (("ca", ca.pem), ("crt", mine.certificate), ("key", mine.key)):
        (tmp_path / name).write_bytes(data)
    tls = TlsSettings(ca=tmp_path / "ca", certificate=tmp_path / "crt", key=tmp_path / "key")
    answer = await ask({"tls": tls, "identity": BearerToken("t")}, tls_port)
    assert answer == {"name": "bob", "authorization": "Bearer t"}


async def test_a_server_of_another_authority_is_refused(tls_port):
    """A certificate that our authority did not sign is a TransportError that names the certificate."""
    with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED"):
        await ask({"tls": TlsSettings(ca=Authority().pem)}, tls_port)


async def test_insecure_believes_any_server(tls_port):
    """insecure-skip-tls-verify connects to a server without a trusted certificate."""
    assert (await ask({"tls": TlsSettings(insecure=True)}, tls_port))["name"] == "nobody"


@pytest.mark.parametrize(("name", "good"), [("kubernetes", True), ("other", False)])
async def test_the_server_name_decides_what_is_verified(ca, tmp_path, nursery, name, good):
    """With tls-server-name the certificate must be for that name, not for the URL's host."""
    port = await listen(nursery, server_context(ca.issue("server", x509.DNSName("kubernetes")), ca, tmp_path))
    config = {"tls": TlsSettings(ca=ca.pem, server_name=name)}
    if good:
        assert await ask(config, port)
    else:
        with pytest.raises(TransportError, match="other"):
            await ask(config, port)


async def test_rotated_files_are_used_for_the_next_request(ca, tls_port, tmp_path):
    """A new certificate in the same files is shown to the server without a restart; half a rotation changes nothing."""
    crt, key = tmp_path / "crt", tmp_path / "key"
    first, second = ca.issue("first"), ca.issue("second")
    crt.write_bytes(first.certificate)
    key.write_bytes(first.key)
    tls = TlsSettings(ca=ca.pem, certificate=crt, key=key)
    config = ClusterConfig(server=f"https://127.0.0.1:{tls_port}", tls=tls)
    async with open_client(config) as client:
        assert (await client.get_json("/"))["name"] == "first"
        crt.write_bytes(second.certificate)
        assert (await client.get_json("/"))["name"] == "first"
        key.write_bytes(second.key)
        assert (await client.get_json("/"))["name"] == "second"


async def test_a_plugins_certificate_proves_us(ca, tls_port, tmp_path):
    """A certificate that an exec plugin prints is the one that the server sees."""
    issued = ca.issue("carol")
    credential = {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"clientCertificateData": issued.certificate.decode(), "clientKeyData": issued.key.decode()},
    }
    (tmp_path / "credential").write_text(json.dumps(credential))
    plugin = ExecPlugin(api_version=credential["apiVersion"], argv=("cat", str(tmp_path / "credential")))
    tls = TlsSettings(ca=ca.pem)
    assert (await ask({"tls": tls, "identity": plugin}, tls_port))["name"] == "carol"
    credential["status"]["clientKeyData"] = "not a key"
    (tmp_path / "credential").write_text(json.dumps(credential))
    with pytest.raises(CredentialsError, match="certificate"):
        await ask({"tls": tls, "identity": plugin}, tls_port)


def test_no_key_is_left_behind(ca, tmp_path, monkeypatch):
    """The file through which OpenSSL reads a key is for our eyes only, and gone afterwards, even after an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self, path, *args, **kwargs):
        modes.extend(entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir())
        return load(self, path, *args, **kwargs)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    mine = ca.issue("alice")
    make_context(TlsSettings(certificate=mine.certificate, key=mine.key))
    with pytest.raises(ConfigError):
        make_context(TlsSettings(certificate=mine.certificate, key=b"junk"))
    assert modes == [0o600, 0o600]
    assert not list(tmp_path.iterdir())


def test_an_encrypted_key_is_refused_without_a_prompt(ca):
    """A key with a password is a ConfigError, never a question on the terminal."""
    mine = ca.issue("alice", encryption=BestAvailableEncryption(b"x"))
    with pytest.raises(ConfigError, match="encrypted"):
        make_context(TlsSettings(certificate=mine.certificate, key=mine.key))


@pytest.mark.parametrize(
    "tls",
    [
        TlsSettings(ca=b"junk"),
        TlsSettings(ca=b"\xff\xfe"),
        TlsSettings(ca=b""),
        TlsSettings(ca=Path("/no/such/ca.crt")),
        TlsSettings(certificate=b"junk", key=b"junk"),
    ],
)
async def test_unusable_certificates_are_known_before_the_first_request(tls):
    """Opening a client with a certificate that is none raises ConfigError at once."""
    with pytest.raises(ConfigError):
        async with open_client(ClusterConfig(server="https://127.0.0.1:1", tls=tls)):
            pytest.fail("opened")


# -- authentication over a scripted transport -------------------------------------------------------------------------


def over(server, **config):
    transport = AuthTransport(ClusterConfig(server="http://apiserver", **config), connect=lambda _: server)
    return Client(httpx.AsyncClient(transport=transport, base_url="http://apiserver"))


async def test_headers_of_the_identity_go_along():
    """Authorization and every impersonation header are on each request."""
    server = ScriptedServer(ok(config_map("a", 1)))
    headers = (("Impersonate-User", "bob"), ("Impersonate-Group", "g1"), ("Impersonate-Group", "g2"))
    await over(server, identity=BasicAuth("u", "p"), headers=headers).get(ConfigMap, KEY)
    sent = server.calls[0].headers
    assert sent["authorization"] == "Basic dTpw"
    assert sent.get_list("impersonate-group") == ["g1", "g2"]


async def test_a_401_renews_once_and_repeats_the_whole_request(tmp_path):
    """After a 401 the token file is read again and the request, body included, is sent once more."""
    token = tmp_path / "token"
    token.write_text("old")

    def refuse(request):
        token.write_text("new")
        return status(401, "Unauthorized")

    server = ScriptedServer(refuse, ok(config_map("a", 1)))
    await over(server, identity=TokenFile(token)).patch(ConfigMap, KEY, {"data": {"x": "1"}})
    assert [call.headers["authorization"] for call in server.calls] == ["Bearer old", "Bearer new"]
    assert server.calls[0].body == server.calls[1].body == b'{"data":{"x":"1"}}'


async def test_a_401_without_other_credentials_is_not_repeated():
    """A fixed token that is refused is refused: one request, one UnauthorizedError."""
    server = ScriptedServer(status(401, "Unauthorized", "who are you"))
    with pytest.raises(UnauthorizedError, match="who are you"):
        await over(server, identity=BearerToken("t")).get(ConfigMap, KEY)
    assert len(server.calls) == 1


async def test_a_second_401_is_the_callers(tmp_path):
    """When the renewed token is refused as well, the error arrives after two requests, not after a loop."""
    token = tmp_path / "token"
    token.write_text("0")

    def refuse(request):
        token.write_text(token.read_text() + "1")
        return status(401, "Unauthorized")

    server = ScriptedServer(refuse, refuse, refuse)
    with pytest.raises(UnauthorizedError):
        await over(server, identity=TokenFile(token)).get(ConfigMap, KEY)
    assert len(server.calls) == 2


async def test_a_plugin_that_fails_after_a_401_closes_the_refused_answer(tmp_path):
    """When no other credential is available, the answer that asked for one does not stay open."""
    once = tmp_path / "once"
    script = (
        f'if [ -e {once} ]; then echo no >&2; exit 1; fi; touch {once}; echo \'{{"kind":"ExecCredential",'
        '"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}\''
    )
    plugin = ExecPlugin(api_version="client.authentication.k8s.io/v1", argv=("sh", "-c", script))
    body = Body([b"{}"])
    server = ScriptedServer(httpx.Response(401, stream=body))
    with pytest.raises(CredentialsError):
        await over(server, identity=plugin).get(ConfigMap, KEY)
    assert body.closed


async def test_an_old_watch_outlives_a_rotation(ca, tmp_path):
    """Rotated files open a new pool at once; the old one is closed when its last answer is, and not before."""
    crt, key = tmp_path / "crt", tmp_path / "key"
    pools = []

    class Pool(ScriptedServer):
        closed = False

        async def aclose(self):
            self.closed = True

    def connect(context):
        pools.append(Pool(httpx.Response(200, stream=Body([None])), ok(config_map("a", 1))))
        return pools[-1]

    def rotate():
        mine = ca.issue("me")
        crt.write_bytes(mine.certificate)
        key.write_bytes(mine.key)

    rotate()
    tls = TlsSettings(certificate=crt, key=key)
    transport = AuthTransport(ClusterConfig(server="http://apiserver", tls=tls), connect=connect)
    async with httpx.AsyncClient(transport=transport, base_url="http://apiserver") as http:
        async with http.stream("GET", "/watch"):
            rotate()
            async with http.stream("GET", "/watch"):
                assert [pool.closed for pool in pools] == [False, False]
        assert [pool.closed for pool in pools] == [True, False]
    assert [pool.closed for pool in pools] == [True, True]


async def test_requests_share_a_connection_whatever_is_watched(nursery):
    """A controller watches twenty collections; each of its requests goes over the connection of the one before."""
    accepted, seen = [], []

    async def answer(stream):
        accepted.append(stream)
        head = b""
        while chunk := await stream.receive_some(4096):
            head += chunk
            if head.endswith(b"\r\n\r\n"):
                seen.append(accepted.index(stream))
                watch = b"watch=1" in head
                body = b"" if watch else json.dumps(config_map("a", 1)).encode()
                length = b"" if watch else b"content-length: %d\r\n" % len(body)
                await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%s\r\n" % length + body)
                head = b""

    [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
    server = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with AsyncExitStack() as watches, open_client(ClusterConfig(server=server)) as client:
        for _ in range(20):
            await watches.enter_async_context(client.open_watch(ConfigMap, resource_version="1"))
        for _ in range(3):
            await client.get(ConfigMap, KEY)
        await watches.aclose()
    assert seen == [*range(20), 20, 20, 20]
    nursery.cancel_scope.cancel()
