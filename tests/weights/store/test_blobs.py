import fcntl
import hashlib
import multiprocessing
import os
import stat

import pytest

from llmkube.weights.errors import FetchError
from llmkube.weights.store.blobs import open_store


def test_a_blob_is_found_by_its_digest_and_is_private(tmp_path):
    """A committed blob is found under its SHA-256, and other users can read neither it nor its folders."""
    store = open_store(tmp_path / "store")
    kept = store.add(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert kept.path.read_bytes() == b"weights"
    assert (kept.sha256, kept.size_bytes, kept.identity) == (digest, 7, f"sha256:{digest}")
    assert store.find(digest, 7) == kept
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [store.root, *store.root.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600


def test_an_open_folder_is_closed_when_the_store_opens(tmp_path):
    """A store folder that others could read is made private."""
    (tmp_path / "store").mkdir(mode=0o755)
    open_store(tmp_path / "store")
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_a_blob_of_another_size_is_not_found(tmp_path):
    """A blob that was cut short behind our back is not served."""
    store = open_store(tmp_path)
    kept = store.add(b"weights")
    os.truncate(kept.path, 3)
    assert store.find(kept.sha256, 7) is None
    assert store.add(b"weights").path.read_bytes() == b"weights"


def test_a_link_among_the_blobs_is_not_followed(tmp_path):
    """A symbolic link with a blob's name is neither served nor written through."""
    store = open_store(tmp_path / "store")
    outside = tmp_path / "outside"
    outside.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    (store.blobs / digest).symlink_to(outside)
    assert store.find(digest, 7) is None
    store.add(b"weights")
    assert not (store.blobs / digest).is_symlink()


def test_a_link_in_place_of_a_folder_is_refused(tmp_path):
    """The store does not open when one of its folders leads elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FetchError, match="symbolic link"):
        open_store(tmp_path / "store")


def test_the_store_itself_may_be_a_link_to_another_volume(tmp_path):
    """A link in place of the whole store is followed."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "volume")
    assert open_store(tmp_path / "store").add(b"x").path.exists()


def test_only_the_files_of_dead_writers_are_removed(tmp_path):
    """Opening the store again removes what a killed process left, and keeps what a living one is writing."""
    store = open_store(tmp_path)
    (store.incoming / "left-behind").write_bytes(b"half")
    living = (store.incoming / "living").open("wb")
    fcntl.flock(living, fcntl.LOCK_EX)
    context = multiprocessing.get_context("spawn")  # another process: locks of our own would not stop us
    opener = context.Process(target=open_store, args=(tmp_path,))
    opener.start()
    opener.join()
    assert opener.exitcode == 0
    assert not (store.incoming / "left-behind").exists()
    assert (store.incoming / "living").exists()
    living.close()


def test_a_digest_is_never_a_path(tmp_path):
    """Anything but 64 hex digits is a bug of the caller, not a file to look for."""
    with pytest.raises(ValueError, match="not a SHA-256"):
        open_store(tmp_path).find("../" + "a" * 61, 1)


def test_a_store_that_cannot_be_created_names_the_cause(tmp_path):
    """A file where the store should be is named in the error."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="file"):
        open_store(tmp_path / "file" / "store")


@pytest.mark.parametrize("folder", ["blobs", "index", "partial"])
def test_a_draft_of_a_killed_writer_is_removed(tmp_path, folder):
    """A writer that was killed between the draft of a note and its rename leaves the draft behind."""
    store = open_store(tmp_path)
    draft = getattr(store, folder) / ".new-abc"
    draft.write_text("{")
    open_store(tmp_path)
    assert not draft.exists()
