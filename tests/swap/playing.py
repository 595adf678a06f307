"""One workload under each policy, and a table of many; `python -m tests.swap --seeds 1000` prints it."""

import statistics
from collections.abc import Sequence
from typing import Final

import attrs

from swap.host import Host, Result
from swap.lower_bound import lower_bound
from swap.ours import Ours
from swap.references import REFERENCES
from swap.workloads import Workload, generate

WORST: Final = 1.2
"""The most that our swap cost may be, as a multiple of the best reference on the same workload."""


@attrs.frozen
class Played:
    """One workload under each policy."""

    workload: Workload
    ours: Result
    references: tuple[Result, ...]
    bound: float

    @classmethod
    def of(cls, seed: int) -> "Played":
        """Play a workload."""
        workload = generate(seed)
        ours = Host(workload, Ours(workload)).play()
        references = tuple(Host(workload, policy(workload)).play() for policy in REFERENCES)
        return cls(workload, ours, references, lower_bound(workload, ours))

    @property
    def ratio(self) -> float:
        """Our swap cost divided by the lowest of a reference."""
        return self.cost(self.ours) / min(map(self.cost, self.references))

    @property
    def raw_ratio(self) -> float:
        """The same without the loads that refused requests still need."""
        return self.ours.load_seconds / min(each.load_seconds for each in self.references)

    def cost(self, result: Result) -> float:
        """Return the load time of a policy, and of the loads that it has left to those whom it refused.

        A policy would be cheapest if it answered nobody. Requests for a model that are refused one after the other,
        each before the next one arrives, would have needed one load.
        """
        seconds = {each.name: each.load_seconds for each in self.workload.models}
        left, until = 0.0, dict.fromkeys(seconds, -1.0)
        for each in sorted(result.refused, key=lambda one: one.at):
            left += seconds[each.key.name] if each.at > until[each.key.name] else 0.0
            until[each.key.name] = each.refused_at
        return result.load_seconds + left


def table(runs: Sequence[Played]) -> str:
    """Return the means of each policy, and the distances to the best reference and to the lower bound."""
    rows = ["policy    swap cost   loading   loads  mean wait    p95  refused"]
    for number, name in enumerate(["ours", *(each.__name__ for each in REFERENCES)]):
        results = [(each.ours, *each.references)[number] for each in runs]
        waits = sorted(wait for each in results for wait in each.waits)
        cost = statistics.mean(each.cost(result) for each, result in zip(runs, results, strict=True))
        loading = statistics.mean(each.load_seconds for each in results)
        refused = sum(len(each.refused) for each in results) / sum(len(each.requests) for each in results)
        loads = statistics.mean(each.loads for each in results)
        rows.append(
            f"{name.lower():6} {cost:12.1f} {loading:9.1f} {loads:7.1f} {statistics.mean(waits):10.1f} "
            f"{waits[len(waits) * 95 // 100]:6.1f} {refused:8.2%}"
        )
    for what, ratios in (
        ("swap cost", [each.ratio for each in runs]),
        ("loading", [each.raw_ratio for each in runs]),
    ):
        ordered = sorted(ratios)
        mean, p99 = statistics.mean(ordered), ordered[len(ordered) * 99 // 100]
        above = sum(each > WORST for each in ordered)
        rows.append(
            f"{what}, ours / best: mean {mean:.3f}, p99 {p99:.3f}, max {ordered[-1]:.3f}, {above} above {WORST}"
        )
    above = sorted(each.ours.load_seconds / each.bound for each in runs)
    mean, median = statistics.mean(above), statistics.median(above)
    rows.append(f"loading, ours / clairvoyant lower bound: mean {mean:.2f}, median {median:.2f}")
    return "\n".join(rows)
