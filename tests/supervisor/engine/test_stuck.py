import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil

from llmkube.supervisor.engine.stuck import STUCK_FOLDER, StuckEngine, StuckEngines, stuck_engine_of
from llmkube.supervisor.host import processes


@contextmanager
def sleeping(folder):
    """A program that sleeps in a folder, as an engine of the service that the folder is named after."""
    folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def test_what_is_gone_is_forgotten(tmp_path):
    """A noted process counts while it runs under its start; as a zombie, or as a later one of its pid, it does not."""
    stuck = StuckEngines(tmp_path / STUCK_FOLDER)
    with sleeping(tmp_path / "work" / "default" / "chat") as process:
        engine = stuck_engine_of(psutil.Process(process.pid))
        assert engine == StuckEngine(process.pid, processes.start_of(process.pid), "default/chat")
        stuck.note(engine)
        assert stuck.of("default/chat") == engine
        assert stuck.of("default/other") is None
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert stuck.of("default/chat") is None
    assert list((tmp_path / STUCK_FOLDER).iterdir()) == []
    stuck.note(StuckEngine(os.getpid(), "another boot", "default/chat"))
    assert stuck.of("default/chat") is None


def test_a_broken_note_is_passed_over(tmp_path):
    """A file that is no note keeps no service from its engine."""
    (tmp_path / "1.json").write_text(json.dumps({"pid": 1}))
    (tmp_path / "2.json").write_text("{")
    assert StuckEngines(tmp_path).of("default/chat") is None


def test_a_note_that_cannot_be_removed_keeps_nobody_waiting(tmp_path, monkeypatch):
    """On a disk that is read-only by now, the note on a process that is gone counts as forgotten."""

    def unlink(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    stuck = StuckEngines(tmp_path)
    stuck.note(StuckEngine(os.getpid(), "another boot", "default/chat"))
    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    assert stuck.of("default/chat") is None
