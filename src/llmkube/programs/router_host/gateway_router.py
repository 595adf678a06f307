"""The router behind the gateway: it answers what engines do not speak, and each model of the gateway is its backend.

It has no policy of its own: a model's name is its route. Requests of OpenAI's dialect do not come here, for their bytes
pass the gateway; what this router makes of the others reaches the engines the same way.
"""

from collections.abc import Callable, Iterable
from typing import Final, Never

import attrs
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.http.exchange import StreamExchange
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.router_host.hosted_router import HostedSettings
from llmkube.programs.router_host.through_gateway import through_gateway
from llmkube.router.backends import ModelDirectory
from llmkube.router.config.routing_config import Backend, Match, RoutingConfig, Rule
from llmkube.router.dialects.inbound import refusal_at
from llmkube.router.proxy.live_config import Source
from llmkube.router.proxy.router import LIMITS, Router, open_router
from llmkube.router.refusals import refused

NAME: Final = "gateway"
CIRCUIT_SECONDS: Final = 1.0
"""Behind a model's name is no other backend: one that failed is asked again soon."""


@attrs.define(eq=False)
class GatewayRouter:
    """The router of one gateway; only `run` lets it answer.

    Attributes:
        settings: What it shares with the routers of ModelRouters.
        directory: Says which ids lead to which service.
        services: Returns the services that there are.
        model_of: Returns what a service serves; None while that is not there.
    """

    settings: HostedSettings
    directory: ModelDirectory
    services: Callable[[], Iterable[InferenceService]]
    model_of: Callable[[InferenceService], Model | None]
    _router: Router | None = None
    _config: RoutingConfig = attrs.field(init=False)
    _changes: int = 0

    def __attrs_post_init__(self) -> None:
        self._config = self._compile()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Hold the router until cancelled."""
        settings = self.settings
        async with open_router(
            Source(lambda: self._config, self._stamp),
            registry=CollectorRegistry(),  # of translated requests alone; no endpoint shows it
            utcnow=settings.utcnow,
            rng=settings.rng,
            connect=settings.connect,
            write=_write_nothing,
            ask_engine=settings.ask_engine,
        ) as self._router:
            task_status.started()
            await trio.sleep_forever()

    async def handle(self, exchange: StreamExchange) -> None:
        """Answer a request: a `StreamHandler`."""
        router = self._router
        assert router is not None, "it answers while it runs"
        size, most = len(exchange.body), LIMITS.max_body_bytes
        if size > most:
            words = f"the body has {size} bytes; here it is parsed as a whole, and may have {most}"
            await exchange.respond(refusal_at(exchange.head.path, refused(413, words, "body_too_large").response))
            return
        await router.live.look()  # a model that the gateway knows is known here
        await router.handler(exchange)

    def _stamp(self) -> tuple[int, int, int]:
        config = self._compile()
        if config != self._config:
            self._config, self._changes = config, self._changes + 1
        return self._changes, 0, 0

    def _compile(self) -> RoutingConfig:
        return gateway_config(self.settings.gateway_url, self.directory, self.services(), self.model_of)


def gateway_config(
    gateway_url: str,
    directory: ModelDirectory,
    services: Iterable[InferenceService],
    model_of: Callable[[InferenceService], Model | None],
) -> RoutingConfig:
    """Return by what the models of a gateway are routed: every id that the gateway knows leads to its service."""
    backends, rules = [], []
    for service in services:
        name = str(service.key)
        found = directory.lookup(name)
        if found is None:
            continue
        ids = (service.key.name, name, *service.spec.aliases)
        way = through_gateway(gateway_url, service, model_of(service))
        backends.append(
            Backend(
                name=name,
                model_id=name,
                base_url=way.base_url,
                local=True,
                model=way.model,
                slots=way.slots,
                splits_cache=way.splits_cache,
                is_replicated=way.is_replicated,
                model_digest=way.model_digest,
            )
        )
        match = Match(models=tuple(one for one in ids if directory.lookup(one) is found))
        rules.append(Rule(name=name, match=match, backends=(name,)))
    return RoutingConfig(
        name=NAME,
        backends={each.name: each for each in backends},
        rules=tuple(rules),
        first_byte_extends=True,
        circuit_seconds=CIRCUIT_SECONDS,
    )


async def _write_nothing(_lines: object) -> None:
    """Keep no audit log: there is no policy of which it could tell."""
