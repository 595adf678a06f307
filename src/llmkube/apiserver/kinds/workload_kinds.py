"""The kinds that run things in a cluster, stored as they come: for a controller that is tried without a cluster.

`llmkube up` does not serve them: there is no scheduler and no kubelet behind this server, and a Deployment without
pods would be worse than none. What Kubernetes checks and fills in below `spec` is not repeated here; the controller
is tried on a real kube-apiserver as well.
"""

from typing import Any, Final

from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.schema.parts import always, top_level
from llmkube.apiserver.schema.structural import Schema
from llmkube.k8s.builtins import PriorityClass
from llmkube.k8s.resource import Resource
from llmkube.k8s.workloads import WORKLOADS

_ANYTHING: Final[dict[str, Any]] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCHEMA: Final = Schema.parse(top_level("As it came.", spec=_ANYTHING, status=always(_ANYTHING)))
_CLASS: Final = Schema.parse(
    top_level("A rank.", value={"type": "integer"}, preemptionPolicy={"type": "string"}, description={"type": "string"})
)


def _kind(resource: Resource) -> KindInfo:
    return KindInfo(
        resource=resource,
        schema=_CLASS if resource == PriorityClass.RESOURCE else _SCHEMA,
        singular=resource.singular,
        list_kind=resource.list_kind,
        definition=f"io.k8s.api.{resource.group or 'core'}.{resource.version}.{resource.kind}",
        builtin=True,
        status_subresource="status" in resource.subresources,
        unconditional_update=True,
    )


WORKLOAD_KINDS: Final[tuple[KindInfo, ...]] = tuple(
    _kind(resource) for resource in (*WORKLOADS, PriorityClass.RESOURCE)
)
"""Pods, claims, Deployments, Jobs, autoscalers, disruption budgets and PriorityClasses."""
