"""What is known of one service on this host, as one frozen value: whatever happens makes new facts of the old. Pure.

```
 the wish, the planner, the attempts, the memory, the applier ─▶ Facts ─▶ conditions, events, endpoint objects
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
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import Failure, ServiceView
from llmkube.weights.formats.shape import ModelHeader
from llmkube.weights.store.blobs import WeightsFile

T = TypeVar("T")

MEMORY_WAITS: Final = frozenset({Reason.INSUFFICIENT_MEMORY, Reason.EXCEEDS_MEMORY, Reason.MEMORY_CHECK_FAILED})
"""The reasons of a service that does not start for want of memory."""


@attrs.frozen
class Observed(Generic[T]):
    """Something that was learned, and of which generation of its object."""

    value: T
    generation: int = 0


@attrs.frozen
class Problem:
    """A word for programs and a sentence for people; both are empty where nothing is wrong."""

    reason: str = ""
    message: str = ""


@attrs.frozen
class FetchState:
    """The Model's file: whether it is here, why, and what its header says."""

    present: bool
    reason: str
    message: str
    weights: WeightsFile | None = None
    header: ModelHeader | None = None


@attrs.frozen
class Pressure:
    """How short of memory the host is; `short` is None when it is not known."""

    short: bool | None
    reason: str
    message: str


@attrs.frozen
class Facts:
    """Everything that conditions, Events and the endpoint of one service follow from.

    Attributes:
        desired: The newest wish; its objects' names, uids and generations are what is reported about. Kept beside
            cache and journal: an adopted engine is reported before and after the cache has its object.
        host: The name of this host.
        host_address: How this host is reached.
        view: The newest snapshot of the engine that serves, or will.
        endpoint_host: Where the last engine that was ready listens.
        endpoint_port: Its port; a crash loop that is never ready writes no slice.
        problem: Why the spec makes no plan; "" of one that does.
        ignored: The fields of the spec that have no effect here.
        outdated: Why what serves was not started from the newest spec; empty if it was.
        unplanned: Why the newest spec has made no plan yet.
        fetch: How the Model's file does.
        fetched: What was asked of the file that is here.
        fetch_error: Why the file could not be had, until it is here.
        fetch_failures: How often it could not.
        fetch_delay: What the fetch that goes on waits for; "" while it moves.
        refused: What of the endpoint the API server does not take.
        published: Of which generation it was said whether the endpoint is published; None where nothing was ever wrong.
        pressure: How short of memory the host is.
        evicted: Why the engine had to go, until one serves again.
        waits: For which reasons of this wait for memory there are Events.
        restarts: How many engines have ended by themselves.
        replace_failures: How many successors have failed while an older engine served.
        failure: The last of either.
        loads: How many engines have begun to serve.
    """

    desired: Desired
    host: str
    host_address: HostAddress
    view: Observed[ServiceView] = Observed(ServiceView(""))
    endpoint_host: str = ""
    endpoint_port: int = 0
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
        """What the slice says: of the engine that is or was last ready, else of the next one."""
        return self.host_address.advertised(self.endpoint_host)

    @property
    def publish_problem(self) -> Problem:
        """Why the endpoint is not published; empty if it is."""
        if self.host_address.problem:
            return Problem(Reason.NO_ADDRESS, self.host_address.problem)
        for error in self.refused.values():
            return Problem(getattr(error, "reason", "") or Reason.REFUSED, str(error))
        return Problem()

    @property
    def closed(self) -> str:
        """Why every request of a pod needs a key although the service gives out none; empty where that is not so."""
        return "" if self.desired.service.spec.api_key_secret_ref is not None else self.host_address.closed

    # -- the objects and the host -------------------------------------------------------------------------------------

    def with_desired(self, desired: Desired) -> "Facts":
        """A newer wish; another object of the same name has nothing that was written to its predecessor."""
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
        """This host is reached in another way."""
        return _with_published(attrs.evolve(self, host_address=host_address))

    def with_refusal(self, slot: Slot, error: UserError | None) -> "Facts":
        """The API server does not take an object of the endpoint; with None it takes it now."""
        refused = {one: known for one, known in self.refused.items() if one != slot}
        return _with_published(attrs.evolve(self, refused=refused | ({slot: error} if error else {})))

    # -- the plan -----------------------------------------------------------------------------------------------------

    def with_plan(self, ignored: tuple[str, ...]) -> "Facts":
        """The spec makes a plan; some of its fields may have no effect here."""
        return attrs.evolve(
            self,
            unplanned=Problem(),
            problem=_observed(self.desired.service, ""),
            ignored=_observed(self.desired.service, tuple(ignored)),
        )

    def without_plan(self, error: LLMKubeError) -> "Facts":
        """The spec makes no plan; whatever runs goes on with the last one that did."""
        return attrs.evolve(self, problem=_observed(self.desired.service, str(error)))

    def with_fetch_progress(self, message: str, delay: str = "") -> "Facts":
        """The file is on its way, or waits for `delay`; one that was here a moment ago is only looked at again."""
        if self.fetched == self.desired.model.spec:
            return self
        late = self.with_unplanned(Reason.FETCHING, "the file that the newest spec asks for is on its way")
        fetch = _observed(self.desired.model, FetchState(False, Reason.FETCHING, message))
        return attrs.evolve(late, fetch=fetch, fetch_delay=delay)

    def with_file(self, weights: WeightsFile, header: ModelHeader) -> "Facts":
        """The file is here, and this is what it says of itself."""
        chosen = f": {weights.choice}" if weights.choice else ""
        fetch = FetchState(True, Reason.FETCHED, f"the file is on host {self.host}{chosen}", weights, header)
        fetched = _observed(self.desired.model, fetch)
        return attrs.evolve(self, fetched=self.desired.model.spec, fetch_error="", fetch_delay="", fetch=fetched)

    def without_file(self, error: LLMKubeError) -> "Facts":
        """The file cannot be had, or is not what it should be."""
        return attrs.evolve(
            self,
            fetched=None,
            fetch_delay="",
            fetch_error=str(error),
            fetch_failures=self.fetch_failures + 1,
            fetch=_observed(self.desired.model, FetchState(False, fetch_reason(error), str(error))),
        )

    def with_unplanned(self, reason: str, message: str) -> "Facts":
        """The newest spec makes no plan, or not yet; whatever serves was started from an older one."""
        return attrs.evolve(self, unplanned=Problem(reason, message)).with_outdated(reason, message)

    def with_outdated(self, reason: str, message: str) -> "Facts":
        """What serves was started from an older spec, and this is why its successor does not serve yet."""
        return attrs.evolve(self, outdated=_observed(self.desired.service, Problem(reason, message)))

    def with_newest_plan(self) -> "Facts":
        """What runs, if anything does, is the newest plan; if the newest spec has made none, that is still to say."""
        return self.with_outdated(self.unplanned.reason, self.unplanned.message)

    # -- the engines --------------------------------------------------------------------------------------------------

    def with_view(self, view: ServiceView) -> "Facts":
        """Another snapshot, and with it the `Loaded` condition and the endpoint."""
        view = attrs.evolve(view, restarts=self.restarts)
        if view == self.view.value:
            return self
        waits = self.waits | {view.reason} if view.reason in MEMORY_WAITS else frozenset[str]()
        after = attrs.evolve(self, view=_observed(self.desired.service, view), waits=waits)
        return attrs.evolve(after, endpoint_host=view.host, endpoint_port=view.port) if view.ready else after

    def with_engine(self, view: ServiceView, *, newest: bool) -> "Facts":
        """An engine begins to serve; `newest` if it was started from the newest plan."""
        after = self.with_newest_plan() if newest else self
        return attrs.evolve(after.with_view(view), loads=self.loads + 1, evicted=None)

    def with_failure(self, failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime) -> "Facts":
        """An attempt has failed; say why in the engine's own words, and when the next one comes."""
        reason, head = _next_attempt(failure, failures, delay_seconds, now)
        after = attrs.evolve(self, restarts=self.restarts + 1, failure=failure)
        return after.with_view(ServiceView(reason, f"{head}: {failure.message}"))

    def with_newest_failure(
        self, failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime
    ) -> "Facts":
        """The engine of the newest spec has failed while nothing else runs; one of an older spec stands in for it."""
        after = self.with_failure(failure, failures, delay_seconds, now)
        view = after.view.value
        return after.with_outdated(view.reason, f"the engine of an older spec stands in; {view.message}")

    def with_replace_failure(
        self, failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime
    ) -> "Facts":
        """An attempt to replace the engine that serves has failed; that one serves on."""
        reason, head = _next_attempt(failure, failures, delay_seconds, now)
        after = attrs.evolve(self, replace_failures=self.replace_failures + 1, failure=failure)
        return after.with_outdated(reason, f"the engine of the older spec serves on; {head}: {failure.message}")

    # -- the memory ---------------------------------------------------------------------------------------------------

    def with_eviction(self, evict: Eviction) -> "Facts":
        """The engine has to go for want of memory."""
        return attrs.evolve(self, evicted=evict)

    def with_memory(self, level: Level, evicted: Eviction | None, why: str) -> "Facts":
        """How short of memory this host is, and whether that is why this service does not run.

        The same level with other figures is no change: each would be a write.
        """
        short = None if level is Level.UNKNOWN else level in {Level.WARNING, Level.CRITICAL}
        now = Pressure(short, level.name.capitalize(), f"memory on host {self.host}: {why}")
        if evicted is not None and evicted.cause is not Cause.DISPLACED:
            now = Pressure(True, Reason.EVICTED, evicted.why)
        if self.pressure is not None and self.pressure.value.reason == now.reason:
            return self
        return attrs.evolve(self, pressure=_observed(self.desired.service, now))


def _observed(of: Object, value: T) -> Observed[T]:
    return Observed(value, of.metadata.generation or 0)


def _with_published(facts: Facts) -> Facts:
    """Note of which generation it is said whether the endpoint is published, where anything was ever wrong with it."""
    is_known = facts.publish_problem.reason or facts.closed or facts.published is not None
    return attrs.evolve(facts, published=facts.desired.service.metadata.generation or 0 if is_known else None)


def _next_attempt(failure: Failure, failures: int, delay_seconds: float, now: datetime.datetime) -> tuple[Reason, str]:
    if delay_seconds == 0:
        reason, head = Reason.RESTARTING, "restarting at once"
    else:
        at = timestamp(now + datetime.timedelta(seconds=delay_seconds))
        reason, head = Reason.CRASH_LOOP, f"{failures} failures in a row; next attempt at {at}"
    return (reason if failure.reason is Reason.ENGINE_EXITED else failure.reason), head
