"""What was taken and what is reserved, in one SQLite file: what was written is there after a SIGKILL.

A write-ahead log without a sync at each commit: the end of the process loses nothing, a power cut may lose the last
requests. One process has the file at a time. It holds a row for each step of a window in which something was taken,
and for each account with what is set aside in it for requests; what has left its window is removed.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.full_disk import full_disk
from llmkube.base.private_files import file_stem
from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import BudgetsNotKeptError, Charge, Hold

SCHEMA_VERSION: Final = 1
"""Version of the tables; a newer file is refused rather than misread."""

CLEANUP_SECONDS: Final = 60.0
"""Between two removals of what has left its window."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_IN_USE: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_BUSY_TIMEOUT_SECONDS: Final = 5.0
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


class BudgetFileError(BudgetsNotKeptError):
    """The budgets cannot be written now: a full disk, a disk that fails."""


@attrs.frozen(kw_only=True)
class BudgetSnapshot:
    """What an earlier process has left.

    Attributes:
        charges: What was taken.
        held: What was set aside for its requests.
        last_written_at: The latest time that it has written.
    """

    charges: tuple[Charge, ...]
    held: tuple[Hold, ...]
    last_written_at: float


@attrs.define(eq=False)
class BudgetFile:
    """The file. Used by one thread at a time; each call blocks for as long as the disk takes.

    Attributes:
        path: Where it is; its folder is made.
    """

    path: Path
    _connection: sqlite3.Connection | None = None
    _cleaned_at: float = 0.0

    def open(self) -> BudgetSnapshot:
        """Open or create the file, readable by its owner alone, and return what is in it.

        Raises:
            UserError: It is damaged, of a newer version, kept by another process, or cannot be made.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600, exist_ok=True)
            with self._translate_errors():
                connection = sqlite3.connect(
                    self.path, _BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._connection = connection
                return self._prepare(connection)
        except (OSError, BudgetFileError, UserError) as exc:
            self.close()
            if isinstance(exc, UserError):
                raise
            message = f"the budgets in {self.path} cannot be read or written ({exc})"
            raise UserError(f"{message}; choose another folder with --state-dir") from exc

    def check(self) -> None:
        """Return if the file can be used now.

        Raises:
            UserError: It cannot.
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
        """Write all of them, or none.

        Args:
            held: What is set aside for requests, by account, in place of what was; nothing removes it.
            charges: All that was taken in some steps.
            windows: How long counts what was taken, by the budget's name, where a config has changed that.
            now: The clock.
            replaces_holds: Whether nothing is set aside any more for the requests of an earlier process.

        Raises:
            BudgetFileError: None is written.
        """
        connection = self._connection
        if connection is None:
            raise BudgetFileError(f"the budgets in {self.path} are closed")
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
        """Let go of the file."""
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
            message = f"the budgets in {self.path} have format {version}; this release reads up to {SCHEMA_VERSION}"
            raise UserError(f"{message}: run a newer one, or move the file away, and every budget begins at nothing")
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
        return UserError(f"{message}: move this file and those beside it away, and every budget begins at nothing")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # the rest says where, not what
            if code in _DAMAGED:
                raise self._damaged_error(str(exc)) from exc
            if code in _IN_USE:
                message = f"another process keeps the budgets in {self.path}"
                raise UserError(f"{message}; end it, or choose another folder with --state-dir") from exc
            cause = full_disk(self.path.parent) if code == sqlite3.SQLITE_FULL else str(exc)
            raise BudgetFileError(f"cannot write the budgets in {self.path}: {cause}") from exc
        except (ValueError, TypeError) as exc:
            raise self._damaged_error(str(exc)) from exc


def budget_file_of(folder: Path, router: str) -> BudgetFile:
    """Return the file of a router, by its namespace and name."""
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
