"""Default route, at the address of `llmkube up`: every service is a backend, without a policy.

Every field of a request is passed to the user's own engine. Requests in dialects that engines do not implement are
served by a router that forwards listed fields: its backends are the services, and its routes are the model names.
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Never

import attrs
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.http.client import HttpClient
from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.dial import Connect
from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.base.http.exchange import StreamExchange
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import GGUFStatus, Model
from llmkube.k8s.resource import Key
from llmkube.router.auth.key_files import Stamp
from llmkube.router.backends import Activator, ModelDirectory, UnavailableModel, not_ready
from llmkube.router.client_models import client_of, permitted_model
from llmkube.router.config.compile_backend import presets_of, resolved_service
from llmkube.router.config.routing_config import Backend, Match, Preset, RoutingConfig, Rule
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import DIALECTS, OLLAMA
from llmkube.router.dialects.ollama_models import MODEL_NAME, ModelFacts
from llmkube.router.dispatch.holds import Holds
from llmkube.router.front_door import PassThrough, passing_door
from llmkube.router.model_field import find_model, read_model
from llmkube.router.model_list import ModelEntry
from llmkube.router.proxy.handler import route_of
from llmkube.router.proxy.live_config import Source
from llmkube.router.proxy.router import Router, open_router
from llmkube.router.refusals import refused
from llmkube.router.traces import Recorder
from llmkube.router.turns import Turns
from llmkube.runtimes.llama_fields import additional_ids, context_of

NAME: Final = "gateway"
CIRCUIT_SECONDS: Final = 1.0
"""A model has no other backend, so one that failed is retried soon."""


@attrs.frozen(eq=False, kw_only=True)
class Services:
    """The services to serve, and the state that all routes to them share.

    Attributes:
        directory: Resolves model ids to engines.
        get: Returns a service; None if it does not exist.
        all: Returns the current services.
        model_of: Returns the Model of a service; None while it does not exist.
        url: URL for clients.
        connect: Opens connections to engines and providers.
        utcnow: Wall clock.
        rng: Source of weighted choices, delays and request IDs.
        turns: Queues of the engines.
        has_open_route: Whether the services also answer at `url` without a router, and so without its keys.
        egress: Proxies and additional certificates for providers.
        version: Returns a value that changes whenever the services, their Models or the directory may have changed.
        on_error: Called with the service of an engine that answers with status 500 or higher.
        activator: Loads services on request; None if all are always loaded.
        holds: Requests that wait until their model is loaded.
        traces: Records requests; None if nothing does.
    """

    directory: ModelDirectory
    get: Callable[[Key], InferenceService | None]
    all: Callable[[], Iterable[InferenceService]]
    model_of: Callable[[InferenceService], Model | None]
    url: str
    connect: Connect
    utcnow: Callable[[], datetime]
    rng: random.Random
    turns: Turns = attrs.field(factory=Turns)
    has_open_route: bool = True
    egress: Egress = DIRECTLY
    version: Callable[[], object] = object  # compiles the config at each reload
    on_error: Callable[[str], None] = lambda _: None
    activator: Activator | None = None
    traces: Recorder | None = None
    holds: Holds = attrs.field(
        default=attrs.Factory(lambda self: Holds(self.directory, self.activator), takes_self=True), init=False
    )


async def run_default_route(
    services: Services,
    client: HttpClient,
    further: Callable[[], list[ModelEntry]] = list,
    *,
    task_status: trio.TaskStatus[StreamHandler] = trio.TASK_STATUS_IGNORED,
) -> Never:
    """Run the default route until cancelled.

    Args:
        services: Services to serve.
        client: HTTP client for requests that are passed through.
        further: Returns entries to list besides the services.
        task_status: Started with the `StreamHandler`.
    """
    current = _CurrentConfig(services)
    async with open_router(
        Source(lambda: current.config, current.stamp),
        registry=CollectorRegistry(),  # of translated requests only; no endpoint exposes it
        utcnow=services.utcnow,
        rng=services.rng,
        connect=services.connect,
        write=_write_nothing,
        holds=services.holds,
        turns=services.turns,
        on_error=services.on_error,
        traces=services.traces,
    ) as router:
        proxy = PassThrough(
            services.directory,
            client,
            router.begin,
            router.calls.suspects,
            services.on_error,
            services.holds,
            presets=partial(_presets, services),
            recorder=services.traces,
            rng=services.rng,
        )
        listed = _listed_fields(services, router)
        task_status.started(passing_door(proxy, services.utcnow, listed, partial(_describe, services), further))
        await trio.sleep_forever()


def _presets(services: Services, name: str) -> tuple[Preset, ...]:
    """Return the presets of a service, without those of its ids that lead to others."""
    service = services.get(Key.parse(name)) if name else None
    return presets_of(service) if service is not None else ()


def _describe(services: Services, name: str) -> ModelFacts:
    """Return the facts about a service that its objects have; those of a running engine may differ."""
    service = services.get(Key.parse(name)) if name else None
    if service is None:
        return ModelFacts()
    model = services.model_of(service)
    gguf = (model.status.gguf if model is not None else None) or GGUFStatus()
    return ModelFacts(
        mode=service.spec.mode or "chat",
        architecture=gguf.architecture,
        context=context_of(service.spec, gguf.context_length),
        quantization=gguf.quantization,
        embedding=gguf.embedding_size or 0,
        abilities=frozenset({"vision"} if model is not None and model.status.reads_pictures else ()),
    )


def _listed_fields(services: Services, router: Router) -> StreamHandler:
    async def answer(exchange: StreamExchange) -> None:
        head = exchange.head
        path = route_of(head.path)
        model_id, named, found = "", None, None
        if path in DIALECTS and head.method == "POST":
            with contextlib.suppress(DialectError):  # the router reports it
                named, _, _ = await read_model(exchange.body)
                if named is None and path.startswith(OLLAMA):
                    spans = await find_model(exchange.body, MODEL_NAME)
                    named = spans[-1].value if spans else None
                model_id, found = permitted_model(exchange, services.directory, named, path)
            if named is None and (client := client_of(exchange)) is not None and client.models:
                raise refused(400, "the body names no model that can be read", "invalid_model")
        is_unready = isinstance(found, UnavailableModel) and not found.wakes
        with services.holds.using(found if is_unready else None, exchange.owner) as hold:
            if is_unready:
                found = services.directory.lookup(model_id)
            if isinstance(found, UnavailableModel) and not found.wakes:
                raise not_ready(model_id, found)  # at once, while the model loads
            await router.live.reload_if_changed()  # so that the router has every model of the directory
            with hold():  # the router has a use of its own
                await router.listed_fields(exchange)

    return answer


@attrs.define(eq=False)
class _CurrentConfig:
    """Routing config of the current services, compiled again when one of their objects is replaced."""

    services: Services
    config: RoutingConfig = attrs.field(init=False)
    changes: int = 0
    _version: object = None
    _compiled: dict[str, "_CompiledService"] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.config = default_config(self.services, self._compiled)

    def stamp(self) -> Stamp:
        version = self.services.version()
        if version != self._version:
            self._version, config = version, default_config(self.services, self._compiled)
            if config != self.config:
                self.config, self.changes = config, self.changes + 1
        return self.changes, 0, 0


@attrs.frozen(eq=False)
class _CompiledService:
    service: InferenceService
    weights: Model | None
    ids: Sequence[str]
    backend: Backend
    rule: Rule

    @classmethod
    def of(cls, services: Services, service: InferenceService, weights: Model | None) -> "_CompiledService":
        name = str(service.key)
        resolved = resolved_service(service, weights, base_url=f"{services.url}/v1", model=name)
        backend = Backend(name=name, model_id=name, local=True, **attrs.asdict(resolved, recurse=False))
        ids = (service.key.name, name, *additional_ids(service.key.name, service.spec))
        return cls(service, weights, ids, backend, Rule(name=name, match=Match(), backends=(name,)))

    def with_models(self, models: tuple[str, ...]) -> "_CompiledService":
        if self.rule.match.models == models:
            return self
        return attrs.evolve(self, rule=attrs.evolve(self.rule, match=Match(models=models)))


def default_config(services: Services, compiled: dict[str, _CompiledService] | None = None) -> RoutingConfig:
    """Return a routing config in which every id in the directory routes to its service.

    Args:
        services: Services to route to.
        compiled: Services of the previous config, by name; updated.
    """
    known = {} if compiled is None else compiled
    before, lookup = known.copy(), services.directory.lookup
    known.clear()
    for service in services.all():
        name, weights = str(service.key), services.model_of(service)
        found = lookup(name)
        if found is None:
            continue
        each = before.get(name)
        if each is None or each.service is not service or each.weights is not weights:
            each = _CompiledService.of(services, service, weights)
        known[name] = each.with_models(tuple(one for one in each.ids if lookup(one) is found))
    return RoutingConfig(
        name=NAME,
        backends={name: each.backend for name, each in known.items()},
        rules=tuple(each.rule for each in known.values()),
        first_byte_extends=True,
        circuit_seconds=CIRCUIT_SECONDS,
    )


async def _write_nothing(_lines: object) -> None:
    """Discard audit lines: the default route has no policy."""
