import errno
import hashlib
import json
import os

import pytest

from llmkube.weights.errors import FetchError, NoSpaceError
from llmkube.weights.http_responses import Validator
from llmkube.weights.store import partial as module
from llmkube.weights.store.blobs import open_store
from llmkube.weights.store.partial import PartialInfo, open_partial, remove_partial

KEY = "ab" * 32
NOTE = PartialInfo(Validator('"v1"', "yesterday"), 100)


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


def begun(store, *chunks, note=NOTE):
    partial = open_partial(store, KEY)
    partial.begin(note)
    for chunk in chunks:
        partial.append(chunk)
    return partial


def taken_up(store):
    partial = open_partial(store, KEY)
    while partial.unhashed_bytes:
        partial.rehash()
    return partial


def test_what_was_put_down_is_taken_up_again(store):
    """Bytes, version and size survive closing, and the digest covers everything."""
    begun(store, b"one ", b"two ").close()
    partial = taken_up(store)
    assert (partial.info, partial.size_bytes) == (NOTE, 8)
    partial.append(b"three")
    assert partial.sha256 == hashlib.sha256(b"one two three").hexdigest()
    partial.checkpoint()
    blob = partial.commit()
    partial.close()
    assert blob.read_bytes() == b"one two three"
    assert list(store.partial.iterdir()) == []


def test_only_what_was_synced_is_believed(store):
    """After a power cut, bytes beyond the last checkpoint are dropped, whatever the file's length says."""
    partial = begun(store, b"one ")
    partial.checkpoint()
    partial.append(b"two ")
    os.close(partial._fd)  # no close(): as if the power had failed
    partial = taken_up(store)
    assert partial.size_bytes == 4
    partial.append(b"2")
    assert partial.path.read_bytes() == b"one 2"
    partial.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda note: note.unlink(),
        lambda note: note.write_text("{"),
        lambda note: note.write_text("[]"),
        lambda note: note.write_text("[" * 100_000),
        lambda note: note.write_text(json.dumps(json.loads(note.read_text()) | {"syncedBytes": 1000})),
        lambda note: note.write_text(json.dumps(json.loads(note.read_text()) | {"syncedBytes": "4"})),
        lambda note: note.write_text(json.dumps(json.loads(note.read_text()) | {"etag": 5})),
        lambda note: (note.rename(note.with_name("elsewhere")), note.symlink_to("elsewhere")),
    ],
)
def test_a_note_that_makes_no_sense_voids_the_bytes(store, spoil):
    """Without a valid record, the download starts again."""
    partial = begun(store, b"one ")
    partial.close()
    spoil(module._metadata_path(partial.path))
    partial = open_partial(store, KEY)
    assert (partial.size_bytes, partial.unhashed_bytes, partial.info) == (0, 0, PartialInfo())
    assert partial.path.stat().st_size == 0
    partial.close()


def test_one_at_a_time(store):
    """While one has the file, another gets nothing, and afterwards it gets everything."""
    partial = begun(store, b"one ")
    assert open_partial(store, KEY) is None
    assert remove_partial(partial.path) == 0
    partial.close()
    again = taken_up(store)
    assert again.size_bytes == 4
    again.close()


def test_a_committed_file_cannot_be_written_by_a_late_opener(store):
    """Whoever opened the file before it was committed never gets a lock on the finished blob."""
    partial = begun(store, b"one")
    partial.checkpoint()
    blob = partial.commit()
    other = open_partial(store, KEY)
    other.append(b"other")
    other.close()
    partial.close()
    assert blob.read_bytes() == b"one"


def test_nothing_is_kept_of_nothing(store):
    """A download that never got a byte leaves no file."""
    partial = open_partial(store, KEY)
    partial.begin(NOTE)
    partial.close()
    assert list(store.partial.iterdir()) == []


def test_links_and_other_things_are_not_followed(store, tmp_path):
    """A symbolic link in the place of the file is refused, and its target is not modified."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    store.partial_path(KEY).symlink_to(outside)
    with pytest.raises(FetchError):
        open_partial(store, KEY)
    store.partial_path(KEY).unlink()
    os.mkfifo(store.partial_path(KEY))
    with pytest.raises(FetchError, match="not a regular file"):
        open_partial(store, KEY)
    assert outside.read_bytes() == b"precious"
    with pytest.raises(ValueError, match="not a SHA-256"):
        open_partial(store, "../../etc/passwd")


def test_a_full_disk_keeps_what_was_written_whole(store, monkeypatch):
    """When the disk fills up in the middle of a chunk, the file ends with the chunk before, and its digest fits."""
    partial = begun(store, b"one ")
    real_write, writes = os.pwrite, []

    def fill_up(fd, data, offset):
        writes.append(len(data))
        if len(writes) == 1:
            return real_write(fd, bytes(data)[:2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "pwrite", fill_up)
    with pytest.raises(NoSpaceError, match=r"no space in the model store.*llmkube cache prune") as caught:
        partial.append(b"two ")
    assert "the disk has filled up" in str(caught.value)
    monkeypatch.undo()
    assert partial.path.read_bytes() == b"one "
    partial.append(b"2")
    assert partial.sha256 == hashlib.sha256(b"one 2").hexdigest()
    partial.close()


def test_a_bad_sector_in_the_prefix_costs_the_rest_of_it(store, monkeypatch):
    """Unreadable bytes are fetched from the server again."""
    monkeypatch.setattr(module, "_HASH_CHUNK_BYTES", 4)
    begun(store, b"one two three ").close()
    partial = open_partial(store, KEY)
    real = os.pread

    def bad(fd, count, offset):
        if offset >= 8:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, count, offset)

    monkeypatch.setattr(module.os, "pread", bad)
    while partial.unhashed_bytes:
        partial.rehash()
    assert (partial.size_bytes, partial.sha256) == (8, hashlib.sha256(b"one two ").hexdigest())
    assert partial.path.stat().st_size == 8
    partial.close()


def test_only_old_ones_are_stale(store):
    """An incomplete file goes with its note, when it is older than asked for."""
    partial = begun(store, b"one ")
    partial.close()
    os.utime(partial.path, (1000, 1000))
    assert remove_partial(partial.path, unless_modified_since=999) == 0
    assert remove_partial(partial.path, unless_modified_since=1001) > 0
    assert list(store.partial.iterdir()) == []
