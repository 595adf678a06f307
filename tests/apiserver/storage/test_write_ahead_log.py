"""The journal: what was acknowledged survives, revisions never repeat, damage is a clear error."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from datetime import UTC, datetime

import pytest
import trio

from llmkube.apiserver.storage.revisions import Ref, Transaction
from llmkube.apiserver.storage.write_ahead_log import (
    StorageDamagedError,
    StorageError,
    move_aside,
    open_write_ahead_log,
)
from llmkube.k8s.resource import Key

REF = Ref("things", Key("ns", "a"))


def thing(value):
    metadata = {"name": "a", "namespace": "ns", "uid": "u"}
    return {"apiVersion": "v1", "kind": "Thing", "metadata": metadata, "value": value}


def test_what_was_written_is_loaded_again(tmp_path):
    """Objects, removals and the revision are there after the file is closed and opened."""
    with open_write_ahead_log(tmp_path / "db") as journal:
        store = journal.load()
        for value in ("ü", 2):
            tx = Transaction(store)
            tx.put(REF, thing(value))
            journal.write(tx.changes)
            store.apply(tx.changes)
    with open_write_ahead_log(tmp_path / "db") as journal:
        store = journal.load()
        assert store.get(REF) == {**thing(2), "metadata": {**thing(2)["metadata"], "resourceVersion": "2"}}
        tx = Transaction(store)
        tx.remove(REF, store.get(REF))
        journal.write(tx.changes)
    with open_write_ahead_log(tmp_path / "db") as journal:
        store = journal.load()
        assert (store.get(REF), store.revision) == (None, 3)


def test_the_file_is_private(tmp_path):
    """Nobody else may read the database: it holds Secrets."""
    with open_write_ahead_log(tmp_path / "db"):
        assert (tmp_path / "db").stat().st_mode & 0o777 == 0o600


def test_a_second_server_on_the_same_file_is_refused(tmp_path):
    """Two servers on one database would hand out the same resourceVersions."""
    with open_write_ahead_log(tmp_path / "db") as journal:
        journal.load()
        with pytest.raises(StorageError, match="locked"), open_write_ahead_log(tmp_path / "db", timeout_seconds=0):
            pass


def test_a_damaged_file_is_an_error_with_a_sentence(tmp_path):
    """A file that is no database is named as such, not crashed on."""
    (tmp_path / "db").write_bytes(b"this is not a database, " * 100)
    with pytest.raises(StorageError, match="not a database"), open_write_ahead_log(tmp_path / "db"):
        pass


def test_a_damaged_file_is_moved_aside_and_kept(tmp_path):
    """The file keeps its content under another name, and two on one second keep apart."""
    now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    kept = []
    for content in (b"one", b"two"):
        (tmp_path / "db").write_bytes(content)
        (tmp_path / "db-wal").write_bytes(content)
        kept.append(move_aside(tmp_path / "db", now))
    assert [path.name for path in kept] == ["db.damaged-20260504T030201Z", "db.damaged-20260504T030201Z-1"]
    assert [path.read_bytes() for path in kept] == [b"one", b"two"]
    assert kept[0].with_name(kept[0].name + "-wal").read_bytes() == b"one"
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_page_of_rubbish_is_damage(tmp_path, page):
    """A page that was overwritten is found at the latest when the objects are loaded, and is no passing error."""
    with open_write_ahead_log(tmp_path / "db") as journal:
        store = journal.load()
        for value in range(20):
            tx = Transaction(store)
            tx.put(Ref("things", Key("ns", f"n{value}")), thing("x" * 400))
            journal.write(tx.changes)
            store.apply(tx.changes)
    content = bytearray((tmp_path / "db").read_bytes())
    content[page * 4096 : page * 4096 + 4096] = b"\xa5" * 4096
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(StorageDamagedError), open_write_ahead_log(tmp_path / "db") as journal:
        journal.load()


def test_a_newer_format_is_not_touched(tmp_path):
    """A database of a later version is refused, not misread."""
    with open_write_ahead_log(tmp_path / "db") as journal:
        journal._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="format 99"), open_write_ahead_log(tmp_path / "db"):
        pass


async def test_a_cancelled_commit_is_still_waited_for(tmp_path, monkeypatch):
    """Once a commit has begun, cancelling its caller neither abandons nor hides it."""
    with open_write_ahead_log(tmp_path / "db") as journal:
        store = journal.load()
        tx = Transaction(store)
        tx.put(REF, thing(1))
        done = False
        with trio.CancelScope() as scope:
            write, token = journal.write, trio.lowlevel.current_trio_token()

            def write_cancelled(changes):
                trio.from_thread.run_sync(scope.cancel, trio_token=token)
                write(changes)

            monkeypatch.setattr(journal, "write", write_cancelled)
            await journal.commit(tx.changes)
            done = True
        assert done
        assert journal.load().get(REF)["value"] == 1


WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from llmkube.apiserver.storage.write_ahead_log import open_write_ahead_log
    from llmkube.apiserver.storage.revisions import Ref, Transaction
    from llmkube.k8s.resource import Key

    with open_write_ahead_log(Path(sys.argv[1])) as journal:
        store = journal.load()
        while True:
            tx = Transaction(store)
            for name in ("a", "b"):  # one transaction, two objects: both or neither
                metadata = {"name": name, "uid": name}
                kind = {"apiVersion": "v1", "kind": "Thing"}
                tx.put(Ref("things", Key("", name)), {**kind, "metadata": metadata, "round": store.revision})
            journal.write(tx.changes)
            store.apply(tx.changes)
            print(store.revision, flush=True)
    """
)


@pytest.mark.ci
@pytest.mark.e2e
def test_acknowledged_writes_survive_sigkill(tmp_path):
    """Killed at any moment, the journal has every acknowledged write, whole transactions only, and counts on."""
    rng = random.Random(0)
    acknowledged = 0
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True
        )
        for _ in range(rng.randrange(1, 40)):
            line = writer.stdout.readline()
            assert int(line) > acknowledged, "a revision was given out twice"
            acknowledged = int(line)
        os.kill(writer.pid, signal.SIGKILL)
        for line in writer.stdout:
            acknowledged = int(line) if line.endswith("\n") else acknowledged
        writer.wait()
        writer.stdout.close()
        with open_write_ahead_log(tmp_path / "db") as journal:
            store = journal.load()
        assert store.revision >= acknowledged
        pair = [store.get(Ref("things", Key("", name))) for name in ("a", "b")]
        assert pair[0]["round"] == pair[1]["round"]
