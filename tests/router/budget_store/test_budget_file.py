"""The budget file: completed writes are durable and whole after a kill."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest

from llmkube.base.errors import UserError
from llmkube.router.budget_store.budget_file import SCHEMA_VERSION, BudgetFile, budget_file_of
from llmkube.router.budgets.ledger import Amount
from llmkube.router.budgets.meter import Charge, Hold

KEY = ("month", "red")
MOST = Amount(2**63, 2**70)
CHARGE = Charge(key=KEY, ends=60.0, window_seconds=3600.0, amount=Amount(5, 7))


def held(amount=MOST, team="red"):
    return Hold(key=("month", team), window_seconds=3600.0, amount=amount)


@pytest.fixture
def file(tmp_path):
    one = budget_file_of(tmp_path / "budgets", "ml/r")
    one.open()
    yield one
    one.close()


def read(file):
    file.close()
    return file.open()


def test_what_was_written_is_there_again(file):
    """The file has the reserved amounts, of any size, and the charges; a write replaces the amounts before it."""
    file.write([held(Amount(1)), held(Amount(0, 1), "blue")], [], {}, 9.0)
    file.write([held(), held(Amount(), "blue")], [CHARGE], {}, 10.0)
    saved = read(file)
    assert saved.held == (held(),)
    assert (saved.charges, saved.last_written_at) == ((CHARGE,), 10.0)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_what_left_its_window_is_removed(file):
    """The file stays small; an extended window still includes earlier charges."""
    file.write([], [CHARGE], {}, 10.0)
    file.write([], [], {"month": 7200.0}, 20.0)
    file.write([], [], {}, 3661.0)
    assert len(read(file).charges) == 1
    file.write([], [], {}, 7261.0)
    assert read(file).charges == ()


def test_two_processes_do_not_share_it(file, monkeypatch):
    """Each process would admit the full budget."""
    monkeypatch.setattr("llmkube.router.budget_store.budget_file._BUSY_SECONDS", 0.0)
    with pytest.raises(UserError, match="are in use by another process"):
        BudgetFile(file.path).open()


def test_a_damaged_file_is_named_and_left_as_it_is(file):
    """The budget is not reset automatically: its owner moves the file away."""
    file.close()
    file.path.write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match=r"ml\.r\.db are damaged .*move the file"):
        file.check()
    assert file.path.read_bytes().startswith(b"no database")


def test_a_newer_file_is_refused(file):
    file.close()
    with sqlite3.connect(file.path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(UserError, match="format 2, but this release reads up to 1"):
        file.check()


def test_a_kill_leaves_each_write_that_was_answered(tmp_path):
    """After SIGKILL during writes, the file has at least those that the process has acknowledged."""
    script = (
        "import sys; from router.budget_store.test_budget_file import *\n"
        "one = budget_file_of(Path(sys.argv[1]), 'ml/r'); one.open()\n"
        "for n in range(1, 100000):\n"
        "    one.write([held(Amount(n))], [], {}, float(n)); print(n, flush=True)\n"
    )
    command = [sys.executable, "-c", "from pathlib import Path\n" + script, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ) as child:
        for _ in range(50):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        acknowledged = child.stdout.read().split(b"\n")[:-1]
    last = int(acknowledged[-1]) if acknowledged else last
    one = budget_file_of(tmp_path, "ml/r")
    assert one.open().held[0].amount.tokens >= last >= 50
    one.close()
