"""One workload under each policy, and a table of many; `python -m tests.swap --seeds 1000` prints it."""

import statistics
from collections.abc import Sequence

import attrs

from swap.host import Host, Result
from swap.lower_bound import lower_bound
from swap.ours import Ours
from swap.references import REFERENCES
from swap.workloads import Workload, generate


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
        return self.ours.load_seconds / min(each.load_seconds for each in self.references)


def table(runs: Sequence[Played]) -> str:
    """Return the means of each policy, and the distances to the best reference and to the lower bound."""
    rows = ["policy  load seconds   loads  s/answered  mean wait    p95  refused"]
    for number, name in enumerate(["ours", *(each.__name__ for each in REFERENCES)]):
        results = [(each.ours, *each.references)[number] for each in runs]
        waits = sorted(wait for each in results for wait in each.waits)
        cost = sum(each.load_seconds for each in results)
        refused = sum(len(each.refused) for each in results) / sum(len(each.requests) for each in results)
        loads = statistics.mean(each.loads for each in results)
        rows.append(
            f"{name.lower():6} {cost / len(runs):13.1f} {loads:7.1f} {cost / len(waits):11.3f} "
            f"{statistics.mean(waits):10.1f} {waits[len(waits) * 95 // 100]:6.1f} {refused:8.2%}"
        )
    ratios = sorted(each.ratio for each in runs)
    p99 = ratios[len(ratios) * 99 // 100]
    rows.append(
        f"ours / best of each workload: mean {statistics.mean(ratios):.3f}, p99 {p99:.3f}, max {ratios[-1]:.3f}"
    )
    above = sorted(each.ours.load_seconds / each.bound for each in runs)
    rows.append(
        f"ours / clairvoyant lower bound: mean {statistics.mean(above):.2f}, median {statistics.median(above):.2f}"
    )
    return "\n".join(rows)
