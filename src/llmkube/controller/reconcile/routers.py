"""Reconcile ModelRouters, which run in pods or, under `llmkube up`, in the controller's own process."""

from collections.abc import Iterator
from typing import Any, Final, Protocol

import attrs

from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.render.router_objects import (
    KEYS_FOLDER,
    Rule,
    render_router,
    router_objects_name,
    to_host,
    to_provider,
    to_service,
)
from llmkube.controller.status.router_status import (
    RouterFacts,
    deployment_facts,
    derive_router_status,
    unsupported_status,
)
from llmkube.controller.writes.owned_objects import REFUSED, REFUSED_RETRY_SECONDS, OwnedObjects
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.modelrouter import ModelRouter, ProxySpec
from llmkube.k8s.rbac import LIST_AND_WATCH, Permission
from llmkube.k8s.resource import Key, is_controlled_by
from llmkube.k8s.wire.names import endpoint_url, service_name
from llmkube.k8s.wire.times import timestamp
from llmkube.router.config.compile_backend import resolved_service
from llmkube.router.config.compile_router import CompiledRouter, KeyFile, ResolvedService, compile_router
from llmkube.router.config.config_json import encode_config
from llmkube.router.config.routing_config import RoutingConfig, is_local_url

PERMISSIONS: Final = (Permission(ModelRouter, LIST_AND_WATCH | {"get"}),)

_NO_PODS: Final = "no node can run its pods; run the router with `llmkube router -f FILE`"


class RouterPlacement(Protocol):
    """Method of running routers."""

    @property
    def resync_seconds(self) -> float | None:
        """Seconds until a router is reconciled again without a change; None if every change is observed."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether everything that a router depends on has been listed; until then none is changed."""
        ...

    async def place(self, router: ModelRouter) -> RouterFacts:
        """Run a router by its spec; return the observed facts."""
        ...

    def forget(self, key: Key) -> None:
        """Drop the state of a router that is gone."""
        ...


@attrs.frozen(eq=False)
class RouterReconciler:
    """Reconcile all routers; `placement` is None where none can run."""

    context: Context
    placement: RouterPlacement | None = None

    async def reconcile(self, key: Key) -> None:
        """Reconcile one router."""
        routers, writer, placement = self.context.informers.routers, self.context.routers, self.placement
        cached = routers.get(key)
        if cached is None:
            writer.forget(key)
            if placement is not None:
                placement.forget(key)
            return
        if cached.metadata.deletion_timestamp or routers.is_unreadable(key):
            return  # it keeps serving until the router is gone
        now = self.context.utcnow()
        if placement is None:
            await writer.write(cached, unsupported_status(writer.newest(cached), _NO_PODS, now=now))
            return
        if placement.resync_seconds is not None:
            self.context.queues.routers.add_after(key, placement.resync_seconds)
        if placement.is_known:
            facts = await placement.place(cached)
            status = derive_router_status(writer.newest(cached), facts, now=now)
            await writer.write(cached, status, extra={"lastUpdated": timestamp(now)})


@attrs.frozen(eq=False)
class PodRouters:
    """A `RouterPlacement` that runs routers in pods."""

    context: PodContext
    resync_seconds: None = None

    @property
    def is_known(self) -> bool:
        """Whether everything that a router in pods depends on has been listed."""
        return self.context.pods.can_make_routers and self.context.informers.services.is_known

    async def place(self, router: ModelRouter) -> RouterFacts:
        """Create or update a router's pods; return the observed facts."""
        compiled = self._compile(router)
        refusal = await self._apply(router, compiled)
        key = Key(router.key.namespace, router_objects_name(router.key.name))
        live = self.context.owned.deployments.get(key)
        ours = live if live is not None and is_controlled_by(live, router.metadata.uid) else None
        return RouterFacts(
            config=compiled.config,
            errors=compiled.errors,
            ignored=(*compiled.not_honoured, *_per_pod_budgets(router)),
            refusal=refusal,
            **deployment_facts(ours),
            pods=self.context.pods.pods_of_router(router.key),
            health=self.context.health.get(router.key, {}),
            endpoint=self._endpoint(router),
        )

    def forget(self, key: Key) -> None:
        """Drop the state of a router that is gone."""
        self.context.health.pop(key, None)
        owned, named = self.context.owned, Key(key.namespace, router_objects_name(key.name))
        kinds: tuple[OwnedObjects[Any], ...] = (
            owned.config_maps,
            owned.deployments,
            owned.kubernetes_services,
            owned.network_policies,
            owned.budgets,
            owned.monitors,
        )
        for kind in kinds:
            kind.forget(named)

    def _compile(self, router: ModelRouter) -> CompiledRouter:
        keys: list[KeyFile] = []

        def resolve(name: str) -> ResolvedService | None:
            service = self.context.informers.services.get(Key(router.key.namespace, name))
            if service is None:
                return None
            secret_ref, key_file = service.spec.api_key_secret_ref, ""
            if secret_ref is not None:
                key_file = f"{KEYS_FOLDER}/services/{name}"
                keys.append(KeyFile(path=key_file, secret=secret_ref.name, key=secret_ref.key))
            model = self.context.model_of(service)
            return resolved_service(service, model, base_url=self._base_url(service), key_file=key_file)

        compiled = compile_router(router, resolve, keys_folder=KEYS_FOLDER)
        named = {one.path: one for one in (*compiled.key_files, *keys)}
        return attrs.evolve(compiled, key_files=tuple(named.values()))

    def _base_url(self, service: InferenceService) -> str:
        domain, port = self.context.settings.cluster_domain, service.spec.endpoint.port
        name = service_name(service.key.name)
        return endpoint_url(name, service.key.namespace, port=port, path="/v1", cluster_domain=domain)

    async def _apply(self, router: ModelRouter, compiled: CompiledRouter) -> str:
        """Apply the objects of a router; return why the API server refused one of them, or an empty string."""
        if compiled.config is None:
            return ""  # pods of an earlier spec keep serving
        owned, uid = self.context.owned, router.metadata.uid
        wanted = render_router(
            router,
            encode_config(compiled.config),
            self.context.workloads,
            keys=compiled.key_files,
            destinations=self._destinations(router, compiled.config),
        )
        key = Key(router.key.namespace, router_objects_name(router.key.name))
        try:
            # The network policy is in place before the pods can connect, and the config before the pods start.
            await owned.network_policies.ensure(wanted.network)
            await owned.config_maps.ensure(wanted.config)
            await owned.deployments.ensure(wanted.deployment)
            await owned.kubernetes_services.ensure(wanted.kubernetes_service)
            await owned.budgets.ensure_or_remove(wanted.budget, key, uid)
            await self.context.optional.apply(owned.monitors, wanted.monitor, key, uid)
        except REFUSED as error:
            self.context.queues.routers.add_after(router.key, REFUSED_RETRY_SECONDS)
            return str(error)
        return ""

    def _destinations(self, router: ModelRouter, config: RoutingConfig) -> Iterator[Rule]:
        for backend in router.spec.backends:
            if backend.inference_service_ref is not None:
                name = backend.inference_service_ref.name
                yield to_service(name)
                for endpoint_slice in self.context.informers.slices_of(Key(router.key.namespace, name)):
                    for endpoint in endpoint_slice.endpoints:
                        for port in endpoint_slice.ports:
                            if port.port is not None and endpoint.addresses:
                                yield to_host(endpoint.addresses[0], port.port)
            elif url := config.backends[backend.name].base_url:
                yield to_provider(url, local=config.backends[backend.name].local)
        yield from _auxiliary_servers(config)
        for proxy in self.context.workloads.egress.proxy_urls():
            yield from (to_provider(proxy, local=local) for local in (True, False))

    def _endpoint(self, router: ModelRouter) -> str:
        endpoint, name = router.spec.endpoint, router_objects_name(router.key.name)
        domain = self.context.settings.cluster_domain
        return endpoint_url(name, router.key.namespace, port=endpoint.port, path=endpoint.path, cluster_domain=domain)


def _per_pod_budgets(router: ModelRouter) -> Iterator[str]:
    """Yield the budgets that the router's pods do not share."""
    replicas = (router.spec.proxy or ProxySpec()).replicas or 1
    policy = router.spec.policy
    if replicas > 1 and policy is not None and policy.budgets and policy.budget_store is None:
        note = f"each of {replicas} pods counts separately: together they admit {replicas} times as much"
        yield f"spec.policy.budgets ({note}; set a budgetStore to share one count)"


def _auxiliary_servers(config: RoutingConfig) -> Iterator[Rule]:
    """Yield rules for the servers that a router itself connects to; a name may be local or public."""
    tokens, store = config.auth.tokens, config.budget_store
    if tokens is not None and tokens.jwks_uri:
        yield to_provider(tokens.jwks_uri, local=True)
        if not is_local_url(tokens.jwks_uri):
            yield to_provider(tokens.jwks_uri, local=False)
    if store is not None:
        host = f"[{store.host}]" if ":" in store.host else store.host
        for local in (True, False):
            yield to_provider(f"redis://{host}:{store.port}", local=local)
