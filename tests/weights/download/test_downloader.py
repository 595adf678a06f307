"""Every fault of a web server that we could think of: a bit-exact file or a clear refusal, never half a file."""

import hashlib
import re
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from gguf_bytes import ARCHITECTURE, header, tensor
from llmkube.weights.address_policy import AddressPolicy, parse_networks
from llmkube.weights.download.body_pipe import HeaderBound
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.errors import (
    BlockedAddressError,
    DigestMismatchError,
    FetchError,
    NoSpaceError,
    NotGGUFError,
    RangeError,
    RedirectError,
    SourceNotFoundError,
    SourceRefusedError,
    StalledError,
    ThrottledError,
    WeightsError,
    WrongSizeError,
)
from llmkube.weights.formats.gguf_reader import MAX_HEADER_BYTES
from weights.hostile import PUBLIC, answers, gguf, open_bench, serves, steps

DATA = gguf(200_000)
OTHER = gguf(200_000, seed=2)
SHA256 = hashlib.sha256(DATA).hexdigest()
HTTP = "http://files.example/model.gguf"
MINE = AddressPolicy(from_operator=True)


async def test_an_honest_server_gives_the_file(tmp_path, autojump_clock):
    """A file is fetched once, verified and kept under its digest, and nothing else is left in the store."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        kept = await bench.get(HTTP, sha256=SHA256.upper())
        assert kept.path.read_bytes() == DATA
        assert (kept.sha256, kept.size_bytes, kept.identity) == (SHA256, len(DATA), f"sha256:{SHA256}")
        assert kept.path == bench.store.blobs / SHA256
        assert len(bench.files()) == 2  # the blob and its record
        [request] = bench.network.requests
        assert request.headers["accept-encoding"] == "identity"
        assert "range" not in request.headers
        assert "authorization" not in request.headers
        assert "cookie" not in request.headers
        assert bench.seen[-1].done_bytes == bench.seen[-1].total_bytes == len(DATA)


@pytest.mark.parametrize("cuts", [[0], [1], [3], [4], [5], [65536], [199_999], [1, 2, 3, 5, 100], [100_000, 150_000]])
async def test_a_cut_connection_is_resumed_where_it_broke(tmp_path, autojump_clock, cuts):
    """Wherever a connection breaks, the rest is asked for from there, and the file is bit-exact."""
    async with open_bench(tmp_path, steps(*(serves(DATA, cut=cut) for cut in cuts), serves(DATA))) as bench:
        kept = await bench.get(HTTP)
        assert kept.path.read_bytes() == DATA
        starts = [request.start for request in bench.network.requests]
        assert starts == [None, *(cut if cut >= 4 else None for cut in cuts)]  # less than the magic is not kept
        assert all(r.headers["if-range"] == '"v1"' for r in bench.network.requests if r.start)


async def test_a_cut_inside_the_head_is_a_failure_and_no_file(tmp_path, autojump_clock):
    """A connection that dies before or within the answer's head is tried again, and given up after six times."""
    line = b"HTTP/1.1 200 OK\r\n"
    pieces = [b"", b"HT", line, line + b"Content-Length: 5\r\n"]

    async def script(wire, request):
        await wire.send(pieces[len(bench.network.requests) % 4])

    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(FetchError, match=r"files\.example"):
            await bench.get(HTTP)
        assert len(bench.network.requests) == 6
        assert bench.files() == []


async def test_a_new_version_voids_the_prefix(tmp_path, autojump_clock):
    """When the ETag changes mid-way, the file is the new version from its first byte, whatever the server does."""

    async def lies(wire, request):  # ignores If-Range and sends the rest of another version, honest about its ETag
        where = f"bytes {request.start}-{len(OTHER) - 1}/{len(OTHER)}"
        await wire.answer(206, OTHER[request.start :], etag='"v2"', content_range=where)

    for case, second in enumerate([serves(OTHER, etag='"v2"'), lies]):
        script = steps(serves(DATA, cut=100_000), second, serves(OTHER, etag='"v2"'))
        async with open_bench(tmp_path / str(case), script) as bench:
            assert (await bench.get(HTTP)).path.read_bytes() == OTHER


async def test_a_part_of_an_unknown_version_is_not_spliced(tmp_path, autojump_clock):
    """A server that forgets both If-Range and its ETag is read from the start, unless a digest judges the whole."""
    newer = DATA[:4] + bytes(byte ^ 1 for byte in DATA[4:])  # of the same size

    async def forgetful(wire, request):
        if request.start is None:
            await wire.answer(200, newer)
        else:
            where = f"bytes {request.start}-{len(newer) - 1}/{len(newer)}"
            await wire.answer(206, newer[request.start :], content_range=where)

    async with open_bench(tmp_path, steps(serves(DATA, cut=100_000), forgetful)) as bench:
        assert (await bench.get(HTTP)).path.read_bytes() == newer
        assert [request.start for request in bench.network.requests] == [None, 100_000, None]


def chunks_without_an_end(data):
    async def script(wire, request):
        await wire.head(200, transfer_encoding="chunked", etag='"v1"')
        await wire.send(b"%x\r\n%b\r\n" % (len(data), data))

    return script


def wrong_range(shift):
    async def script(wire, request):
        start = request.start + shift
        await wire.answer(206, DATA[start:], etag='"v1"', content_range=f"bytes {start}-{len(DATA) - 1}/{len(DATA)}")

    return script


def without_proof(etag):
    return [answers(200, DATA[:100_000], content_length=len(DATA), etag=etag), answers(200, OTHER)]


def broken(status):
    return answers(status, b"<html>sorry</html>")


SHORT = gguf(50_000, seed=3)
CUT = serves(DATA, cut=100_000)
SHRUNK = answers(416, content_range=f"bytes */{len(SHORT)}")


@pytest.mark.parametrize(
    ("scripts", "data", "starts"),
    [
        pytest.param([CUT, answers(200, DATA, etag='"v1"')], DATA, [None, 100_000], id="a 200 voids the prefix"),
        pytest.param(without_proof('W/"v1"'), OTHER, [None, None], id="a weak validator proves no version"),
        pytest.param(without_proof(""), OTHER, [None, None], id="no validator"),
        pytest.param([CUT, wrong_range(-1), serves(DATA)], DATA, [None, 100_000, None], id="a range too early"),
        pytest.param([CUT, wrong_range(1), serves(DATA)], DATA, [None, 100_000, None], id="a range too late"),
        pytest.param(
            [chunks_without_an_end(DATA), serves(DATA)], DATA, [None, len(DATA)], id="a 416 for a complete file"
        ),
        pytest.param(
            [chunks_without_an_end(DATA[:1000]), serves(DATA)], DATA, [None, 1000], id="chunks without an end"
        ),
        pytest.param(
            [CUT, SHRUNK, serves(SHORT, etag='"v2"')], SHORT, [None, 100_000, None], id="a 416 for a shorter file"
        ),
        *(
            pytest.param([broken(status)] * 2 + [serves(DATA)], DATA, [None] * 3, id=f"twice {status}")
            for status in (500, 502, 504)
        ),
    ],
)
async def test_the_rest_is_asked_for_where_that_is_safe(tmp_path, autojump_clock, scripts, data, starts):
    """Nothing is doubled, spliced or pieced together that might be of two versions, and what is there is not resent."""
    async with open_bench(tmp_path, steps(*scripts)) as bench:
        assert (await bench.get(HTTP)).path.read_bytes() == data
        assert [request.start for request in bench.network.requests] == starts


async def test_a_server_with_nothing_but_wrong_ranges_is_given_up(tmp_path, autojump_clock):
    """Alternating cuts and wrong ranges end in an error that names them, and in no file."""

    async def script(wire, request):
        if request.start is None:
            return await wire.file(request, DATA, cut=1000)
        return await wire.answer(206, b"x", content_range="bytes 7-7/8")

    async with open_bench(tmp_path, script) as bench:
        with pytest.raises((RangeError, FetchError)):
            await bench.get(HTTP)
        assert bench.visible() == []


async def test_a_length_that_is_too_long_never_makes_a_file(tmp_path, autojump_clock):
    """A server that promises more than it has is asked for the rest, and given up in the end."""

    async def script(wire, request):
        start = request.start or 0
        size = len(DATA) + 10
        if start:
            where = f"bytes {start}-{size - 1}/{size}"
            await wire.head(206, content_length=size - start, content_range=where, etag='"v1"')
        else:
            await wire.head(200, content_length=size, etag='"v1"')
        await wire.send(DATA[start:])

    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(FetchError):
            await bench.get(HTTP)
        assert bench.visible() == []


async def test_a_length_that_is_too_short_is_caught_by_the_digest(tmp_path, autojump_clock):
    """A file that a server cuts short on purpose has the wrong digest, and is not kept."""
    async with open_bench(tmp_path, answers(200, DATA[:-1])) as bench:
        with pytest.raises(DigestMismatchError):
            await bench.get(HTTP, sha256=SHA256)
        assert bench.files() == []


async def test_an_endless_body_ends_at_the_largest_file(tmp_path, autojump_clock):
    """A chunked answer that never ends is cut off at the limit, and leaves nothing."""

    async def script(wire, request):
        await wire.head(200, transfer_encoding="chunked")
        while True:
            await wire.send(b"186a0\r\n" + DATA[:100_000] + b"\r\n")

    async with open_bench(tmp_path, script, limits=DownloadLimits(max_bytes=1_000_000)) as bench:
        with pytest.raises(WrongSizeError, match="sends more than 1000000 bytes"):
            await bench.get(HTTP)
        assert bench.files() == []


def model(kind):
    """A whole GGUF file with one tensor of a type that has 64 bits per element, or of one that is unknown."""
    start = header(ARCHITECTURE, tensors=[tensor("token_embd.weight", [32, 4], kind)])
    return start + b"\0" * (-len(start) % 32 + 1024)


@pytest.mark.parametrize("kind", [28, 200])
async def test_the_header_bounds_a_file_without_a_size(tmp_path, autojump_clock, kind):
    """Bytes behind the last tensor are not received for ever."""
    sent = 0

    async def endless(wire, request):
        nonlocal sent
        await wire.head(200, transfer_encoding="chunked", etag='"v1"')
        await wire.send(b"%x\r\n%b\r\n" % (len(model(kind)), model(kind)))
        while sent < 20 << 20:
            await wire.send(b"186a0\r\n" + bytes(100_000) + b"\r\n")
            sent += 100_000
            await trio.sleep(1)
        await wire.send(b"0\r\n\r\n")

    async with open_bench(tmp_path, endless, limits=DownloadLimits(tries=2)) as bench:
        with pytest.raises(WrongSizeError, match="and more than the header of the file describes"):
            await bench.get(HTTP)
        assert bench.files() == []
    assert sent < 5 << 20


def test_a_file_without_a_valid_header_is_bounded_too(tmp_path):
    """It is at most as long as a header may be."""
    partial = Mock(size_bytes=1000, read=lambda offset, length: DATA[offset : offset + length])
    bound = HeaderBound(partial)
    bound.update()
    assert MAX_HEADER_BYTES < bound.limit_bytes < 2 * MAX_HEADER_BYTES


async def test_a_file_without_a_size_is_whole_with_its_last_tensor(tmp_path, autojump_clock):
    """An honest chunked answer ends there; a little padding is tolerated."""
    whole = model(28) + bytes(4096)

    async def script(wire, request):
        await wire.head(200, transfer_encoding="chunked")
        await wire.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(whole), whole))

    async with open_bench(tmp_path, script) as bench:
        assert (await bench.get(HTTP)).path.read_bytes() == whole


async def test_a_file_above_the_limit_is_refused_before_its_first_byte(tmp_path, autojump_clock):
    """A length above the limit is refused at once."""
    async with open_bench(tmp_path, serves(DATA), limits=DownloadLimits(max_bytes=1000)) as bench:
        with pytest.raises(WrongSizeError, match="more than 1000 are not supported"):
            await bench.get(HTTP)
        assert bench.visible() == []


async def test_an_answer_without_any_length_needs_a_digest(tmp_path, autojump_clock):
    """A body that ends with its connection is refused, unless a digest tells a whole file from a cut one."""

    async def script(wire, request):
        await wire.head(200, connection="close")
        await wire.send(DATA)

    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(SourceRefusedError, match="does not state the size of the file"):
            await bench.get(HTTP)
        assert (await bench.get(HTTP, sha256=SHA256)).path.read_bytes() == DATA


async def test_a_slow_drip_is_a_stall_and_what_came_is_kept(tmp_path, autojump_clock):
    """One byte a second is too slow; each new connection resumes where the last one stalled."""

    async def drip(wire, request):
        start = request.start or 0
        await wire.file(request, DATA, cut=start + 1000)
        for number in range(start + 1000, len(DATA)):
            await wire.send(DATA[number : number + 1])
            await trio.sleep(1)

    async with open_bench(tmp_path, steps(drip, drip, serves(DATA))) as bench:
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        starts = [request.start for request in bench.network.requests]
        assert starts[0] is None
        assert 1000 < starts[1] < 1100
        assert 2000 < starts[2] < 2200
        assert trio.current_time() < 200


async def test_a_slow_line_is_no_stall(tmp_path, autojump_clock):
    """A download that takes hours is not interrupted while bytes keep coming."""

    async def slow(wire, request):
        await wire.head(200, content_length=len(DATA))
        for start in range(0, len(DATA), 2000):
            await wire.send(DATA[start : start + 2000])
            await trio.sleep(1.5)

    async with open_bench(tmp_path, slow) as bench:
        before = trio.current_time()
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        assert trio.current_time() - before > 140
        assert len(bench.network.requests) == 1
        assert 1000 < bench.seen[-1].rate < 2000
        assert bench.seen[50].seconds_left == pytest.approx(75, abs=2)


@pytest.mark.parametrize("silent", ["at once", "in the head", "in the body"])
async def test_silence_is_noticed(tmp_path, autojump_clock, silent):
    """A server that falls silent anywhere is given up within the window, and in the end the user hears of it."""

    async def script(wire, request):
        if silent == "in the head":
            await wire.send(b"HTTP/1.1 200 OK\r\n")
        if silent == "in the body":
            await wire.head(200, content_length=len(DATA))
            await wire.send(DATA[:1000])
        await trio.sleep_forever()

    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(StalledError, match="stalled"):
            await bench.get(HTTP)
        assert len(bench.network.requests) == 6
        assert bench.visible() == []
    assert bench.network.open_connections == 0


async def test_a_slow_disk_is_no_stall(tmp_path, autojump_clock):
    """Minutes of waiting for the disk are not held against the server."""

    async def slow_disk(fn):
        await trio.sleep(45)
        return fn()

    async with open_bench(tmp_path, serves(DATA), run_sync=slow_disk) as bench:
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        assert len(bench.network.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": 30}, 30),
        ({"retry_after": "Fri, 02 Jan 2026 03:05:05 GMT"}, 60),
        ({"ratelimit": '"api";r=0;t=52'}, 52),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_pause_that_the_server_asks_for_is_kept(tmp_path, autojump_clock, status, headers, seconds):
    """The next question comes exactly after the pause, and the pause is shown."""
    asked = []

    async def busy(wire, request):
        asked.append(trio.current_time())
        await wire.answer(status, **headers)

    async def honest(wire, request):
        asked.append(trio.current_time())
        await wire.file(request, DATA)

    async with open_bench(tmp_path, steps(busy, honest)) as bench:
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        assert asked[1] - asked[0] == pytest.approx(seconds)
        assert any(step.stage == "waiting" and step.seconds_left == seconds for step in bench.seen)


async def test_a_pause_holds_for_all_downloads_from_that_server(tmp_path, autojump_clock):
    """Another file from the same server waits, too; another server is not affected."""
    asked = []

    async def script(wire, request):
        asked.append((trio.current_time(), request.target))
        await (wire.answer(429, retry_after=100) if len(asked) == 1 else wire.file(request, DATA))

    async with open_bench(tmp_path, script) as bench, trio.open_nursery() as nursery:
        nursery.start_soon(bench.get, HTTP)
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        nursery.start_soon(bench.get, "http://files.example/second.gguf")
        nursery.start_soon(bench.get, "http://other.example/third.gguf")
    waited = {target: at - start for at, target in asked[1:]}
    assert waited["/third.gguf"] < 1
    assert waited["/second.gguf"] == pytest.approx(100)


async def test_a_pause_of_a_day_is_an_error_and_is_kept_all_the_same(tmp_path, autojump_clock):
    """A pause too long to wait for is reported at once; until it is over, the server gets no other request."""
    async with open_bench(tmp_path, answers(429, retry_after=86400)) as bench:
        for _ in range(3):
            with pytest.raises(ThrottledError) as caught:
                await bench.get(HTTP)
            assert caught.value.wait_seconds == pytest.approx(86400)
        assert len(bench.network.requests) == 1


async def test_a_pause_of_years_ends_after_a_day(tmp_path, autojump_clock):
    """A server that once asked for decades is asked again on the next day, without a new agent."""

    async def script(wire, request):
        if len(bench.network.requests) == 1:
            await wire.answer(429, retry_after=999_999_999)
        else:
            await wire.file(request, DATA)

    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(ThrottledError):
            await bench.get(HTTP)
        await trio.sleep(86400)
        assert (await bench.get(HTTP)).path.read_bytes() == DATA


async def test_a_missing_file_is_not_asked_for_twice(tmp_path, autojump_clock):
    """A 404 is the user's to fix."""
    async with open_bench(tmp_path, answers(404, b"<html>not found</html>")) as bench:
        with pytest.raises(SourceNotFoundError, match="no such file"):
            await bench.get(HTTP)
        assert len(bench.network.requests) == 1
        assert bench.files() == []


@pytest.mark.parametrize(
    ("body", "encoding", "message"),
    [
        (b"<!DOCTYPE html><html>", "", "is a web page"),
        (b"\n  <html>", "", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "", "Git LFS pointer"),
        (b"PK\x03\x04 and more", "", "does not begin with GGUF"),
        (b"GGU", "", "does not begin with GGUF"),
        (b"", "", "is empty"),
        (b"\x1f\x8b" + b"0" * 100, "gzip", "compresses"),
        (DATA[:100], "br", "compresses"),
    ],
)
async def test_what_is_no_model_is_refused_at_its_first_bytes(tmp_path, autojump_clock, body, encoding, message):
    """A web page, a pointer or a compressed file is named for what it is, after one question, and nothing is kept."""
    async with open_bench(tmp_path, answers(200, body, content_encoding=encoding)) as bench:
        with pytest.raises(WeightsError, match=message) as caught:
            await bench.get(HTTP)
        assert isinstance(caught.value, SourceRefusedError if encoding else NotGGUFError)
        assert len(bench.network.requests) == 1
        assert bench.files() == []


async def test_weights_that_only_their_engine_reads_are_taken_as_they_are(tmp_path, autojump_clock):
    """LLMKube knows nothing of their format: the size, and the digest if there is one, are what is checked."""
    async with open_bench(tmp_path, serves(b"ggml, not gguf")) as bench:
        kept = await bench.get(HTTP, weights_format="custom")
        assert kept.path.read_bytes() == b"ggml, not gguf"


async def test_a_web_page_of_the_hub_names_the_right_link(tmp_path, autojump_clock):
    """The commonest mistake, the link to a file's page, is answered with what to change."""
    async with open_bench(tmp_path, answers(200, b"<html>")) as bench:
        with pytest.raises(NotGGUFError, match="/resolve/ where the link to its page has /blob/"):
            await bench.get("http://hub.example/org/repo/blob/main/a.gguf")


async def test_a_wrong_digest_of_the_user_names_both_and_costs_one_download(tmp_path, autojump_clock):
    """The error comes after one download, and the same file is not downloaded again."""
    async with open_bench(tmp_path, serves(OTHER)) as bench:
        with pytest.raises(DigestMismatchError) as caught:
            await bench.get(HTTP, sha256=SHA256)
        assert SHA256 in str(caught.value)
        assert hashlib.sha256(OTHER).hexdigest() in str(caught.value)
        assert caught.value.field == "spec.sha256"
        assert len(bench.network.requests) == 1
        assert bench.files() == []
        sent = []
        bench.network.script = lambda wire, request: count(wire, request, sent)
        with pytest.raises(DigestMismatchError):
            await bench.get(HTTP, sha256=SHA256)
        assert len(bench.network.requests) == 2  # the head, to see whether it is still the same file


async def count(wire, request, sent):
    await wire.head(200, content_length=len(OTHER), etag='"v1"')
    for start in range(0, len(OTHER), 10_000):
        await wire.send(OTHER[start : start + 10_000])
        sent.append(start)


async def test_a_repaired_file_is_accepted(tmp_path, autojump_clock):
    """After a wrong digest, a new version on the server is tried again, and so is another digest."""
    async with open_bench(tmp_path, steps(serves(OTHER), serves(DATA, etag='"v2"'))) as bench:
        with pytest.raises(DigestMismatchError):
            await bench.get(HTTP, sha256=SHA256)
        assert (await bench.get(HTTP, sha256=SHA256)).path.read_bytes() == DATA


# ---- where it leads


def redirect(location, status=302):
    return answers(status, location=location)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(tmp_path, autojump_clock, status):
    """Five hops are fine, relative ones as well."""
    hops = [redirect(f"/hop{number}.gguf", status) for number in range(5)]
    async with open_bench(tmp_path, steps(*hops, serves(DATA))) as bench:
        assert (await bench.get(HTTP, policy=MINE)).path.read_bytes() == DATA
        assert [request.target for request in bench.network.requests][-2:] == ["/hop3.gguf", "/hop4.gguf"]


async def test_a_plain_link_into_a_bucket_is_followed_to_its_region(tmp_path, autojump_clock):
    """S3 names the region in the redirect that leads there; only who signs for another region has to stop."""
    elsewhere = answers(307, location="/there.gguf", x_amz_bucket_region="eu-central-1")
    async with open_bench(tmp_path, steps(elsewhere, serves(DATA))) as bench:
        assert (await bench.get(HTTP, policy=MINE)).path.read_bytes() == DATA


@pytest.mark.parametrize("location", ["/again.gguf", "http://files.example/model.gguf"])
async def test_a_loop_of_redirects_ends(tmp_path, autojump_clock, location):
    """The sixth redirect is refused."""
    async with open_bench(tmp_path, redirect(location)) as bench:
        with pytest.raises(RedirectError, match="more than 5 redirects"):
            await bench.get(HTTP, policy=MINE)
        assert len(bench.network.requests) == 6


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "without a Location"),
        ("file:///etc/passwd", "to an invalid URL"),
        ("https://127.1/", "to an invalid URL"),
        ("gopher://x/", "to an invalid URL"),
        ("http://other.example/a.gguf", "redirects to http://other.example, where every host on the way"),
    ],
)
async def test_a_redirect_to_a_bad_place_is_refused(tmp_path, autojump_clock, location, message):
    """An object's source is never followed to plain http, to another scheme or to an odd host."""
    async with open_bench(tmp_path, redirect(location)) as bench:
        with pytest.raises(RedirectError, match=message):
            await bench.get(HTTP)
        assert len(bench.network.requests) == 1
        assert bench.files() == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]"],
)
async def test_a_private_address_in_a_source_is_never_dialled(tmp_path, autojump_clock, host):
    """A literal address that is not public is refused before any packet leaves."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        with pytest.raises(BlockedAddressError) as caught:
            await bench.get(f"http://{host}:6443/model.gguf")
        assert ", which is refused (" in str(caught.value)
        assert bench.network.dialled == []
        assert bench.files() == []


@pytest.mark.parametrize("addresses", [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["fe80::1%eth0"], ["::1", PUBLIC]])
async def test_a_name_with_one_private_address_is_never_dialled(tmp_path, autojump_clock, addresses):
    """A name is refused when any of its addresses is."""
    async with open_bench(tmp_path, serves(DATA), addresses={"files.example": addresses}) as bench:
        with pytest.raises(BlockedAddressError, match=r"files\.example resolves to"):
            await bench.get(HTTP)
        assert bench.network.dialled == []


async def test_what_was_judged_is_what_is_dialled(tmp_path, autojump_clock):
    """A name that leads elsewhere at the second look-up is refused then: no connection goes to what was not judged."""

    async def rebind(wire, request):
        bench.network.addresses["files.example"] = ["127.0.0.1"]
        await wire.file(request, DATA, cut=1000)

    async with open_bench(tmp_path, rebind) as bench:
        with pytest.raises(BlockedAddressError):
            await bench.get(HTTP)
        assert bench.network.dialled == [PUBLIC]
        assert bench.visible() == []


async def test_a_redirect_into_the_private_network_is_refused(tmp_path, autojump_clock):
    """A public server cannot make this host ask a private one, not even in a network that the operator allows."""
    allowed = AddressPolicy(allowed=parse_networks(["10.0.0.0/8"]))
    for policy in (AddressPolicy(), allowed):
        script, addresses = redirect("https://inside.example/x"), {"inside.example": ["10.0.0.1"]}
        async with open_bench(tmp_path, script, addresses=addresses) as bench:
            with pytest.raises(BlockedAddressError, match=r"inside\.example resolves to 10\.0\.0\.1"):
                await bench.get(HTTP, policy=policy)
            assert bench.network.dialled == [PUBLIC]


async def test_the_operator_may_allow_networks(tmp_path, autojump_clock):
    """A source in an allowed network is fetched; one outside is not."""
    policy = AddressPolicy(allowed=parse_networks(["10.1.0.0/16"]))
    addresses = {"files.example": ["10.1.2.3"], "else.example": ["10.2.0.1"]}
    async with open_bench(tmp_path, serves(DATA), addresses=addresses) as bench:
        assert (await bench.get(HTTP, policy=policy)).path.read_bytes() == DATA
        with pytest.raises(BlockedAddressError, match="--allow-private-sources"):
            await bench.get("http://else.example/model.gguf", policy=policy)


async def test_a_password_goes_to_its_origin_only(tmp_path, autojump_clock):
    """Basic credentials of the URL are sent there, and not to where it redirects; a token is for the hub alone."""
    async with open_bench(tmp_path, steps(redirect("http://cdn.example/x.gguf"), serves(DATA))) as bench:
        await bench.get("http://me:secret@files.example/model.gguf", token="t0ken", policy=MINE)
        first, second = bench.network.requests
        assert first.headers["authorization"] == "Basic bWU6c2VjcmV0"
        assert (second.host, "authorization" in second.headers) == ("cdn.example", False)
        assert not any("secret" in path.read_text("latin-1") for path in bench.store.index.iterdir())


async def test_an_expired_link_is_resolved_again(tmp_path, autojump_clock):
    """When a signed link stops working mid-way, the source is asked for a new one, and the prefix is kept."""
    links = iter(["/signed1.gguf", "/signed2.gguf", "/signed3.gguf"])

    async def script(wire, request):
        if request.target == "/model.gguf":
            await wire.answer(302, location=next(links))
        elif request.target == "/signed2.gguf":
            await wire.answer(403, b"<Error>Request has expired</Error>")
        else:
            await wire.file(request, DATA, cut=100_000 if request.target == "/signed1.gguf" else None)

    async with open_bench(tmp_path, script) as bench:
        assert (await bench.get(HTTP, policy=MINE)).path.read_bytes() == DATA
        assert bench.network.requests[-1].start == 100_000


async def test_a_name_that_cannot_be_resolved_is_the_worlds(tmp_path, autojump_clock):
    """Without DNS there is a clear error, after several tries."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        with pytest.raises(FetchError, match=r"the name files\.invalid cannot be resolved"):
            await bench.get("http://files.invalid/model.gguf")


async def test_the_next_address_is_tried(tmp_path, autojump_clock):
    """An address that refuses does not hide the one that answers."""
    addresses = {"files.example": ["93.184.216.1", "2606:4700::1"]}
    async with open_bench(tmp_path, serves(DATA), addresses=addresses) as bench:
        bench.network.refusing.add("93.184.216.1")
        assert (await bench.get(HTTP)).path.read_bytes() == DATA


# ---- the disk


async def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(tmp_path, autojump_clock):
    """The error names what is needed and what is free, and the disk is left as it was."""
    async with open_bench(tmp_path, serves(DATA), free=lambda _: 300_000) as bench:
        with pytest.raises(NoSpaceError, match="free some space") as caught:
            await bench.get(HTTP)
        needed, free = map(int, re.findall(r"(\d+) bytes", str(caught.value)))
        assert (needed > len(DATA), free) == (True, 300_000)
        assert len(bench.network.requests) == 1
        assert bench.files() == []


async def test_two_downloads_are_not_promised_the_same_space(tmp_path, autojump_clock):
    """Space for one file is reserved for it, even before anything has been written."""
    hold = trio.Event()

    async def script(wire, request):
        await wire.head(200, content_length=len(DATA))
        await hold.wait()
        await wire.send(DATA)

    async with open_bench(tmp_path, script, free=lambda _: 1_300_000) as bench, trio.open_nursery() as nursery:
        nursery.start_soon(bench.get, HTTP)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NoSpaceError):
            await bench.get("http://files.example/second.gguf")
        hold.set()
