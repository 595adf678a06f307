"""Objects in buckets are asked for where they are, signed by whoever asks, and by nobody else."""

import datetime
import hashlib

import pytest
import trio

from llmkube.base.errors import ExternalError
from llmkube.weights.address_policy import AddressPolicy, parse_networks
from llmkube.weights.download.buckets import BucketAccess, sign
from llmkube.weights.errors import (
    AccessDeniedError,
    BlockedAddressError,
    RedirectError,
    SourceError,
    SourceRefusedError,
)
from llmkube.weights.urls import WebUrl, parse_url
from weights.hostile import NOW, answers, gguf, open_bench, serves, steps

DATA = gguf(100_000)
OTHER = gguf(100_000, seed=2)
OBJECT = "s3://models/chat/model.gguf"
KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush"}


def asks(**values):
    async def access():
        await trio.lowlevel.checkpoint()
        return BucketAccess.read({"AWS_ENDPOINT_URL": "http://minio.example:9000", **values})

    return access


@pytest.mark.parametrize(
    ("target", "headers", "signature"),
    [
        ("/test.txt", {"Range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ("/?prefix=J&max-keys=2", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_that_aws_has_published(target, headers, signature):
    """Each example of "Authenticating Requests: Using the Authorization Header" comes out to the last digit."""
    access = BucketAccess("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    url = WebUrl("https", "examplebucket.s3.amazonaws.com", 443, target)
    said = sign(url, headers, access, datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC))["Authorization"]
    names = "host;range;x-amz-content-sha256;x-amz-date" if headers else "host;x-amz-content-sha256;x-amz-date"
    scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
    assert said == f"AWS4-HMAC-SHA256 Credential={scope},SignedHeaders={names},Signature={signature}"


@pytest.mark.parametrize(
    ("values", "bucket", "path", "url"),
    [
        ({}, "models", "a/b c+1.gguf", "https://models.s3.us-east-1.amazonaws.com/a/b%20c%2B1.gguf"),
        ({"AWS_REGION": "eu-central-1"}, "models", "a", "https://models.s3.eu-central-1.amazonaws.com/a"),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, "models", "a", "https://models.s3.eu-west-1.amazonaws.com/a"),
        ({}, "my.models", "a", "https://s3.us-east-1.amazonaws.com/my.models/a"),
        ({"AWS_ENDPOINT_URL": "http://minio:9000"}, "models", "ä/x", "http://minio:9000/models/%C3%A4/x"),
        ({"AWS_ENDPOINT_URL": "https://h/store/"}, "models", "x", "https://h/store/models/x"),
    ],
)
def test_an_object_is_where_its_server_has_it(values, bucket, path, url):
    """AWS has a host for each bucket that a certificate can cover; everybody else has them below one host."""
    assert str(BucketAccess.read(values).url(bucket, path)) == url
    assert parse_url(url)[0].target == BucketAccess.read(values).url(bucket, path).target


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": "A"}, "has AWS_ACCESS_KEY_ID, but no AWS_SECRET_ACCESS_KEY"),
        ({"AWS_SECRET_ACCESS_KEY": "hush"}, "has AWS_SECRET_ACCESS_KEY, but no AWS_ACCESS_KEY_ID"),
        ({"AWS_SESSION_TOKEN": "hush"}, "no AWS_ACCESS_KEY_ID"),
        ({**KEYS, "AWS_SECRET_ACCESS_KEY": "hush\nX: y"}, "AWS_SECRET_ACCESS_KEY in Secret s is not one word"),
        ({"AWS_REGION": "evil.example/"}, "AWS_REGION in Secret s is not a region"),
        ({"AWS_ENDPOINT_URL": "ftp://h"}, "AWS_ENDPOINT_URL in Secret s is not a valid URL"),
    ],
)
def test_what_cannot_be_used_is_named_and_not_shown(values, says):
    """A missing or malformed variable is an error of the user's that names it; no secret is in the words."""
    with pytest.raises(SourceError, match=says) as caught:
        BucketAccess.read(values, where="Secret s")
    assert "hush" not in str(caught.value)


async def test_a_signed_download_goes_on_where_it_broke(tmp_path, autojump_clock):
    """Every request of a download is signed for itself, its range included; the key itself is never sent."""
    async with open_bench(tmp_path, steps(serves(DATA, cut=50_000), serves(DATA))) as bench:
        access = asks(**KEYS, AWS_SESSION_TOKEN="for-a-while")
        kept = await bench.get(OBJECT, access=access)
        assert kept.path.read_bytes() == DATA
        assert [request.start for request in bench.network.requests] == [None, 50_000]
        for request in bench.network.requests:
            assert (request.host, request.target) == ("minio.example:9000", "/models/chat/model.gguf")
            url = parse_url(f"http://{request.host}{request.target}")[0]
            sent = {name: request.headers[name] for name in ("range", "if-range") if name in request.headers}
            assert request.headers["authorization"] == sign(url, sent, await access(), NOW)["Authorization"]
            assert request.headers["x-amz-security-token"] == "for-a-while"
            assert "hush" not in str(request)


async def test_a_public_bucket_is_asked_without_a_signature(tmp_path, autojump_clock):
    """Nobody's object is asked for by nobody."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        await bench.get(OBJECT, access=asks())
        [request] = bench.network.requests
        assert "authorization" not in request.headers
        assert "x-amz-date" not in request.headers


async def test_a_redirect_elsewhere_is_not_signed(tmp_path, autojump_clock):
    """A server that sends us to another one does not get us to sign for that."""

    async def away(wire, request):
        if request.host.startswith("minio"):
            await wire.answer(302, location="http://elsewhere.example/x")
        else:
            await wire.file(request, DATA)

    async with open_bench(tmp_path, away) as bench:
        await bench.get(OBJECT, access=asks(**KEYS), policy=AddressPolicy(from_operator=True))
        first, second = bench.network.requests
        assert "authorization" in first.headers
        assert not {"authorization", "x-amz-date", "x-amz-security-token"} & set(second.headers)


async def test_a_private_endpoint_is_reached_only_where_the_operator_allows_it(tmp_path, autojump_clock):
    """A Secret, which anybody in a namespace may write, leads nowhere that a URL would not."""
    addresses = {"minio.example": ["10.1.2.3"]}
    async with open_bench(tmp_path, serves(DATA), addresses=addresses) as bench:
        with pytest.raises(BlockedAddressError):
            await bench.get(OBJECT, access=asks(**KEYS))
        assert bench.network.dialled == []
        mine = AddressPolicy(allowed=parse_networks(["10.0.0.0/8"]))
        assert (await bench.get(OBJECT, access=asks(**KEYS), policy=mine)).path.read_bytes() == DATA


async def test_equal_names_on_two_servers_are_two_objects(tmp_path, autojump_clock):
    """The object of one server is never taken for that of another; while nobody can say which, the last one is."""

    async def by_host(wire, request):
        await wire.file(request, DATA if request.host.startswith("minio") else OTHER)

    async def nobody():
        await trio.lowlevel.checkpoint()
        raise ExternalError("the API server is away")

    async with open_bench(tmp_path, by_host) as bench:
        assert (await bench.get(OBJECT, access=asks())).path.read_bytes() == DATA
        other = asks(AWS_ENDPOINT_URL="http://ceph.example")
        assert (await bench.get(OBJECT, access=other)).path.read_bytes() == OTHER
        asked = len(bench.network.requests)
        assert (await bench.get(OBJECT, access=nobody)).path.read_bytes() == OTHER
        assert len(bench.network.requests) == asked
        with pytest.raises(ExternalError, match="away"):
            await bench.get("s3://models/unknown.gguf", access=nobody)


async def test_files_are_picked_from_a_folder(tmp_path, autojump_clock):
    """`spec.files` names an object below the source, all parts of a split model; a bare folder is refused."""
    parts = [f"/models/chat/m-{number:05d}-of-00002.gguf" for number in (1, 2)]

    async def by_path(wire, request):
        await wire.file(request, DATA if request.target == parts[0] else OTHER)

    async with open_bench(tmp_path, by_path) as bench:
        kept = await bench.get("s3://models/chat/", access=asks(), files=["m-00001-of-00002.gguf"])
        assert kept.size_bytes == len(DATA) + len(OTHER)
        assert sorted({request.target for request in bench.network.requests}) == parts
        with pytest.raises(SourceError, match=r"spec\.files"):
            await bench.get("s3://models/chat/", access=asks())


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ((403, {}), AccessDeniedError, r"may not read it.*AWS_ACCESS_KEY_ID.*sourceSecretRef"),
        ((301, {"x_amz_bucket_region": "eu-west-1"}), RedirectError, "the bucket is in eu-west-1; set AWS_REGION"),
        ((400, {"x_amz_bucket_region": "eu-west-1"}), SourceRefusedError, "the bucket is in eu-west-1; set AWS_REGION"),
    ],
)
async def test_a_refusal_says_what_to_do(tmp_path, autojump_clock, answer, error, says):
    """A wrong key or a wrong region is the user's to mend, and the message names the variable."""
    status, headers = answer

    async with open_bench(tmp_path, answers(status, **headers)) as bench:
        with pytest.raises(error, match=says):
            await bench.get(OBJECT, access=asks(**KEYS))


async def test_a_digest_is_held_against_an_object(tmp_path, autojump_clock):
    """`spec.sha256` decides for objects as it does for files."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        kept = await bench.get(OBJECT, access=asks(), sha256=hashlib.sha256(DATA).hexdigest())
        assert kept.sha256 == hashlib.sha256(DATA).hexdigest()
