"""Everything known about one service on this host, as one frozen value; each change returns new facts. Pure.

```
 desired state, planner, attempts, memory, applier ─▶ Facts ─▶ conditions, Events, endpoint objects
```
"""

import datetime
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

import attrs

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.k8s.crd.model import ModelSpec
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.times import timestamp
from llmkube.supervisor.cluster.status import Slot, fetch_reason
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Cause, Eviction
from llmkube.supervisor.values.desired import Desired
from llmkube.supervisor.values.door_state import Listen
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import Failure, ServiceView
from llmkube.weights.formats.shape import GGUFFacts, ModelHeader
from llmkube.weights.store.blobs import WeightsFile

T = TypeVar("T")

MEMORY_WAITS: Final = frozenset(
    {Reason.INSUFFICIENT_MEMORY, Reason.EXCEEDS_MEMORY, Reason.MEMORY_CHECK_FAILED, Reason.WAITING_FOR_POOL}
)
"""Reasons of a service that cannot start because of memory."""


@attrs.frozen
class Observed(Generic[T]):
    """A value, and the generation of the object that it was observed for."""

    value: T
    generation: int = 0


@attrs.frozen
class Problem:
    """A reason for programs and a message for people; both are empty if there is no problem."""

    reason: str = ""
    message: str = ""


@attrs.frozen
class FetchState:
    """State of the Model's file: whether it is present, why, and its header."""

    present: bool
    reason: str
    message: str
    weights: WeightsFile | None = None
    header: ModelHeader | None = None


@attrs.frozen
class Pressure:
    """Memory pressure of the host; `short` is None if it is not known."""

    short: bool | None
    reason: str
    message: str


@attrs.frozen
class Facts:
    """Everything from which conditions, Events and the endpoint of one service are derived.

    Attributes:
        desired: The newest desired state; conditions refer to the names, uids and generations of its objects. Held here
            in addition to cache and journal: an adopted engine is reported before and after the cache has its object.
        host: The name of this host.
        host_address: The address at which this host is reached.
        view: The newest snapshot of the engine that serves, or will.
        endpoint_host: The address that the last ready engine listens on.
        endpoint_port: Its port; 0 until an engine was ready, so a crash loop from the start lists no endpoint.
        door: The address and port on which the door accepts the service's requests; empty if it does not,
            None if that is not known yet.
        problem: Why the spec cannot be planned; "" if it can.
        ignored: Fields of the spec that have no effect here.
        outdated: Why the engine that serves was not started from the newest spec; empty if it was.
        unplanned: Why there is no plan for the newest spec yet.
        fetch: State of the Model's file.
        fetched: The Model's spec for which the file was fetched; None if the file is not here.
        fetch_error: The last error of the fetch, until the file is here.
        fetch_failures: Number of failed fetches.
        fetch_delay: The cause for which the running fetch waits; "" while it makes progress.
        refused: Objects of the endpoint that the API server refuses.
        published: Generation of the `Published` condition; None if publishing never had a problem.
        pressure: Memory pressure of the host.
        evicted: The last eviction, until an engine serves again.
        waits: Reasons of the current wait for memory that Events have reported.
        restarts: Number of engines that have failed.
        replace_failures: Number of successors that have failed while an older engine served.
        failure: The last failure, of an engine or a successor.
        loads: Number of engines that have started to serve.
    """

    desired: Desired
    host: str
    host_address: HostAddress
    view: Observed[ServiceView] = Observed(ServiceView(""))
    endpoint_host: str = ""
    endpoint_port: int = 0
    door: Listen | None = ()
    problem: Observed[str] | None = None
    ignored: Observed[tuple[str, ...]] | None = None
    outdated: Observed[Problem] = Observed(Problem())
    unplanned: Problem = Problem()
    fetch: Observed[FetchState] | None = None
    fetched: ModelSpec | None = None
    fetch_error: str = ""
    fetch_failures: int = 0
    fetch_delay: str = ""
    refused: Mapping[Slot, UserError] = attrs.field(factory=dict)
    published: int | None = None
    pressure: Observed[Pressure] | None = None
    evicted: Eviction | None = None
    waits: frozenset[str] = frozenset()
    restarts: int = 0
    replace_failures: int = 0
    failure: Failure | None = None
    loads: int = 0

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.desired.key

    @property
    def address(self) -> str | None:
        """Address in the slice: that of the last ready engine, else that of the next one."""
        return self.host_address.advertised(self.door[0] if self.door else self.endpoint_host)

    @property
    def endpoint_ready(self) -> bool:
        """Whether requests may be sent to the endpoint: to an engine that answers, or to the door, which explains."""
        view = self.view.value
        return view.ready or (bool(self.door) and view.reason not in {Reason.SCALED_TO_ZERO, Reason.RELEASED})

    @property
    def publish_problem(self) -> Problem:
        """Reason why the endpoint is not published; empty if it is."""
        if self.host_address.problem:
            return Problem(Reason.NO_ADDRESS, self.host_address.problem)
        for error in self.refused.values():
            return Problem(getattr(error, "reason", "") or Reason.REFUSED, str(error))
        return Problem()

    @property
    def closed(self) -> str:
        """Reason why every request of a pod needs a key although the service has no client keys; "" if none does."""
        return "" if self.desired.service.spec.api_key_secret_ref is not None else self.host_address.closed

    # -- the objects and the host -------------------------------------------------------------------------------------

    def with_desired(self, desired: Desired) -> "Facts":
        """Set the desired state; drop what was reported about a previous object of the same name (another uid)."""
        before, after = self.desired, attrs.evolve(self, desired=desired)
        if before.model.metadata.uid != desired.model.metadata.uid:
            same_file = self.fetch is not None and self.fetch.value.present and self.fetched == desired.model.spec
            fetch = _observed(desired.model, self.fetch.value) if self.fetch is not None and same_file else None
            after = attrs.evolve(after, fetch=fetch)
        if before.service.metadata.uid != desired.service.metadata.uid:
            after = attrs.evolve(
                after,
                problem=None,
                ignored=None,
                published=None,
                view=_observed(desired.service, self.view.value),
                outdated=_observed(desired.service, self.outdated.value),
                pressure=_observed(desired.service, self.pressure.value) if self.pressure else None,
            )
            after = _with_published(after)
        return after

    def with_host_address(self, host_address: HostAddress) -> "Facts":
        """Set this host's address."""
        return _with_published(attrs.evolve(self, host_address=host_address))

    def with_refusal(self, slot: Slot, error: UserError | None) -> "Facts":
        """Set, or with None clear, the API server's refusal of an object of the endpoint."""
        refused = {one: known for one, known in self.refused.items() if one != slot}
        return _with_published(attrs.evolve(self, refused=refused | ({slot: error} if error else {})))

    # -- the plan -----------------------------------------------------------------------------------------------------

    def with_plan(self, ignored: tuple[str, ...]) -> "Facts":
        """Record that the spec has a plan, and its fields that have no effect here."""
        return attrs.evolve(
            self,
            unplanned=Problem(),
            problem=_observed(self.desired.service, ""),
            ignored=_observed(self.desired.service, tuple(ignored)),
        )

    def without_plan(self, error: LLMKubeError) -> "Facts":
        """Record why the spec cannot be planned; a running engine keeps the last plan."""
        return attrs.evolve(self, problem=_observed(self.desired.service, str(error)))

    def with_fetch_progress(self, message: str, delay: str = "", reason: str = Reason.FETCHING) -> "Facts":
        """Set the progress of the fetch, the `delay` that it waits for, and the reason of the condition."""
        if self.fetched == self.desired.model.spec:  # the file was here before, and is only checked again
            return self
        late = self.with_unplanned(Reason.FETCHING, "the file for the newest spec is being fetched")
        fetch = _observed(self.desired.model, FetchState(False, reason, message))
        return attrs.evolve(late, fetch=fetch, fetch_delay=delay)

    def with_file(self, weights: WeightsFile, header: ModelHeader) -> "Facts":
        """Record that the file is here, with its header."""
        projector = header.projector if isinstance(header, GGUFFacts) else None
        notes = [weights.choice, f"with the projector {projector.name}" if projector is not None else ""]
        chosen = f": {', '.join(filter(None, notes))}".removesuffix(": ")
        fetch = FetchState(True, Reason.FETCHED, f"the file is on {self.host}{chosen}", weights, header)
        fetched = _observed(self.desired.model, fetch)
        return attrs.evolve(self, fetched=self.desired.model.spec, fetch_error="", fetch_delay="", fetch=fetched)

    def without_file(self, error: LLMKubeError) -> "Facts":
        """Record that the file could not be fetched, or is not valid."""
        return attrs.evolve(
            self,
            fetched=None,
            fetch_delay="",
            fetch_error=str(error),
            fetch_failures=self.fetch_failures + 1,
            fetch=_observed(self.desired.model, FetchState(False, fetch_reason(error), str(error))),
        )

    def with_unplanned(self, reason: str, message: str) -> "Facts":
        """Set why there is no plan for the newest spec, or not yet; an engine that serves is then outdated."""
        return attrs.evolve(self, unplanned=Problem(reason, message)).with_outdated(reason, message)

    def with_outdated(self, reason: str, message: str) -> "Facts":
        """Set why the engine that serves is still the one of an older spec."""
        return attrs.evolve(self, outdated=_observed(self.desired.service, Problem(reason, message)))

    def with_newest_plan(self) -> "Facts":
        """Record that the running engine, if any, has the newest plan."""
        # The newest spec may have no plan yet, and then the engine is outdated nevertheless.
        return self.with_outdated(self.unplanned.reason, self.unplanned.message)

    # -- the engines --------------------------------------------------------------------------------------------------

    def with_view(self, view: ServiceView) -> "Facts":
        """Set the snapshot of the engine, and with it the `Loaded` condition and the endpoint."""
        view = attrs.evolve(view, restarts=self.restarts)
        if view == self.view.value:
            return self
        waits = self.waits | {view.reason} if view.reason in MEMORY_WAITS else frozenset[str]()
        after = attrs.evolve(self, view=_observed(self.desired.service, view), waits=waits)
        is_reached = view.ready and not view.behind_door
        return attrs.evolve(after, endpoint_host=view.host, endpoint_port=view.port) if is_reached else after

    def with_door(self, door: Listen) -> "Facts":
        """Set where the door accepts the service's requests."""
        return self if door == self.door else attrs.evolve(self, door=door)

    def with_engine(self, view: ServiceView, *, newest: bool) -> "Facts":
        """Record that an engine starts to serve; `newest` if it has the newest plan."""
        after = self.with_newest_plan() if newest else self
        return attrs.evolve(after.with_view(view), loads=self.loads + 1, evicted=None)

    def with_failure(self, failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime) -> "Facts":
        """Record a failed attempt, with the engine's last log lines and the time of the next attempt."""
        reason, head = _next_attempt(failure, failures, delay_seconds, now)
        after = attrs.evolve(self, restarts=self.restarts + 1, failure=failure)
        return after.with_view(ServiceView(reason, f"{head}: {failure.message}"))

    def with_newest_failure(
        self, failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime
    ) -> "Facts":
        """Record that the engine of the newest spec failed, and that the engine of an older spec starts instead."""
        after = self.with_failure(failure, failures, delay_seconds, now)
        view = after.view.value
        return after.with_outdated(view.reason, f"falling back to the engine of an older spec; {view.message}")

    def with_replace_failure(
        self, failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime
    ) -> "Facts":
        """Record that a successor failed; the engine that serves keeps serving."""
        reason, head = _next_attempt(failure, failures, delay_seconds, now)
        after = attrs.evolve(self, replace_failures=self.replace_failures + 1, failure=failure)
        return after.with_outdated(reason, f"the engine of the older spec keeps serving; {head}: {failure.message}")

    # -- the memory ---------------------------------------------------------------------------------------------------

    def with_eviction(self, evict: Eviction) -> "Facts":
        """Record the eviction of the engine."""
        return attrs.evolve(self, evicted=evict)

    def with_memory(self, level: Level, evicted: Eviction | None, why: str) -> "Facts":
        """Set the host's memory pressure, or the eviction if that is why this service does not run."""
        short = None if level is Level.UNKNOWN else level in {Level.WARNING, Level.CRITICAL}
        now = Pressure(short, level.name.capitalize(), f"memory on {self.host}: {why}")
        if evicted is not None and evicted.cause is not Cause.DISPLACED:
            now = Pressure(True, Reason.EVICTED, evicted.why)
        if self.pressure is not None and self.pressure.value.reason == now.reason:
            return self  # other figures at the same level are not reported: each report is an API write
        return attrs.evolve(self, pressure=_observed(self.desired.service, now))


def _observed(of: Object, value: T) -> Observed[T]:
    return Observed(value, of.metadata.generation or 0)


def _with_published(facts: Facts) -> Facts:
    """Set the generation of the `Published` condition, if publishing ever had a problem."""
    is_known = facts.publish_problem.reason or facts.closed or facts.published is not None
    return attrs.evolve(facts, published=facts.desired.service.metadata.generation or 0 if is_known else None)


def _next_attempt(failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime) -> tuple[Reason, str]:
    if delay_seconds == 0:
        reason, head = Reason.RESTARTING, "restarting at once"
    else:
        at = timestamp(now + datetime.timedelta(seconds=delay_seconds))
        reason, head = Reason.CRASH_LOOP, f"{failures} failures in a row; next attempt at {at}"
    return (reason if failure.reason is Reason.ENGINE_EXITED else failure.reason), head
