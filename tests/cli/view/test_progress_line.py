import io
import sys

import pytest
import structlog
from rich.console import Console
from rich.text import Text

from llmkube.base.log import configure_logging
from llmkube.cli.view.progress_line import LiveDisplay, PlainDisplay, open_console, open_display


def show(console):
    with open_display(console) as display:
        display.show_step("load", "the engine \x1b[2J is loading")
        display.show_step("load", "the engine \x1b[2J is loading")
        display.show_step("load", "")
        display.done("load", "llama", 1.234)
        kind = type(display)
    return kind, console.file.getvalue()


def test_a_pipe_gets_plain_lines():
    """Each change prints one line once, without control characters."""
    kind, text = show(Console(file=io.StringIO()))
    assert kind is PlainDisplay
    assert text == "load    the engine �[2J is loading\nload    done in 1.23 s (llama)\n"


def test_long_lines_are_not_broken_in_a_pipe():
    """A script reads one line per event, however long."""
    console = Console(file=io.StringIO(), width=20)
    with open_display(console) as display:
        display.show_step("load", "word " * 30)
    assert len(console.file.getvalue().splitlines()) == 1


def test_a_terminal_gets_a_moving_line():
    """Completed steps stay, and the text of the current step cannot control the terminal."""
    kind, text = show(Console(file=io.StringIO(), force_terminal=True, width=80))
    assert kind is LiveDisplay
    assert "✔" in text
    assert "1.23 s" in text
    assert "\x1b[2J" not in text


def test_a_dumb_terminal_gets_plain_lines():
    """A terminal that cannot move its cursor is treated as a pipe."""
    kind, _ = show(Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"}))
    assert kind is PlainDisplay


def test_log_lines_appear_above_the_moving_line(monkeypatch):
    """A log line during the display is printed through it, in one piece."""
    raw = io.StringIO()
    monkeypatch.setattr(sys, "stderr", raw)
    configure_logging("info", style="console")
    with open_display(Console(stderr=True, force_terminal=True, width=80)) as display:
        display.show_step("load", "loading")
        assert sys.stderr is not raw
        structlog.get_logger().info("engine exited", name="chat")
    assert "engine exited  name=chat\n" in raw.getvalue()
    structlog.reset_defaults()


@pytest.mark.parametrize(("no_color", "styled"), [("", True), ("1", False)])
def test_no_color_leaves_out_every_style(monkeypatch, no_color, styled):
    """NO_COLOR also turns off bold and dim."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = io.StringIO()
    open_console(file=drawn, force_terminal=True).print(Text("word", style="bold"), end="")
    assert ("\x1b[" in drawn.getvalue()) is styled
    assert "word" in drawn.getvalue()
