"""How a Gateway leads clients to a service. Pure."""

from typing import Any, Final

from llmkube.controller.render.labels import owned_manifest, service_labels
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.extensions import HTTPRoute
from llmkube.k8s.wire.conditions import find_condition
from llmkube.k8s.wire.names import service_name
from llmkube.runtimes.container.builder import gateway_name
from llmkube.runtimes.container.container_plan import ContainerPlan

MODEL_HEADER: Final = "X-Gateway-Model-Name"
"""Where the body-based routing of the Gateway API's inference extension puts the `model` of a request."""


def route(service: InferenceService, plan: ContainerPlan) -> dict[str, Any] | None:
    """Return the HTTPRoute of a service; None unless it asks for one.

    A request comes by the name of its model, where the gateway looks into bodies or the client sets the header; and by
    the path `/NAMESPACE/NAME/` through any gateway, which takes that away.
    """
    gateway = service.spec.endpoint.gateway
    if gateway is None or not gateway.enabled or gateway.gateway_ref is None:
        return None
    parent = {"name": gateway.gateway_ref.name}
    if gateway.gateway_ref.namespace:
        parent["namespace"] = gateway.gateway_ref.namespace
    to = {
        "backendRefs": [{"name": service_name(service.key.name), "port": service.spec.endpoint.port}],
        "timeouts": {"request": "0s"},  # an answer is over when it is over; the usual 15 s of proxies cut it off
    }
    by_name = {"headers": [{"type": "Exact", "name": MODEL_HEADER, "value": gateway_name(service.spec)}]}
    by_path = {"path": {"type": "PathPrefix", "value": f"/{service.key.namespace}/{service.key.name}"}}
    strip = {"type": "URLRewrite", "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}}
    spec = {
        "parentRefs": [parent],
        "rules": [{"matches": [by_name], **to}, {"matches": [by_path], "filters": [strip], **to}],
    }
    labels = service_labels(service, model=service.spec.model_ref, runtime=plan.runtime)
    return owned_manifest(HTTPRoute.RESOURCE, service, service.key.name, labels, {"spec": spec})


def is_accepted(live: HTTPRoute | None) -> bool:
    """Whether a Gateway has taken a route, and found what it leads to."""
    for parent in live.status.parents if live is not None else ():
        taken, found = (find_condition(parent.conditions, kind) for kind in ("Accepted", "ResolvedRefs"))
        if taken is not None and taken.status == "True" and (found is None or found.status == "True"):
            return True
    return False
