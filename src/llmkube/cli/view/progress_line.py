"""Progress is one moving line on a terminal and plain lines everywhere else; both go to standard error."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from llmkube.base.units import format_duration
from llmkube.cli.view.output import printable

_FRAME_SECONDS = 0.1
_NAME_WIDTH = 8


@attrs.define(eq=False)
class PlainDisplay:
    """One line per step that ends, and one whenever what goes on changes."""

    console: Console
    _last: tuple[str, str] = ("", "")

    def show_step(self, step: str, detail: str) -> None:
        """Print the detail, unless it was the last thing said."""
        if detail and (step, detail) != self._last:
            self._last = (step, detail)
            self._print(f"{step:<{_NAME_WIDTH}}{detail}")

    def done(self, step: str, detail: str, seconds: float) -> None:
        """Print the step and its time."""
        self._print(f"{step:<{_NAME_WIDTH}}done in {format_duration(seconds)}" + (f" ({detail})" if detail else ""))

    async def run(self) -> None:
        """Do nothing: plain lines do not move."""
        await trio.sleep_forever()

    def _print(self, line: str) -> None:
        self.console.print(Text(printable(line)), soft_wrap=True)


@attrs.define(eq=False)
class LiveDisplay:
    """A spinner beside the step that goes on; ended steps stay above it."""

    console: Console
    live: Live
    _spinner: Spinner = attrs.field(factory=lambda: Spinner("dots"))

    def show_step(self, step: str, detail: str) -> None:
        """Put the step beside the spinner."""
        # One line whatever the terminal's width: a moving line that wraps leaves its tail behind.
        text = Text(no_wrap=True, overflow="ellipsis").append(f"{step:<{_NAME_WIDTH}}", style="bold")
        self._spinner.update(text=text.append(printable(detail), style="dim"))
        self.live.update(self._spinner)

    def done(self, step: str, detail: str, seconds: float) -> None:
        """Leave a line with the step and its time above the spinner."""
        line = Text("✔ ").append(f"{step:<{_NAME_WIDTH}}", style="bold")
        line.stylize("green", 0, 1)
        line.append(f"{format_duration(seconds):<10}").append(printable(detail), style="dim")
        self.console.print(line)

    async def run(self) -> None:
        """Turn the spinner."""
        while True:
            self.live.refresh()
            await trio.sleep(_FRAME_SECONDS)


Display = PlainDisplay | LiveDisplay
"""Where the steps of a wait are shown."""


@contextlib.contextmanager
def open_display(console: Console) -> Iterator[Display]:
    """Show progress in the way that suits the console; a moving line is gone when the block ends."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainDisplay(console)
        return
    # Refreshed by a task and not by rich's thread; log lines that go to sys.stderr meanwhile appear above.
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
        yield LiveDisplay(console, live)


def open_console(**options: Any) -> Console:
    """Return a console with these options of rich's."""
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    return Console(**options)
