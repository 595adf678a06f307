"""The engines of the services of a cluster, from their EndpointSlices, and why a service has none.

Engines of one service are numbered from 0, and keep their numbers: metrics and estimates of caches have few names,
however many pods come and go. A number is free once its engine is no longer ready.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import trio

from llmkube.base.http.dial import Connect
from llmkube.base.http.message import Origin
from llmkube.base.mailbox import Mailbox
from llmkube.base.units import parse_duration
from llmkube.controller.status.scale import goes_to_zero
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import HOST_LABEL, SERVICE_NAME_LABEL, service_name
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import State, service_health
from llmkube.programs.found_models import unavailable
from llmkube.programs.informer import ObjectCaches
from llmkube.router.backends import HOLD_SECONDS, Backend, Found, UnavailableModel
from llmkube.router.config.compile_backend import resolved_service
from llmkube.router.config.routing_config import ResolvedService
from llmkube.router.model_ids import ModelIds, model_ids
from llmkube.runtimes.container.container_plan import PORT_NAME
from llmkube.runtimes.llama_fields import additional_ids

REFUSED_SECONDS: Final = 3.0
"""Time for which an engine that refused a connection gets no further request, unless its service has no other."""


SERVICE_KEYS: Final = "services"
"""Folder of the keys of engines in the folder of keys; each file is named NAMESPACE.NAME."""


@attrs.define(eq=False)
class ServedService:
    """A service with its engines.

    Attributes:
        service: The service.
        model: The Model that it serves; None while it does not exist.
        engines: Addresses of the ready engines, by number.
        absence: Why it has none; of no meaning while it has some.
    """

    service: InferenceService
    model: Model | None
    engines: Mapping[int, Origin]
    absence: UnavailableModel
    _resolved: ResolvedService | None = attrs.field(default=None, init=False)

    def resolved(self, keys_folder: str) -> ResolvedService:
        """Return it as a destination of requests, always with the same folder of keys."""
        if self._resolved is None:
            key, spec = self.service.key, self.service.spec
            key_file = f"{keys_folder}/{SERVICE_KEYS}/{key.namespace}.{key.name}" if spec.api_key_secret_ref else ""
            # the directory has the addresses of its engines, so the URL is only its name
            url = f"http://{key.name}.{key.namespace}.svc/v1"
            names = {"base_url": url, "model": str(key), "key_file": key_file}
            self._resolved = resolved_service(self.service, self.model, **names)
        return self._resolved

    def backend(self, origin: Origin) -> Backend:
        """Return an engine as a `Backend` of the directory."""
        key = self.service.key
        return Backend(*origin, key.name, mode=self.service.spec.mode or "", service=str(key))


def ready_engines(slices: Iterable[EndpointSlice]) -> dict[str, Origin]:
    """Return the addresses of the ready engines of a service, by the name of the pod, else of the host.

    A pod in a cluster with IPv4 and IPv6 is in two slices, but gets its requests at one address.
    """
    found: dict[str, Origin] = {}
    for each in sorted(slices, key=lambda one: (one.address_type, one.key.name)):
        port = next((one.port for one in each.ports if one.name == PORT_NAME), each.ports[0].port if each.ports else 0)
        for endpoint in each.endpoints:
            if endpoint.conditions.ready is not False and endpoint.addresses and port:
                pod = endpoint.target_ref.name if endpoint.target_ref else ""
                name = pod or each.metadata.labels.get(HOST_LABEL, "") or endpoint.addresses[0]
                found.setdefault(name, (endpoint.addresses[0], port))
    return found


def engine_id(service: Key, number: int) -> str:
    """Return the id of one engine in the directory."""
    return f"{service}#{number}"


@attrs.define(eq=False)
class ClusterDirectory:
    """The services and their engines: a `ModelDirectory`.

    The id of a service leads to its first engine, that of an engine to this engine, or to another one of its service
    once it is gone.

    Attributes:
        caches: Copies of the objects of each namespace.
        ids: Ids of the services for clients.
        services: The services by namespace and name, in a new mapping after each change.
        version: Number that grows with each change.
        changed: Gets a new version when the copies have changed.
    """

    caches: Sequence[ObjectCaches]
    ids: ModelIds = attrs.field(factory=lambda: model_ids({}), init=False)
    services: Mapping[str, ServedService] = attrs.field(factory=dict, init=False)
    version: int = 0
    _numbers: dict[Key, dict[str, int]] = attrs.field(factory=dict, init=False)
    changed: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None), init=False)
    _refused: dict[Origin, float] = attrs.field(factory=dict, init=False)
    _seen: tuple[int, ...] = ()

    def model_ids(self) -> Sequence[str]:
        """Return the shortest id of each service, sorted."""
        self.refresh()
        return self.ids.names

    def aliases(self) -> Sequence[str]:
        """Return the aliases that lead to a service, sorted."""
        self.refresh()
        return self.ids.aliases

    def lookup(self, model_id: str) -> Found | None:
        """Return an engine, or why its service has none; None if there is no such service."""
        self.refresh()
        name, _, number = model_id.partition("#")
        served = self.services.get(name)
        if served is None:
            return None
        preferred = served.engines.get(int(number)) if number else None
        origins = (preferred, *served.engines.values()) if preferred else served.engines.values()
        origin = next((each for each in origins if not self._is_refused(each)), None)
        return served.absence if origin is None else served.backend(origin)

    async def wait_changed(self) -> None:
        """Return once the answer for any service may have changed since the call."""
        with trio.move_on_after(REFUSED_SECONDS):  # an engine that refused a connection may be asked again
            await self.changed.wait_newer(self.changed.version)

    def is_on_request(self, service: Key) -> bool:
        """Return whether requests start the pods of a service."""
        served = self.services.get(str(service))
        return served is not None and goes_to_zero(served.service)

    def connect_with(self, connect: Connect) -> Connect:
        """Return a `Connect` that notices engines that refuse connections, before their slices change."""

        async def connect_to(host: str, port: int) -> trio.abc.Stream:
            try:
                return await connect(host, port)
            except OSError:
                self._refused[host, port] = trio.current_time() + REFUSED_SECONDS
                raise

        return connect_to

    def _is_refused(self, origin: Origin) -> bool:
        return trio.current_time() < self._refused.get(origin, 0.0)

    def refresh(self) -> None:
        """Update from the copies."""
        seen = tuple(each.changed.version for each in self.caches)
        if seen == self._seen:
            return
        self._seen, self.version = seen, self.version + 1
        self._refused = {origin: until for origin, until in self._refused.items() if until > trio.current_time()}
        slices: dict[Key, list[EndpointSlice]] = {}
        for one in (each for caches in self.caches for each in caches.of(EndpointSlice).values()):
            slices.setdefault(Key(one.key.namespace, one.metadata.labels.get(SERVICE_NAME_LABEL, "")), []).append(one)
        before, found = self.services, {}
        for caches in self.caches:
            for service in caches.services.values():
                key, model = service.key, caches.model_of(service)
                engines = self._numbered(key, slices.get(Key(key.namespace, service_name(key.name)), ()))
                known = before.get(str(key))
                if known is None or known.service is not service or (known.model, known.engines) != (model, engines):
                    known = ServedService(service, model, engines, absence_of(service, model))
                found[str(key)] = known
        self.services = found
        for gone in self._numbers.keys() - {each.service.key for each in self.services.values()}:
            del self._numbers[gone]
        services = [each.service for each in self.services.values()]
        self.ids = model_ids({each.key: additional_ids(each.key.name, each.spec) for each in services})

    def _numbered(self, service: Key, slices: Iterable[EndpointSlice]) -> dict[int, Origin]:
        """Return the addresses of the ready engines of a service by number; engines keep their numbers."""
        ready = ready_engines(slices)
        before = self._numbers.get(service, {})
        numbers = {name: before[name] for name in ready if name in before}
        free = (number for number in range(len(before) + len(ready)) if number not in numbers.values())
        for name in sorted(ready.keys() - before.keys()):
            numbers[name] = next(free)
        self._numbers[service] = numbers
        return {number: ready[name] for name, number in sorted(numbers.items(), key=lambda item: item[1])}


def absence_of(service: InferenceService, model: Model | None) -> UnavailableModel:
    """Return why a service without ready engines has none: the answer to its clients."""
    health = service_health(service, model)
    reason, message = health.reason, health.message
    if health.state is State.READY and service.status.phase == "Idle":
        reason, message = Reason.IDLE, "no pod runs until a request needs one"
    elif health.state is State.READY:  # its status is older than its slices
        reason, message = Reason.NO_READY_REPLICAS, "its engine is no longer ready"
    on_request, longest = goes_to_zero(service), service.spec.activation.max_hold
    seconds = parse_duration(longest) if longest else HOLD_SECONDS
    return unavailable(str(service.key), reason, message, on_request=on_request, hold_seconds=seconds)
