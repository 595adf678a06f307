"""What the ledger knows of one service, and of memory on its way back: its bookkeeping, without any decision."""

from typing import Final

import attrs
import trio

from llmkube.supervisor.host.sample import Level, Sample
from llmkube.supervisor.memory.accounts import Account, Claim
from llmkube.supervisor.memory.admission import Held, Refusal, Terms, Waiting
from llmkube.supervisor.memory.eviction import Candidate, Evict

SEEN_SHARE: Final = 0.8
"""Memory is back when so much of it is seen; other programs may have taken the rest meanwhile."""

LONG_AGO: Final = float("-inf")


@attrs.define(eq=False)
class Seat:
    """One service's place in the ledger, whether it runs or waits.

    While its engine is replaced a service has two claims: until the successor answers it is `successor`, from then on
    it is `claim`, and the old one is `leaving`.

    Attributes:
        terms: What its objects say.
        claim: What its engine has been promised.
        successor: What the engine has been promised that is to replace it.
        leaving: What an engine holds that has been replaced.
        waiting: That it wants to start; None when it does not.
        refusal: Why it may not yet.
        said: What of that has been told.
        said_at: When.
        news: Set, and replaced, when there is something to tell it.
        evicted: Why it had to go, until it is loaded again.
        held_bytes: What was expected of it then, and what it held at most.
        relapses: How often in a row its return has brought the pressure back.
        spare_bytes: What engines could have had when it was evicted.
        displaced_at: When others had to go for it last.
        load_seconds: How long its last load took.
    """

    terms: Terms = Terms()
    claim: Claim | None = None
    successor: Claim | None = None
    leaving: Claim | None = None
    waiting: Waiting | None = None
    refusal: Refusal | None = None
    said: Refusal | None = None
    said_at: float = LONG_AGO
    news: trio.Event = attrs.field(factory=trio.Event)
    evicted: Evict | None = None
    held_bytes: tuple[int, int] = (0, 0)
    relapses: int = 0
    spare_bytes: int = 0
    displaced_at: float = LONG_AGO
    load_seconds: float = 0.0

    def claims(self) -> tuple[Claim, ...]:
        """All that it has been promised."""
        return tuple(claim for claim in (self.claim, self.successor, self.leaving) if claim is not None)

    def vacate(self, claim: Claim) -> None:
        """One of its engines has gone; one that was to come after it comes now."""
        if claim is self.claim:
            self.claim, self.successor = self.successor, None
        elif claim is self.successor:
            self.successor = None
        else:
            self.leaving = None

    def wake(self) -> None:
        """Have whoever waits here look again."""
        self.news.set()
        self.news = trio.Event()

    def held(self, now: float) -> list[Held]:
        """Its claims as admission sees them."""
        return [
            Held(
                claim.key,
                claim.total_bytes,
                claim.need.device_bytes,
                claim.holds_bytes,
                self.terms,
                now - claim.busy_at if claim.loaded_at is not None else 0.0,
                self.load_seconds,
                claim.returning and claim.loaded_at is None,
                claim.leaves_by is not None and now < claim.leaves_by,
                claim is self.successor,
            )
            for claim in self.claims()
        ]

    def candidates(self, now: float) -> list[Candidate]:
        """Its claims as eviction sees them."""
        return [self._candidate(claim, now) for claim in self.claims()]

    def _candidate(self, claim: Claim, now: float) -> Candidate:
        loading, terms = claim.loaded_at is None, self.terms
        frees = claim.total_bytes if loading else claim.holds_bytes
        idle = 0.0 if loading else now - claim.busy_at
        return Candidate(
            claim.key, terms.rank, frees, terms.protected, idle, claim.leaves_by, spare=claim is self.successor
        )

    def account(self) -> Account:
        """Its figures for people and metrics."""
        claims, evicted = self.claims(), self.evicted is not None
        if not claims:
            return Account(self.waiting.need.estimated_bytes if self.waiting else 0, evicted=evicted)
        return Account(
            claims[0].need.estimated_bytes,
            sum(claim.total_bytes for claim in claims),
            sum(claim.resident_bytes for claim in claims),
            claims[0].peak_bytes,
            evicted,
        )


@attrs.frozen
class _Release:
    size_bytes: int
    before_bytes: int
    until: float


@attrs.define(eq=False)
class Releases:
    """Memory of engines that have ended, as long as it is not seen to be back, or its deadline is over."""

    _open: list[_Release] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        """Whether any is expected."""
        return bool(self._open)

    @property
    def size_bytes(self) -> int:
        """How much is expected."""
        return sum(each.size_bytes for each in self._open)

    def expect(self, size_bytes: int, before_bytes: int, until: float) -> None:
        """So much more should be seen than was available before, by then."""
        self._open.append(_Release(size_bytes, before_bytes, until))

    def note(self, sample: Sample, now: float) -> None:
        """Take in a look at the host."""
        self._open = [each for each in self._open if now < each.until]
        before = min((each.before_bytes for each in self._open), default=0)
        if sample.level is not Level.UNKNOWN and sample.available_bytes >= before + SEEN_SHARE * self.size_bytes:
            self._open.clear()
