"""What a host's memory is promised by, to whom, and how that looks from outside: the nouns of the ledger."""

from collections.abc import Mapping

import attrs
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.admission import Need
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.eviction import Cause, Evict, Policy, Skip


@attrs.frozen
class Rules:
    """What an operator has decided about this host's memory.

    Attributes:
        policy: Thresholds, dwells and switches.
        fraction: The share of the memory that models may take; None for the default of its size.
        guesses: Whether a service starts whose need nobody knows.
        gentle_seconds: The longest that a service may take to end with its requests waited for.
        urgent_seconds: The same without.
    """

    policy: Policy = Policy()
    fraction: float | None = None
    guesses: bool = False
    gentle_seconds: float = 45.0
    urgent_seconds: float = 15.0


@attrs.define(eq=False)
class Claim:
    """The bytes that one running service has been promised, and what is known of the process that uses them.

    Attributes:
        key: The service.
        need: What was promised.
        scope: Cancelled when the service has to go; None until the service has taken an adopted engine over.
        returning: It was evicted, and this is its return.
        spare_bytes: The most that all engines could have had since it was admitted: what they held, and what was left.
        since: When the claim was made.
        pid: Its process; 0 while there is none.
        resident_bytes: What the process held at the last look.
        peak_bytes: The most that it ever held.
        measured: Whether anybody has looked, since it was loaded if it is.
        loaded_at: When it was ready; None before.
        busy_at: When it had work last.
        leaves: Why it has to go; None while it may stay.
        leaves_by: When it should have gone.
        hurried: Set when its requests are not waited for.
        available_bytes: What the host had left when it was last seen running.
    """

    key: Key
    need: Need
    scope: trio.CancelScope | None
    returning: bool = False
    spare_bytes: int = 0
    since: float = attrs.field(factory=trio.current_time)
    pid: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0
    measured: bool = False
    loaded_at: float | None = None
    busy_at: float = attrs.field(factory=trio.current_time)
    leaves: Evict | None = None
    leaves_by: float | None = None
    hurried: trio.Event = attrs.field(factory=trio.Event)
    available_bytes: int = 0

    @property
    def urgent(self) -> bool:
        """Whether it has to go without waiting for its requests."""
        return self.hurried.is_set()

    @property
    def total_bytes(self) -> int:
        """What counts: what was promised, or what it has taken if that is more."""
        return max(self.need.total_bytes, self.peak_bytes)

    @property
    def holds_bytes(self) -> int:
        """What is really there; an engine that has loaded unseen is taken at its word."""
        return self.total_bytes if self.loaded_at is not None and not self.measured else self.resident_bytes

    def worked(self) -> None:
        """It has had work just now."""
        self.busy_at = trio.current_time()


@attrs.frozen
class Account:
    """One service's figures, for people and metrics."""

    estimated_bytes: int = 0
    reserved_bytes: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0
    evicted: bool = False


@attrs.frozen
class Room:
    """What a host has for engines.

    Attributes:
        total_bytes: Its memory.
        limit_bytes: What engines may take of it.
        free_bytes: What a service that comes now could take: of that limit, and of what the host has.
    """

    total_bytes: int
    limit_bytes: int
    free_bytes: int


@attrs.frozen
class MemoryView:
    """A host's memory at one moment, for people and metrics.

    Attributes:
        level: How short it is.
        sample: The last good look.
        budget: What engines may take.
        free_bytes: What a service that comes now could take: of the budget, and of what the host has.
        accounts: The figures of each service.
        evictions: How many have had to go since the agent started, by the cause.
        skips: How often nobody was evicted although memory was short, by the reason.
    """

    level: Level
    sample: Sample
    budget: Budget
    free_bytes: int
    accounts: Mapping[Key, Account]
    evictions: Mapping[Cause, int]
    skips: Mapping[Skip, int]
