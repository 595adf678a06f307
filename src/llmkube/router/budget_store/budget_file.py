"""Spending and reservations in one SQLite file, which survives a SIGKILL.

The write-ahead log is not synced at each commit: nothing is lost when the process dies, but a power cut may lose the
last requests. One process has the file at a time. The file has a row for each step of a window with spending, and a
row for each account with an amount set aside for requests; rows that have left their window are removed.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.full_disk import full_disk
from llmkube.base.private_files import file_stem, make_private_folder
from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import BudgetStoreError, Charge, Hold

SCHEMA_VERSION: Final = 1
"""Version of the tables; a newer file is rejected rather than misread."""

CLEANUP_SECONDS: Final = 60.0
"""Between two removals of rows that have left their window."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_IN_USE: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_BUSY_SECONDS: Final = 5.0
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS taken (
    budget TEXT NOT NULL, team TEXT NOT NULL, ends REAL NOT NULL, seconds REAL NOT NULL,
    tokens TEXT NOT NULL, nano_usd TEXT NOT NULL, PRIMARY KEY (budget, team, ends)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reserved (
    number INTEGER NOT NULL, budget TEXT NOT NULL, team TEXT NOT NULL, seconds REAL NOT NULL,
    tokens TEXT NOT NULL, nano_usd TEXT NOT NULL, PRIMARY KEY (number, budget, team)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 1), seen REAL NOT NULL);
INSERT OR IGNORE INTO clock VALUES (1, 0);
"""


@attrs.frozen(kw_only=True)
class BudgetSnapshot:
    """The state that an earlier process has left.

    Attributes:
        charges: Spending.
        held: Amounts set aside for its requests.
        last_written_at: Latest time in the file, in seconds since 1970.
    """

    charges: tuple[Charge, ...]
    held: tuple[Hold, ...]
    last_written_at: float


@attrs.define(eq=False)
class BudgetFile:
    """The file of a router's budgets. Used by one thread at a time; each call blocks on the disk."""

    path: Path
    _connection: sqlite3.Connection | None = None
    _cleaned_at: float = 0.0

    def open(self) -> BudgetSnapshot:
        """Open or create the file with mode 0600, and its folder, and return its content.

        Raises:
            UserError: It is damaged, has a newer version, is in use by another process, or cannot be created.
        """
        try:
            make_private_folder(self.path.parent)
            self.path.touch(mode=0o600, exist_ok=True)
            with self._translate_errors():
                connection = sqlite3.connect(self.path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False)
                self._connection = connection
                return self._prepare(connection)
        except (OSError, BudgetStoreError, UserError) as exc:
            self.close()
            if isinstance(exc, UserError):
                raise
            message = f"the budgets in {self.path} cannot be read or written ({exc})"
            raise UserError(f"{message}; choose another folder with --state-dir") from exc

    def check(self) -> None:
        """Check that the file can be used now.

        Raises:
            UserError: As `open`.
        """
        self.open()
        self.close()

    def write(
        self,
        held: Sequence[Hold],
        charges: Sequence[Charge],
        windows: Mapping[str, float],
        now: float,
        *,
        replaces_holds: bool = False,
    ) -> None:
        """Write everything in one transaction.

        Args:
            held: Amounts set aside for requests, replacing those of the same accounts; a zero amount removes the row.
            charges: Spending of whole steps.
            windows: Lengths of windows that a config has changed, by the budget's name.
            now: The time, in seconds since 1970.
            replaces_holds: Whether to remove what was set aside for the requests of an earlier process.

        Raises:
            BudgetStoreError: Nothing was written.
        """
        connection = self._connection
        if connection is None:
            raise BudgetStoreError(f"the budgets in {self.path} are closed")
        with self._translate_errors(), connection:
            connection.execute("BEGIN IMMEDIATE")
            if replaces_holds:
                connection.execute("DELETE FROM reserved")
            _put(connection, held, charges, windows)
            if now - self._cleaned_at >= CLEANUP_SECONDS:
                connection.execute("DELETE FROM taken WHERE ends + seconds <= ?", (now,))
            connection.execute("UPDATE clock SET seen = max(seen, ?)", (now,))
        if now - self._cleaned_at >= CLEANUP_SECONDS:
            self._cleaned_at = now

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _prepare(self, connection: sqlite3.Connection) -> BudgetSnapshot:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # two meters on one file would admit twice as much
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 1048576")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            message = f"the budgets in {self.path} have format {version}, but this release reads up to {SCHEMA_VERSION}"
            raise UserError(f"{message}; run a newer release, or move the file away (every budget then starts at zero)")
        connection.executescript(_TABLES)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise self._damaged_error(str(found))
        (last_written_at,) = connection.execute("SELECT seen FROM clock").fetchone()
        taken = connection.execute("SELECT budget, team, ends, seconds, tokens, nano_usd FROM taken")
        charges = tuple(
            Charge(key=(budget, team), ends=ends, window_seconds=seconds, amount=Amount(int(tokens), int(nano_usd)))
            for budget, team, ends, seconds, tokens, nano_usd in taken
        )
        reserved = connection.execute("SELECT budget, team, seconds, tokens, nano_usd FROM reserved")
        held = tuple(
            Hold(key=(budget, team), window_seconds=seconds, amount=Amount(int(tokens), int(nano_usd)))
            for budget, team, seconds, tokens, nano_usd in reserved
        )
        return BudgetSnapshot(charges=charges, held=held, last_written_at=float(last_written_at))

    def _damaged_error(self, cause: str) -> UserError:
        message = f"the budgets in {self.path} are damaged ({cause})"
        return UserError(f"{message}; move the file and its -wal and -shm files away, and every budget starts at zero")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # the primary code; higher bits are details
            if code in _DAMAGED:
                raise self._damaged_error(str(exc)) from exc
            if code in _IN_USE:
                message = f"the budgets in {self.path} are in use by another process"
                raise UserError(f"{message}; stop it, or choose another folder with --state-dir") from exc
            cause = full_disk(self.path.parent) if code == sqlite3.SQLITE_FULL else str(exc)
            raise BudgetStoreError(f"cannot write the budgets in {self.path}: {cause}") from exc
        except (ValueError, TypeError) as exc:
            raise self._damaged_error(str(exc)) from exc


def budget_file_of(folder: Path, router: str) -> BudgetFile:
    """Return the file of a router, which is given as `NAMESPACE/NAME`."""
    return BudgetFile(folder / f"{file_stem(router.replace('/', '.'))}.db")


def _put(
    connection: sqlite3.Connection, held: Iterable[Hold], charges: Iterable[Charge], windows: Mapping[str, float]
) -> None:
    rows = [(*one.key, one.window_seconds, *_to_text(one.amount)) for one in held]
    connection.executemany("INSERT OR REPLACE INTO reserved VALUES (0, ?, ?, ?, ?, ?)", rows)
    connection.execute("DELETE FROM reserved WHERE tokens = '0' AND nano_usd = '0'")
    steps = [(*one.key, one.ends, one.window_seconds, *_to_text(one.amount)) for one in charges]
    connection.executemany("INSERT OR REPLACE INTO taken VALUES (?, ?, ?, ?, ?, ?)", steps)
    changed = [(length, name) for name, length in windows.items()]
    connection.executemany("UPDATE taken SET seconds = ? WHERE budget = ?", changed)


def _to_text(amount: Amount) -> tuple[str, str]:
    """Return an amount as text: it may be larger than SQLite's integers."""
    return str(amount.tokens), str(amount.nano_usd)
