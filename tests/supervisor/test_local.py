"""This machine: its files, its journal, and the state of an earlier agent."""

import threading
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.supervisor.engine.key_file import key_path, write_keys
from llmkube.supervisor.local import MAX_FILE_THREADS, open_local_ports
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.store.blobs import WeightsFile
from llmkube.weights.store.disk import in_threads

MODELS = Path("/models")


@asynccontextmanager
async def opened(state_dir):
    settings = AgentSettings("h", state_dir, state_dir / "store", "/no/engine", local_sources=(state_dir, MODELS))
    async with open_local_ports(settings, SimpleNamespace(get=print)) as ports:
        yield ports


def model(source):
    return decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": {"source": source}})


@pytest.mark.parametrize("source", ["/models/x.gguf", f"/models/{'a' * 300}.gguf", "nonsense://x"])
async def test_a_file_that_cannot_be_inspected_is_not_here(tmp_path, monkeypatch, source):
    """A folder without access or a name that is too long is no error."""

    def lstat(path):
        raise PermissionError(13, "Permission denied", str(path))

    async with opened(tmp_path) as ports:
        assert not await ports.weights.has(model(source))
        monkeypatch.setattr("pathlib.Path.lstat", lstat)
        has = await ports.weights.has(model(source))
        monkeypatch.undo()
        assert not has


async def test_a_remote_header_is_cached_for_ten_minutes(tmp_path, monkeypatch, mock_clock):
    """A retry does not request it again; later a replaced file is seen, and unused headers are dropped."""
    asked = []

    async def read(source, **_):
        await trio.lowlevel.checkpoint()
        asked.append(source.identity)
        return f"facts {len(asked)}"

    monkeypatch.setattr("llmkube.supervisor.local.read_remote_header", read)
    first, second = model("https://files.example/a.gguf"), model("https://files.example/b.gguf")
    async with opened(tmp_path) as ports:
        seen = [await ports.weights.preview(each) for each in (first, first, second)]
        assert seen == ["facts 1", "facts 1", "facts 2"]
        mock_clock.jump(600)
        assert await ports.weights.preview(first) == "facts 3"
        assert [source.identity for _, _, source in ports.weights._previews] == ["https://files.example/a.gguf"]


async def test_a_dead_disk_of_models_blocks_no_journal(tmp_path):
    """However many files are being read from a disk that does not answer, an entry is written and removed."""
    over = threading.Event()
    async with opened(tmp_path) as ports:
        reading = in_threads(ports.weights.limiter, abandon=True)
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_FILE_THREADS):
                    nursery.start_soon(reading, lambda: over.wait(600))
        try:
            with trio.fail_after(60):
                await ports.journal.remove(Key("ns", "chat"))
        finally:
            over.set()


@pytest.mark.parametrize(
    ("reads", "source"), [("read_header", "{}/m.gguf"), ("find_weights", "https://files.example/m.gguf")]
)
async def test_a_dead_disk_of_models_blocks_no_stop(tmp_path, monkeypatch, reads, source):
    """A task that waits for a file's header or for the store can be stopped while the disk does not answer."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    asked, over = trio.Event(), threading.Event()

    def hang(*_):
        trio.from_thread.run_sync(asked.set)
        over.wait(600)

    monkeypatch.setattr(f"llmkube.supervisor.local.{reads}", hang)
    async with opened(tmp_path) as ports, trio.open_nursery() as nursery:
        wanted = model(source.format(tmp_path))
        if reads == "find_weights":
            nursery.start_soon(ports.weights.has, wanted)
        else:
            nursery.start_soon(ports.weights.fetch, wanted, print)
        await asked.wait()
        watchdog = threading.Timer(5, over.set)
        watchdog.start()
        nursery.cancel_scope.cancel()
    assert not over.is_set()
    watchdog.cancel()
    over.set()


async def test_drafts_of_a_killed_agent_are_removed(tmp_path):
    """Drafts of journal and records and keys of exited engines are removed at the start; other files are not."""
    folders = (tmp_path, tmp_path / "journal" / "ns", tmp_path / "strays")
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".new-a1b2").touch()
        (folder / "other").touch()
    write_keys(key_path(tmp_path, "an exited engine"), ["key"])
    async with opened(tmp_path):
        for folder in folders:
            assert not (folder / ".new-a1b2").exists()
            assert (folder / "other").exists()
        assert not key_path(tmp_path, "an exited engine").exists()


async def test_a_blob_is_kept_until_it_is_removed(tmp_path):
    """A downloaded file stays servable while its blob exists."""
    blob = tmp_path / "blob"
    blob.touch()
    file = WeightsFile(blob, 0, None, "https://files.example/a.gguf")
    async with opened(tmp_path) as ports:
        assert await ports.weights.keeps(file)
        blob.unlink()
        assert not await ports.weights.keeps(file)
