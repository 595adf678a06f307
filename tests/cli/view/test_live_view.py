import io
import sys

import pytest
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.cli.view import live_view
from llmkube.cli.view.live_view import RowLog, append_lines, summarize_outages


def test_rows_keep_their_columns():
    """A wider row widens the columns of all later rows."""
    log = RowLog(("NAME", "PHASE", "AGE"))
    assert log.updates({"a": ("a", "New", "1s")}) == ["NAME  PHASE  AGE", "a     New    1s"]
    assert log.updates({"a": ("a", "New", "9s")}) == []
    assert log.updates({"a": ("a", "Progressing", "9s")}) == ["a     Progressing  9s"]
    assert log.updates({"b": ("b", "", "")}) == ["b     <none>       <none>", "a     Deleted      9s"]
    assert log.heading() == "NAME  PHASE        AGE"


@pytest.mark.parametrize(("rows", "shown"), [(3, 3), (40, 9)])
def test_a_screen_is_never_overfull(monkeypatch, rows, shown):
    """Text redrawn in place is cut to the terminal, with the number of hidden lines."""
    size = live_view.shutil.os.terminal_size((20, 10))
    monkeypatch.setattr(live_view.shutil, "get_terminal_size", lambda *_, **__: size)
    text = live_view._cropped("\n".join(["x" * 30] * rows)).plain.splitlines()
    assert len(text) == shown
    assert max(map(len, text[:-1])) == 20
    assert ("more lines" in text[-1]) == (rows > 10)


async def test_lines_are_appended_after_each_change(autojump_clock, capsys):
    """Nothing is printed twice, and a change during printing is not lost."""
    changed = Mailbox(None)
    versions = []

    async def updates():  # noqa: ASYNC124 - stub for a request
        versions.append(changed.version)
        return [f"at {changed.version}"]

    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_lines, changed, updates)
            await trio.sleep(0.2)
            changed.put_nowait(None)
            changed.put_nowait(None)
    assert capsys.readouterr().out == "at 0\nat 2\n"


def test_an_outage_is_one_sentence(monkeypatch):
    """All log lines of two watches about an outage become one sentence; a watch that only ends is silent."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    try:
        summarize_outages()
        log = structlog.get_logger()
        for kind in ("Model", "InferenceService"):
            log.warning("watch interrupted", kind=kind, failures=1)
        assert stderr.getvalue() == ""
        for failures in (2, 3, 4):
            for kind in ("Model", "InferenceService"):
                log.warning("watch interrupted", kind=kind, failures=failures)
        assert stderr.getvalue().startswith("The API server does not answer;")
        assert stderr.getvalue().count("\n") == 1
    finally:
        structlog.reset_defaults()
