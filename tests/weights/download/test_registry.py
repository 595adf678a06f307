"""Content of a registry is fetched by digest, the login goes to that registry only, and no response is trusted."""

import base64
import hashlib
import json
import urllib.parse
from collections.abc import Mapping

import attrs
import pytest
import trio

from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import redirects
from llmkube.weights.download.registry import (
    Challenge,
    Layer,
    RegistryAccess,
    choose_layers,
    parse_challenge,
    parse_manifest,
    parse_token,
    registry_url,
)
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.errors import (
    AccessDeniedError,
    AmbiguousSourceError,
    BlockedAddressError,
    DigestMismatchError,
    FetchError,
    SourceError,
    SourceNotFoundError,
)
from llmkube.weights.source import parse_source
from llmkube.weights.urls import parse_url
from weights.hostile import gguf, open_bench

DATA = gguf(100_000)
OTHER = gguf(50_000, seed=2)
SOURCE = "oci://localhost:5000/models/phi:q4"  # by plain http, which is for registries of this machine
OCI = "application/vnd.oci.image.manifest.v1+json"
DOCKER = "application/vnd.docker.ai.gguf.v3"
MODELPACK = "application/vnd.cncf.model.weight.v1.raw"
LOGIN = RegistryAccess("ada", "hush")
HASTY = DownloadLimits(tries=2)


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(data, media_type=DOCKER, **annotations):
    return {"mediaType": media_type, "digest": digest(data), "size": len(data), "annotations": annotations}


def manifest(*layers):
    return json.dumps({"schemaVersion": 2, "mediaType": OCI, "layers": list(layers)}).encode()


def titled(data, name, media_type="application/octet-stream"):
    return layer(data, media_type, **{"org.opencontainers.image.title": name})


@attrs.define(eq=False)
class Registry:
    """A registry as the distribution specification has it, with faults.

    Attributes:
        manifests: By tag and digest.
        blobs: By digest; what is sent need not have it.
        user: The user who may read; empty if all may. Tokens are of `auth.example`.
        store: Where blobs are redirected to; empty for none.
        cut: After how many bytes of a blob the first answer breaks off.
        basic: Whether it takes the password itself.
        tokens: Number of requests for which each token is valid.
    """

    manifests: Mapping[str, bytes]
    blobs: Mapping[str, bytes] = attrs.field(factory=lambda: {digest(DATA): DATA, digest(OTHER): OTHER})
    user: str = ""
    store: str = ""
    cut: int | None = None
    basic: bool = False
    tokens: int = 1_000_000
    anonymous: bool = False
    _issued: int = 0
    _used: int = 0

    async def __call__(self, wire, request):
        path, _, query = request.target.partition("?")
        if path == "/token":
            return await self._token(wire, request, urllib.parse.parse_qs(query))
        if path.startswith("/store/"):
            return await self._blob(wire, request, path.removeprefix("/store/"))
        if not await self._lets_in(wire, request):
            return None
        kind, _, reference = path.removeprefix("/v2/models/phi/").partition("/")
        if kind == "manifests" and reference in self.manifests:
            assert OCI in request.headers["accept"]
            return await wire.answer(200, self.manifests[reference], content_type=OCI)
        if kind == "blobs" and self.store:
            return await wire.answer(307, location=f"{self.store}/store/{reference}")
        if kind == "blobs":
            return await self._blob(wire, request, reference)
        return await wire.answer(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')

    async def _lets_in(self, wire, request):
        authorization = request.headers.get("authorization", "")
        if not self.user and not self.anonymous:
            return True
        if self.basic:
            right, wants = authorization == basic(self.user), 'Basic realm="here"'
        else:
            self._used += authorization == f"Bearer t{self._issued}"
            right = authorization == f"Bearer t{self._issued}" and self._used <= self.tokens
            wants = 'Bearer realm="http://localhost:5000/token",service="reg",scope="repository:all:push"'
        if not right:
            await wire.answer(401, www_authenticate=wants)
        return right

    async def _token(self, wire, request, query):
        assert query == {"service": ["reg"], "scope": ["repository:models/phi:pull"]}
        if self.user and request.headers.get("authorization") != basic(self.user):
            return await wire.answer(401)
        self._issued, self._used = self._issued + 1, 0
        return await wire.answer(200, json.dumps({"token": f"t{self._issued}"}).encode())

    async def _blob(self, wire, request, reference):
        cut, self.cut = self.cut, None
        await wire.file(request, self.blobs[reference], cut=cut)


def basic(user):
    return "Basic " + base64.b64encode(f"{user}:hush".encode()).decode()


def login():
    async def find():
        await trio.lowlevel.checkpoint()
        return LOGIN

    return find


@pytest.mark.parametrize(
    ("source", "files", "layers"),
    [
        (SOURCE, (), [layer(DATA)]),
        (SOURCE, (), [layer(DATA, MODELPACK, **{"org.cncf.model.filepath": "m.gguf"})]),
        (SOURCE, (), [layer(b"{}", "application/vnd.docker.ai.license"), titled(DATA, "m.gguf")]),
        (SOURCE, ("m.gguf",), [titled(OTHER, "other.gguf"), titled(DATA, "m.gguf")]),
    ],
)
async def test_each_form_of_an_artefact_is_fetched(tmp_path, autojump_clock, source, files, layers):
    """Docker's models, ModelPack's raw weights and what ORAS pushes: one manifest, one blob, and then no server."""
    async with open_bench(tmp_path, Registry({"q4": manifest(*layers)})) as bench:
        kept = await bench.get(source, files=files)
        assert kept.path.read_bytes() == DATA
        assert [request.target.split("/")[4] for request in bench.network.requests] == ["manifests", "blobs"]
        await bench.get(source, files=files)
        assert len(bench.network.requests) == 2


async def test_the_parts_of_a_model_come_together(tmp_path, autojump_clock):
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    held = manifest(titled(OTHER, names[1]), titled(DATA, names[0]))
    async with open_bench(tmp_path, Registry({"q4": held})) as bench:
        kept = await bench.get(SOURCE)
        assert [path.read_bytes() for path in sorted(kept.path.parent.glob("*.gguf"))] == [DATA, OTHER]


async def test_an_index_of_one_is_followed_by_digest(tmp_path, autojump_clock):
    """Entries of the index are checked against their digests; attestations among them are skipped."""
    inner = manifest(layer(DATA))
    entries = [{"digest": digest(inner)}, {"digest": digest(b"x"), "platform": {"os": "unknown"}}]
    outer = json.dumps({"manifests": entries}).encode()
    async with open_bench(tmp_path, Registry({"q4": outer, digest(inner): inner})) as bench:
        assert (await bench.get(SOURCE)).path.read_bytes() == DATA
    async with open_bench(tmp_path / "2", Registry({"q4": outer, digest(inner): manifest(layer(OTHER))})) as bench:
        with pytest.raises(DigestMismatchError, match="another digest"):
            await bench.get(SOURCE)


async def test_indexes_without_an_end_are_given_up(tmp_path, autojump_clock, monkeypatch):
    """A registry that leads on for ever is asked three times."""
    entry = json.dumps({"manifests": [{"digest": digest(b"same")}]}).encode()
    monkeypatch.setattr("llmkube.weights.download.registry.hashlib.sha256", lambda _: hashlib.new("sha256", b"same"))
    async with open_bench(tmp_path, Registry({"q4": entry, digest(b"same"): entry})) as bench:
        with pytest.raises(FetchError, match="only to other indexes"):
            await bench.get(SOURCE)
        assert len(bench.network.requests) == 3


async def asked_with_a_login(tmp_path):
    """Fetch from a registry that has its blobs in a store; return who was asked, and with which login."""
    held = Registry({"q4": manifest(layer(DATA))}, user="ada", store="http://blobs.example")
    async with open_bench(tmp_path, held) as bench:
        policy = AddressPolicy(from_operator=True)  # the store is asked by plain http, as no object's may be
        assert (await bench.get(SOURCE, registry=login(), policy=policy)).path.read_bytes() == DATA
        return [(request.host, request.headers.get("authorization", "")) for request in bench.network.requests]


async def test_the_login_goes_to_the_registry_and_to_no_store(tmp_path, autojump_clock, capfd):
    """A 401 leads to a token for reading; the store that blobs are on gets neither it nor the password."""
    assert await asked_with_a_login(tmp_path) == [
        ("localhost:5000", ""),
        ("localhost:5000", basic("ada")),
        ("localhost:5000", "Bearer t1"),
        ("localhost:5000", "Bearer t1"),
        ("blobs.example", ""),
    ]
    assert "hush" not in repr(LOGIN) + "".join(capfd.readouterr())


@pytest.mark.soak
async def test_mutant_a_login_for_every_origin_is_noticed(tmp_path, autojump_clock, monkeypatch):
    """Were what is sent no matter of the origin, the store would be seen to get the token."""
    everywhere = classmethod(lambda cls, url, token: cls(Anywhere(), f"Bearer {token}"))
    monkeypatch.setattr(redirects.Credential, "bearer", everywhere)
    assert (await asked_with_a_login(tmp_path))[-1] == ("blobs.example", "Bearer t1")


class Anywhere:
    def __eq__(self, other):
        return True

    __hash__ = None


async def test_a_public_repository_takes_a_token_without_a_user(tmp_path, autojump_clock):
    """As Docker Hub does it: the server for tokens is asked without a password."""
    async with open_bench(tmp_path, Registry({"q4": manifest(layer(DATA))}, anonymous=True)) as bench:
        assert (await bench.get(SOURCE)).path.read_bytes() == DATA


async def test_a_registry_may_take_the_password_itself(tmp_path, autojump_clock):
    async with open_bench(tmp_path, Registry({"q4": manifest(layer(DATA))}, user="ada", basic=True)) as bench:
        assert (await bench.get(SOURCE, registry=login())).path.read_bytes() == DATA
        with pytest.raises(AccessDeniedError, match="requires a user and password; create a Secret"):
            await bench.get("oci://localhost:5000/models/phi@" + digest(b""), registry=None)


async def test_a_refused_login_is_reported_without_the_password(tmp_path, autojump_clock):
    """The words name the Secret's kind and the field, and nothing of what was sent."""
    async with open_bench(tmp_path, Registry({"q4": manifest(layer(DATA))}, user="eve")) as bench:
        with pytest.raises(
            AccessDeniedError, match=r"401: access denied; create a Secret .* spec\.sourceSecretRef"
        ) as no:
            await bench.get(SOURCE, registry=login())
        assert "hush" not in str(no.value)
        assert not bench.visible()


async def test_a_broken_download_resumes_with_a_new_token(tmp_path, autojump_clock):
    """A token that has expired in the middle fails this attempt; the next one logs in again, and fetches the rest."""
    held = Registry({"q4": manifest(layer(DATA))}, user="ada", cut=40_000, tokens=2)
    async with open_bench(tmp_path, held, limits=HASTY) as bench:
        with pytest.raises(FetchError, match="rejected the token"):
            await bench.get(SOURCE, registry=login())
        assert (await bench.get(SOURCE, registry=login())).path.read_bytes() == DATA
        starts = [request.start for request in bench.network.requests if "/blobs/" in request.target]
        assert starts[0] is None
        assert set(starts[1:]) == {40_000}


@pytest.mark.parametrize(
    ("sent", "error", "text"),
    [
        (OTHER + DATA[50_000:], DigestMismatchError, "but its manifest's is"),
        (DATA[:-1], FetchError, None),
        (DATA + b"x", FetchError, None),
    ],
)
async def test_a_blob_that_is_not_its_digest_is_not_kept(tmp_path, autojump_clock, sent, error, text):
    """Other bytes, too few and too many: no engine is given any of it."""
    held = Registry({"q4": manifest(layer(DATA))}, blobs={digest(DATA): sent})
    async with open_bench(tmp_path, held, limits=HASTY) as bench:
        with pytest.raises(error, match=text):
            await bench.get(SOURCE)
        assert not bench.visible()


async def test_what_the_user_asks_for_is_compared_before_a_byte(tmp_path, autojump_clock):
    async with open_bench(tmp_path, Registry({"q4": manifest(layer(DATA))})) as bench:
        with pytest.raises(DigestMismatchError, match=r"the registry has .*, but spec\.sha256 is abab"):
            await bench.get(SOURCE, sha256="ab" * 32)
        assert len(bench.network.requests) == 1


async def test_a_manifest_without_end_is_cut_off(tmp_path, autojump_clock, monkeypatch):
    """A manifest above the bound is an error, and not memory."""
    monkeypatch.setattr("llmkube.weights.download.registry.MANIFEST_BYTES", 1000)
    async with open_bench(tmp_path, Registry({"q4": b" " * 1001}), limits=HASTY) as bench:
        with pytest.raises(FetchError, match="manifest is too long"):
            await bench.get(SOURCE)


async def test_a_registry_leads_to_no_private_address(tmp_path, autojump_clock):
    """The policy of an object holds for registries, their servers for tokens and their stores."""
    held = Registry({"q4": manifest(layer(DATA))})
    async with open_bench(tmp_path, held, addresses={"localhost": ["127.0.0.1"]}) as bench:
        with pytest.raises(BlockedAddressError):
            await bench.get(SOURCE)
        assert not bench.network.dialled


def image(text=SOURCE):
    return parse_source(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (SOURCE, "http://localhost:5000/v2/models/phi/manifests/q4"),
        ("oci://ghcr.io/a/b:t", "https://ghcr.io/v2/a/b/manifests/t"),
        ("oci://docker.io/ai/smollm2", "https://registry-1.docker.io/v2/ai/smollm2/manifests/latest"),
    ],
)
def test_a_manifest_is_where_its_registry_has_it(text, url):
    """Plain http is for registries of this machine alone; Docker Hub is at another name than it is called."""
    assert str(registry_url(image(text), f"manifests/{image(text).reference}")) == url


@pytest.mark.parametrize(
    ("config", "registry", "found"),
    [
        ({"auths": {"r.io": {"auth": base64.b64encode(b"a:b:c").decode()}}}, "r.io", RegistryAccess("a", "b:c")),
        ({"auths": {"https://r.io/v1/": {"username": "a", "password": "b"}}}, "r.io", RegistryAccess("a", "b")),
        ({"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"}}}, "docker.io", RegistryAccess("a", "b")),
        ({"auths": {"other.io": {"auth": "YTpi"}}}, "r.io", RegistryAccess()),
    ],
)
def test_a_login_is_that_of_its_registry(config, registry, found):
    """As `docker login` and kubectl write it; another registry's is not taken."""
    assert RegistryAccess.read(json.dumps(config), registry, where="Secret s") == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"auths":{"r.io":{}}}', '{"auths":{"r.io":{"auth":"hush"}}}'])
def test_a_login_that_cannot_be_read_is_not_shown(text):
    with pytest.raises(SourceError, match=r"\.dockerconfigjson in Secret s") as no:
        RegistryAccess.read(text, "r.io", where="Secret s")
    assert "hush" not in str(no.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "unknown kind of login"),
        ("Negotiate abc", "unknown kind of login"),
        ("Bearer service=x", "unknown kind of login"),
        ('Bearer realm="http://elsewhere.example/token"', "is not https"),
        ('Bearer realm="ftp://r.io"', "no valid URL"),
    ],
)
def test_a_challenge_that_would_leak_is_refused(header, message):
    """No password goes over plain http to another server."""
    with pytest.raises(FetchError, match=message):
        parse_challenge("x", parse_url("https://r.io")[0], header)


def test_a_token_is_for_reading_one_repository():
    """The scope that the registry requests does not matter."""
    wants = parse_challenge("x", parse_url("https://r.io")[0], 'Bearer realm="https://a.io/t?x=1",service="s s"')
    assert isinstance(wants, Challenge)
    assert str(wants.token_url("a/b")) == "https://a.io/t?x=1&service=s+s&scope=repository%3Aa%2Fb%3Apull"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token":7}', b'{"token":"a\\r\\nb"}'])
def test_what_is_no_token_is_refused(body):
    with pytest.raises(FetchError, match="sent no token"):
        parse_token("x", body)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b"<html>", FetchError, "cannot be decoded"),
        (b"[" * 100_000, FetchError, "cannot be decoded"),
        (manifest({"mediaType": DOCKER, "digest": "md5:1", "size": 1}), FetchError, "cannot be decoded"),
        (manifest({"mediaType": DOCKER, "digest": digest(b""), "size": -1}), FetchError, "cannot be decoded"),
        (manifest({"mediaType": DOCKER, "digest": digest(b""), "size": True}), FetchError, "cannot be decoded"),
        (manifest(layer(DATA, "application/vnd.oci.image.layer.v1.tar+gzip")), SourceError, "not unpacked"),
        (manifest(titled(DATA, "m.gguf", "application/vnd.cncf.model.weight.v1.tar")), SourceError, "not unpacked"),
        (json.dumps({"manifests": [{"digest": digest(b"a")}, {"digest": digest(b"b")}]}).encode(), SourceError,
         "an index of 2 images"),
    ],
)  # fmt: skip
def test_manifests_that_lead_to_no_model_are_refused(body, error, message):
    with pytest.raises(error, match=message):
        parse_manifest(image(), "q4", body)


@pytest.mark.parametrize(
    ("text", "names", "error", "message"),
    [
        (SOURCE, ["a.gguf", "b.gguf"], AmbiguousSourceError, r"set spec\.files to one of them: a\.gguf \(1 B\)"),
        (SOURCE, ["a-00001-of-00002.gguf"], SourceNotFoundError, r"has no a-00002-of-00002\.gguf"),
        (SOURCE, ["a.gguf", "a.gguf"], AmbiguousSourceError, r"has several models named a\.gguf; push them"),
        (SOURCE, ["", ""], AmbiguousSourceError, "has several models without a name"),
        (SOURCE + "#c.gguf", ["a.gguf"], SourceNotFoundError, r"has no c\.gguf; it has a\.gguf"),
    ],
)
def test_which_layer_is_meant_has_to_be_clear(text, names, error, message):
    source, _, file = text.partition("#")
    chosen = attrs.evolve(image(source), file=file)
    held = [Layer(f"{at:064}", 1, name) for at, name in enumerate(names)]
    with pytest.raises(error, match=message):
        choose_layers(chosen, held)
