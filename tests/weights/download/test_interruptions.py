"""Waiting for a download, stopping it, and what remains for the next one."""

import contextlib
import errno
import hashlib
import os

import pytest
import trio
import trio.testing

from llmkube.weights.download.downloader import LINGER_SECONDS, STALE_SECONDS
from llmkube.weights.errors import DigestMismatchError, FetchError, NoSpaceError
from llmkube.weights.source import parse_source
from llmkube.weights.store import partial as partial_module
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.index import key_of
from llmkube.weights.store.partial import PartialInfo, open_partial
from weights.hostile import NOW, gguf, inline, open_bench, serves, steps

DATA = gguf(200_000)
OTHER = gguf(150_000, seed=2)
SHA256 = hashlib.sha256(DATA).hexdigest()
HTTP = "http://files.example/model.gguf"


async def offline(wire, request):
    """Nobody answers: the connection closes at once."""


class PausedServer:
    """A server that sends half, and the rest when `update` is set."""

    def __init__(self, data=DATA):
        self.data = data
        self.update = trio.Event()

    async def __call__(self, wire, request):
        start = request.start or 0
        half = max(len(self.data) // 2, start)
        await wire.file(request, self.data, cut=half)
        await self.update.wait()
        await wire.send(self.data[half:])


@pytest.mark.parametrize("text", [HTTP, "https://files.example/model.gguf", "hf://o/r/m.gguf"])
async def test_what_was_fetched_once_starts_offline(tmp_path, autojump_clock, text):
    """Without any network a restarted agent returns the same file, and sends no request."""
    source = parse_source(text)
    async with open_bench(tmp_path, serves(DATA)) as bench:
        kept = await bench.get(HTTP if text.startswith("https") else text)
        if text.startswith("https"):
            record = bench.store.index / f"{key_of(HTTP)}.json"
            record.rename(bench.store.index / f"{key_of(source.identity)}.json")
    async with open_bench(tmp_path, offline) as bench:
        assert await bench.get(text) == kept
        assert await bench.get(text, sha256=SHA256) == kept
        assert bench.network.requests == []
        assert bench.network.dialled == []


async def test_a_known_digest_needs_no_network(tmp_path, autojump_clock):
    """Bytes that any source has brought serve every source that is pinned to their digest."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        kept = await bench.get(HTTP)
        bench.network.script = offline
        assert await bench.get("http://mirror.example/same.gguf", sha256=SHA256) == kept
        assert {request.host for request in bench.network.requests} == {"files.example"}


async def test_another_source_is_another_file(tmp_path, autojump_clock):
    """A changed URL or revision is never answered with the old file."""

    async def script(wire, request):
        await wire.file(request, OTHER if "v2" in request.target else DATA)

    async with open_bench(tmp_path, script) as bench:
        first = await bench.get(HTTP)
        second = await bench.get(f"{HTTP}?v2")
        assert (first.path.read_bytes(), second.path.read_bytes()) == (DATA, OTHER)
        assert first.identity != second.identity


async def test_another_digest_is_another_file(tmp_path, autojump_clock):
    """When spec.sha256 changes, the file in the store no longer matches, and it is not modified."""
    async with open_bench(tmp_path, steps(serves(DATA), serves(OTHER, etag='"v2"'))) as bench:
        old = await bench.get(HTTP)
        new = await bench.get(HTTP, sha256=hashlib.sha256(OTHER).hexdigest())
        assert new.path.read_bytes() == OTHER
        assert old.path.read_bytes() == DATA


async def test_a_rotten_file_is_fetched_again(tmp_path, autojump_clock):
    """A blob that has been touched is read before it is used: a good one stays, a bad one is replaced."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        kept = await bench.get(HTTP)
        os.utime(kept.path, ns=(1, 1))
        assert await bench.get(HTTP) == kept
        assert len(bench.network.requests) == 1
        assert [step.stage for step in bench.seen[-1:]] == ["verifying"]
        kept.path.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
        os.utime(kept.path, ns=(2, 2))
        assert await bench.get(HTTP) == kept
        assert len(bench.network.requests) == 2
        assert kept.path.read_bytes() == DATA


async def test_two_who_want_the_same_share_one_transfer(tmp_path, autojump_clock):
    """However many services name a source, it is downloaded once, and each hears of the progress."""
    server, results, steps_by_name = PausedServer(), [], {}
    async with open_bench(tmp_path, server) as bench, trio.open_nursery() as nursery:

        async def ask(name):
            results.append(await bench.get(HTTP, progress=lambda step: steps_by_name.setdefault(name, []).append(step)))

        for name in range(5):
            nursery.start_soon(ask, name)
        await trio.sleep(1)  # a small piece waits a moment for more before it is written
        assert len(bench.network.requests) == 1
        assert bench.downloader.active()[HTTP].done_bytes == len(DATA) // 2
        server.update.set()
    assert [result.path.read_bytes() for result in results] == [DATA] * 5
    assert len(bench.network.requests) == 1
    assert all(steps[-1].done_bytes == len(DATA) for steps in steps_by_name.values())


@pytest.mark.parametrize("leaver", [0, 1])
async def test_one_who_stops_waiting_does_not_stop_the_transfer(tmp_path, autojump_clock, leaver):
    """Deleting one service leaves the connection of the other alone, whichever of them came first."""
    server, scopes, results = PausedServer(), [trio.CancelScope(), trio.CancelScope()], []
    async with open_bench(tmp_path, server) as bench, trio.open_nursery() as nursery:

        async def ask(scope):
            with scope:
                results.append(await bench.get(HTTP))

        for scope in scopes:
            nursery.start_soon(ask, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[leaver].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.network.open_connections == 1
        server.update.set()
    assert [result.path.read_bytes() for result in results] == [DATA]
    assert len(bench.network.requests) == 1


async def test_without_waiters_the_transfer_ends_and_its_bytes_are_kept(tmp_path, autojump_clock):
    """The connection closes a moment after the last waiter has left; the next one resumes from there."""
    async with open_bench(tmp_path, PausedServer()) as bench:
        with trio.move_on_after(5):
            await bench.get(HTTP)
        await trio.sleep(2 * LINGER_SECONDS)
        assert bench.network.open_connections == 0
        assert bench.visible() == []
        assert bench.downloader.active() == {}
        bench.network.script = serves(DATA)
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        assert bench.network.requests[1].start == len(DATA) // 2


async def test_a_restarted_agent_resumes_the_download(tmp_path, autojump_clock):
    """Bytes outlive the downloader: they are verified again, and only the rest is asked for."""
    async with open_bench(tmp_path, PausedServer()) as bench:
        with trio.move_on_after(5):
            await bench.get(HTTP)
    async with open_bench(tmp_path, serves(DATA)) as bench:
        assert (await bench.get(HTTP, sha256=SHA256)).path.read_bytes() == DATA
        assert bench.network.requests[0].start == len(DATA) // 2
        assert any(step.stage == "verifying" for step in bench.seen)


async def test_a_prefix_that_was_tampered_with_is_found_out(tmp_path, autojump_clock):
    """A damaged prefix makes a wrong digest, and the second download starts from nothing."""
    async with open_bench(tmp_path, PausedServer()) as bench:
        with trio.move_on_after(5):
            await bench.get(HTTP)
        await trio.sleep(2 * LINGER_SECONDS)
        path = bench.store.partial_path(key_of(HTTP))
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"rot")
        bench.network.script = serves(DATA)
        assert (await bench.get(HTTP, sha256=SHA256)).path.read_bytes() == DATA
        assert [request.start for request in bench.network.requests] == [None, len(DATA) // 2, None]


async def test_another_process_at_the_same_file_is_waited_for(tmp_path, autojump_clock):
    """While another process holds the unfinished file, we report it and wait; then we resume with its bytes."""
    async with open_bench(tmp_path, serves(DATA)) as bench:
        other = open_partial(bench.store, key_of(HTTP))
        other.begin(PartialInfo(total_bytes=len(DATA)))
        other.append(DATA[:1000])
        with trio.move_on_after(30):
            await bench.get(HTTP)
        assert bench.seen[-1].note == "another download of the same file is under way"
        assert bench.network.requests == []
        other.append(DATA[1000:])
        other.close()
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        assert bench.network.requests == []  # it was complete


async def test_different_digests_of_one_source_do_not_mix(tmp_path, autojump_clock):
    """Two services that pin one URL to two digests each get theirs, or the error."""
    async with open_bench(tmp_path, serves(DATA)) as bench, trio.open_nursery() as nursery:

        async def wrong():
            with pytest.raises(DigestMismatchError):
                await bench.get(HTTP, sha256="0" * 64)

        nursery.start_soon(wrong)
        assert (await bench.get(HTTP, sha256=SHA256)).path.read_bytes() == DATA


async def test_a_full_disk_is_reported_and_survived(tmp_path, autojump_clock, monkeypatch):
    """ENOSPC in the middle names the store; once there is space, the download resumes where it was."""
    real, written = os.pwrite, []

    def small(fd, data, offset):
        if os.fstat(fd).st_ino == bench.store.partial_path(key_of(HTTP)).stat().st_ino:
            if sum(written) + len(data) > 120_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(len(data))
        return real(fd, data, offset)

    async def in_pieces(wire, request):
        start = request.start or 0
        await wire.file(request, DATA, cut=start)
        for at in range(start, len(DATA), 10_000):
            await wire.send(DATA[at : at + 10_000])
            await trio.sleep(0.1)

    async with open_bench(tmp_path, in_pieces) as bench:
        monkeypatch.setattr(partial_module.os, "pwrite", small)
        with pytest.raises(NoSpaceError, match="no space in the model store"):
            await bench.get(HTTP)
        assert len(bench.network.requests) == 1
        assert bench.visible() == []
        monkeypatch.undo()
        assert (await bench.get(HTTP)).path.read_bytes() == DATA
        assert bench.network.requests[1].start > 90_000


@pytest.mark.parametrize("call", ["fsync", "rename"])
async def test_a_disk_that_fails_at_the_end_shows_nothing(tmp_path, autojump_clock, monkeypatch, call):
    """A file that cannot be made durable does not appear at all, and the next fetch repairs this."""
    async with open_bench(tmp_path, serves(DATA)) as bench:

        def fail(*args, **kwargs):
            raise OSError(errno.EIO, "Input/output error")

        if call == "fsync":
            monkeypatch.setattr(partial_module.os, "fsync", fail)
        else:
            monkeypatch.setattr(partial_module.Path, "replace", fail)
        with pytest.raises(FetchError, match="Input/output error"):
            await bench.get(HTTP)
        monkeypatch.undo()
        assert bench.visible() == []
        assert (await bench.get(HTTP)).path.read_bytes() == DATA


async def test_stale_bytes_are_removed(tmp_path, autojump_clock):
    """Bytes of downloads idle for a week are deleted when the downloader opens; newer bytes stay."""
    store = open_store(tmp_path)
    for key, age in (("ab" * 32, STALE_SECONDS + 60), ("cd" * 32, STALE_SECONDS - 60)):
        partial = open_partial(store, key)
        partial.begin(PartialInfo())
        partial.append(b"half")
        partial.close()
        os.utime(partial.path, (NOW.timestamp() - age,) * 2)
    async with open_bench(tmp_path, offline) as bench:
        assert {path.name[:2] for path in bench.store.partial.iterdir()} == {"cd"}


async def test_cancelling_anywhere_leaves_nothing_half_made(tmp_path, autojump_clock):
    """Whenever a fetch is cancelled, nothing can be seen of it but a whole file, and the next fetch completes it."""
    for step in range(2, 60):  # the first step opens the downloader
        done = []

        async def counted(fn, at=step, done=done):
            done.append(None)
            if len(done) == at:
                scope.cancel()
            return await inline(fn)

        with trio.CancelScope() as scope:
            async with open_bench(tmp_path / str(step), serves(DATA), run_sync=counted) as bench:
                with contextlib.suppress(FetchError):
                    await bench.get(HTTP)
        for name in bench.visible():
            assert (bench.store.root / name).read_bytes() == DATA
        async with open_bench(tmp_path / str(step), serves(DATA)) as bench:
            assert (await bench.get(HTTP)).path.read_bytes() == DATA
        if not scope.cancelled_caught:
            break
    assert step > 8
    assert not scope.cancelled_caught
