"""The index of the store: what is vouched for, what is not, and what is removed."""

import hashlib
import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from llmkube.weights.errors import FetchError
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.cache import find_cached, incomplete_bytes, list_cached, prune
from llmkube.weights.store.index import (
    BlobInfo,
    Record,
    UnverifiedRecord,
    blob_info,
    commit_record,
    find_blob,
    find_weights,
    key_of,
)
from llmkube.weights.store.partial import PartialInfo, open_partial


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


def put(store, identity, *datas):
    parts = []
    for data in datas:
        partial = open_partial(store, hashlib.sha256(data).hexdigest())
        partial.begin(PartialInfo())
        partial.append(data)
        partial.checkpoint()
        parts.append(partial)
    kept = commit_record(store, identity, Record(f"shown {identity}", fetched_at="2026-01-01T00:00:00+00:00"), parts)
    for partial in parts:
        partial.close()
    return kept


def begin_half(store):
    partial = open_partial(store, "ab" * 32)
    partial.begin(PartialInfo())
    partial.append(b"half")
    return partial


def test_a_source_is_recalled(store):
    """A stored file is found under its source and no other, and everything is private."""
    kept = put(store, "a", b"weights")
    assert find_weights(store, "a") == kept
    assert find_weights(store, "b") is None
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.root.rglob("*") if path.is_file()} == {0o600}


def test_a_split_model_lies_side_by_side_and_is_rebuilt(store):
    """The folder of a split model is rebuilt when one of its parts has been removed."""
    kept = put(store, "a", b"one", b"two")
    names = [path.name for path in sorted(kept.path.parent.iterdir())]
    assert names == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    kept.path.unlink()
    kept.path.symlink_to("/etc/passwd")
    assert find_weights(store, "a") == kept
    assert kept.path.read_bytes() == b"one"
    assert len(list(store.sets.iterdir())) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda blob: blob.unlink(),
        lambda blob: os.truncate(blob, 3),
        lambda blob: (blob.unlink(), blob.symlink_to("/etc/passwd")),
        lambda blob: (blob.unlink(), blob.mkdir()),
    ],
)
def test_a_blob_that_is_not_what_it_was_is_not_recalled(store, spoil):
    """A missing, shortened or replaced blob is as good as none."""
    kept = put(store, "a", b"weights")
    spoil(kept.path)
    assert find_weights(store, "a") is None
    assert find_blob(store, kept.sha256) is None
    assert list_cached(store)[0].path is None


def test_a_blob_that_was_touched_is_doubted(store):
    """A blob of the right size with another time of change must be read before it is believed."""
    kept = put(store, "a", b"weights")
    piece = blob_info(kept.path)
    os.utime(kept.path, ns=(1, 1))
    found = find_weights(store, "a")
    assert isinstance(found, UnverifiedRecord)
    assert found.touched == (piece,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 100_000,
        '{"source": "", "pieces": [], "fetchedAt": ""}',
        json.dumps(
            {"source": "", "fetchedAt": "", "pieces": [{"sha256": "../../etc/passwd", "sizeBytes": 1, "mtimeNs": 1}]}
        ),
    ],
)
def test_a_record_that_makes_no_sense_is_none(store, text):
    """Nothing in a record can lead out of the store, and a broken one is not there."""
    (store.index / f"{key_of('a')}.json").write_text(text)
    assert find_weights(store, "a") is None
    assert list_cached(store) == []


def test_user_text_is_no_path(store):
    """Whatever a source says, its record lies in the index under 64 hex digits."""
    for text in ("../../x", "/etc/passwd", "a\0b", "ü" * 5000, "\ud800"):
        assert len(key_of(text)) == 64
        put(store, text, text.encode("utf-8", "surrogatepass"))
        assert find_weights(store, text) is not None
    assert {len(path.stem) for path in store.index.iterdir()} == {64}


def test_models_are_listed_and_found(store):
    """People see sources without secrets, sizes and digests, and find a model by its source or its key."""
    put(store, "b", b"one", b"two")
    kept = put(store, "a", b"weights")
    first, second = list_cached(store)
    assert (first.source, first.size_bytes, first.digests, first.path) == ("shown a", 7, (kept.sha256,), kept.path)
    assert (second.source, second.size_bytes, len(second.digests)) == ("shown b", 6, 2)
    assert find_cached(store, "shown a") == find_cached(store, first.key[:8]) == [first]
    assert find_cached(store, "x") == find_cached(store, "") == []


def test_what_nothing_needs_is_removed(store):
    """Pruning keeps the models in use and the blobs that they share, and frees the rest."""
    kept = put(store, "a", b"shared", b"mine")
    put(store, "b", b"shared")
    put(store, "c", b"alone", b"gone")
    (store.blobs / ("0" * 64)).write_bytes(b"nobody's")
    begin_half(store).close()
    assert incomplete_bytes(store) > 0
    trial = prune(store, ["a"], dry_run=True)
    assert len(list_cached(store)) == 3
    done = prune(store, ["a"])
    assert done.models == trial.models == ("shown b", "shown c")
    assert done.incomplete == trial.incomplete == 1
    assert done.freed_bytes > 0
    assert [cached.source for cached in list_cached(store)] == ["shown a"]
    assert kept.path.read_bytes() == b"shared"
    assert sorted(path.read_bytes() for path in store.blobs.iterdir()) == [b"mine", b"shared"]
    assert len(list(store.sets.iterdir())) == 1
    assert incomplete_bytes(store) == 0


def test_only_what_was_named_is_removed(store):
    """Removing one model leaves the others and unfinished downloads alone, and never touches one in use."""
    put(store, "a", b"one")
    put(store, "b", b"two")
    open_partial(store, "ab" * 32).close()
    assert prune(store, [], only=[key_of("b")]).models == ("shown b",)
    assert prune(store, ["a"], only=[key_of("a")]).models == ()
    assert [cached.source for cached in list_cached(store)] == ["shown a"]


def test_a_running_download_is_not_pruned(store):
    """A partial file that is being written stays."""
    partial = begin_half(store)
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=prune, args=(store, []))
    other.start()
    other.join()
    assert other.exitcode == 0
    assert partial.path.exists()
    partial.close()


def test_a_piece_is_found_by_its_digest(store):
    """A blob of one source serves another source with the same digest."""
    kept = put(store, "a", b"one", b"two")
    digest = hashlib.sha256(b"two").hexdigest()
    found = find_blob(store, digest)
    assert isinstance(found, BlobInfo)
    assert found.sha256 == digest
    assert find_blob(store, "0" * 64) is None
    assert kept.sha256 is None


def test_a_piece_that_was_pruned_meanwhile_is_not_kept(store):
    """A blob that was found before a download, and is gone after it, makes no record that leads nowhere."""
    put(store, "a", b"one")
    found = find_blob(store, hashlib.sha256(b"one").hexdigest())
    prune(store, [])
    with pytest.raises(FetchError, match="removed from the model store meanwhile"):
        commit_record(store, "b", Record("shown b"), [found])
    assert find_weights(store, "b") is None
    assert list_cached(store) == []


def test_a_running_download_may_be_looked_at(store, monkeypatch):
    """A file that is renamed between listing and stat takes no space, and is no error."""
    begin_half(store).close()
    names = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [*names(folder), folder / ".new-renamed"])
    there = incomplete_bytes(store)
    assert there > 0
    assert 0 < prune(store, [], dry_run=True).freed_bytes <= there
