"""Display of progress on standard error: one moving line on a terminal, plain lines elsewhere."""

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
    """Prints a line when a step ends or its detail changes."""

    console: Console
    _last: tuple[str, str] = ("", "")

    def show_step(self, step: str, detail: str) -> None:
        """Print the detail, unless it was printed last."""
        if detail and (step, detail) != self._last:
            self._last = (step, detail)
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
        # Always one line: a moving line that wraps would leave its tail behind.
        text = Text(no_wrap=True, overflow="ellipsis").append(f"{step:<{_NAME_WIDTH}}", style="bold")
        self._spinner.update(text=text.append(printable(detail), style="dim"))
        self.live.update(self._spinner)

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
