"""The policy of `runtimes/swap.py` with the costs that a host learns."""

from collections.abc import Sequence

import attrs

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import UNKNOWN, Bytes, Cost, Outcome, Resident, Waiting, cheapest_set, step
from swap.workloads import Workload


@attrs.define(eq=False)
class Ours:
    """Starts without any knowledge of the workload."""

    workload: Workload
    costs: dict[Key, Cost] = attrs.field(factory=dict)

    def used(self, key: Key, now: float) -> None:
        """Record a request."""
        self.costs[key] = self.costs.get(key, UNKNOWN).used(now)

    def loaded(self, key: Key, seconds: float, now: float) -> None:
        """Record a load."""
        self.costs[key] = self.costs.get(key, UNKNOWN).loaded(seconds, now)

    def unload(self, residents: Sequence[Resident], lacking: Bytes, now: float) -> Sequence[Resident]:
        """Return the cheapest ones that are enough, or all."""
        return cheapest_set(residents, lacking, self.costs, now) or residents

    def step(self, residents: Sequence[Resident], waiting: Sequence[Waiting], free: Bytes, now: float) -> Outcome:
        """Decide."""
        return step(residents, waiting, free, self.costs, now)
