"""Finding S9: gated weights fetched with a credential of one namespace, requested by another namespace without one."""

import base64
import hashlib
import json
from types import SimpleNamespace

import pytest
import trio

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.supervisor.local import open_local_ports
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.download.buckets import BucketAccess
from llmkube.weights.errors import AccessDeniedError, DigestMismatchError, FetchError, WeightsError
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.index import key_of, name_of, read_record, records
from weights.hostile import PUBLIC, gguf, open_bench

DATA, OTHER = gguf(200_000), gguf(150_000, seed=2)
SHA256 = hashlib.sha256(DATA).hexdigest()
GATED = "hf://o/r/m.gguf"
SIGNED = "http://files.example/m.gguf?sig=abcdef"
OBJECT = "s3://models/m.gguf"


def gate(*tokens, data=DATA):
    """Return a server that sends its file only to clients with one of these tokens, passwords or signatures."""
    good = list(tokens)

    async def script(wire, request):
        sent = request.headers.get("authorization", "")
        if not good or any(token in sent + request.target for token in good):
            await wire.file(request, data)
        else:
            await wire.answer(403 if sent else 401)

    script.good = good
    return script


def basic(user, password):
    return base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_s9_another_namespace_needs_a_token_that_works(tmp_path, autojump_clock):
    """Without a token, or with one that has no right, gated weights are refused even if the store has them."""
    async with open_bench(tmp_path, gate("hf_good", "hf_too")) as bench:
        kept = await bench.get(GATED, token="hf_good", namespace="a")
        for token in (None, "hf_bad"):
            for sha256 in (None, SHA256):
                with pytest.raises(AccessDeniedError):
                    await bench.get(GATED, token=token, sha256=sha256, namespace="b")
        asked = len(bench.network.requests)
        assert await bench.get(GATED, token="hf_too", namespace="b") == kept
        assert [r.headers["range"] for r in bench.network.requests[asked:]] == ["bytes=0-3"]  # not fetched again
        with pytest.raises(AccessDeniedError):
            await bench.get(GATED, namespace="c")


async def test_s9_a_namespace_that_has_fetched_starts_offline(tmp_path, autojump_clock):
    """A namespace that fetched, or has shown a valid token, sends no further request, even after a restart."""
    async with open_bench(tmp_path, gate("hf_good")) as bench:
        await bench.get(GATED, token="hf_good", namespace="a")
        await bench.get(GATED, token="hf_good", namespace="b")
    async with open_bench(tmp_path, gate("none")) as bench:
        for namespace in ("a", "b"):
            assert (await bench.get(GATED, namespace=namespace)).sha256 == SHA256
        assert bench.network.requests == []
        with pytest.raises(AccessDeniedError):  # the token was valid once, and is no longer
            await bench.get(GATED, token="hf_good", namespace="c")
        bench.network.refusing.add(PUBLIC)
        assert (await bench.get(GATED, token="hf_good", namespace="c")).sha256 == SHA256  # the server cannot be reached
        with pytest.raises(FetchError):
            await bench.get(GATED, token="hf_other", namespace="d")


async def test_public_weights_are_shared_by_all_namespaces(tmp_path, autojump_clock):
    """Public weights are shared without a request, and so are weights that were fetched with an unneeded token."""
    async with open_bench(tmp_path, gate()) as bench:
        await bench.get(GATED, namespace="a")
        await bench.get(GATED, namespace="b")
        assert len(bench.network.requests) == 1
        await bench.get("hf://o/r/n.gguf", token="hf_any", namespace="a")
        await bench.get("hf://o/r/n.gguf", namespace="b")
        await bench.get("hf://o/r/n.gguf", namespace="c")
        assert len(bench.network.requests) == 3  # one download, one check without a token


async def test_s9_a_digest_is_no_credential(tmp_path, autojump_clock):
    """A source with the digest of gated weights gets what that source sends, and not the gated weights."""

    async def script(wire, request):
        if request.host == "evil.example":
            await wire.file(request, OTHER)
        elif "hf_good" in request.headers.get("authorization", ""):
            await wire.file(request, DATA)
        else:
            await wire.answer(401)

    async with open_bench(tmp_path, script) as bench:
        await bench.get(GATED, token="hf_good", namespace="a")
        with pytest.raises(DigestMismatchError):
            await bench.get("http://evil.example/m.gguf", sha256=SHA256, namespace="b")
        assert any(request.host == "evil.example" for request in bench.network.requests)
        with pytest.raises(WeightsError):  # nor can the first namespace publish them under another name
            await bench.get("http://evil.example/m.gguf", sha256=SHA256, namespace="a")
        assert [record.audience.public for _, record in records(bench.store)] == [False]


async def test_s9_a_url_with_another_password_is_another_source(tmp_path, autojump_clock):
    """A wrong or missing password gets nothing; a password from another namespace is checked with the server."""
    good, bad = "http://u:s3cret-pw@files.example/m.gguf", "http://u:guess@files.example/m.gguf"
    server = gate(basic("u", "s3cret-pw"))
    async with open_bench(tmp_path, server) as bench:
        await bench.get(good, namespace="a")
        for text in (bad, "http://files.example/m.gguf"):
            with pytest.raises(AccessDeniedError):
                await bench.get(text, namespace="a")
        asked = len(bench.network.requests)
        await bench.get(good, namespace="b")
        assert len(bench.network.requests) == asked + 1
        server.good[:] = ["changed"]
        await bench.get(good, namespace="a")
        with pytest.raises(AccessDeniedError):
            await bench.get(good, namespace="c")


async def test_s9_no_password_or_token_is_on_the_disk_in_clear(tmp_path, autojump_clock):
    """No name or content of the store's files has a credential, or a digest that guesses can be tested against."""
    async with open_bench(tmp_path, gate(basic("u", "s3cret-pw"), "hf_good", "abcdef")) as bench:
        await bench.get("http://u:s3cret-pw@files.example/m.gguf", namespace="a")
        await bench.get(GATED, token="hf_good", namespace="a")
        await bench.get(SIGNED, namespace="a")
        texts = [str(path) + path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
        everything = "\n".join(texts)
        for secret in ("s3cret-pw", "hf_good", "sig=abcdef", basic("u", "s3cret-pw")):
            assert secret not in everything
            assert hashlib.sha256(secret.encode()).hexdigest() not in everything
        assert key_of("http://u:s3cret-pw@files.example/m.gguf") not in everything
        source = parse_source("http://u:s3cret-pw@files.example/m.gguf")
        name = name_of(bench.store, source)
        assert key_of(name) in everything
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    other = open_store(tmp_path / "other")
    assert name_of(other, source) != name  # keyed: a guess cannot be tested without the key
    assert name_of(open_store(tmp_path), source) == name


async def test_s9_a_signed_url_is_a_credential(tmp_path, autojump_clock):
    """Another namespace with a copied signed URL gets nothing once the signature has expired."""
    server = gate("abcdef")
    async with open_bench(tmp_path, server) as bench:
        await bench.get(SIGNED, namespace="a")
        server.good[:] = ["later"]
        assert (await bench.get(SIGNED, namespace="a")).sha256 == SHA256
        with pytest.raises(AccessDeniedError):
            await bench.get(SIGNED, namespace="b")


async def test_s9_an_object_of_a_bucket_needs_keys_of_ones_own(tmp_path, autojump_clock):
    """Without keys, or on a server that another Secret names, the object of the first namespace is not served."""

    def keys(**more):
        async def access():
            await trio.lowlevel.checkpoint()
            return BucketAccess.read({"AWS_ENDPOINT_URL": "http://minio.example:9000", **more})

        return access

    good = keys(AWS_ACCESS_KEY_ID="reader", AWS_SECRET_ACCESS_KEY="hush")

    async def script(wire, request):
        if request.host.startswith("evil"):
            await wire.file(request, OTHER)
        elif "Credential=reader/" in request.headers.get("authorization", ""):
            await wire.file(request, DATA)
        else:
            await wire.answer(403)

    async with open_bench(tmp_path, script) as bench:
        await bench.get(OBJECT, access=good, namespace="a")
        with pytest.raises(AccessDeniedError):
            await bench.get(OBJECT, access=keys(), namespace="b")
        evil = keys(AWS_ENDPOINT_URL="http://evil.example", AWS_ACCESS_KEY_ID="r", AWS_SECRET_ACCESS_KEY="s")
        assert (await bench.get(OBJECT, access=evil, namespace="b")).sha256 != SHA256


async def test_s9_what_has_come_with_a_token_is_not_continued_without(tmp_path, autojump_clock):
    """An interrupted download is resumed only by a client with the same credential."""

    async def script(wire, request):
        await wire.file(request, OTHER)

    async with open_bench(tmp_path, script) as bench:

        async def fails(wire, request):
            if request.start is None:
                await wire.file(request, DATA, cut=100_000)
            else:
                await wire.answer(404)

        bench.network.script = fails
        with pytest.raises(WeightsError):
            await bench.get(GATED, token="hf_good", namespace="a")
        bench.network.script, asked = script, len(bench.network.requests)
        await bench.get(GATED, namespace="b")
        assert bench.network.requests[asked].start is None
        assert (await bench.get(GATED, namespace="b")).sha256 == hashlib.sha256(OTHER).hexdigest()


async def test_an_older_record_belongs_to_its_owner(tmp_path, autojump_clock):
    """A record of an older version has no credentials: each namespace checks with its source once."""
    async with open_bench(tmp_path, gate("hf_good")) as bench:
        await bench.get(GATED, token="hf_good", namespace="a")
        path = next(bench.store.index.glob("*.json"))
        data = json.loads(path.read_text())
        del data["audience"]
        path.write_text(json.dumps(data))
        with pytest.raises(AccessDeniedError):
            await bench.get(GATED, namespace="a")
        assert (await bench.get(GATED)).sha256 == SHA256  # the owner's own commands
        assert (await bench.get(GATED, token="hf_good", namespace="a")).sha256 == SHA256
        assert read_record(bench.store, path.stem).audience.namespaces == ("a",)


@pytest.mark.parametrize("allowed", [False, True])
async def test_s9_the_agents_own_keys_serve_a_model_only_where_its_owner_allows_it(tmp_path, monkeypatch, allowed):
    """AWS keys in the agent's environment sign requests of Models without a Secret only under --s3-env-auth."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ambient")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    settings = AgentSettings("h", tmp_path, tmp_path / "store", "/no/engine", s3_env_auth=allowed)
    model = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": {"source": OBJECT}})
    async with open_local_ports(settings, SimpleNamespace(get=print)) as ports:
        found = await ports.weights.tokens.find_access(model)
    assert (found.key_id, found.secret) == (("ambient", "hush") if allowed else ("", ""))
    assert found.region == "eu-central-1"


async def test_s9_a_path_into_the_store_is_no_way_around(tmp_path):
    """A Model whose path is a blob of the store is served only if the owner has listed the store itself."""
    blob = gguf(1000)
    digest = hashlib.sha256(blob).hexdigest()
    for listed, allowed in ((tmp_path, False), (tmp_path / "store", True)):
        settings = AgentSettings("h", tmp_path, tmp_path / "store", "/no/engine", local_sources=(listed,))
        async with open_local_ports(settings, SimpleNamespace(get=print)) as ports:
            (tmp_path / "store" / "blobs" / "sha256" / digest).write_bytes(blob)
            spec = {"source": f"{tmp_path}/store/blobs/sha256/{digest}"}
            model = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": spec})
            assert await ports.weights.has(model) is allowed
