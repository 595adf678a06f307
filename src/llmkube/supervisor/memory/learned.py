"""Memory that models really used on this host, so that the next start reserves that much instead of a guess.

There is one figure for each combination that affects it: weights, demands of the command line (context, slots, cache
types …) and build of the engine. They are stored in `learned.json` in the state directory, together with what it costs
to load each service. An unreadable file is ignored, and a failed write loses only what was learned.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import write_private
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.swap import Cost

log = structlog.get_logger(__name__)

FORMAT: Final = 1
MAX_FIGURES: Final = 500
"""With more models than this on one host, the oldest figures and costs are dropped and learned again."""

COSTS_SECONDS: Final = 60.0
"""Time between two writes of costs that have changed."""


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
    demand: object = attrs.evolve(plan, keys_digest="", restarted_at="").digest
    if plan.demand is not None:  # without defaults, so that a field of a later version changes no key
        demand = attrs.asdict(plan.demand, filter=lambda each, value: value != each.default)
    facts = json.dumps([plan.weights_identity, demand, engine_version], separators=(",", ":"))
    return hashlib.sha256(facts.encode()).hexdigest()


@attrs.define(eq=False)
class LearnedFigures:
    """The figures of one host.

    Attributes:
        path: The file; None to store them in memory only.
        limiter: For the threads that write it.
        costs: Cost of loading each service, at times of the monotonic clock.
    """

    path: Path | None = None
    limiter: trio.CapacityLimiter | None = None
    costs: dict[Key, Cost] = attrs.field(factory=dict)
    _figures: dict[str, Figure] = attrs.field(factory=dict)
    _changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))

    def read(self, now: float = 0.0) -> None:
        """Read the figures and costs of an earlier agent; blocks."""
        if self.path is None:
            return
        try:
            data = json.loads(self.path.read_text("utf-8"))
            figures, costs = load(data), load_costs(data, now)
            self._figures, self.costs = figures, costs
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
        """Write changes, forever: figures at once, costs after a while."""
        written, costs = 0, dict(self.costs)
        while True:
            version = self._changed.version
            if self.path is not None and (version, costs) != (written, self.costs):
                written, costs = version, dict(self.costs)
                text = json.dumps(dump(self._figures, costs, trio.current_time()), separators=(",", ":"))
                await trio.to_thread.run_sync(_replace, self.path, text, limiter=self.limiter)
            with trio.move_on_after(COSTS_SECONDS):
                await self._changed.wait_newer(version)


def dump(figures: Mapping[str, Figure], costs: Mapping[Key, Cost], now: float) -> dict[str, Any]:
    """Return figures and costs as JSON, the times of costs as ages: another agent has another clock."""
    newest = sorted(costs.items(), key=lambda item: item[1].at)[-MAX_FIGURES:]
    rows = {str(key): attrs.astuple(attrs.evolve(each, at=now - each.at)) for key, each in newest}
    figure_rows = {key: attrs.asdict(figure) for key, figure in figures.items()}
    return {"format": FORMAT, "figures": figure_rows, "costs": rows}


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


def load_costs(data: Mapping[str, Any], now: float) -> dict[Key, Cost]:
    """Read the costs that `dump` wrote; none if an earlier release wrote the file.

    Raises:
        ValueError: They are malformed.
    """
    try:
        rows = {Key.parse(key): Cost(*map(float, row)) for key, row in data.get("costs", {}).items()}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"malformed costs: {error!r}") from error
    if not all(0 <= one < math.inf for each in rows.values() for one in attrs.astuple(each)):
        raise ValueError("costs expected")
    return {key: attrs.evolve(each, at=now - each.at) for key, each in rows.items()}


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
