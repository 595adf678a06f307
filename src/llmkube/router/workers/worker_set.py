"""The workers of a router as their parent knows them: which are there, what they say of themselves, and their sums."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from llmkube.router.workers.link import Link, LinkError, Message
from llmkube.router.workers.shared_state import SharedState
from llmkube.router.workers.written import Json, families_to, labelled_families

REPORT_SECONDS: Final = 2.0
"""A worker that says nothing for so long does not count as one that answers."""

LOOK_SECONDS: Final = 0.5
PARENT: Final = "parent"


@attrs.define(eq=False)
class WorkerSet(Collector):
    """The workers, each by its name.

    Attributes:
        state: What they share.
        names: Of all that there should be.
        own: What the parent counts of itself, as a worker does.
        in_flight: Requests under way, by the backend's name.
        reports: What each has said last, until it is gone.
        silent: Those that have not answered when they were asked last.
        started: Set of a worker once it answers requests.
    """

    state: SharedState
    names: Sequence[str]
    own: Collector
    in_flight: Counter[str] = attrs.field(factory=Counter)
    reports: dict[str, Message] = attrs.field(factory=dict)
    silent: set[str] = attrs.field(factory=set)
    started: dict[str, trio.Event] = attrs.field(factory=dict)
    _links: dict[str, Link] = attrs.field(factory=dict)

    async def serve(self, worker: str, link: Link, backends: frozenset[str]) -> None:
        """Serve a worker until it is gone."""
        self._links[worker] = link

        def take(message: Message) -> None:
            if message["k"] == "started":
                self.started[worker].set()

        try:
            await self.state.serve(worker, link, backends, take)
        finally:
            del self._links[worker]
            self.reports.pop(worker, None)
            self.silent.discard(worker)

    async def look(self, *, metrics: bool = False) -> None:
        """Ask all workers how they do, at once; return when all have answered, or have had their time."""
        async with trio.open_nursery() as nursery:
            for worker, link in self._links.items():
                nursery.start_soon(partial(self._ask, worker, link, metrics=metrics))
        self.in_flight.clear()
        for report in self.reports.values():
            self.in_flight.update(report["in_flight"])

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            await trio.sleep(LOOK_SECONDS)

    def ready(self) -> tuple[bool, str]:
        """Return whether some worker can answer requests, and what is amiss with any."""
        answering = {name: report for name, report in self.reports.items() if name not in self.silent}
        return workers_ready(self.names, answering, self.state.budgets.problem)

    def budgets(self) -> Sequence[Mapping[str, Any]]:
        """Return how much of each budget is taken that a server keeps, as far as any worker has seen."""
        return most_used(report["budgets"] for report in self.reports.values())

    def collect(self) -> Iterable[Metric]:
        """Return what the workers count, and the parent itself: each with its name."""
        said = {worker: report["metrics"] for worker, report in sorted(self.reports.items())}
        return labelled_families({PARENT: families_to(self.own.collect()), **said})

    async def _ask(self, worker: str, link: Link, *, metrics: bool) -> None:
        try:
            said = await link.call("report", REPORT_SECONDS, metrics=metrics)
        except LinkError:
            if self._links.get(worker) is link:
                self.silent.add(worker)
            return
        if not metrics and (before := self.reports.get(worker)) is not None:
            said = {**said, "metrics": before["metrics"]}
        if self._links.get(worker) is link:
            self.reports[worker] = said
            self.silent.discard(worker)


def workers_ready(names: Iterable[str], reports: Mapping[str, Message], problem: str = "") -> tuple[bool, str]:
    """Return whether some worker can answer requests, and what is amiss with any; what all say is said once.

    Args:
        names: Of all workers.
        reports: Of those that answer.
        problem: What is amiss in the parent; "" for nothing.
    """
    missing = [f"worker {name} does not answer" for name in names if name not in reports]
    said = dict.fromkeys(report["why"] for report in reports.values())
    is_ready = any(report["ready"] for report in reports.values())
    return is_ready, "; ".join(filter(None, (*missing, problem, *said)))


def most_used(reports: Iterable[Sequence[Json]]) -> list[Json]:
    """Return of each budget what the worker says that has seen most of it taken."""
    found: dict[str, Json] = {}
    for budgets in reports:
        for each in budgets:
            before = found.get(each["name"])
            if before is None or float(each["utilization"]) > float(before["utilization"]):
                found[each["name"]] = each
    return list(found.values())
