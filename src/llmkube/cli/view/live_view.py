"""Display of changing state: redrawn in place on a terminal, appended lines elsewhere.

Both are fed by watches that survive a restart of the API server; until it answers, the last known state is shown.
"""

import contextlib
import os
import re
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Never, TypeVar

import attrs
import click
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.cli.view import output

if TYPE_CHECKING:  # importing rich and structlog takes longer than printing a list
    from rich.text import Text

TICK_SECONDS: Final = 1.0
"""Interval at which a terminal is redrawn to update ages, even if no object has changed."""

OUTAGE_SECONDS: Final = 15.0
"""Time within which an outage is reported once, although several watches notice it."""

SETTLE_SECONDS: Final = 0.05
"""Delay after a change: two watches deliver changes of the same moment one after the other, to be shown together."""


def summarize_outages() -> None:
    """Make the watches of this process log one plain sentence per outage instead of a line per attempt."""
    import structlog  # noqa: PLC0415 - see above

    from llmkube.base.log import configure_logging  # noqa: PLC0415 - see above

    configure_logging("warning", style="console")
    structlog.configure(processors=[_OutageFilter()])


def is_terminal() -> bool:
    """Whether standard output is a terminal on which text can be redrawn."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console  # noqa: PLC0415 - see above

    return not Console().is_dumb_terminal


async def show_in_place(changed: Mailbox[None], text: Callable[[], Awaitable[str]]) -> Never:
    """Redraw a text on the terminal after every change until cancelled, cropped to the screen."""
    from rich.live import Live  # noqa: PLC0415 - see above

    from llmkube.cli.view.progress_line import open_console  # noqa: PLC0415 - see above

    console = open_console(highlight=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            version = changed.version
            live.update(_cropped(await text()), refresh=True)
            with trio.move_on_after(TICK_SECONDS):
                await changed.wait_newer(version)
            await trio.sleep(SETTLE_SECONDS)


_KEY: Final = re.compile(r"\x1b[\[O]?([A-Z])?|(.)", re.DOTALL)
"""A key as a terminal sends it: an arrow is ESC and `[A` to `[D`, or `OA` to `OD` (ECMA-48, xterm)."""

UP: Final = "A"
DOWN: Final = "B"


async def show_screen(
    take: Callable[[], Awaitable[None]], seconds: float, text: Callable[[], str], press: Callable[[str], bool]
) -> int:
    """Show a text on the terminal's alternate screen until a key ends it; the terminal is restored however it ends.

    Args:
        take: Reads what `text` shows; called every `seconds`.
        seconds: The interval.
        text: Returns the text; drawn after `take` and after each key.
        press: Handles a key, `UP` and `DOWN` for arrows; returns whether it ends the display.

    Returns:
        The signal that ended it, which the caller raises again; 0 for a key.
    """
    from rich.live import Live  # noqa: PLC0415 - see above

    from llmkube.cli.view.progress_line import open_console  # noqa: PLC0415 - see above

    ended_by, console = 0, open_console(highlight=False, soft_wrap=True)
    with (
        trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals,
        _unechoed_keys(),
        Live(console=console, auto_refresh=False, screen=True) as live,
    ):
        async with trio.open_nursery() as nursery:

            def draw() -> None:
                live.update(_cropped(text()), refresh=True)

            async def read_keys() -> None:
                while True:
                    await trio.lowlevel.wait_readable(sys.stdin.fileno())
                    typed = os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")
                    if not typed or any(press(arrow or key) for arrow, key in _KEY.findall(typed)):
                        nursery.cancel_scope.cancel(reason="a key ends the display")
                    draw()

            async def end_on_signal() -> None:
                nonlocal ended_by
                ended_by = await anext(signals)
                nursery.cancel_scope.cancel(reason="signal")

            nursery.start_soon(read_keys)
            nursery.start_soon(end_on_signal)
            while True:
                draw()
                await trio.sleep(seconds)
                await take()
    return ended_by


@contextlib.contextmanager
def _unechoed_keys() -> Iterator[None]:
    """Deliver each key at once, without echo. Ctrl-Z is off: it would leave the screen as it is."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        settings = termios.tcgetattr(terminal)
        settings[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


async def append_lines(changed: Mailbox[None], updates: Callable[[], Awaitable[Sequence[str]]]) -> Never:
    """Print the new lines after every change until cancelled."""
    while True:
        version = changed.version
        for line in await updates():
            click.echo(line)
        await changed.wait_newer(version)
        await trio.sleep(SETTLE_SECONDS)


@attrs.define(eq=False)
class _OutageFilter:
    """A structlog processor that reports an outage at the second failure in a row; servers end watches routinely."""

    _last: float = float("-inf")

    def __call__(self, _logger: Any, _method: str, event: Any) -> str:
        now = time.monotonic()  # logging may run outside Trio
        if event.get("event") != "watch interrupted" or event.get("failures") != 2 or now - self._last < OUTAGE_SECONDS:
            from structlog import DropEvent  # noqa: PLC0415 - see above

            raise DropEvent
        self._last = now
        return "The API server does not answer; showing the last known state. Retrying until it answers."


K = TypeVar("K")
V = TypeVar("V")


@attrs.define(eq=False)
class Changes(Generic[K, V]):
    """Tracks changes of named values between calls."""

    _last: Mapping[K, V] = attrs.field(factory=dict)

    def since(self, now: Mapping[K, V]) -> tuple[dict[K, V], list[K]]:
        """Return the values added or changed since the last call, and the names removed."""
        last, self._last = self._last, now
        changed = {name: value for name, value in now.items() if name not in last or last[name] != value}
        return changed, [name for name in last if name not in now]


@attrs.define(eq=False)
class RowLog:
    """Turns a changing table into lines: each row when it is added, changed or deleted.

    Attributes:
        columns: The headings.
        ignored: Columns whose changes are not shown.
    """

    columns: Sequence[str]
    ignored: frozenset[str] = frozenset({"AGE"})
    _rows: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    _widths: list[int] = attrs.field(factory=list)
    _has_heading: bool = False

    def updates(self, rows: Mapping[str, Sequence[str]]) -> list[str]:
        """Return lines for all changes since the last call; the first call returns the whole table."""
        shown = {key: output.shown_cells(row) for key, row in rows.items()}
        fresh = [cells for key, cells in shown.items() if self._content(cells) != self._content(self._rows.get(key))]
        gone = [self._deleted_row(self._rows[key]) for key in self._rows if key not in shown]
        self._rows = shown
        changed_rows = [*fresh, *gone]
        if not changed_rows:
            return []
        heading = [] if self._has_heading else [tuple(self.columns)]
        self._has_heading = True
        widths = output.widths_of([*heading, *changed_rows])
        self._widths = [max(pair) for pair in zip(widths, self._widths or widths, strict=True)]
        return [output.aligned(cells, self._widths) for cells in [*heading, *changed_rows]]

    def heading(self) -> str:
        """Return the headings, aligned with the rows so far."""
        return output.aligned(tuple(self.columns), self._widths)

    def _content(self, cells: Sequence[str] | None) -> tuple[str, ...] | None:
        if cells is None:
            return None
        return tuple(cell for name, cell in zip(self.columns, cells, strict=True) if name not in self.ignored)

    def _deleted_row(self, cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("Deleted" if name == "PHASE" else cell for name, cell in zip(self.columns, cells, strict=True))


def _cropped(text: str) -> "Text":
    """Return the text cropped to the terminal: a wrapped line could not be redrawn."""
    from rich.text import Text  # noqa: PLC0415 - see above

    size = shutil.get_terminal_size()
    lines = text.splitlines()
    if len(lines) > size.lines - 1:
        hidden = len(lines) - (size.lines - 2)
        lines = [*lines[: size.lines - 2], f"… {hidden} more lines; a larger window shows them"]
    cut = [line if len(line) <= size.columns else line[: size.columns - 1] + "…" for line in lines]
    return Text("\n".join(cut), no_wrap=True)
