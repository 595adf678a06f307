"""A ModelRouter becomes pods: compile its spec, write its objects, say how it does."""

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.render.router_network import Destination, Host, Provider, ServicePods
from llmkube.controller.render.router_objects import KEYS_FOLDER, render_router, router_objects_name
from llmkube.controller.status.router_status import RouterFacts, seen_of
from llmkube.controller.writes.owned_objects import NAME_TAKEN_RETRY_SECONDS, REFUSED, OwnedObjects
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.modelrouter import ModelRouter, ProxySpec
from llmkube.k8s.errors import NameTakenError
from llmkube.k8s.resource import Key, is_controlled_by
from llmkube.k8s.wire.names import endpoint_url, service_name
from llmkube.router.config.compile_router import Compiled, KeyFile, ResolvedService, compile_router
from llmkube.router.config.routing_config import RoutingConfig, stays_here
from llmkube.router.config.written_form import encode_config


@attrs.frozen(eq=False)
class PodRouters:
    """Place routers in pods: a `RouterPlacement`."""

    context: PodContext
    look_seconds: None = None

    @property
    def is_known(self) -> bool:
        """Whether all is known that a router in pods needs."""
        return self.context.pods.make_routers and self.context.informers.services.is_known

    async def place(self, router: ModelRouter) -> RouterFacts:
        """Have a router's pods made; return what is known of it."""
        compiled = self._compile(router)
        refusal = await self._apply(router, compiled)
        key = Key(router.key.namespace, router_objects_name(router.key.name))
        live = self.context.routers.deployments.get(key)
        ours = live if live is not None and is_controlled_by(live, router.metadata.uid) else None
        return RouterFacts(
            config=compiled.config,
            errors=compiled.errors,
            ignored=(*compiled.not_honoured, *_counted_apart(router)),
            refusal=refusal,
            **seen_of(ours),
            pods=self.context.pods.pods_of_router(router.key),
            health=self.context.health.get(router.key, {}),
            endpoint=self._endpoint(router),
        )

    def forget(self, key: Key) -> None:
        """Drop the records of a router that is gone."""
        self.context.health.pop(key, None)
        for owned in self._kinds():
            owned.forget(Key(key.namespace, router_objects_name(key.name)))

    def _compile(self, router: ModelRouter) -> Compiled:
        keys: list[KeyFile] = []

        def resolve(name: str) -> ResolvedService | None:
            service = self.context.informers.services.get(Key(router.key.namespace, name))
            if service is None:
                return None
            asked, key_file = service.spec.api_key_secret_ref, ""
            if asked is not None:
                key_file = f"{KEYS_FOLDER}/services/{name}"
                keys.append(KeyFile(path=key_file, secret=asked.name, key=asked.key))
            model = self.context.informers.models.get(Key(router.key.namespace, service.spec.model_ref))
            return ResolvedService.of(service, model, base_url=self._base_url(service), key_file=key_file)

        compiled = compile_router(router, resolve, keys_folder=KEYS_FOLDER)
        named = {one.path: one for one in (*compiled.key_files, *keys)}
        return attrs.evolve(compiled, key_files=tuple(named.values()))

    def _base_url(self, service: InferenceService) -> str:
        domain, port = self.context.settings.cluster_domain, service.spec.endpoint.port
        name = service_name(service.key.name)
        return endpoint_url(name, service.key.namespace, port=port, path="/v1", cluster_domain=domain)

    async def _apply(self, router: ModelRouter, compiled: Compiled) -> str:
        """Write the objects of a router; return why the API server takes one of them not, or nothing."""
        if compiled.config is None:
            return ""  # what serves an earlier spec serves on
        routers, uid = self.context.routers, router.metadata.uid
        wanted = render_router(
            router,
            encode_config(compiled.config),
            self.context.workloads,
            keys=compiled.key_files,
            destinations=self._destinations(router, compiled.config),
        )
        key = Key(router.key.namespace, router_objects_name(router.key.name))
        try:
            # What may be reached is closed before what is asked for opens it, and the config is there before the pods.
            await routers.network_policies.ensure(wanted.network)
            await routers.config_maps.ensure(wanted.config)
            await routers.deployments.ensure(wanted.deployment)
            await routers.kubernetes_services.ensure(wanted.kubernetes_service)
            await routers.budgets.ensure_or_remove(wanted.budget, key, uid)
            await self.context.optional.apply(routers.monitors, wanted.monitor, key, uid)
        except NameTakenError as error:
            refusal = str(error)
        except REFUSED as error:
            refusal = error.message
        else:
            return ""
        self.context.queues.routers.add_after(router.key, NAME_TAKEN_RETRY_SECONDS)
        return refusal

    def _destinations(self, router: ModelRouter, config: RoutingConfig) -> Iterator[Destination]:
        for backend in router.spec.backends:
            if backend.inference_service_ref is not None:
                name = backend.inference_service_ref.name
                yield ServicePods(name=name)
                for piece in self.context.informers.slices_of(Key(router.key.namespace, name)):
                    for endpoint in piece.endpoints:
                        for port in piece.ports:
                            if port.port is not None and endpoint.addresses:
                                yield Host(address=endpoint.addresses[0], port=port.port)
            elif url := config.backends[backend.name].base_url:
                yield Provider(url=url, local=config.backends[backend.name].local)
        yield from _servers(config)

    def _endpoint(self, router: ModelRouter) -> str:
        endpoint, name = router.spec.endpoint, router_objects_name(router.key.name)
        domain = self.context.settings.cluster_domain
        return endpoint_url(name, router.key.namespace, port=endpoint.port, path=endpoint.path, cluster_domain=domain)

    def _kinds(self) -> Iterable[OwnedObjects[Any]]:
        routers = self.context.routers
        return (
            routers.config_maps,
            routers.deployments,
            routers.kubernetes_services,
            routers.network_policies,
            routers.budgets,
            routers.monitors,
        )


def _counted_apart(router: ModelRouter) -> Iterator[str]:
    """Name what each pod of several keeps for itself."""
    replicas = (router.spec.proxy or ProxySpec()).replicas or 1
    policy = router.spec.policy
    if replicas > 1 and policy is not None and policy.budgets and policy.budget_store is None:
        words = f"each of {replicas} pods counts by itself: together they admit as many times more"
        yield f"spec.policy.budgets ({words}; a budgetStore keeps one count)"


def _servers(config: RoutingConfig) -> Iterator[Destination]:
    """Name what a router asks for itself; a name may be of a server beside the cluster, or of a public one."""
    tokens, store = config.auth.tokens, config.budget_store
    if tokens is not None and tokens.jwks_uri:
        yield Provider(url=tokens.jwks_uri, local=True)
        if not stays_here(tokens.jwks_uri):
            yield Provider(url=tokens.jwks_uri, local=False)
    if store is not None:
        host = f"[{store.host}]" if ":" in store.host else store.host
        for local in (True, False):
            yield Provider(url=f"redis://{host}:{store.port}", local=local)
