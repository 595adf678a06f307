"""What models really took on this host, so that the next start is promised that much and not a guess.

A figure is kept for everything that changes it: the bytes of the weights, the command line's demands (context, slots,
cache types …) and the build of the engine. One small file, `learned.json` in the state directory; one that cannot be
read is as good as none, and one that cannot be written costs only what was learned.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import write_private
from llmkube.runtimes.plan import LaunchPlan

log = structlog.get_logger(__name__)

FORMAT: Final = 1
MAX_FIGURES: Final = 500
"""Who runs more models than this on one host has to learn the first ones anew."""


@attrs.frozen
class Figure:
    """What one model took with one set of demands, in bytes; 0 for what is not known.

    Attributes:
        measured_bytes: The most that its processes have held.
        reported_bytes: The sum of the buffers that the engine says it has allocated.
        device_bytes: What of them lies on the device.
        estimated_bytes: What had been expected.
    """

    measured_bytes: int = 0
    reported_bytes: int = 0
    device_bytes: int = 0
    estimated_bytes: int = 0

    def merged(self, other: "Figure") -> "Figure":
        """The larger of each, except that the newer estimate counts."""
        return Figure(
            measured_bytes=max(self.measured_bytes, other.measured_bytes),
            reported_bytes=max(self.reported_bytes, other.reported_bytes),
            device_bytes=max(self.device_bytes, other.device_bytes),
            estimated_bytes=other.estimated_bytes or self.estimated_bytes,
        )


def figure_key(plan: LaunchPlan, engine_version: str) -> str:
    """Return what a figure is kept under: two services with the same weights and demands learn from each other."""
    demand = attrs.asdict(plan.demand) if plan.demand is not None else plan.digest
    facts = json.dumps([plan.weights_identity, demand, engine_version], separators=(",", ":"))
    return hashlib.sha256(facts.encode()).hexdigest()


@attrs.define(eq=False)
class LearnedFigures:
    """The figures of one host.

    Attributes:
        path: Where they are kept; None to keep them in memory alone.
        limiter: For the threads that write it.
    """

    path: Path | None = None
    limiter: trio.CapacityLimiter | None = None
    _figures: dict[str, Figure] = attrs.field(factory=dict)
    _changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))

    def read(self) -> None:
        """Take in what an earlier agent has learned; blocks."""
        if self.path is None:
            return
        try:
            self._figures = load(json.loads(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("what was learned about memory cannot be read", path=str(self.path), error=str(error))

    def get(self, key: str) -> Figure | None:
        """Return what is known, if anything is."""
        return self._figures.get(key)

    def record(self, key: str, figure: Figure) -> None:
        """Learn; what is smaller than what is known changes nothing."""
        before = self._figures.pop(key, None)
        after = figure if before is None else before.merged(figure)
        self._figures[key] = after  # at the end: the first ones are forgotten first
        while len(self._figures) > MAX_FIGURES:
            del self._figures[next(iter(self._figures))]
        if after != before:
            self._changed.put_nowait(None)

    async def run(self) -> None:
        """Never return: write what is new."""
        while True:
            version = self._changed.version
            if version and self.path is not None:
                text = json.dumps(dump(self._figures), separators=(",", ":"))
                await trio.to_thread.run_sync(_replace, self.path, text, limiter=self.limiter)
            await self._changed.wait_newer(version)


def dump(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return figures as JSON."""
    return {"format": FORMAT, "figures": {key: attrs.asdict(figure) for key, figure in figures.items()}}


def load(data: Any) -> dict[str, Figure]:
    """Read what `dump` wrote.

    Raises:
        ValueError: It is of another format, or not whole.
    """
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return {str(key): _figure(one) for key, one in data["figures"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not figures of ours: {error!r}") from error


def _figure(data: Mapping[str, Any]) -> Figure:
    figure = Figure(**data)
    if not all(isinstance(size, int) and size >= 0 for size in attrs.astuple(figure)):
        raise ValueError(f"no sizes: {data}")
    return figure


def _replace(path: Path, text: str) -> None:
    try:
        write_private(path, text, durable=False)
    except OSError as error:
        log.warning("what was learned about memory cannot be kept", path=str(path), error=str(error))
