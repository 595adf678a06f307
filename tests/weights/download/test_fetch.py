import errno
import hashlib
import os
import re
import threading

import pytest
import trio

from llmkube.weights.download.fetch import fetch
from llmkube.weights.download.progress import Progress
from llmkube.weights.errors import DigestMismatchError, FetchError, SourceError, SourceUnsupportedError
from llmkube.weights.source import Builtin, LocalFile, VolumeSource, parse_source
from llmkube.weights.store import local_files as module
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.local_sources import LocalSources

DEMO_SHA256 = "f362f91ff8d57aba22945526800c4e52e930716fbdcc56132277baa0bda5c77b"


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


@pytest.fixture
def get(store, tmp_path):
    async def get(source, sha256=None, progress=lambda _: None):
        limiter, local = trio.CapacityLimiter(1), LocalSources((tmp_path,))
        return await fetch(source, store, sha256=sha256, progress=progress, limiter=limiter, local=local)

    return get


async def test_the_demo_weights_are_copied_once_and_verified(get, store):
    """The built-in demo lands in the store under its digest, and a second fetch does not copy it again."""
    seen = []
    first = await get(Builtin("demo"), progress=seen.append)
    assert first.sha256 == DEMO_SHA256
    assert first.path == store.blobs / DEMO_SHA256
    assert [step.stage for step in seen] == ["verifying", "copying"]
    assert seen[-1] == Progress("copying", first.size_bytes, first.size_bytes)
    seen.clear()
    assert await get(Builtin("demo"), sha256=DEMO_SHA256.upper(), progress=seen.append) == first
    assert [step.stage for step in seen] == ["verifying"]


async def test_unknown_builtin_weights_name_the_known_ones(get):
    """A built-in name that does not exist is answered with those that do."""
    with pytest.raises(SourceError, match="'other'; available: demo"):
        await get(Builtin("other"))


async def test_a_local_file_is_used_where_it_lies(get, tmp_path):
    """Without a digest to verify, a local file is not copied, and its identity follows its last change."""
    path = tmp_path / "model.bin"
    path.write_bytes(b"GGUF...")
    seen = []
    first = await get(LocalFile(str(path)), progress=seen.append)
    assert (first.path, first.size_bytes, first.sha256, seen) == (path, 7, None, [])
    assert await get(LocalFile(str(path))) == first
    os.utime(path, ns=(1, 1))
    assert (await get(LocalFile(str(path)))).identity != first.identity


async def test_a_link_to_a_local_file_is_followed(get, tmp_path):
    """A user's own links lead to the file: model caches are made of them."""
    (tmp_path / "blob").write_bytes(b"GGUF...")
    (tmp_path / "model.gguf").symlink_to(tmp_path / "blob")
    assert (await get(LocalFile(str(tmp_path / "model.gguf")))).size_bytes == 7


async def test_a_local_file_of_many_chunks_is_hashed_right(get, tmp_path, monkeypatch):
    """A digest over several chunks is the digest of the file, and progress reaches its size."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    data = b"GGUF" + os.urandom(4317)
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    seen = []
    kept = await get(LocalFile(str(path)), sha256=hashlib.sha256(data).hexdigest(), progress=seen.append)
    assert kept.sha256 == hashlib.sha256(data).hexdigest()
    assert [step.done_bytes for step in seen] == [1000, 2000, 3000, 4000, 4321]


@pytest.mark.parametrize("source", ["builtin://demo", "local"])
async def test_a_wrong_digest_is_refused_without_revealing_the_right_one(get, tmp_path, store, source):
    """Bytes that are not the ones asked for are refused, without the digest that they have, and nothing is kept."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF...")
    with pytest.raises(DigestMismatchError, match=r"does not have the digest of spec\.sha256") as caught:
        await get(parse_source(source) if "://" in source else LocalFile(str(path)), sha256="0" * 64)
    assert caught.value.field == "spec.sha256"
    assert caught.value.reason == "DigestMismatch"
    assert not re.search("[0-9a-f]{64}", str(caught.value))
    assert list(store.blobs.iterdir()) == []


@pytest.mark.parametrize("text", ["https://host/a.gguf", "hf://org/repo", "org/repo", "s3://bucket/a"])
async def test_without_a_downloader_a_remote_source_is_refused_by_its_scheme(get, text):
    """The error names the schemes that work without a downloader."""
    source = parse_source(text)
    with pytest.raises(SourceUnsupportedError, match=r"cannot download over (https|hf|s3); .*absolute path") as caught:
        await get(source)
    assert caught.value.reason == "SourceUnsupported"


async def test_what_a_host_cannot_fetch_names_its_scheme_and_what_works(get):
    """A claim is refused by its scheme, and the message says what works."""
    source = parse_source("pvc://claim/a")
    assert isinstance(source, VolumeSource)
    with pytest.raises(SourceUnsupportedError, match=rf"over {source.scheme}; .*absolute path"):
        await get(source)


async def test_a_file_that_changes_while_it_is_read_is_not_believed(get, tmp_path, monkeypatch):
    """Bytes from before and after an edit are never mixed into one digest."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 10)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + b"x" * 26)

    def edit(step):
        if step.done_bytes == 10:
            path.write_bytes(b"GGUF" + b"y" * 36)

    with pytest.raises(FetchError, match="changed while it was being read"):
        await get(LocalFile(str(path)), sha256="0" * 64, progress=edit)


async def test_a_copy_that_fails_leaves_nothing_behind(get, store, monkeypatch):
    """A disk that does not take the copy is named, and there is no half of a blob."""

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("llmkube.base.private_files.sync", fail)
    with pytest.raises(FetchError, match=r"model store.*cannot be written.*Input/output error"):
        await get(Builtin("demo"))
    assert list(store.blobs.iterdir()) == []


async def test_a_stuck_read_does_not_hold_up_a_cancel(get, tmp_path, monkeypatch):
    """A disk that never answers keeps its thread, but not the task that waits for it."""
    stuck, release = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def hang(self, path):
        token.run_sync_soon(stuck.set)
        release.wait()

    monkeypatch.setattr(LocalSources, "admit", hang)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(get, LocalFile(str(tmp_path / "model.gguf")))
            await stuck.wait()
            nursery.cancel_scope.cancel()
    finally:
        release.set()
