"""The routing config of the front door: one backend for each service, and one for each of its engines.

A policy is a compiled ModelRouter: its rules come first, and its backends have their own prices, regions and limits. A
service that it does not name gets a backend with the name `NAMESPACE/NAME`.
"""

from collections.abc import Iterable, Iterator, Sequence

import attrs

from llmkube.base.http.message import netloc
from llmkube.controller.status.scale import goes_to_zero
from llmkube.k8s.wire.names import service_name
from llmkube.programs.gateway.engines import ServedService, engine_id
from llmkube.router.config.compile_backend import slots_of
from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.model_ids import ModelIds


def gateway_config(
    policy: RoutingConfig, services: Sequence[ServedService], ids: ModelIds, keys_folder: str
) -> RoutingConfig:
    """Return the config in which every id of a service leads to its engines, unless a rule of the policy matches."""
    backends = dict(policy.backends)
    owners: dict[str, list[Backend]] = {}
    for each in policy.backends.values():
        if not each.provider:
            owners.setdefault(each.model, []).append(each)
    short = {str(ids.services[name]): name for name in ids.names}
    engines: dict[str, tuple[str, ...]] = {}
    for served in services:
        name = str(served.service.key)
        if name not in owners:
            known = attrs.asdict(served.resolved(keys_folder), recurse=False)
            owners[name] = [Backend(name=name, model_id=short.get(name, name), local=True, **known)]
        for backend in owners[name]:
            parts = {each.name: each for each in _engines(backend, served)}
            backends |= {backend.name: backend, **parts}
            if parts:
                engines[backend.name] = tuple(parts)
    by_id = {model_id: owners[str(key)][0].name for model_id, key in ids.services.items()}
    hosts = _hosts(services, ids)
    return attrs.evolve(policy, backends=backends, engines=engines, ids=by_id, ambiguous=ids.ambiguous, hosts=hosts)


def _hosts(services: Iterable[ServedService], ids: ModelIds) -> dict[str, str]:
    """Return the ids of services that requests start, by the names of their Services with and without namespace."""
    found: dict[str, list[str]] = {}
    for key in (each.service.key for each in services if goes_to_zero(each.service)):
        name = service_name(key.name)
        for host in (name, f"{name}.{key.namespace}"):
            found.setdefault(host, []).append(key.name if key.name in ids.names else str(key))
    return {host: model_ids[0] for host, model_ids in found.items() if len(model_ids) == 1}


def _engines(backend: Backend, served: ServedService) -> Iterator[Backend]:
    """Yield the engines of a backend."""
    spec = served.service.spec
    slots = 0 if spec.hosts is not None else slots_of(attrs.evolve(spec, replicas=1, autoscaling=None))
    for number, origin in served.engines.items():
        yield attrs.evolve(
            backend,
            name=f"{backend.name}#{number}",
            engine=engine_id(served.service.key, number),
            base_url=f"http://{netloc(origin)}/v1",
            slots=slots,
            is_replicated=False,
        )
