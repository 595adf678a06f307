"""Hold the facts of a service, and write the objects and Events that result from them.

The status manager decides nothing. It waits only during a stop, until "not ready" has reached the API server.

Clients reach the engine through a Service, and a slice or Endpoints. The Service and its ClusterIP belong to the
InferenceService and outlive every process; the slice or Endpoints has the engine's address and whether it is ready.
"""

import datetime
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Literal, ParamSpec

import attrs
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NameTakenError
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.resource import Key, controller_reference
from llmkube.k8s.wire.conditions import LOADED, find_condition
from llmkube.k8s.wire.names import (
    AGENT_MANAGER,
    HOST_LABEL,
    LOADED_LABEL,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    SERVICE_NAME_LABEL,
    SERVICE_PORT,
    host_id,
    label_value,
    service_name,
    slice_name,
)
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.llama_fields import additional_ids
from llmkube.supervisor.cluster import status
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.cluster.status import Slot
from llmkube.supervisor.power.token_energy import TokenCount
from llmkube.supervisor.service.events import Event, events, model_conditions, service_conditions
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.values.activation import mode_of
from llmkube.supervisor.values.desired import Desired
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.supervisor.values.settings import AgentSettings


def service_manifest(service: InferenceService) -> dict[str, Any]:
    """Return the Service, without a selector, in front of one InferenceService."""
    # No `targetPort`: for a Service without a selector, kube-proxy takes the port from the slice.
    return {
        "metadata": _metadata(service, service_name(service.key.name)),
        "spec": {"type": "ClusterIP", "ports": [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP"}]},
    }


def slice_manifest(service: InferenceService, host: str, address: str, port: int, *, ready: bool) -> dict[str, Any]:
    """Return this host's EndpointSlice: one address, ready only while the engine or the door is known to answer.

    With port 0 (no engine has been ready yet) it lists no endpoint, which replaces one of an earlier agent.
    """
    name = service_name(service.key.name)
    metadata = _metadata(service, slice_name(name, host, family(address)))
    metadata["labels"] |= {SERVICE_NAME_LABEL: name, MANAGED_BY_LABEL: AGENT_MANAGER, HOST_LABEL: host_id(host)}
    return {
        "metadata": metadata,
        "addressType": family(address),
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}] if port else [],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}] if port else [],
    }


def family(address: str) -> Literal["IPv4", "IPv6"]:
    """Return the family of an address, as EndpointSlices name it."""
    return "IPv4" if ipaddress.ip_address(address).version == 4 else "IPv6"


def endpoints_manifest(service: InferenceService, address: str, port: int, *, ready: bool) -> dict[str, Any]:
    """Return the classic Endpoints object, deprecated since Kubernetes 1.33, for scripts that still read it.

    Never publish it together with a slice: Kubernetes mirrors Endpoints into slices, and clients would see both.
    """
    field = "addresses" if ready else "notReadyAddresses"
    return {
        "metadata": _metadata(service, service_name(service.key.name)),
        "subsets": [{field: [{"ip": address}], "ports": [{"name": "http", "port": port, "protocol": "TCP"}]}]
        if port
        else [],
    }


def _metadata(service: InferenceService, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": service.key.namespace,
        "labels": {"app": label_value(service.key.name), SERVICE_LABEL: label_value(service.key.name)},
        "ownerReferences": [controller_reference(service)],
    }


def service_slot(facts: Facts) -> Slot:
    """Return the slot of the Service in front of the engine."""
    return Slot(Service, Key(facts.key.namespace, service_name(facts.key.name)))


def endpoint_slots(facts: Facts, endpoints_api: str) -> tuple[Slot, ...]:
    """Return the slots in which an agent with this setting publishes the endpoint; none if the host has no address."""
    if facts.address is None:
        return ()
    if endpoints_api == "endpoints" and not facts.desired.has_pods:  # with pods, Kubernetes writes the Endpoints
        return (_endpoints(facts),)
    return (_slice(facts, family(facts.address)),)


def all_endpoint_slots(facts: Facts) -> tuple[Slot, ...]:
    """Return the slots in which any agent may publish the endpoint, whatever its settings and address family."""
    slices = (_slice(facts, "IPv4"), _slice(facts, "IPv6"))
    return slices if facts.desired.has_pods else (_endpoints(facts), *slices)


def endpoint_manifests(facts: Facts, endpoints_api: str) -> Mapping[Slot, dict[str, Any]]:
    """Return the manifests of the Service and the endpoint.

    There are none while an engine is being adopted, and no endpoint until the door is known to listen: those of the
    previous agent stay. If another owner has the
    Service's name, the endpoint is never ready.
    """
    service, view, address = facts.desired.service, facts.view.value, facts.address
    if address is None or not view.reason:
        return {}
    port = facts.door[1] if facts.door else facts.endpoint_port
    ready = facts.endpoint_ready and not any(isinstance(error, NameTakenError) for error in facts.refused.values())
    wanted = {} if facts.desired.has_pods else {service_slot(facts): service_manifest(service)}
    for slot in endpoint_slots(facts, endpoints_api) if facts.door is not None else ():
        if slot.kind is Endpoints:
            wanted[slot] = endpoints_manifest(service, address, port, ready=ready)
        else:
            wanted[slot] = slice_manifest(service, facts.host, address, port, ready=ready)
            if facts.door and not view.ready:
                wanted[slot]["metadata"]["labels"][LOADED_LABEL] = "false"
    return wanted


def _endpoints(facts: Facts) -> Slot:
    return Slot(Endpoints, Key(facts.key.namespace, service_name(facts.key.name)))


def _slice(facts: Facts, address_family: Literal["IPv4", "IPv6"]) -> Slot:
    name = slice_name(service_name(facts.key.name), facts.host, address_family)
    return Slot(EndpointSlice, Key(facts.key.namespace, name))


log: FilteringBoundLogger = structlog.get_logger(__name__)

P = ParamSpec("P")


@attrs.define(eq=False)
class StatusManager:
    """Holds the facts of one service; applies its objects and emits its Events when the facts change.

    Attributes:
        facts: The newest facts.
        settings: The host's settings.
        applier: Writes objects.
        recorder: Writes Events.
        utcnow: The wall clock, for the times in conditions.
        changed: Its version grows whenever the snapshot has changed.
        host_address: The address at which this host is reached.
        reports_status: Whether this host writes the objects' status; of the hosts that run replicas, only one does.
        tokens: The last token count that its engine reported.
        errors: Responses with status 500 or higher that clients have got through the gateway or a router.
    """

    facts: Facts
    settings: AgentSettings
    applier: Applier
    recorder: EventRecorder
    utcnow: Callable[[], datetime.datetime]
    changed: Mailbox[None]
    host_address: Mailbox[HostAddress]
    reports_status: bool = True
    tokens: TokenCount | None = None
    errors: int = 0
    _adopting: bool = False
    _of_service: status.Conditions = ()
    _of_model: status.Conditions = ()
    _written: dict[Slot, dict[str, Any] | None] = attrs.field(factory=dict)  # None: the object is deleted

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.facts.key

    @property
    def log(self) -> FilteringBoundLogger:
        """Logger that is bound to the service."""
        return log.bind(name=self.key.name, namespace=self.key.namespace)

    @property
    def view(self) -> ServiceView:
        """The newest snapshot."""
        return self.facts.view.value

    @property
    def mode(self) -> str:
        """The activation mode in effect."""
        return mode_of(self.facts.desired, self.settings.activation)

    @property
    def snapshot(self) -> ServiceView:
        """The newest snapshot, with the additional model ids of the newest spec."""
        aliases = additional_ids(self.key.name, self.facts.desired.service.spec)
        return attrs.evolve(self.view, aliases=aliases) if aliases else self.view

    def record_tokens(self, pid: int, tokens: float) -> None:
        """Record the token count of an engine; no object has it, so nothing is written."""
        self.tokens = TokenCount(pid, tokens, trio.current_time())

    def update(self, change: Callable[Concatenate[Facts, P], Facts], *args: P.args, **kwargs: P.kwargs) -> None:
        """Change the facts and write what follows: `update(Facts.with_plan, ignored)`.

        A call that changes nothing is cheap: each memory sample of the host is passed to every service.
        """
        before = known = self.facts
        if self.host_address.value != known.host_address:
            known = known.with_host_address(self.host_address.value)
        self.facts = change(known, *args, **kwargs)
        if self.facts is before:
            return
        for event in events(before, self.facts):
            self.emit(event)
        self._write()
        if before.view.value != self.view or before.desired is not self.facts.desired:
            self.changed.put_nowait(None)

    def emit(self, event: Event) -> None:
        """Emit an Event, with its log line if it has one."""
        self.recorder.emit_nowait(self.facts.desired.service, event.reason, event.message, type=event.type)
        if event.log:
            write_log = self.log.warning if event.type == "Warning" else self.log.info
            write_log(event.log, **event.fields)

    def start(self, *, adopting: bool) -> None:
        """Report the service for the first time, which replaces whatever an earlier agent published.

        With an engine to adopt, the published endpoint stays until more is known about that engine.
        """
        self._adopting = adopting
        self._release_status()
        self.refresh()
        if not adopting:
            self.update(Facts.with_view, ServiceView(Reason.PENDING, "the agent has started to manage this service"))

    def set_desired(self, desired: Desired) -> None:
        """Set a newer desired state; objects with another uid do not have this agent's status yet."""
        before = self.facts.desired
        if desired.model.metadata.uid != before.model.metadata.uid:
            self._forget(self._model_slot)
            self._of_model = ()
        if desired.service.metadata.uid != before.service.metadata.uid:
            self._forget(self._service_slot)
            self._of_service = ()
        self.update(Facts.with_desired, desired)
        self._release_status()

    def set_reporting(self, yes: bool) -> None:
        """Set whether this host reports in the objects' status, or leaves that to another host."""
        if yes != self.reports_status:
            self.reports_status = yes
            if not yes:
                self._forget(self._service_slot)
                self._forget(self._model_slot)
            self.refresh()

    def refresh(self) -> None:
        """Write what has not been written yet; the host's address may have changed."""
        self.update(Facts.with_host_address, self.host_address.value)  # new facts, even if the address is the same

    async def wait_endpoint_applied(self) -> None:
        """Return when the API server has answered the last write of the endpoint."""
        if slots := self._endpoint_slots():  # without slots, `wait_applied` would wait for all
            await self.applier.wait_applied(*slots)

    def finish(self, why: str = "") -> None:
        """Release a service that this host no longer serves: delete its endpoint, and report that once if it reports.

        Args:
            why: Predicate of the message, after the host's name; "" for "no longer serves it".
        """
        why = f"{self.settings.host_name} {why or 'no longer serves it'}"
        self.update(Facts.with_view, ServiceView(Reason.RELEASED, why))
        for slot in self._endpoint_slots():
            self.applier.delete_nowait(slot)
        self.applier.forget(service_slot(self.facts))
        self.applier.forget_once_applied(self._service_slot)
        self.applier.forget(self._model_slot)

    @property
    def _reports_service(self) -> bool:
        """Whether this host reports the service's status; the controller does if pods serve it, too."""
        return self.reports_status and not (self.facts.desired.has_pods and self.settings.publishes)

    def _release_status(self) -> None:
        """Release, once, the status that hosts have reported of a service that pods now serve, too."""
        service = self.facts.desired.service
        if self._reports_service or not self.reports_status or _is_released(service):
            return
        view = ServiceView(Reason.RELEASED, "pods serve it, too; the controller reports its status")
        wanted = service_conditions(self.facts.with_view(view))
        conditions = status.settle(wanted, self._of_service, now=self.utcnow())
        self.applier.apply_nowait(self._service_slot, status.service_status(service, conditions, view, self.mode))
        self.applier.forget_once_applied(self._service_slot)
        self._written.pop(self._service_slot, None)

    # -- what is written ----------------------------------------------------------------------------------------------

    @property
    def _service_slot(self) -> Slot:
        return Slot(InferenceService, self.key, "status")

    @property
    def _model_slot(self) -> Slot:
        return Slot(Model, self.facts.desired.model.key, "status")

    def _endpoint_slots(self) -> tuple[Slot, ...]:
        return endpoint_slots(self.facts, self.settings.endpoints_api)

    def _write(self) -> None:
        """Pass new manifests to the applier; delete endpoints that were published in another form or address family."""
        for slot, manifest in self._manifests().items():
            if slot not in self._written or self._written[slot] != manifest:
                self._written[slot] = manifest
                if manifest is None:
                    self.applier.delete_nowait(slot, is_published=self._adopting)
                else:
                    self.applier.apply_nowait(slot, manifest, is_published=self._adopting)

    def _manifests(self) -> dict[Slot, dict[str, Any] | None]:
        facts, now, published = self.facts, self.utcnow(), self._endpoint_slots()
        self._of_service = status.settle(service_conditions(facts), self._of_service, now=now)
        self._of_model = status.settle(model_conditions(facts), self._of_model, now=now)
        unused = (slot for slot in all_endpoint_slots(facts) if slot not in published)
        wanted: dict[Slot, dict[str, Any] | None] = dict.fromkeys(unused)
        if self._reports_service and self.view.reason:
            wanted[self._service_slot] = status.service_status(
                facts.desired.service, self._of_service, self.view, self.mode
            )
        if self.reports_status and facts.fetch is not None:
            fetch = facts.fetch.value
            model = facts.desired.model
            wanted[self._model_slot] = status.model_status(model, self._of_model, fetch.weights, fetch.header)
        wanted.update(endpoint_manifests(facts, self.settings.endpoints_api))
        return wanted

    def _forget(self, slot: Slot) -> None:
        self._written.pop(slot, None)
        self.applier.forget(slot)


def _is_released(service: InferenceService) -> bool:
    """Whether no host's status claims the service."""
    loaded = find_condition(service.status.conditions, LOADED)
    return loaded is None or loaded.reason == Reason.RELEASED
