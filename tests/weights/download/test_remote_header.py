"""A remote header is read in few requests, under the rules of downloads, whatever the server does."""

import json
from contextlib import asynccontextmanager

import attrs
import pytest
import trio.testing

from gguf_bytes import ARCHITECTURE, STRING, U16, U32, array, array_head, header, key, tensor
from gguf_corpus import DEMO
from llmkube.weights.address_policy import AddressPolicy, parse_networks
from llmkube.weights.download.guarded_transport import open_transport_with
from llmkube.weights.download.remote_header import MAX_REMOTE_BYTES, REQUEST_BYTES, read_remote_header
from llmkube.weights.errors import (
    AccessDeniedError,
    BlockedAddressError,
    FetchError,
    NotGGUFError,
    RangeError,
    SourceNotFoundError,
    SourceRefusedError,
    ThrottledError,
)
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.source import parse_source
from weights.hostile import HUB, NO_TRUST, NOW, PUBLIC, Network, answers, steps

DEMO_BYTES = DEMO.read_bytes()
DEMO_FACTS = read_header(DEMO)
HTTP = "http://files.example/model.gguf"
MINE = AddressPolicy(from_operator=True)
NEEDED = (
    ARCHITECTURE,
    key("llama.context_length", U32, 1),
    key("llama.embedding_length", U32, 1),
    key("llama.block_count", U32, 1),
    key("tokenizer.ggml.model", STRING, "gpt2"),
)


@attrs.define(eq=False)
class Reading:
    """Reads headers over the hostile network."""

    network: Network

    async def get(self, text=HTTP, *, policy=MINE, token=None):
        network = self.network
        return await read_remote_header(
            parse_source(text),
            policy=policy,
            utcnow=lambda: NOW,
            token=token,
            endpoint=HUB,
            open_transport=open_transport_with(resolve=network.resolve, dial=network.dial, ssl_context=NO_TRUST),
        )


@asynccontextmanager
async def open_reading(script, *, addresses=None):
    network = Network(script, addresses or {})
    async with network.open():
        yield Reading(network)


@attrs.define(eq=False)
class File:
    """A file behind a server that serves parts; `size` may be larger than the bytes that anybody made."""

    data: bytes
    size: int = 0
    etag: str = '"v1"'
    longest: int = 1 << 40
    sent: list = attrs.field(factory=list)

    async def __call__(self, wire, request):
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        size = self.size or len(self.data)
        start, end = int(first), min(int(last) + 1, size, int(first) + self.longest)
        self.sent.append(end - start)
        piece = self.data[start:end].ljust(end - start, b"\0")
        await wire.answer(206, piece, etag=self.etag, content_range=f"bytes {start}-{end - 1}/{size}")


def vocabulary(strings):
    tokens = array("tokenizer.ggml.tokens", STRING, ["abcdef"] * strings)
    merges = array("tokenizer.ggml.merges", STRING, ["abc def"] * strings)
    return header(*NEEDED, tokens, merges, tensors=[tensor("w", [32])])


async def test_a_small_model_takes_one_request(autojump_clock):
    """The demo's header comes in one request for a megabyte, and says all that the file on the disk says."""
    async with open_reading(File(DEMO_BYTES)) as reading:
        assert await reading.get() == DEMO_FACTS
        [request] = reading.network.requests
        assert request.headers["range"] == f"bytes=0-{REQUEST_BYTES[0] - 1}"
        assert request.headers["accept-encoding"] == "identity"


@pytest.mark.ci
@pytest.mark.parametrize(("strings", "requests"), [(5_000, 1), (150_000, 2), (600_000, 3)])
async def test_a_large_vocabulary_takes_few_requests(autojump_clock, strings, requests):
    """150,000 tokens and as many merges come in two requests, and twice the largest known vocabulary in three."""
    file = File(vocabulary(strings), size=1 << 34)
    async with open_reading(file) as reading:
        facts = await reading.get()
        assert (facts.size_bytes, facts.tensor_count) == (1 << 34, 1)
        assert len(reading.network.requests) == requests


async def test_a_server_without_ranges_is_read_until_the_header_ends(autojump_clock):
    """A 200 of a terabyte ends for us with its header."""
    data = vocabulary(20_000)
    sent = 0

    async def whole(wire, request):
        nonlocal sent
        await wire.head(200, content_length=1 << 40)
        await wire.send(data)
        while True:
            await trio.testing.wait_all_tasks_blocked()  # until everything has been read
            await wire.send(bytes(1 << 16))
            sent += 1 << 16

    async with open_reading(whole) as reading:
        facts = await reading.get()
        assert facts.size_bytes == 1 << 40
        assert len(reading.network.requests) == 1
    assert sent <= 1 << 16


@pytest.mark.parametrize("lengths", [{"content_length": len(DEMO_BYTES)}, {}])
async def test_a_whole_small_file_is_as_good_as_a_part(autojump_clock, lengths):
    """A server that sends all of a small file is understood, with a length or without."""

    async def whole(wire, request):
        await wire.head(200, **lengths)
        await wire.send(DEMO_BYTES)

    async with open_reading(whole) as reading:
        facts = await reading.get()
        assert facts.architecture == DEMO_FACTS.architecture
        assert facts.context_length == DEMO_FACTS.context_length


async def test_a_long_skip_is_not_downloaded_where_parts_are_served(autojump_clock):
    """An array of numbers that is longer than a request is stepped over: the next request begins behind it."""
    skipped = 3 << 20
    data = header(
        *NEEDED[:4],
        array_head("x", U16, skipped // 2) + bytes(skipped),
        NEEDED[4],
        array("tokenizer.ggml.tokens", STRING, ["a"]),
        tensors=[tensor("w", [32])],
    )
    file = File(data, size=1 << 30)
    async with open_reading(file) as reading:
        await reading.get()
        starts = [request.start for request in reading.network.requests]
        assert starts[1] > skipped
        assert len(starts) == 2


async def test_a_skip_is_read_over_where_no_parts_are_served(autojump_clock):
    """The same header is found in a body that comes whole, in pieces of any size."""
    data = header(
        *NEEDED,
        array_head("x", U16, 300_000) + bytes(600_000),
        array("tokenizer.ggml.tokens", STRING, ["a"]),
        tensors=[tensor("w", [32])],
    )

    async def whole(wire, request):
        await wire.head(200, content_length=len(data) + 1000)
        for at in range(0, len(data), 70_001):
            await wire.send(data[at : at + 70_001])
        await wire.send(bytes(1000))

    async with open_reading(whole) as reading:
        assert (await reading.get()).tensor_count == 1


@pytest.mark.parametrize(
    "keys",
    [
        array_head("x", STRING, 2_000_000) + bytes(1000),
        array_head("x", U16, 2**61),
        b"".join(key(f"k{number}", STRING, "v" * 1000) for number in range(40_000)),
    ],
    ids=["strings", "skip", "keys"],
)
@pytest.mark.parametrize("parts", [True, False])
async def test_no_header_takes_more_than_the_bound(autojump_clock, keys, parts):
    """A header that never ends is refused after three requests, or after 32 MiB of a body without end."""
    data = header(ARCHITECTURE, keys, key_count=60_000)
    sent = 0

    async def endless(wire, request):
        nonlocal sent
        await wire.head(200, content_length=1 << 40)
        while True:
            piece = data[sent : sent + (1 << 20)].ljust(1 << 20, b"\0")
            sent += len(piece)
            await wire.send(piece)
            await trio.testing.wait_all_tasks_blocked()  # until everything has been read

    async with open_reading(File(data, size=1 << 40) if parts else endless) as reading:
        with pytest.raises(NotGGUFError, match=r"longer than 32 MiB|beyond the end|is empty"):
            await reading.get()
        assert len(reading.network.requests) <= len(REQUEST_BYTES)
    assert sent <= MAX_REMOTE_BYTES + (1 << 20)


async def test_parts_that_are_too_short_are_given_up_after_three(autojump_clock):
    """A server may send less than was asked for, but not so little that the header never comes."""
    async with open_reading(File(vocabulary(150_000), longest=1000)) as reading:
        with pytest.raises(RangeError, match="shorter than requested"):
            await reading.get()
        assert len(reading.network.requests) == 3


async def test_shorter_parts_are_pieced_together(autojump_clock):
    """Parts of 700,000 bytes are as good as one of a megabyte."""
    async with open_reading(File(vocabulary(40_000), size=1 << 30, longest=700_000)) as reading:
        assert (await reading.get()).tensor_count == 1
        assert len(reading.network.requests) == 2


async def test_a_file_that_changes_meanwhile_is_not_spliced(autojump_clock):
    """The second part of another version is refused, and the error says to try again."""
    data = vocabulary(150_000)
    async with open_reading(steps(File(data), File(data, etag='"v2"'))) as reading:
        with pytest.raises(FetchError, match=r"files\.example/model\.gguf: the file on the server changed"):
            await reading.get()


async def test_a_server_that_stops_serving_parts_is_read_from_the_start(autojump_clock):
    """A 200 in answer to the second request begins at the file's first byte, and is read as that."""
    data = vocabulary(150_000)

    async with open_reading(steps(File(data), answers(200, data + bytes(1000)))) as reading:
        assert (await reading.get()).tensor_count == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (b"GGU", "is not a valid GGUF file"),
        (b"<!DOCTYPE html>" + bytes(100), "it looks like a web page"),
        (DEMO_BYTES[:5000], "is the download complete"),
    ],
)
@pytest.mark.parametrize("length", [True, False])
async def test_what_is_no_model_is_named(autojump_clock, body, message, length):
    """A file that is empty, cut, or no GGUF at all is refused with the reader's words and the source's name."""

    async def whole(wire, request):
        await wire.head(200, **({"content_length": len(body)} if length else {}))
        await wire.send(body)

    async with open_reading(whole) as reading:
        with pytest.raises(NotGGUFError, match=message) as caught:
            await reading.get()
        assert str(caught.value).startswith(HTTP)


async def test_an_empty_file_behind_ranges_is_empty(autojump_clock):
    """A 416 for the very first byte says that there is none."""
    async with open_reading(answers(416, content_range="bytes */0")) as reading:
        with pytest.raises(NotGGUFError, match="is empty"):
            await reading.get()


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (401, {}, AccessDeniedError),
        (404, {}, SourceNotFoundError),
        (204, {}, SourceRefusedError),
        (416, {"content_range": "bytes */77"}, SourceRefusedError),
        (429, {"retry_after": 9}, ThrottledError),
        (500, {}, FetchError),
        (206, {}, RangeError),
        (206, {"content_range": "bytes 5-8/100"}, RangeError),
        (200, {"content_encoding": "gzip"}, SourceRefusedError),
        (206, {"content_encoding": "gzip", "content_range": "bytes 0-3/4"}, SourceRefusedError),
    ],
)
async def test_an_answer_without_a_file_is_refused(autojump_clock, status, headers, error):
    """Each refusal is the one that a download would give, after a single request."""
    async with open_reading(answers(status, b"GGUF", **headers)) as reading:
        with pytest.raises(error):
            await reading.get()
        assert len(reading.network.requests) == 1


async def test_a_cut_connection_is_the_worlds_fault(autojump_clock):
    """A body that breaks off is not taken for a short file."""
    async with open_reading(answers(200, DEMO_BYTES[:5000], content_length=1 << 20)) as reading:
        with pytest.raises(FetchError, match=r"files\.example"):
            await reading.get()


# ---- where it leads


async def test_a_redirect_inside_is_refused(autojump_clock):
    """A public server cannot make this host ask a private one."""
    script = answers(302, location="https://inside.example/x")
    for policy in (AddressPolicy(), AddressPolicy(allowed=parse_networks(["10.0.0.0/8"]))):
        async with open_reading(script, addresses={"inside.example": ["10.0.0.1"]}) as reading:
            with pytest.raises(BlockedAddressError, match=r"inside\.example resolves to 10\.0\.0\.1"):
                await reading.get(policy=policy)
            assert reading.network.dialled == [PUBLIC]


async def test_a_second_request_is_judged_again(autojump_clock):
    """A name that leads inside by the time of the second request is refused then."""
    file = File(vocabulary(150_000))

    async def rebind(wire, request):
        reading.network.addresses["files.example"] = ["127.0.0.1"]
        await file(wire, request)

    async with open_reading(rebind) as reading:
        with pytest.raises(BlockedAddressError):
            await reading.get(policy=AddressPolicy())
        assert reading.network.dialled == [PUBLIC]


async def test_a_password_goes_to_its_origin_only(autojump_clock):
    """Neither the password of a URL nor a token for the hub reaches a redirect's target, or an error's sentence."""
    file = File(DEMO_BYTES)

    async def script(wire, request):
        if request.target == "/model.gguf?sig=secret":
            await wire.answer(302, location="http://cdn.example/x.gguf")
        else:
            await file(wire, request)

    async with open_reading(script) as reading:
        await reading.get("http://me:secret@files.example/model.gguf?sig=secret", token="t0ken")
        first, second = reading.network.requests
        assert first.headers["authorization"] == "Basic bWU6c2VjcmV0"
        assert (second.host, "authorization" in second.headers) == ("cdn.example", False)
        file.data = b"no"
        with pytest.raises(NotGGUFError) as caught:
            await reading.get("http://me:secret@files.example/model.gguf?sig=secret")
        assert "secret" not in str(caught.value)


# ---- Hugging Face


def hub(listing):
    file = File(DEMO_BYTES)

    async def script(wire, request):
        if request.target.startswith("/api/"):
            await wire.answer(200, json.dumps(listing).encode())
        elif request.host == "hub.example":
            await wire.answer(302, location=f"http://cdn.example{request.target}")
        else:
            await file(wire, request)

    return script


async def test_a_file_of_the_hub_is_asked_for_where_the_hub_has_it(autojump_clock):
    """The token goes to the hub, the range to where it redirects, and nothing is listed."""
    async with open_reading(hub({})) as reading:
        assert await reading.get("hf://org/repo/model.gguf@v1", token="t0ken") == DEMO_FACTS
        first, second = reading.network.requests
        assert (first.host, first.target) == ("hub.example", "/org/repo/resolve/v1/model.gguf")
        assert first.headers["authorization"] == "Bearer t0ken"
        assert "authorization" not in second.headers
        assert second.start == 0


@pytest.mark.parametrize("text", ["hf://org/repo", "org/repo"])
async def test_a_repository_is_listed_and_pinned(autojump_clock, text):
    """The one model of a repository is found, and read at the commit that was listed."""
    commit = "a" * 40
    listing = {"sha": commit, "siblings": [{"rfilename": "README.md"}, {"rfilename": "q4/model.gguf"}]}
    async with open_reading(hub(listing)) as reading:
        assert await reading.get(text) == DEMO_FACTS
        assert [request.target for request in reading.network.requests[:2]] == [
            "/api/models/org/repo/revision/main?blobs=true",
            f"/org/repo/resolve/{commit}/q4/model.gguf",
        ]
