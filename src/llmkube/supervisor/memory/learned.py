"""Memory that models really used on this host, so that the next start reserves that much instead of a guess.

There is one figure for each combination that affects it: weights, demands of the command line (context, slots, cache
types …) and build of the engine. They are stored in `learned.json` in the state directory. An unreadable file is
ignored, and a failed write loses only what was learned.
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
"""With more models than this on one host, the oldest figures are dropped and learned again."""


@attrs.frozen
class Figure:
    """Memory of one model with one set of demands, in bytes; 0 if unknown.

    Attributes:
        measured_bytes: The most that its processes have held.
        reported_bytes: The sum of the buffers that the engine reported.
        device_bytes: The part of them on the device.
        estimated_bytes: The estimate.
    """

    measured_bytes: int = 0
    reported_bytes: int = 0
    device_bytes: int = 0
    estimated_bytes: int = 0

    def merged(self, other: "Figure") -> "Figure":
        """Return the larger of each figure, but the newer estimate."""
        return Figure(
            measured_bytes=max(self.measured_bytes, other.measured_bytes),
            reported_bytes=max(self.reported_bytes, other.reported_bytes),
            device_bytes=max(self.device_bytes, other.device_bytes),
            estimated_bytes=other.estimated_bytes or self.estimated_bytes,
        )


def figure_key(plan: LaunchPlan, engine_version: str) -> str:
    """Return the key of a figure: services with the same weights and demands share it."""
    demand = attrs.asdict(plan.demand) if plan.demand is not None else plan.digest
    facts = json.dumps([plan.weights_identity, demand, engine_version], separators=(",", ":"))
    return hashlib.sha256(facts.encode()).hexdigest()


@attrs.define(eq=False)
class LearnedFigures:
    """The figures of one host.

    Attributes:
        path: The file; None to store them in memory only.
        limiter: For the threads that write it.
    """

    path: Path | None = None
    limiter: trio.CapacityLimiter | None = None
    _figures: dict[str, Figure] = attrs.field(factory=dict)
    _changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))

    def read(self) -> None:
        """Read the figures of an earlier agent; blocks."""
        if self.path is None:
            return
        try:
            self._figures = load(json.loads(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("learned figures not read", path=str(self.path), error=str(error))

    def get(self, key: str) -> Figure | None:
        """Return the figure for a key; None if there is none."""
        return self._figures.get(key)

    def record(self, key: str, figure: Figure) -> None:
        """Merge a figure with the known one; smaller figures change nothing."""
        before = self._figures.pop(key, None)
        after = figure if before is None else before.merged(figure)
        self._figures[key] = after  # at the end: the first ones are dropped first
        while len(self._figures) > MAX_FIGURES:
            del self._figures[next(iter(self._figures))]
        if after != before:
            self._changed.put_nowait(None)

    async def run(self) -> None:
        """Write changes, forever."""
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
        ValueError: It has another format, or is incomplete.
    """
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return {str(key): _figure(one) for key, one in data["figures"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"malformed figures: {error!r}") from error


def _figure(data: Mapping[str, Any]) -> Figure:
    figure = Figure(**data)
    if not all(isinstance(size, int) and size >= 0 for size in attrs.astuple(figure)):
        raise ValueError(f"sizes expected: {data}")
    return figure


def _replace(path: Path, text: str) -> None:
    try:
        write_private(path, text, durable=False)
    except OSError as error:
        log.warning("learned figures not written", path=str(path), error=str(error))
