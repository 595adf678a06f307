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


def test_a_pipe_gets_no_countdown():
    """A line whose numbers alone change is printed once; a download is printed at each ten percent."""
    console = Console(file=io.StringIO(), width=100)
    with open_display(console) as display:
        for seconds in range(30, 0, -1):
            display.show_step("load", f"the engine crashed, next retry in {seconds} s")
        for percent in range(31):
            display.show_step("fetch", f"fetching: {percent / 8:.1f} MiB of 12 MiB ({percent} %), 1.5 MiB/s")
    lines = [line[:25] for line in console.file.getvalue().splitlines()]
    sizes = [f"fetch   fetching: {size} MiB" for size in (0.0, 1.2, 2.5, 3.8)]
    assert lines == ["load    the engine crashe", *sizes]


@pytest.mark.parametrize(
    ("detail", "shown"),
    [("fetching: 512.0 MiB of 1.0 GiB (50 %), 80.1 MiB/s, 7 s left", "━"), ("loads " * 20, "fetch   loads")],
)
def test_the_moving_line_is_one_line(detail, shown):
    """It is cut to a terminal of 40 columns, with a bar for a download: what wraps would stay after the next frame."""
    console = Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None)
    with open_display(console) as display:
        display.show_step("fetch", detail)
        display.live.refresh()
        text = console.file.getvalue()
    frame = text.replace("\x1b[?25l", "").split("\r")[-1]
    assert "\n" not in frame
    assert "…" in frame
    assert shown in frame
