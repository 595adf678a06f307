"""The write-ahead log makes writes durable: acknowledged writes survive a crash, and revisions never repeat.

SQLite in WAL mode with `synchronous=FULL` syncs the log before a commit returns, so the order is: commit here, then
show the write in memory, then respond. A crash in between leaves a write without a response, which is allowed; a
response without a write is not.
"""

import itertools
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from llmkube.apiserver.storage.revisions import Change, Ref, Store, StoredObject, encoded
from llmkube.base.errors import ExternalError
from llmkube.base.full_disk import full_disk
from llmkube.k8s.resource import Key

SCHEMA_VERSION: Final = 1
"""Version of the tables; a newer file is refused rather than misread."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

LOCK_TIMEOUT_SECONDS: Final = 5.0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, json TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS meta (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO meta VALUES (1, 0);
"""


DATABASE: Final = "api.db"
"""Name of the file in a state directory."""


class StorageError(ExternalError):
    """The database cannot be read or written: a full disk, a damaged file, a lock held by another process."""


class StorageDamagedError(StorageError):
    """The file is no longer a database, or its content is invalid: trying again does not help."""


Persist = Callable[[Sequence[Change]], Awaitable[None]]
"""Makes writes durable before they are shown; a simulation does without.

It returns when the changes would survive a power failure, and otherwise raises StorageError with nothing written.
"""


class WriteAheadLog:
    """The objects and the revision counter in one SQLite file; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._limiter = trio.CapacityLimiter(1)

    def load(self) -> Store:
        """Return a store with every object that was acknowledged and not deleted since.

        Raises:
            StorageDamagedError: The file is damaged.
            StorageError: It cannot be read now.
        """
        with _translate_errors("read", self._path):
            found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise StorageDamagedError(f"the API server's database is damaged: {found}")
            (revision,) = self._connection.execute("SELECT revision FROM meta").fetchone()
            rows = self._connection.execute("SELECT kind, namespace, name, json FROM objects")
            objects = [(Ref(kind, Key(*key)), StoredObject(json.loads(text))) for kind, *key, text in rows]
        return Store(revision, objects)

    async def commit(self, changes: Sequence[Change]) -> None:
        """Run `write` in a thread, and wait for it even if cancelled, so that the outcome is always known.

        Raises:
            StorageError: Nothing was written.
        """
        await trio.to_thread.run_sync(self.write, changes, abandon_on_cancel=False, limiter=self._limiter)

    def write(self, changes: Sequence[Change]) -> None:
        """Write the changes and the revision they reach in one transaction, synced to disk.

        Raises:
            StorageError: Nothing was written.
        """
        with _translate_errors("write", self._path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for change in changes:
                key = change.ref.kind, change.ref.key.namespace, change.ref.key.name
                if change.removed:
                    self._connection.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", key)
                else:
                    text = encoded(change.after).decode()
                    self._connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (*key, text))
            self._connection.execute("UPDATE meta SET revision = ?", (changes[-1].revision,))


@contextmanager
def open_write_ahead_log(path: Path, *, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> Iterator[WriteAheadLog]:
    """Open or create the database at `path`, which only its owner can read.

    Args:
        path: The file.
        timeout_seconds: Time to wait for another server to release the file, because a restart may overlap.

    Raises:
        StorageDamagedError: The file is damaged.
        StorageError: It is from a newer version, or locked by another server.
    """
    path.touch(mode=0o600, exist_ok=True)
    with _translate_errors("open", path):
        # Trio uses any idle worker thread; the log's limiter allows one at a time
        connection = sqlite3.connect(path, timeout_seconds, isolation_level=None, check_same_thread=False)
    try:
        with _translate_errors("open", path):
            _prepare(connection)
        yield WriteAheadLog(connection, path)
    finally:
        connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # two servers on one file would repeat resourceVersions
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # A sync on macOS reaches only the drive's cache, which is written in any order: a power failure may lose the last
    # commits, but must not corrupt the database. A full sync of each commit (`fullfsync`) would cost ten milliseconds.
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        why = f"this llmkube reads up to {SCHEMA_VERSION}; use a newer one"
        raise StorageError(f"database format {version} not supported: {why}")
    connection.executescript(_TABLES)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def move_aside(path: Path, now: datetime) -> Path:
    """Rename a damaged database and its side files, so that a new one can be created; return the new path.

    Raises:
        StorageError: The folder does not allow it.
    """
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    paths = (path.with_name(f"{path.name}.damaged-{stamp}{f'-{n}' if n else ''}") for n in itertools.count())
    destination = next(each for each in paths if not each.exists())
    try:
        for suffix in ("-wal", "-shm", ""):  # the file itself last: after a crash before that, it is found again
            side = path.with_name(path.name + suffix)
            if side.exists():
                side.rename(destination.with_name(destination.name + suffix))
    except OSError as exc:
        raise StorageError(f"cannot move the damaged database {path} aside: {exc.strerror}") from exc
    return destination


@contextmanager
def _translate_errors(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # the primary code; the rest is detail
        kind = StorageDamagedError if code in _DAMAGED else StorageError
        why = full_disk(path.parent) if code == sqlite3.SQLITE_FULL else str(exc)
        raise kind(f"cannot {verb} the API server's database: {why}") from exc
    except (ValueError, TypeError) as exc:
        raise StorageDamagedError(f"the API server's database has invalid content: {exc}") from exc
