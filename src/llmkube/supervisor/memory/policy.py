"""What an operator decides about a host's memory: thresholds, dwell times and switches. Pure."""

import enum

import attrs

from llmkube.supervisor.host.pressure_level import DEFAULTS, Thresholds


class Mode(enum.StrEnum):
    """Whether services are ended for memory."""

    ON = "on"
    DRY_RUN = "dry-run"
    OFF = "off"


@attrs.frozen
class Policy:
    """Every threshold, dwell and switch.

    Attributes:
        mode: Whether services are ended for memory at all.
        keep_last: The last service on a host that is worth mentioning stays, whatever happens.
        thresholds: When memory is short. Admission leaves as much to other programs as WARNING begins at, and no
            service is evicted if that would not bring the line back.
        reclaim_share: How far beyond the line memory has to come before a service returns, up to `reclaim_cap_bytes`.
        reclaim_cap_bytes: The most that is asked for that reason.
        worthwhile_bytes: Who would give back less is left alone.
        small_bytes: Who needs no more than this is admitted as long as there is that much, except at CRITICAL.
        idle_seconds: Who has had no work for so long is idle.
        unload_seconds: WARNING for so long unloads idle services.
        soft_seconds: WARNING for so long, or too much for the budget, ends services that have work.
        clear_seconds: NORMAL for so long ends an episode; a shorter one was a flap.
        return_seconds: NORMAL for so long opens admission after an episode.
        cooldown_seconds: The least time between two evictions.
        doubt_seconds: The same when the figures look fine and only the kernel says otherwise.
        release_seconds: How long memory may take to be seen again after a process has ended.
        margin_share: Who was evicted returns if there is this much more than it needs.
        relapse_seconds: Evicted so soon after its return although no other engine has grown, a service waits as long
            for the next one, then twice as long, and so on.
        dwell_cap_seconds: The longest that it ever waits for that reason.
        displace_seconds: The least time between two displacements in favour of one service.
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
        """How far beyond a line is far enough."""
        return int(min(self.reclaim_share * total_bytes, self.reclaim_cap_bytes))

    def floor_bytes(self, total_bytes: int) -> int:
        """What admission leaves to other programs: the line of WARNING, and a step beyond it."""
        return self.thresholds.warning_bytes(total_bytes) + self.reclaim_bytes(total_bytes)

    def dwell_seconds(self, relapses: int) -> float:
        """How long memory has to be normal before a service returns whose returns have brought so many evictions."""
        if relapses == 0:
            return self.return_seconds
        return float(min(self.relapse_seconds * 2.0 ** min(relapses - 1, 20), self.dwell_cap_seconds))


@attrs.frozen
class Rules:
    """What an operator has decided about this host's memory.

    Attributes:
        policy: Thresholds, dwells and switches.
        fraction: The share of the memory that models may take; None for the default of its size.
        admit_unsized: Whether a service starts whose need is not known.
        gentle_seconds: The longest that a service may take to end with its requests waited for.
        urgent_seconds: The same without.
    """

    policy: Policy = Policy()
    fraction: float | None = None
    admit_unsized: bool = False
    gentle_seconds: float = 45.0
    urgent_seconds: float = 15.0
