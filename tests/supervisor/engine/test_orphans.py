import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import attrs
import psutil
import pytest

from llmkube.supervisor.engine.door import door_cookie
from llmkube.supervisor.engine.orphans import (
    STUCK_FOLDER,
    StuckEngine,
    StuckEngines,
    is_in_scope,
    match_processes,
    stuck_engine_of,
)
from llmkube.supervisor.engine.proxy import proxy_cookie
from llmkube.supervisor.host import processes
from llmkube.supervisor.values.settings import AgentSettings
from supervisor.values.entries import CHAT, ENGINE, entry


@attrs.frozen
class Proc:
    """A process as the scan finds it."""

    pid: int
    cookie: str

    def environ(self):
        return {"LLMKUBE_ENGINE": self.cookie}


SETTINGS = AgentSettings("host", Path("/s"), Path("/s/store"), "/llama-server")


def stock(engine, *seen, starts, leader=0):
    left, orphans = match_processes(
        {CHAT: entry(engine)}, SETTINGS, seen, lambda pid: starts.get(pid, ""), lambda process: leader
    )
    return left[CHAT].engine, [orphan.pid for orphan in orphans]


def test_an_engine_in_journal_and_kernel_is_adopted():
    """A process with the record's pid and start is adopted with its helpers, even if environments cannot be read."""
    assert stock(ENGINE, Proc(42, "cookie"), Proc(43, "cookie"), starts={42: "boot:1"}) == (ENGINE, [])
    assert stock(ENGINE, starts={42: "boot:1"}) == (ENGINE, [])


def test_a_recycled_pid_is_not_adopted():
    """A process of the same pid with another start time is neither adopted nor ended."""
    assert stock(ENGINE, starts={42: "boot:2"}) == (None, [])


def test_helpers_of_a_dead_engine_are_strays():
    """Processes that a dead engine has started, and that no entry claims, are ended."""
    assert stock(ENGINE, Proc(43, "cookie"), Proc(50, "other"), starts={43: "boot:9"}) == (None, [43, 50])


def test_a_spawn_that_was_never_recorded_is_found_by_its_cookie():
    """An agent killed between the spawn and the journal's second line leaves an engine that is still adopted."""
    intent = attrs.evolve(ENGINE, pid=0, started="")
    assert stock(intent, Proc(43, "cookie"), Proc(42, "cookie"), starts={42: "boot:1"}, leader=42) == (ENGINE, [])
    assert stock(intent, starts={}) == (None, [])


def test_the_door_is_no_orphan():
    """It holds requests although no engine runs; the next agent adopts it, or stops it if no service needs it."""
    door = Proc(44, proxy_cookie(door_cookie(SETTINGS.state_dir)))
    other = Proc(45, proxy_cookie(door_cookie(Path("/another"))))
    assert stock(ENGINE, door, other, starts={}) == (None, [45])


def test_a_leader_that_hides_its_environment_is_found_by_its_session():
    """MacOS hides that of `/bin/sh`: a wrapper that was never recorded is adopted, and not ended as an orphan."""
    intent = attrs.evolve(ENGINE, pid=0, started="")
    family = (Proc(43, "cookie"), Proc(42, ""))
    assert stock(intent, *family, starts={42: "boot:1"}, leader=42) == (ENGINE, [])
    assert stock(ENGINE, *family, starts={42: "boot:1"}, leader=42) == (ENGINE, [])
    assert stock(ENGINE, *family, starts={}, leader=42) == (None, [43, 42])


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"namespace": "ns"}, True),
        ({"namespace": "other"}, False),
        ({"accelerators": frozenset({"cpu"})}, False),
    ],
)
def test_a_service_that_the_settings_exclude_stays_while_its_engine_runs(changes, kept):
    """A changed namespace or accelerator removes a service from this host; its engine is still ended in order."""
    settings = attrs.evolve(SETTINGS, **changes)
    assert is_in_scope(entry(), settings) is kept
    assert (CHAT in match_processes({CHAT: entry(ENGINE)}, settings, [], lambda _: "")[0]) is kept
    assert CHAT in match_processes({CHAT: entry(ENGINE)}, settings, [], lambda _: ENGINE.started)[0]


@contextmanager
def sleeping(folder):
    """A program that sleeps in a folder, as an engine of the service that the folder is named after."""
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_exited_process_is_forgotten(tmp_path):
    """A recorded process is stuck while it runs with its start time, not as a zombie or another process of its pid."""
    stuck = StuckEngines(tmp_path / STUCK_FOLDER)
    with sleeping(tmp_path / "work" / "default" / "chat") as process:
        engine = stuck_engine_of(psutil.Process(process.pid))
        assert engine == StuckEngine(process.pid, processes.start_of(process.pid), "default/chat")
        stuck.record(engine)
        assert stuck.of("default/chat") == engine
        assert stuck.of("default/other") is None
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert stuck.of("default/chat") is None
    assert list((tmp_path / STUCK_FOLDER).iterdir()) == []
    stuck.record(StuckEngine(os.getpid(), "another boot", "default/chat"))
    assert stuck.of("default/chat") is None


def test_an_invalid_record_is_ignored(tmp_path):
    """An invalid record does not block a service."""
    (tmp_path / "1.json").write_text(json.dumps({"pid": 1}))
    (tmp_path / "2.json").write_text("{")
    assert StuckEngines(tmp_path).of("default/chat") is None


def test_a_record_that_cannot_be_removed_blocks_no_service(tmp_path, monkeypatch):
    """On a read-only disk, the record of a process that has exited is ignored."""

    def unlink(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    stuck = StuckEngines(tmp_path)
    stuck.record(StuckEngine(os.getpid(), "another boot", "default/chat"))
    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    assert stuck.of("default/chat") is None
