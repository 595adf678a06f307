"""Who may start now, who has to wait and for what, and who has to make room for somebody more important. Pure.

Two sums have to come out, and each alone is wrong. The ledger's: what everybody has been promised is no more than the
budget. The host's: what it has to give now, less what was promised and is not resident yet, is enough. With the first
one alone a host under pressure would start again what it has just evicted, for ever.
"""

import enum
from collections.abc import Callable, Iterable, Sequence

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import format_age, format_bytes
from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.resource import Key
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.budget import Budget, own_cap
from llmkube.supervisor.memory.eviction import rank_of

BUSY_SECONDS = 300.0
"""Whoever had work more recently than this costs somebody something when it is displaced."""


class Block(enum.StrEnum):
    """What stands in the way of a start."""

    UNSIZED = "unsized"  # nobody knows how much it needs
    OWN_BUDGET = "own_budget"  # more than its Model says that it may take
    HOST_BUDGET = "host_budget"  # more than all models of this host together may take
    DEVICE = "device"  # more than the device holds at all
    FULL = "full"  # others have been promised it
    DEVICE_FULL = "device_full"
    HEADROOM = "headroom"  # the host itself does not have it now
    PRESSURE = "pressure"
    DWELL = "dwell"
    TURN = "turn"  # somebody else comes first
    UNREADABLE = "unreadable"  # the host's memory cannot be read

    @property
    def lacks_room(self) -> bool:
        """Whether somebody else's going could help."""
        return self in {Block.FULL, Block.DEVICE_FULL, Block.HEADROOM}


@attrs.frozen
class Terms:
    """What the objects say about a service's place in the memory; an edit holds from the next decision on."""

    priority: str = "normal"
    protected: bool = False
    hardware: Hardware | None = None

    @property
    def rank(self) -> int:
        """The priority as a number, the lowest first."""
        return rank_of(self.priority)


@attrs.frozen
class Need:
    """How much a service will take: the largest of what was estimated, learned and measured.

    Without `sized` nobody knows, and `why` says so; then the bytes are a guess that counts only where guesses are
    allowed. `estimated_bytes` is what was expected before anything was measured, 0 if nothing was.
    """

    total_bytes: int
    device_bytes: int = 0
    sized: bool = True
    why: str = ""
    estimated_bytes: int = 0

    def at_most(self, most_bytes: int) -> "Need":
        """Return it as a start counts: an engine that had grown must not make its model one that never fits."""
        if not self.estimated_bytes:
            return self
        return attrs.evolve(self, total_bytes=min(self.total_bytes, max(most_bytes, self.estimated_bytes)))


@attrs.frozen
class Waiting:
    """A service that wants to start.

    Attributes:
        key: Which one.
        need: How much it will take.
        terms: What its objects say.
        since: When it began to wait.
        dwell_seconds: How long memory must have been normal; more than 0 for one that was evicted for pressure.
        margin_bytes: How much more than its need must be there; for one that was evicted.
        may_displace: Whether others may have to go for it, if they are less important.
    """

    key: Key
    need: Need
    terms: Terms = Terms()
    since: float = 0.0
    dwell_seconds: float = 0.0
    margin_bytes: int = 0
    may_displace: bool = True

    @property
    def returns(self) -> bool:
        """Whether it was evicted for pressure."""
        return self.dwell_seconds > 0


@attrs.frozen
class Held:
    """What one service has been promised, or really takes if that is more.

    Attributes:
        key: Which one.
        total_bytes: All of it.
        device_bytes: What of it lies on the device.
        resident_bytes: What of it was there at the last look.
        terms: What its objects say.
        idle_seconds: How long it has had no work.
        reload_seconds: What it costs to load it again.
        returning: It was evicted, is coming back, and is not there yet.
        leaving: It has been told to go, and may still do so in time.
        spare: It is to replace another engine of its service, which still serves.
    """

    key: Key
    total_bytes: int
    device_bytes: int = 0
    resident_bytes: int = 0
    terms: Terms = Terms()
    idle_seconds: float = 0.0
    reload_seconds: float = 0.0
    returning: bool = False
    leaving: bool = False
    spare: bool = False


@attrs.frozen
class Host:
    """What there is, and what of it is promised.

    Attributes:
        budget: What engines may take.
        available_bytes: What programs could still take.
        floor_bytes: What of it is left to everybody else.
        small_bytes: A need up to this does not have to leave the floor.
        level: How short memory is.
        admitting: Whether there is no pressure, nor has been a moment ago.
        calm_seconds: How long memory has been normal.
        held: Who has been promised what.
        releasing_bytes: What engines held that have ended, while it is not seen to be back.
        guesses: Whether a need that nobody knows is admitted.
    """

    budget: Budget
    available_bytes: int
    floor_bytes: int = 0
    small_bytes: int = 0
    level: Level = Level.NORMAL
    admitting: bool = True
    calm_seconds: float = 0.0
    held: tuple[Held, ...] = ()
    releasing_bytes: int = 0
    guesses: bool = False

    @property
    def free_bytes(self) -> int:
        """What of the budget nobody has been promised; below 0 when somebody has grown."""
        return self.budget.limit_bytes - self.releasing_bytes - sum(each.total_bytes for each in self.held)

    @property
    def device_free_bytes(self) -> int | None:
        """The same for the device, if its limit is known."""
        limit = self.budget.device_limit_bytes
        return None if limit is None else limit - sum(each.device_bytes for each in self.held)

    @property
    def promised_bytes(self) -> int:
        """What has been promised and is not resident yet: it is not free twice."""
        return sum(max(0, each.total_bytes - each.resident_bytes) for each in self.held)

    @property
    def headroom_bytes(self) -> int:
        """What the host has to give now and leaves the floor untouched."""
        return self.available_bytes - self.floor_bytes - self.promised_bytes

    def without(self, keys: Iterable[Key]) -> "Host":
        """The same host once these services have gone and their memory is back."""
        gone = frozenset(keys)
        back = sum(each.resident_bytes for each in self.held if each.key in gone)
        held = tuple(each for each in self.held if each.key not in gone)
        return attrs.evolve(self, held=held, available_bytes=self.available_bytes + back)

    def in_a_moment(self) -> "Host":
        """The same host once all who are on their way out have gone, and all memory is back."""
        back = sum(each.resident_bytes for each in self.held if each.leaving) + self.releasing_bytes
        held = tuple(each for each in self.held if not each.leaving)
        return attrs.evolve(self, held=held, available_bytes=self.available_bytes + back, releasing_bytes=0)

    def with_promise(self, waiting: Waiting) -> "Host":
        """The same host once this service has been admitted."""
        need = waiting.need
        held = Held(waiting.key, need.total_bytes, need.device_bytes, terms=waiting.terms, returning=waiting.returns)
        return attrs.evolve(self, held=(*self.held, held))


@attrs.frozen
class Refusal:
    """Why a service has to wait, with figures that a person can act on.

    Attributes:
        block: What stands in the way.
        message: A sentence.
        room_bytes: What a smaller need would have to fit into; None when a smaller one would not start either.
        free_bytes: What is free, to see when the sentence is out of date.
    """

    block: Block
    message: str
    room_bytes: int | None = None
    free_bytes: int = 0


class Way(enum.Enum):
    """How an engine gives way to one of another plan."""

    BESIDE = "beside"  # the host holds both: the old one serves until the new one answers
    INSTEAD = "instead"  # the new one starts when the old one has ended


@attrs.frozen
class Displacement:
    """Who has to go, and for whom."""

    victim: Key
    winner: Key
    why: str


@attrs.frozen
class Outcome:
    """Who starts, who has to go for it, and why the others wait."""

    admitted: tuple[Key, ...] = ()
    displaced: tuple[Displacement, ...] = ()
    refused: tuple[tuple[Key, Refusal], ...] = ()


def step(queue: Sequence[Waiting], host: Host) -> Outcome:
    """Decide about everybody who waits, the most important first.

    Who does not fit holds nobody up, unless others are already on their way out for it: that room is taken.
    """
    admitted: list[Key] = []
    displaced: list[Displacement] = []
    refused: list[tuple[Key, Refusal]] = []
    winner: Waiting | None = None
    for waiting in sorted(queue, key=_turn):
        refusal = judge(waiting, host)
        if refusal is None and winner is not None and waiting.need.total_bytes > host.small_bytes:
            first = f"`{_name(winner.key, waiting.key)}` (priority {winner.terms.priority})"
            refusal = Refusal(Block.TURN, f"waits for {first}, for which room is made")
        if refusal is None:
            admitted.append(waiting.key)
            host = host.with_promise(waiting)
            continue
        if refusal.block.lacks_room and winner is None:
            if judge(waiting, host.in_a_moment()) is None:
                winner, refusal = waiting, _soon(waiting, refusal, [each.key for each in host.held if each.leaving])
            elif waiting.may_displace and (victims := _less_important(waiting, host)):
                winner = waiting
                displaced += [Displacement(each.key, waiting.key, _because(waiting, each)) for each in victims]
                keys = [each.key for each in victims]
                host = _leaving(host, keys)
                refusal = _soon(waiting, refusal, keys)
            else:
                refusal = _with_hint(waiting, refusal, host)
        refused.append((waiting.key, refusal))
    return Outcome(tuple(admitted), tuple(displaced), tuple(refused))


def replacement(waiting: Waiting, host: Host) -> Way | Refusal:
    """Return how the engine of a service is replaced by one with another need, or why the old one had better stay.

    An engine is not ended for one that would have to wait: an edit that asks for too much costs nobody an answer.
    """
    if waiting.need.sized and judge(waiting, host) is None:
        return Way.BESIDE
    alone = host.without([waiting.key])
    refusal = judge(waiting, alone)
    if refusal is None:
        return Way.INSTEAD
    makes_room = waiting.may_displace and refusal.block.lacks_room and _less_important(waiting, alone)
    return Way.INSTEAD if makes_room else _with_hint(waiting, refusal, alone)


def judge(waiting: Waiting, host: Host) -> Refusal | None:
    """Return what stands in the way of one service, the most lasting thing first; None when nothing does."""
    need, budget = waiting.need, host.budget
    if not need.sized and not host.guesses:
        words = f"how much memory it needs is not known: {need.why}; --memory-check warn starts it on a guess"
        return Refusal(Block.UNSIZED, words)
    if host.level is Level.UNKNOWN:
        return Refusal(Block.UNREADABLE, "this host's memory cannot be read, so nothing is started")
    if not need.sized:
        return _closed(waiting, host)
    needs = f"needs {format_bytes(need.total_bytes)}"
    cap = _cap(waiting.terms, budget.total_bytes)
    if cap is not None and need.total_bytes > cap[0]:
        words = f"{needs}, more than its own budget of {cap[1]}"
        return Refusal(Block.OWN_BUDGET, words, cap[0])
    if need.total_bytes > budget.limit_bytes:
        words = f"{needs}, more than all models on this host may take together: {budget}"
        return Refusal(Block.HOST_BUDGET, words, budget.limit_bytes)
    on_device = f"needs {format_bytes(need.device_bytes)} on the device"
    limit = budget.device_limit_bytes
    if limit is not None and need.device_bytes > limit:
        words = f"{on_device}, which holds at most {format_bytes(limit)}"
        return Refusal(Block.DEVICE, words)
    return _closed(waiting, host) or _short(waiting, host, needs, on_device)


def _closed(waiting: Waiting, host: Host) -> Refusal | None:
    """Whether it is the wrong moment, however small the need."""
    if host.level is Level.CRITICAL:
        return Refusal(Block.PRESSURE, "memory is critically short on this host: nothing is started")
    small = waiting.need.sized and waiting.need.total_bytes <= host.small_bytes
    if not host.admitting and not small:
        if host.level is Level.NORMAL:
            return Refusal(Block.DWELL, "memory has been short on this host: it has to stay normal for a while first")
        return Refusal(Block.PRESSURE, "memory is short on this host: nothing is started until that is over")
    if waiting.returns:
        if host.calm_seconds < waiting.dwell_seconds:
            words = f"returns when memory has been normal for {format_age(waiting.dwell_seconds)}"
            return Refusal(Block.DWELL, words)
        ahead = [each.key for each in host.held if each.returning]
        if ahead:
            return Refusal(Block.TURN, f"returns after `{_name(ahead[0], waiting.key)}`, which is loading")
    return None


def _short(waiting: Waiting, host: Host, needs: str, on_device: str) -> Refusal | None:
    """Whether there is not enough: promised to others, on the device, or taken by other programs."""
    need, free = waiting.need, host.free_bytes
    room = host.headroom_bytes - waiting.margin_bytes
    if need.total_bytes <= host.small_bytes:
        room = host.available_bytes - host.promised_bytes
    if need.total_bytes > free:
        words = f"{needs}, {format_bytes(max(0, free))} free of {host.budget}"
        return Refusal(Block.FULL, words, max(0, min(free, room)), free)
    device_free = host.device_free_bytes
    if device_free is not None and need.device_bytes > device_free:
        limit = format_bytes(host.budget.device_limit_bytes or 0)
        words = f"{on_device}, {format_bytes(max(0, device_free))} free of {limit}"
        return Refusal(Block.DEVICE_FULL, words, free_bytes=device_free)
    if need.total_bytes > room:
        words = f"{needs}, but this host has only {format_bytes(max(0, room))} to give: other programs hold the rest"
        return Refusal(Block.HEADROOM, words, max(0, room), room)
    return None


def _turn(waiting: Waiting) -> tuple[int, bool, float, Key]:
    """The most important first, then who had been here before, then who has waited longest."""
    return -waiting.terms.rank, not waiting.returns, waiting.since, waiting.key


def _cap(terms: Terms, total_bytes: int) -> tuple[int, str] | None:
    try:
        cap = own_cap(terms.hardware, total_bytes)
    except UserError:  # the planner refuses such a spec by its field's name
        return None
    return None if cap is None else (cap.limit_bytes, str(cap))


def _less_important(waiting: Waiting, host: Host) -> tuple[Held, ...]:
    """Who may be made to go for it; nobody if that would not be enough."""
    rank = waiting.terms.rank
    lower = [each for each in _movable(host) if each.terms.rank < rank and not each.terms.protected]
    return cheapest(lower, lambda keys: judge(waiting, _ended(host, keys)) is None)


def _movable(host: Host) -> list[Held]:
    """Who may be asked to go, each service once: a spare engine goes with the one that it is to replace."""
    return [each for each in host.held if not each.leaving and not each.spare]


def cheapest(candidates: Iterable[Held], enough: Callable[[Sequence[Key]], bool]) -> tuple[Held, ...]:
    """Return whose going would be enough and costs least; nobody if not even all of them are.

    The least important go first, of equals those without work, then those that load quickly, then the smallest. Nobody
    goes for nothing: who is not needed for the sum stays, the most costly first.
    """
    chosen: list[Held] = []
    for each in sorted(candidates, key=_cost):
        chosen.append(each)
        if enough([one.key for one in chosen]):
            break
    else:
        return ()
    for each in reversed(chosen[:-1]):
        rest = [one for one in chosen if one is not each]
        if enough([one.key for one in rest]):
            chosen = rest
    return tuple(chosen)


def _cost(held: Held) -> tuple[bool, int, bool, float, int, Key]:
    busy = held.idle_seconds < BUSY_SECONDS
    return held.terms.protected, held.terms.rank, busy, held.reload_seconds, held.total_bytes, held.key


def _ended(host: Host, keys: Iterable[Key]) -> Host:
    """The host once these have gone, and with them those that are on their way."""
    return host.in_a_moment().without(keys)


def _leaving(host: Host, keys: Sequence[Key]) -> Host:
    held = tuple(attrs.evolve(each, leaving=True) if each.key in keys else each for each in host.held)
    return attrs.evolve(host, held=held)


def _soon(waiting: Waiting, refusal: Refusal, keys: Sequence[Key]) -> Refusal:
    names = ", ".join(f"`{_name(key, waiting.key)}`" for key in keys)
    when = f"{names} has ended" if names else "the memory of an engine that has ended is back"
    return attrs.evolve(refusal, message=f"{refusal.message}; starts when {when}", room_bytes=None)


def _with_hint(waiting: Waiting, refusal: Refusal, host: Host) -> Refusal:
    """Say who could be stopped by hand; nobody is asked to stop something more important."""
    held = [each for each in _movable(host) if each.terms.rank <= waiting.terms.rank]
    others = cheapest(held, lambda keys: judge(waiting, _ended(host, keys)) is None)
    if not others:
        return refusal
    names = ", ".join(_described(each, waiting.key) for each in others)
    return attrs.evolve(refusal, message=f"{refusal.message}; stopping {names} would make room")


def _described(held: Held, beside: Key) -> str:
    """`draft` (priority low, idle 14m)."""
    facts = [f"priority {held.terms.priority}"]
    if held.idle_seconds >= 60:
        facts.append(f"idle {format_age(held.idle_seconds)}")
    return f"`{_name(held.key, beside)}` ({', '.join(facts)})"


def _because(waiting: Waiting, victim: Held) -> str:
    needs = format_bytes(waiting.need.total_bytes)
    return (
        f"makes room for `{_name(waiting.key, victim.key)}` (priority {waiting.terms.priority}), which needs {needs}; "
        f"its own priority is {victim.terms.priority}"
    )


def _name(key: Key, beside: Key) -> str:
    return key.name if key.namespace == beside.namespace else str(key)
