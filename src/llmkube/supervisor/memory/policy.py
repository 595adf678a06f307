"""The operator's settings for a host's memory: thresholds, dwell times and switches. Pure."""

import enum
from collections.abc import Mapping

import attrs

from llmkube.supervisor.host.pressure_level import DEFAULTS, Thresholds


class Mode(enum.StrEnum):
    """Whether services are evicted."""

    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"


@attrs.frozen
class Policy:
    """Thresholds, dwell times and switches.

    Attributes:
        mode: Whether services are evicted or displaced at all.
        keep_last: Whether to keep the last engine of the host that holds at least `worthwhile_bytes`.
        thresholds: Limits below which memory is short. Admission leaves as much to other programs as WARNING begins at,
            and no service is evicted if that could not bring memory back above the threshold.
        reclaim_share: Share of memory beyond the threshold that must be free before a service returns, up to
            `reclaim_cap_bytes`.
        worthwhile_bytes: Engines that would release less than this are not evicted.
        small_bytes: A service that needs at most this is admitted if that much is available, except at CRITICAL.
        idle_seconds: Time without work after which an engine is idle.
        unload_seconds: Duration of WARNING after which idle services are evicted.
        soft_seconds: Duration of WARNING, or of an exceeded budget, after which busy services are evicted.
        clear_seconds: Duration of NORMAL that ends an episode of pressure; a shorter one is a flap.
        return_seconds: Duration of NORMAL after which services are admitted again.
        cooldown_seconds: Minimum time between two evictions.
        doubt_seconds: The same while the figures are fine and only the kernel reports pressure.
        release_seconds: Time that samples may take to show the memory of an exited process as released.
        margin_share: Share of its need that must be free in addition before an evicted service returns.
        relapse_seconds: If a service is evicted within this time after its return although no other program has taken
            memory, its next return waits this long, the one after that twice as long, and so on.
        dwell_cap_seconds: Maximum of that wait.
        displace_seconds: Minimum time between two displacements for the same service.
    """

    mode: Mode = Mode.ON
    keep_last: bool = True
    thresholds: Thresholds = DEFAULTS
    reclaim_share: float = 0.03
    reclaim_cap_bytes: int = 1 << 30
    worthwhile_bytes: int = 128 << 20
    small_bytes: int = 256 << 20
    idle_seconds: float = 300.0
    unload_seconds: float = 20.0
    soft_seconds: float = 60.0
    clear_seconds: float = 10.0
    return_seconds: float = 30.0
    cooldown_seconds: float = 15.0
    doubt_seconds: float = 60.0
    release_seconds: float = 10.0
    margin_share: float = 0.05
    relapse_seconds: float = 600.0
    dwell_cap_seconds: float = 3600.0
    displace_seconds: float = 600.0

    def reclaim_bytes(self, total_bytes: int) -> int:
        """Return the bytes beyond a threshold that must be free as well."""
        return int(min(self.reclaim_share * total_bytes, self.reclaim_cap_bytes))

    def floor_bytes(self, total_bytes: int) -> int:
        """Return the bytes that admission leaves to other programs: the WARNING threshold and `reclaim_bytes`."""
        return self.thresholds.warning_bytes(total_bytes) + self.reclaim_bytes(total_bytes)

    def dwell_seconds(self, relapses: int) -> float:
        """Return how long memory must be normal before a service with this many relapses returns."""
        if relapses == 0:
            return self.return_seconds
        return float(min(self.relapse_seconds * 2.0 ** min(relapses - 1, 20), self.dwell_cap_seconds))


@attrs.frozen
class Rules:
    """The operator's settings for this host's memory.

    Attributes:
        fraction: The share of memory that models may use; None for the default for its size.
        admit_unsized: Whether to start a service whose need is unknown.
        gentle_seconds: Maximum time to stop an engine that finishes its requests.
        urgent_seconds: Maximum time to stop an engine whose requests are cut short.
        devices: Memory of each device that has its own, in bytes by its name.
    """

    policy: Policy = Policy()
    fraction: float | None = None
    admit_unsized: bool = False
    gentle_seconds: float = 45.0
    urgent_seconds: float = 15.0
    devices: Mapping[str, int] = {}
