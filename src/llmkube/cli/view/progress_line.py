"""Display of progress on standard error: one moving line on a terminal, plain lines elsewhere."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from llmkube.base.units import format_duration
from llmkube.cli.view.output import printable

_FRAME_SECONDS = 0.1
_NAME_WIDTH = 8
_BAR_WIDTH = 20
_COUNT = re.compile(r"\d[\d.]*")
_PERCENT = re.compile(r"\((\d+) %\)")  # as in `weights.download.progress`


@attrs.define(eq=False)
class PlainDisplay:
    """Prints a line when a step ends or its detail changes: more than in its numbers, or by ten percent."""

    console: Console
    _last: tuple[object, ...] = ()

    def show_step(self, step: str, detail: str) -> None:
        """Print the detail, unless it was printed last with other numbers."""
        percent = _PERCENT.search(detail)
        content = (step, _COUNT.sub("", detail), int(percent[1]) // 10 if percent else 0)
        if detail and content != self._last:
            self._last = content
            self._print(f"{step:<{_NAME_WIDTH}}{detail}")

    def done(self, step: str, detail: str, seconds: float) -> None:
        """Print the step and its duration."""
        self._print(f"{step:<{_NAME_WIDTH}}done in {format_duration(seconds)}" + (f" ({detail})" if detail else ""))

    async def run(self) -> None:
        """Do nothing: plain lines are not animated."""
        await trio.sleep_forever()

    def _print(self, line: str) -> None:
        self.console.print(Text(printable(line)), soft_wrap=True)


@attrs.define(eq=False)
class LiveDisplay:
    """Shows a spinner next to the current step, and finished steps above it."""

    console: Console
    live: Live
    _spinner: Spinner = attrs.field(factory=lambda: Spinner("dots"))

    def show_step(self, step: str, detail: str) -> None:
        """Show the step next to the spinner."""
        text = Text(f"{step:<{_NAME_WIDTH}}", style="bold")
        self._spinner.update(text=text.append(printable(detail), style="dim"))
        line = Table.grid(padding=(0, 1))
        bars = [ProgressBar(completed=float(found[1]), width=_BAR_WIDTH) for found in _PERCENT.finditer(detail)]
        for _ in (*bars, self._spinner):  # always one line: a moving line that wraps would leave its tail behind
            line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(*bars, self._spinner)
        self.live.update(line)

    def done(self, step: str, detail: str, seconds: float) -> None:
        """Print the step and its duration above the spinner."""
        line = Text("✔ ").append(f"{step:<{_NAME_WIDTH}}", style="bold")
        line.stylize("green", 0, 1)
        line.append(f"{format_duration(seconds):<10}").append(printable(detail), style="dim")
        self.console.print(line)

    async def run(self) -> None:
        """Animate the spinner until cancelled."""
        while True:
            self.live.refresh()
            await trio.sleep(_FRAME_SECONDS)


Display = PlainDisplay | LiveDisplay
"""Shows the steps of a wait."""


@contextlib.contextmanager
def open_display(console: Console) -> Iterator[Display]:
    """Open the display that suits the console; a moving line is removed when the block ends."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainDisplay(console)
        return
    # Refreshed by a task, not by rich's thread; log lines written to sys.stderr meanwhile appear above.
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
        yield LiveDisplay(console, live)


def open_console(**options: Any) -> Console:
    """Return a rich console with these options; without color if NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    return Console(**options)
