"""One host's memory, as it is promised: `admitted()` is a scope, and within it the bytes are a service's own.

```
 wait ──▶ admitted ──▶ spawned, loaded, served, ended ──▶ process gone ──▶ memory seen to be back
          └ reserved ─────────────────────────────────────────────────────┘ (or its deadline is over)
```

Everything that decides is in `admission` and `eviction`; here it is carried out, at once and without an await, so that
two who arrive together cannot be promised the same bytes. Nobody who waits holds anything that another one needs.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import attrs
import trio

from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import UNREADABLE, Level, Sample
from llmkube.supervisor.memory import admission
from llmkube.supervisor.memory.accounts import Account, Claim, MemoryView, Room, Rules
from llmkube.supervisor.memory.admission import Block, Host, Need, Refusal, Terms, Waiting, Way
from llmkube.supervisor.memory.budget import Budget, host_budget
from llmkube.supervisor.memory.eviction import Candidate, Cause, Decision, Evict, Look, Mode, Skip
from llmkube.supervisor.memory.seats import LONG_AGO, Releases, Seat

SAY_SECONDS: Final = 10.0
"""The least time between two sentences about the same wait."""

REPEAT_SECONDS: Final = 600.0
"""After so long a sentence is brought up to date, although nothing has happened."""

MOVED_BYTES: Final = 512 << 20
"""A sentence whose figure is off by more is out of date."""


@attrs.define(eq=False)
class Ledger:
    """Who has been promised how much of this host.

    Attributes:
        rules: What the operator has decided.
        watched: Whether anybody looks at the host's memory; without that everybody is admitted at once.
        told: Called with the service that has to go, before its scope is cancelled.
        ended: Called with a claim whose process has gone.
        evictions: How many have had to go since the agent started, by the cause.
        skips: How often nobody was evicted although memory was short, by the reason; counted when that changes.
    """

    rules: Rules = Rules()
    watched: bool = True
    told: Callable[[Evict], None] = lambda _: None
    ended: Callable[[Claim], None] = lambda _: None
    evictions: Counter[Cause] = attrs.field(factory=Counter)
    skips: Counter[Skip] = attrs.field(factory=Counter)
    look_soon: trio.Event = attrs.field(factory=trio.Event)
    decided: trio.Event = attrs.field(factory=trio.Event)  # set, and replaced, at every decision
    _seats: dict[Key, Seat] = attrs.field(factory=dict)
    _releases: Releases = attrs.field(factory=Releases)
    _sample: Sample = UNREADABLE
    _decision: Decision | None = None
    _budget: Budget = Budget(0, 0)

    # -- services -------------------------------------------------------------------------------------------------

    def follow(self, key: Key, terms: Terms) -> None:
        """Take in what the objects say now; an edit is a new chance for whoever waits."""
        seat = self._seat(key)
        if terms != seat.terms:
            seat.terms, seat.displaced_at = terms, LONG_AGO
            self.pump()

    def adopt(self, key: Key, need: Need) -> None:
        """Promise at once what an engine has already that an earlier agent left; `admitted` finds it there."""
        if self.watched:
            self._seat(key).claim = Claim(key, need, None)

    def forget(self, key: Key) -> None:
        """The service is no longer this host's."""
        if (seat := self._seats.pop(key, None)) is not None:
            for claim in seat.claims():
                self._give_back(claim)
        self.pump()

    @asynccontextmanager
    async def admitted(
        self, key: Key, need: Need, scope: trio.CancelScope, say: Callable[[Refusal], None]
    ) -> AsyncIterator[Claim]:
        """Wait until there is room, and hold it for as long as the body runs, and its memory after that.

        Args:
            key: The service.
            need: How much it will take.
            scope: Encloses the whole of this; cancelled when the service has to go.
            say: Called with why it waits: at once, and when that has changed.
        """
        if not self.watched:
            yield Claim(key, need, scope)
            return
        seat, claim = self._seat(key), None
        try:
            if seat.claim is None:
                seat.waiting = self._waiting(key, need, seat)
                seat.said = None
                self.pump()
                while seat.claim is None:
                    if seat.refusal is not None and seat.said is not seat.refusal:
                        seat.said, seat.said_at = seat.refusal, trio.current_time()
                        say(seat.refusal)
                    await seat.news.wait()
            claim = seat.claim
            claim.scope = scope
            if claim.leaves is not None:
                scope.cancel(reason=claim.leaves.why)
            yield claim
        finally:
            seat.waiting = None
            if (held := claim or seat.claim) is not None:  # one who is cancelled may have been admitted just now
                self._vacate(held)

    def replacement(self, key: Key, need: Need) -> Way | Refusal:
        """Return how the engine of a service gives way to one of another plan, or why it should not yet.

        Without anybody who looks at the host nobody knows whether it holds both.
        """
        if not self.watched or self._decision is None:
            return Way.INSTEAD
        seat = self._seat(key)
        return admission.replacement(self._newest(Waiting(key, need, since=trio.current_time()), seat), self.host())

    @contextmanager
    def beside(self, key: Key, need: Need, scope: trio.CancelScope) -> Iterator[Claim | None]:
        """Promise a second engine of a service what it needs, if there is room now, for as long as the body runs.

        Args:
            key: The service; its engine keeps what it has.
            need: How much the other one will take.
            scope: Cancelled when memory is short: of two engines the one that serves nobody yet goes first.
        """
        seat = self._seat(key)
        if seat.successor is not None or self.replacement(key, need) is not Way.BESIDE:
            yield None
            return
        need = need.at_most(self._budget.limit_bytes)
        seat.successor = claim = Claim(key, need, scope, spare_bytes=self._spare_bytes())
        try:
            yield claim
        finally:
            self._vacate(claim)

    def takes_over(self, claim: Claim) -> None:
        """The successor serves from now on; its predecessor is on its way out."""
        seat = self._seats.get(claim.key)
        if seat is not None and seat.successor is claim:
            seat.claim, seat.successor, seat.leaving = claim, None, seat.claim
            if seat.leaving is not None:
                seat.leaving.leaves_by = trio.current_time() + self.rules.gentle_seconds

    def runs(self, claim: Claim, pid: int) -> None:
        """The claim's process has been started, or found."""
        claim.pid = pid
        self.look_nowait()

    def loaded(self, claim: Claim) -> None:
        """The claim's engine answers: what it needs is there, and the next one may return."""
        now = trio.current_time()
        claim.loaded_at, claim.busy_at = now, now
        claim.measured = False  # what was seen while it loaded is out of date
        if (seat := self._seats.get(claim.key)) is not None:
            seat.load_seconds = now - claim.since
            if not claim.returning:
                seat.relapses = 0
            seat.evicted = None
        self.look_nowait()

    def never(self, key: Key, need: Need) -> Refusal | None:
        """Return why a service could not start if it had the host to itself; None if it could, or nobody can say."""
        if self._decision is None:
            return None
        alone = Host(self._budget, self._budget.total_bytes, guesses=self.rules.guesses)
        seat = self._seat(key)
        return admission.judge(self._newest(self._waiting(key, need, seat), seat), alone)

    # -- the host -------------------------------------------------------------------------------------------------

    def look_nowait(self) -> None:
        """Have the host looked at without waiting for the next regular look."""
        self.look_soon.set()

    def observe(self, sample: Sample, footprints: Mapping[int, int]) -> None:
        """Take in one look at the host; `decide` follows."""
        now = trio.current_time()
        if sample.level is not Level.UNKNOWN:
            self._sample = sample
            self._budget = host_budget(sample.total_bytes, self.rules.fraction, sample.device_limit_bytes)
        for claim in self._claims():
            seen = claim.pid in footprints
            if seen:
                claim.measured, claim.resident_bytes = True, footprints[claim.pid]
                claim.peak_bytes = max(claim.peak_bytes, claim.resident_bytes)
            if seen or claim.leaves_by is None:  # a process that leaves may be gone by now, and its memory back
                claim.available_bytes = sample.available_bytes
        self._releases.note(sample, now)
        if sample.level is not Level.UNKNOWN:
            spare = self._spare_bytes()
            for claim in self._claims():
                claim.spare_bytes = max(claim.spare_bytes, spare)

    def decide(self, decision: Decision) -> None:
        """Take in what follows from the look, let start whoever fits now, and have go who has to."""
        self._decision = decision
        self.decided.set()
        self.decided = trio.Event()
        if decision.level is Level.CRITICAL:
            for claim in self._claims():
                if claim.leaves_by is not None and not claim.urgent:
                    self._hurry(claim)
        self.pump()
        if decision.evict is not None:
            self.evict(decision.evict)

    def evict(self, evict: Evict) -> None:
        """Have a service go, and wait for its turn to come back."""
        seat = self._seats.get(evict.key)
        if seat is not None and seat.successor is not None:  # nobody asks it anything yet
            self._send_away(seat.successor, evict)
        if evict.spare:
            self.evictions[evict.cause] += 1
            return
        claim = seat.claim if seat else None
        if seat is None or claim is None or claim.scope is None or claim.leaves is not None:
            return
        now = trio.current_time()
        if evict.cause is not Cause.DISPLACED:
            seat.relapses = seat.relapses + 1 if self._relapsed(claim, now) else 0
            seat.spare_bytes = self._spare_bytes()
        seat.evicted, seat.held_bytes = evict, (claim.need.estimated_bytes, claim.peak_bytes)
        self.evictions[evict.cause] += 1
        self.told(evict)
        self._send_away(claim, evict)

    def pump(self) -> None:
        """Let start whoever fits, have go who has to for that, and tell the others why they wait."""
        if self._decision is None:
            return
        queue = {
            key: waiting for key, seat in self._seats.items() if seat.claim is None and (waiting := self._asks(seat))
        }
        outcome = admission.step(tuple(queue.values()), self.host())
        for key in outcome.admitted:
            seat, asked = self._seats[key], queue[key]
            seat.claim = Claim(key, asked.need, trio.CancelScope(), asked.returns, self._spare_bytes())
            seat.wake()
        for key, refusal in outcome.refused:
            self._refuse(self._seats[key], refusal)
        for each in outcome.displaced:
            self._seats[each.winner].displaced_at = trio.current_time()
            self.evict(Evict(each.victim, Cause.DISPLACED, each.why, winner=each.winner))

    # -- what others want to know ---------------------------------------------------------------------------------

    @property
    def sample(self) -> Sample:
        """The last good look at the host."""
        return self._sample

    @property
    def decision(self) -> Decision | None:
        """What was last decided; None before the first look."""
        return self._decision

    @property
    def is_short(self) -> bool:
        """Whether the host was short of memory at the last look."""
        return self._decision is not None and self._decision.level >= Level.WARNING

    @property
    def budget(self) -> Budget:
        """What engines may take on this host."""
        return self._budget

    @property
    def moving(self) -> bool:
        """Whether somebody loads or is on the way out: figures change from one second to the next."""
        return any(claim.loaded_at is None or claim.leaves_by is not None for claim in self._claims())

    @property
    def unmeasured(self) -> bool:
        """Whether somebody has just loaded, and nobody has looked since."""
        return any(claim.pid and claim.loaded_at is not None and not claim.measured for claim in self._claims())

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for memory."""
        return any(seat.waiting is not None and seat.claim is None for seat in self._seats.values())

    @property
    def releasing(self) -> bool:
        """Whether memory of an engine that has ended is not seen to be back."""
        return bool(self._releases)

    def pids(self) -> tuple[int, ...]:
        """The processes whose memory counts."""
        return tuple(claim.pid for claim in self._claims() if claim.pid)

    def evicted(self, key: Key) -> Evict | None:
        """Why a service had to go, until it is loaded again."""
        return seat.evicted if (seat := self._seats.get(key)) else None

    def accounts(self) -> dict[Key, Account]:
        """The figures of every service that runs or waits here."""
        return {key: seat.account() for key, seat in self._seats.items() if seat.claims() or seat.waiting}

    def room(self) -> Room | None:
        """What there is for engines; None before the first look."""
        if self._decision is None:
            return None
        host = self.host()
        free_bytes = max(0, min(host.free_bytes, host.headroom_bytes))
        return Room(self._sample.total_bytes, self._budget.limit_bytes, free_bytes)

    def view(self) -> MemoryView | None:
        """A snapshot for people and metrics; None before the first look."""
        room = self.room()
        if self._decision is None or room is None:
            return None
        return MemoryView(
            self._decision.level,
            self._sample,
            self._budget,
            room.free_bytes,
            self.accounts(),
            dict(self.evictions),
            dict(self.skips),
        )

    def look(self, sample: Sample) -> Look:
        """What the eviction policy decides on, after a sample has been observed."""
        unsettled = self.releasing or self._taking_over
        return Look(sample, self._candidates(), unsettled, self._over_bytes())

    def host(self) -> Host:
        """What admission decides on."""
        decision, sample, policy = self._decision, self._sample, self.rules.policy
        assert decision is not None, "nobody is admitted before the first look"
        unreadable = decision.level is Level.UNKNOWN
        return Host(
            self._budget,
            sample.available_bytes,
            policy.floor_bytes(sample.total_bytes),
            policy.small_bytes,
            Level.UNKNOWN if unreadable else sample.level,
            decision.admitting,
            decision.calm_seconds,
            tuple(held for seat in self._seats.values() for held in seat.held(trio.current_time())),
            self._releases.size_bytes,
            self.rules.guesses,
        )

    # -- details --------------------------------------------------------------------------------------------------

    def _seat(self, key: Key) -> Seat:
        return self._seats.setdefault(key, Seat())

    def _claims(self) -> list[Claim]:
        return [claim for seat in self._seats.values() for claim in seat.claims()]

    def _waiting(self, key: Key, need: Need, seat: Seat) -> Waiting:
        """Begin to wait; who was evicted for pressure waits for calm, and for a margin besides."""
        returns = seat.evicted is not None and seat.evicted.cause is not Cause.DISPLACED
        estimated_bytes, held_bytes = seat.held_bytes
        if returns and need.estimated_bytes == estimated_bytes:  # it may have gone before anything was learned from it
            need = attrs.evolve(need, total_bytes=max(need.total_bytes, held_bytes))
        margin = int(need.total_bytes * self.rules.policy.margin_share) if returns else 0
        return Waiting(key, need, seat.terms, trio.current_time(), float(returns), margin)

    def _asks(self, seat: Seat) -> Waiting | None:
        """Its wait as the newest objects have it."""
        if seat.waiting is None:
            return None
        return attrs.evolve(self._newest(seat.waiting, seat), dwell_seconds=self._dwell_seconds(seat))

    def _newest(self, waiting: Waiting, seat: Seat) -> Waiting:
        policy = self.rules.policy
        rested = trio.current_time() - seat.displaced_at >= policy.displace_seconds
        idle = seat.evicted is not None and seat.evicted.cause is Cause.IDLE  # nobody goes for one that nobody uses
        may = rested and policy.mode is Mode.ON and not idle and not self._taking_over
        need = waiting.need.at_most(self._budget.limit_bytes)
        return attrs.evolve(waiting, need=need, terms=seat.terms, may_displace=may)

    def _dwell_seconds(self, seat: Seat) -> float:
        """How long memory has to be normal for it; what others have given back since makes up for its relapses."""
        if seat.waiting is None or not seat.waiting.returns:
            return 0.0
        policy = self.rules.policy
        eased = self._spare_bytes() - seat.spare_bytes >= policy.reclaim_bytes(self._sample.total_bytes)
        return policy.dwell_seconds(0 if eased else seat.relapses)

    def _send_away(self, claim: Claim, evict: Evict) -> None:
        if claim.scope is None or claim.leaves is not None:
            return
        claim.leaves, claim.leaves_by = evict, trio.current_time() + self.rules.gentle_seconds
        if evict.urgent:
            self._hurry(claim)
        claim.scope.cancel(reason=evict.why)

    def _hurry(self, claim: Claim) -> None:
        claim.leaves_by = trio.current_time() + self.rules.urgent_seconds
        claim.hurried.set()

    def _relapsed(self, claim: Claim, now: float) -> bool:
        """Whether its own return has brought the pressure back: soon after it, and nobody else has taken more since."""
        policy, total = self.rules.policy, self._sample.total_bytes
        soon = claim.loaded_at is None or now - claim.loaded_at < policy.relapse_seconds
        squeezed = claim.spare_bytes - self._spare_bytes() >= policy.reclaim_bytes(total)
        return claim.returning and soon and not squeezed

    def _spare_bytes(self) -> int:
        """What all engines could have: what they hold, what is coming back, and what is left."""
        held = sum(claim.holds_bytes for claim in self._claims()) + self._releases.size_bytes
        return self._sample.available_bytes + held

    @property
    def _taking_over(self) -> bool:
        """Whether an adopted engine cannot be told to go yet, since nobody holds it: a matter of milliseconds."""
        return any(claim.scope is None for claim in self._claims())

    def _candidates(self) -> tuple[Candidate, ...]:
        now = trio.current_time()
        return tuple(candidate for seat in self._seats.values() for candidate in seat.candidates(now))

    def _over_bytes(self) -> int:
        """How much more than the budget the engines hold that stay; a fiftieth of it is not worth a restart."""
        budget = self._budget
        claims = [claim for claim in self._claims() if claim.leaves_by is None]
        over = sum(claim.total_bytes for claim in claims) - budget.limit_bytes
        if budget.device_limit_bytes is not None:
            over = max(over, sum(claim.need.device_bytes for claim in claims) - budget.device_limit_bytes)
        return over if over > budget.limit_bytes // 50 else 0

    def _vacate(self, claim: Claim) -> None:
        """Its process has gone; one that was to come after it comes now."""
        seat = self._seats.get(claim.key)
        if seat is None or claim not in seat.claims():
            return  # the service is not this host's any more, and all has been given back
        seat.vacate(claim)
        self._give_back(claim)
        self.pump()

    def _give_back(self, claim: Claim) -> None:
        """The process has gone; its bytes count until they are seen, or for so long."""
        policy = self.rules.policy
        if claim.resident_bytes >= policy.worthwhile_bytes:
            until = trio.current_time() + policy.release_seconds
            self._releases.expect(claim.resident_bytes, claim.available_bytes, until)
        self.ended(claim)
        self.look_nowait()

    def _refuse(self, seat: Seat, refusal: Refusal) -> None:
        """Hand on why it waits, unless it has been said just now, or nothing has changed."""
        now = trio.current_time()
        if seat.said is not None:
            same = seat.said.block is refusal.block and abs(seat.said.free_bytes - refusal.free_bytes) < MOVED_BYTES
            if now - seat.said_at < (REPEAT_SECONDS if same else SAY_SECONDS):
                return
        seat.refusal = refusal
        seat.wake()


def reason_word(block: Block) -> str:
    """Return the word for `status.schedulingStatus`."""
    return "MemoryCheckFailed" if block in {Block.UNSIZED, Block.UNREADABLE} else "InsufficientMemory"
