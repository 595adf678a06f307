"""A lower bound of the swap cost for a policy that knows the future.

It holds for every policy that starts each request that ours answered no later than ours did; it may start them earlier
or in any other order, and it may load models while others run. The relaxation: time is cut into windows. The requests
that both arrive and start within a window have their models in memory at some time in it, so each of these models is
loaded in it or was there at its start, when at most the host's memory was full of them. What was there is chosen as
would be best for the window: a knapsack, fractional, for each device alone. The bound is the sum over the windows of
what is not in the knapsack, for the best choice of windows; the first one begins with an empty host.
"""

from typing import Final

from swap.host import Result
from swap.workloads import Workload

WINDOWS: Final = 60
"""Ends of windows that are tried, at even distances."""


def lower_bound(workload: Workload, result: Result) -> float:
    """Return a bound for `Result.load_seconds`."""
    answered = [each for each in result.requests if each.started_at is not None]
    end = max((each.started_at for each in answered), default=0.0) + 1.0
    cuts = [end * number / WINDOWS for number in range(WINDOWS + 1)]
    models = {each.name: each for each in workload.models}
    spans = sorted((each.at, each.started_at, each.key.name) for each in answered)
    best = [0.0] * (WINDOWS + 1)
    for first in range(WINDOWS):
        latest = sorted((start, name) for at, start, name in spans if at > cuts[first] or not first)
        needed, position = set(), 0
        for last in range(first + 1, WINDOWS + 1):
            while position < len(latest) and latest[position][0] <= cuts[last]:
                needed.add(latest[position][1])
                position += 1
            cost = sum(models[name].load_seconds for name in needed)
            if first:
                cost -= min(_kept(workload, device, size, needed) for device, size in workload.limits.items())
            best[last] = max(best[last], best[first] + cost)
    return best[-1]


def _kept(workload: Workload, device: str, free: float, needed: set[str]) -> float:
    """Return the most load time that models in this memory save."""
    rows = [(each.bytes.get(device, 0), each.load_seconds) for each in workload.models if each.name in needed]
    kept = 0.0
    for size, seconds in sorted(rows, key=lambda row: row[0] / row[1]):
        part = min(1.0, free / size) if size else 1.0
        kept += seconds * part
        free -= size * part
    return kept
