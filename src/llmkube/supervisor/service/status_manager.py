"""The one mouth of a service: what its tasks know becomes conditions, endpoints, log lines and a snapshot.

It decides nothing and waits for nothing but, at a stop, for "not ready" to arrive.
"""

import datetime
from collections.abc import Callable
from typing import Final, Literal

import attrs
import structlog

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model, ModelSpec
from llmkube.k8s.errors import NameTakenError
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import service_name, slice_name
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.times import timestamp
from llmkube.supervisor.cluster import endpoints, status
from llmkube.supervisor.cluster.applier import Applier, Slot
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.eviction import Cause, Evict
from llmkube.supervisor.nouns.desired import Desired
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.nouns.lifecycle import Failure, ServiceView
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.weights.download.fetch import WeightsFile
from llmkube.weights.formats.gguf import GGUFFacts

log = structlog.get_logger(__name__)

FOR_MEMORY: Final = frozenset({Reason.INSUFFICIENT_MEMORY, Reason.MEMORY_CHECK_FAILED})
"""What a service says of itself while it waits for memory."""


@attrs.define(eq=False)
class Reporter:
    """Say what is true of one service.

    Attributes:
        wish: The newest wish; its objects' names, uids and generations are what is reported about.
        view: The newest snapshot.
        changed: Called after the snapshot has changed.
        reach: How this host is reached.
        leader: The voice of the engine that is heard.
        speaks: Whether what this host knows goes into the objects' status; of several hosts that run replicas one does.
    """

    wish: Desired
    settings: AgentSettings
    applier: Applier
    events: EventRecorder
    utcnow: Callable[[], datetime.datetime]
    changed: Callable[[], None]
    reach: Mailbox[Reach]
    speaks: bool = True
    view: ServiceView = ServiceView("")
    leader: object = None
    _restarts: int = 0
    _outdated: tuple[int | None, str, str] = (None, "", "")  # of which generation why what serves is not the newest
    _unplanned: tuple[str, str] = ("", "")  # why the newest spec has made no plan yet
    _fetch_error: str = ""
    _fetched: ModelSpec | None = None  # what was asked of the file that is here
    _refused: dict[Slot, UserError] = attrs.field(factory=dict)  # what of the endpoint the API server does not take
    _endpoint_host: str = ""
    _endpoint_port: int = 0  # of the last engine that was ready: a crash loop that never gets there writes no slice
    _model_file: tuple[WeightsFile | None, GGUFFacts | None] = (None, None)
    _memory: tuple[bool | None, str, str] | None = None  # status, reason and message of MemoryPressure
    _away: Evict | None = None  # why it had to go, until it serves again
    _waits_told: frozenset[str] = frozenset()  # why it waits for memory, as far as this wait's Events have said it
    _of_service: status.Conditions = attrs.field(factory=status.Conditions)
    _of_model: status.Conditions = attrs.field(factory=status.Conditions)

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.wish.key

    def greet(self, *, adopting: bool) -> None:
        """Speak first: nothing that an earlier agent said of this service, in whatever form, is true any more.

        Except of an engine that it has left: that one serves, and its endpoint stays until something else is known.
        """
        if not adopting:
            self.say(ServiceView(Reason.PENDING, "the agent has just started with this service"))
        self._withdraw_others()

    def follow(self, wish: Desired) -> None:
        """Report about a newer wish from now on."""
        renewed = wish.service.metadata.uid != self.wish.service.metadata.uid
        other_model = wish.model.metadata.uid != self.wish.model.metadata.uid
        if other_model:  # what was said of its predecessor is not true of it
            self.applier.forget(Slot(Model, self.wish.model.key, "status"))
            self._of_model = status.Conditions()
        self.wish = wish
        weights, facts = self._model_file
        if other_model and self._fetched == wish.model.spec and weights is not None and facts is not None:
            self.fetched(weights, facts)  # the same file: nobody need fetch it again to know
        if renewed:  # another object of the same name has heard nothing yet
            self.applier.forget(self._status_slot)
            self._of_service = status.Conditions()
            if self._memory is not None:
                self._set("MemoryPressure", *self._memory)
            if self.view.reason:
                self._set("Loaded", self.view.ready, str(self.view.reason), self.view.message)
                self._set_up_to_date()
                self._write_status()
        self._publish_endpoint()

    def speak(self, yes: bool) -> None:
        """Report in the objects' status, or leave that to another host from now on."""
        if yes == self.speaks:
            return
        self.speaks = yes
        if yes and self.view.reason:
            self._write_status()
            self._write_model()
        if not yes:
            self.applier.forget(self._status_slot)
            self.applier.forget(Slot(Model, self.wish.model.key, "status"))

    def moved(self) -> None:
        """Say where the engine is now that this host is reached in another way."""
        self._withdraw_others()
        self._publish_endpoint()
        if problem := self.reach.value.problem:
            self._warn("NoAddress", problem)
        self._set_published()

    def refused_slot(self, slot: Slot, refused: UserError | None) -> None:
        """The API server does not take what is published, or takes it now; a Service of another's gets no endpoint."""
        before = self._refused.pop(slot, None)
        if refused is not None:
            self._refused[slot] = refused
            if str(refused) != str(before):
                self._warn("NotPublished", str(refused))
        self._publish_endpoint()
        self._set_published()

    def _set_published(self) -> None:
        problem, reason = self.reach.value.problem, "NoAddress"
        if not problem and self._refused:
            refused = next(iter(self._refused.values()))
            problem, reason = str(refused), getattr(refused, "reason", "") or "Refused"
        if problem:
            self._set("Published", False, reason, problem)
        elif self._of_service.holds("Published") is not None:
            self._set("Published", True, "Published", self.reach.value.why)
        self._write_status()

    def accepted(self, not_honoured: tuple[str, ...]) -> None:
        """The spec makes a plan; name the fields in it that have no effect here."""
        self._unplanned = ("", "")
        self._set("Accepted", True, "Accepted", "the spec can be served on this host")
        if not_honoured:
            listed = ", ".join(not_honoured)
            self._set("SpecHonoured", False, "FieldsIgnored", f"accepted, but without effect on a host: {listed}")
        else:
            self._set("SpecHonoured", True, "Honoured", "every given field has its effect")
        self._write_status()

    def refused(self, error: LLMKubeError) -> None:
        """The spec makes no plan; whatever runs goes on with the last one that did."""
        log.warning("spec refused", name=self.key.name, namespace=self.key.namespace, error=str(error))
        self._set("Accepted", False, "Invalid", str(error))
        self._warn("Invalid", str(error))
        self._write_status()

    def fetching(self, message: str) -> None:
        """The Model's file is on its way; a file that was here a moment ago is only looked at again."""
        if self._fetched != self.wish.model.spec:
            self.unplanned(Reason.FETCHING, "the file that the newest spec asks for is on its way")
            self._set_model(False, "Fetching", message)

    def fetched(self, weights: WeightsFile, facts: GGUFFacts) -> None:
        """The Model's file is here, and this is what it says of itself."""
        self._fetched, self._fetch_error = self.wish.model.spec, ""
        self._set_model(True, "Fetched", f"the file is on host {self.settings.host_name}", weights, facts)

    def not_fetched(self, error: LLMKubeError) -> None:
        """The Model's file cannot be had, or is not what it should be."""
        self._fetched = None
        if str(error) != self._fetch_error:  # it is tried again and again; the news is told once
            log.warning("model not fetched", name=self.key.name, namespace=self.key.namespace, error=str(error))
        self._fetch_error = str(error)
        reason = status.fetch_reason(error)
        self._set_model(False, reason, str(error))
        self._warn(reason, str(error))

    def say(self, view: ServiceView) -> None:
        """Replace the snapshot, and with it the `Loaded` condition and the endpoint."""
        view = attrs.evolve(view, restarts=self._restarts)
        if view == self.view:
            return
        self.view = view
        self._tell_wait(view)
        if view.ready:
            before, self._endpoint_host, self._endpoint_port = self._endpoint_host, view.host, view.port
            if before not in {"", view.host}:
                self._withdraw_others()
        self._set("Loaded", view.ready, str(view.reason), view.message)
        self._set_up_to_date()
        self._write_status()
        self._publish_endpoint()
        self.changed()

    def _tell_wait(self, view: ServiceView) -> None:
        """One Event for each wait for memory; how its figures change is the status's to tell."""
        if view.reason not in FOR_MEMORY:
            self._waits_told = frozenset()
        elif view.reason not in self._waits_told:
            self._waits_told |= {view.reason}
            self._warn(view.reason, view.message)

    def amend(self, reason: str, message: str = "") -> None:
        """Change the reason of the snapshot and keep where the engine is."""
        self.say(attrs.evolve(self.view, reason=reason, message=message))

    def failed(self, failure: Failure, failures: int, delay_seconds: float) -> None:
        """An attempt has failed; say why in the engine's own words, and when the next one comes."""
        self._restarts += 1
        self._warn(str(failure.reason), failure.message)
        reason, head = self._next_attempt(failure, failures, delay_seconds)
        self.say(ServiceView(reason, f"{head}: {failure.message}"))

    def not_replaced(self, failure: Failure, failures: int, delay_seconds: float) -> None:
        """An attempt to replace the engine that serves has failed; that one serves on."""
        self._warn("NotReplaced", f"the engine of the older spec serves on: {failure.message}")
        reason, head = self._next_attempt(failure, failures, delay_seconds)
        self.outdated(reason, f"the engine of the older spec serves on; {head}: {failure.message}")

    def _next_attempt(self, failure: Failure, failures: int, delay_seconds: float) -> tuple[Reason, str]:
        if delay_seconds == 0:
            head, reason = "restarting at once", Reason.RESTARTING
        else:
            at = timestamp(self.utcnow() + datetime.timedelta(seconds=delay_seconds))
            head, reason = f"{failures} failures in a row; next attempt at {at}", Reason.CRASH_LOOP
        return (reason if failure.reason is Reason.ENGINE_EXITED else failure.reason), head

    def evicted(self, evict: Evict) -> None:
        """The engine has to go for want of memory; say to whom it goes, and what becomes of its requests."""
        self._away = evict
        if evict.cause is Cause.DISPLACED:
            self._warn("Displaced", evict.why)
        else:
            cut = "; requests in flight are cut short" if evict.urgent else "; requests in flight may finish first"
            self._warn("Evicted", evict.why + cut)

    def cut_short(self, why: str) -> None:
        """An engine ends before its requests do."""
        log.warning("requests in flight are cut short", name=self.key.name, namespace=self.key.namespace, reason=why)
        self._warn("RequestsCutShort", f"requests in flight are cut short: {why}")

    def displaces(self, evict: Evict) -> None:
        """Another service has to go for this one."""
        name = evict.key.name if evict.key.namespace == self.key.namespace else str(evict.key)
        self.told("Displacing", f"{name} is evicted to make room for this service", "Normal")

    def memory(self, level: Level, evicted: Evict | None, why: str) -> None:
        """How short of memory this host is, and whether that is why this service does not run."""
        status: bool | None = level in {Level.WARNING, Level.CRITICAL}
        reason, message = level.name.capitalize(), f"memory on host {self.settings.host_name}: {why}"
        if level is Level.UNKNOWN:
            status = None
        if evicted is not None and evicted.cause is not Cause.DISPLACED:
            status, reason, message = True, "Evicted", evicted.why
        before, self._memory = self._memory, (status, reason, message)
        if before is None or before[1] != reason:
            self._set("MemoryPressure", *self._memory)
            if before is not None:  # else it goes with the first words of its service
                self._write_status()

    def told(self, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        """Something about this service's host that its owner may want to know."""
        self.events.emit_nowait(self.wish.service, reason, message, type=kind)

    def loaded(self, view: ServiceView) -> None:
        """An engine has begun to serve; tell it where people look for what has happened."""
        self.events.emit_nowait(self.wish.service, "Loaded", f"{view.message} on host {self.settings.host_name}")
        if self._away is not None:
            self.told("Returned", f"Runs again; before that: {self._away.why}", "Normal")
            self._away = None
        log.info(
            "registered endpoint",
            name=self.key.name,
            namespace=self.key.namespace,
            hostIP=self._address or view.host,
            port=view.port,
        )

    def not_started(self, failure: Failure, failures: int, delay_seconds: float) -> None:
        """The engine of the newest spec has failed while nothing else runs; one of an older spec stands in for it."""
        self.failed(failure, failures, delay_seconds)
        reason, head = self._next_attempt(failure, failures, delay_seconds)
        self.outdated(reason, f"the engine of an older spec stands in; {head}: {failure.message}")

    def current(self) -> None:
        """What runs, if anything does, is the newest plan; if the newest spec has made none, that is still to say."""
        self.outdated(*self._unplanned)

    def unplanned(self, reason: str, message: str) -> None:
        """The newest spec makes no plan, or not yet; whatever serves was started from an older one."""
        self._unplanned = (reason, message)
        self.outdated(reason, message)

    def outdated(self, reason: str, message: str) -> None:
        """What serves was started from an older spec; say why its successor does not serve yet, or "" if it is not."""
        said = self.wish.service.metadata.generation, reason, message
        if said != self._outdated:
            self._outdated = said
            self._set_up_to_date()
            if self.view.ready:  # else nobody can tell, whatever the reason
                self._write_status()

    def _set_up_to_date(self) -> None:
        if not self.view.ready:
            self._set("UpToDate", None, "NotServing", "no engine serves on this host")
        elif self._outdated[1]:
            self._set("UpToDate", False, *self._outdated[1:])
        else:
            self._set("UpToDate", True, "UpToDate", "what serves was started from the newest spec")

    async def wait_endpoint_heard(self) -> None:
        """Return when the API server knows what was last said of the endpoint."""
        if slots := self._endpoint_slots():  # none is not all: where nothing is published, nothing is waited for
            await self.applier.wait_applied(*slots)

    def farewell(self) -> None:
        """The service is no longer ours: take its endpoint back, and say so once, unless another host speaks."""
        self.say(ServiceView(Reason.RELEASED, f"host {self.settings.host_name} does not look after it any more"))
        for slot in self._endpoint_slots():
            self.applier.delete_nowait(slot)
        self.applier.forget(self._slot(Service))
        self.applier.forget_once_applied(self._status_slot)
        self.applier.forget(Slot(Model, self.wish.model.key, "status"))

    # -- what becomes of it ---------------------------------------------------------------------------------------

    @property
    def _address(self) -> str | None:
        """What the slice says: of the engine that is or was last ready, else of the next one."""
        return self.reach.value.advertised(self._endpoint_host)

    @property
    def _status_slot(self) -> Slot:
        return Slot(InferenceService, self.key, "status")

    def _slot(self, kind: type) -> Slot:
        return Slot(kind, Key(self.key.namespace, service_name(self.key.name)))

    def _endpoint_slots(self) -> tuple[Slot, ...]:
        """Where this agent says that the engine is, and whether it answers."""
        address = self._address
        if address is None:
            return ()
        if self.settings.endpoints_api == "endpoints":
            return (self._slot(Endpoints),)
        return (self._slice_slot(endpoints.family(address)),)

    def _all_endpoint_slots(self) -> tuple[Slot, ...]:
        """Where an agent with any settings would have said so."""
        return (self._slot(Endpoints), self._slice_slot("IPv4"), self._slice_slot("IPv6"))

    def _withdraw_others(self) -> None:
        """Take back what was said of it in another form, or at an address of the other family."""
        for slot in self._all_endpoint_slots():
            if slot not in self._endpoint_slots():
                self.applier.delete_nowait(slot)

    def _slice_slot(self, family: Literal["IPv4", "IPv6"]) -> Slot:
        name = slice_name(service_name(self.key.name), self.settings.host_name, family)
        return Slot(EndpointSlice, Key(self.key.namespace, name))

    def _publish_endpoint(self) -> None:
        address, service = self._address, self.wish.service
        port, ready = self._endpoint_port, self.view.ready
        ready = ready and not any(isinstance(one, NameTakenError) for one in self._refused.values())
        if address is None or not self.view.reason:  # while an engine is adopted, what its last agent said stands
            return
        self.applier.apply_nowait(self._slot(Service), endpoints.service_manifest(service))
        for slot in self._endpoint_slots():
            if slot.kind is Endpoints:
                manifest = endpoints.endpoints_manifest(service, address, port, ready=ready)
            else:
                host = self.settings.host_name
                manifest = endpoints.slice_manifest(service, host, address, port, ready=ready)
            self.applier.apply_nowait(slot, manifest)

    def _warn(self, reason: str, message: str) -> None:
        self.events.emit_nowait(self.wish.service, reason, message, type="Warning")

    def _set(self, kind: str, value: bool | None, reason: str, message: str) -> None:
        generation = self.wish.service.metadata.generation or 0
        self._of_service.set(kind, value, reason, message, generation=generation, now=self.utcnow())

    def _write_status(self) -> None:
        if not self.speaks:
            return
        self.applier.apply_nowait(
            self._status_slot, status.service_status(self.wish.service, self._of_service, self.view)
        )

    def _set_model(
        self,
        value: bool,
        reason: str,
        message: str,
        weights: WeightsFile | None = None,
        facts: GGUFFacts | None = None,
    ) -> None:
        model = self.wish.model
        generation = model.metadata.generation or 0
        self._of_model.set("Fetched", value, reason, message, generation=generation, now=self.utcnow())
        self._model_file = (weights, facts)
        self._write_model()

    def _write_model(self) -> None:
        if not (self.speaks and self._of_model.as_list()):
            return
        model, (weights, facts) = self.wish.model, self._model_file
        self.applier.apply_nowait(
            Slot(Model, model.key, "status"), status.model_status(model, self._of_model, weights, facts)
        )
