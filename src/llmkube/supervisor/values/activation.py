"""Whether a service is loaded, and for whom: a value per service, and its changes. Pure.

```
             a request, a user                              a user, an edit
   idle ────────────────────────▶ wanted ◀──────────────────────────────── failed
    ▲                               │  │  its load failed                     │ a request, once the back-off has ended
    └───────────────────────────────┘  └──────────────────────────────────▶   └───▶ wanted
      idleTimeout over, unloaded, displaced
```

Times are those of the monotonic clock, in seconds.
"""

import math
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import parse_duration
from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.placement import ALWAYS, ON_REQUEST
from llmkube.k8s.wire.conditions import LOADED, find_condition
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.runtimes.swap import SHARE_SECONDS
from llmkube.supervisor.memory.reservation import Usage
from llmkube.supervisor.values.desired import Desired, Idle, Launch, Target

MAX_TENANTS: Final = 64
"""Tenants that are known to use a service, the newest ones."""

BEFORE_LOAD: Final = frozenset({Reason.PENDING, Reason.WAITING_FOR_MODEL, Reason.FETCHING})
"""Reasons of a service that has been created, and not loaded yet."""

NOT_LOADED: Final = Idle(Reason.IDLE, "not loaded; the next request loads it")


def mode_of(desired: Desired, default: str) -> str:
    """Return the activation mode in effect; a service with pods, which hold no requests, is always loaded on hosts.

    Members of a ModelPool are loaded on request.
    """
    if desired.has_pods:
        return ALWAYS
    return ON_REQUEST if desired.pool is not None else desired.service.spec.activation.mode or default


def unused_fields(spec: InferenceServiceSpec, mode: str) -> tuple[str, ...]:
    """Return the paths of fields of `spec.activation` that have no effect on this host.

    Args:
        spec: The spec of the service.
        mode: The mode in effect.
    """
    given, waits = spec.activation, mode == ON_REQUEST
    effects = {
        "mode": (given.mode is not None, given.mode == mode),
        "idleTimeout": (given.idle_timeout is not None, waits and not given.pin),
        "maxHold": (given.max_hold is not None, waits),
    }
    return tuple(f"spec.activation.{name}" for name, (is_given, works) in effects.items() if is_given and not works)


@attrs.frozen
class Activation:
    """The activation of one service.

    Attributes:
        on_request: Whether it is loaded only while it is wanted.
        idle_seconds: `spec.activation.idleTimeout`; None if it is unloaded only for memory.
        hold_seconds: `spec.activation.maxHold`; None if it is not set.
        pinned: `spec.activation.pin`.
        wanted: Whether it is, or should be, loaded.
        awaited: Whether a user waits for its load: it displaces others, and continues without a request.
        requests: Number of requests that wait for it or run.
        held: Number of those that wait.
        held_since: Arrival of the oldest of them; infinite if there are none.
        used_at: When the last of them ended, or it was loaded.
        tenants: When the last request of each tenant ended, infinite until it has; not those of long ago.
        kept_seconds: Time without requests after which a client wants it unloaded; infinite if it must stay loaded.
            None if no client has set one.
        retry_at: When a request may load it again after a failed load.
        failure: Why its last load failed; None if it did not.
    """

    on_request: bool = False
    idle_seconds: float | None = None
    hold_seconds: float | None = None
    pinned: bool = False
    wanted: bool = True
    awaited: bool = False
    requests: int = 0
    held: int = 0
    held_since: float = math.inf
    used_at: float = 0.0
    tenants: Mapping[str, float] = {}
    kept_seconds: float | None = None
    retry_at: float = -math.inf
    failure: Idle | None = None

    @property
    def usage(self) -> Usage:
        """Its requests and users."""
        is_pinned = self.pinned or self.kept_seconds == math.inf
        return Usage(self.requests, self.held, self.held_since, self.awaited, is_pinned, self.used_at, self.tenants)

    @property
    def limit_seconds(self) -> float:
        """Time without requests after which it is unloaded."""
        if not (self.on_request and self.wanted) or (self.pinned and self.kept_seconds != 0):
            return math.inf
        limit = self.idle_seconds if self.kept_seconds is None else self.kept_seconds
        return math.inf if limit is None else limit

    def due_at(self, busy_at: float | None) -> float:
        """Return when it is unloaded if no request comes; infinite if it is not.

        Args:
            busy_at: When its engine last worked; None if it is not loaded, when only a user's unload ends the load.
        """
        limit = self.limit_seconds
        if self.requests or (busy_at is None and limit):
            return math.inf
        return max(self.used_at, busy_at or 0.0) + limit if limit else self.used_at

    def target(self, planned: Target, idle: Idle | None = None) -> Target:
        """Return the target of a service: what is planned, or nothing as long as it is not wanted.

        Args:
            planned: Target of its spec.
            idle: Why nothing runs, if it is not wanted and `planned` is a launch.
        """
        if isinstance(planned, Launch) and self.on_request and not self.wanted:
            return attrs.evolve(idle or self.failure or NOT_LOADED, launch=planned)
        return planned

    # -- changes --------------------------------------------------------------------------------------------------

    def with_spec(self, before: Desired | None, desired: Desired, default: str) -> "Activation":
        """Return the activation under another desired state; a new, failed or started service is loaded once.

        A user's request to unload it does not cut requests in flight.

        Args:
            before: The previous desired state; None if this host did not serve the service.
            desired: The newest one.
            default: The host's mode.
        """
        given, on_request = desired.service.spec.activation, mode_of(desired, default) == ON_REQUEST
        after = attrs.evolve(
            self,
            on_request=on_request,
            idle_seconds=_seconds(given.idle_timeout),
            hold_seconds=_seconds(given.max_hold),
            pinned=on_request and given.pin,
        )
        asked = desired.unload_requested_at
        if before is not None and on_request and max(before.unload_requested_at, desired.load_requested_at) < asked:
            return after.keep(0.0) if after.wanted else after
        if before is None:
            loaded = find_condition(desired.service.status.conditions, LOADED)
            is_awaited = loaded is None or loaded.reason in BEFORE_LOAD
        else:
            is_awaited = (
                before.service.metadata.uid != desired.service.metadata.uid
                or desired.load_requested_at not in {"", before.load_requested_at}
                or (desired.running and not before.running)
                or (self.failure is not None and not desired.has_same_spec(before))
            )
        return after.load() if is_awaited or after.pinned > self.pinned or not on_request else after

    def load(self) -> "Activation":
        """A user wants it loaded."""
        return attrs.evolve(self, wanted=True, awaited=True, retry_at=-math.inf)

    def start(self) -> "Activation":
        """Its ModelPool wants it loaded while no other member is, and memory for it is free."""
        return attrs.evolve(self, wanted=True)

    def begin(self, now: float, tenant: str = "") -> "Activation":
        """A request needs it, which does not load it during the back-off after a failed load."""
        tenants = self.tenants
        if tenant and tenants.get(tenant) != math.inf:
            recent = [each for each in tenants.items() if each[0] != tenant and each[1] > now - SHARE_SECONDS]
            tenants = {**dict(recent[1 - MAX_TENANTS :]), tenant: math.inf}
        wanted = self.wanted or now >= self.retry_at
        return attrs.evolve(self, requests=self.requests + 1, wanted=wanted, tenants=tenants)

    def hold(self, held: int, now: float) -> "Activation":
        """So many of its requests wait now."""
        return attrs.evolve(self, held=held, held_since=min(self.held_since, now) if held else math.inf)

    def end(self, now: float, *, has_memory: bool, tenant: str = "") -> "Activation":
        """A request has ended or its client has left; without any, a load that still waits for memory is withdrawn.

        Args:
            now: Time of its end.
            has_memory: Whether the service has memory.
            tenant: Its tenant, if it was the last request of that one.
        """
        tenants = {**self.tenants, tenant: now} if tenant in self.tenants else self.tenants
        after = attrs.evolve(self, requests=self.requests - 1, used_at=now, tenants=tenants)
        return attrs.evolve(after, wanted=self.wanted and (has_memory or after.usage.in_use or not self.on_request))

    def loaded(self, now: float) -> "Activation":
        """It has been loaded."""
        return attrs.evolve(self, awaited=False, used_at=now, retry_at=-math.inf, failure=None)

    def keep(self, seconds: float | None) -> "Activation":
        """A client wants it loaded until `seconds` after the last request; without end if None."""
        return attrs.evolve(self, kept_seconds=math.inf if seconds is None else seconds)

    def fail(self, retry_at: float, failure: Idle) -> "Activation":
        """Its load has failed, and is not repeated before `retry_at`."""
        if not self.on_request:
            return self
        return attrs.evolve(self, wanted=False, awaited=False, retry_at=retry_at, failure=failure)

    def displace(self, *, for_another: bool = False) -> "Activation":
        """Its engine is stopped for memory, perhaps for another one once it has loaded; it returns if it is in use."""
        after = attrs.evolve(self, awaited=self.awaited and not for_another)
        if not self.on_request:
            return after
        return attrs.evolve(after, wanted=True) if after.usage.in_use else after.unload()

    def unload(self) -> "Activation":
        """It is unloaded, by a user or because its time without requests is over."""
        return attrs.evolve(self, wanted=False, awaited=False, kept_seconds=None)


def reported_failure(desired: Desired) -> Idle | None:
    """Return why the last load of a service failed, as an earlier agent has reported it."""
    loaded = find_condition(desired.service.status.conditions, LOADED)
    reason = None if loaded is None else Reason.of(loaded.reason)
    if loaded is None or reason is None or reason.meaning is not Meaning.RETRIED:
        return None
    return Idle(reason, loaded.message)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except UserError:  # the schema admits durations only
        return None
