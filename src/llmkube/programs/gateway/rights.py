"""The permissions of the front door in the API server: it reads what it serves, and writes which services it needs."""

from typing import Any, Final

from llmkube.k8s.admission_policies import Writer
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases import scale_up_requests
from llmkube.k8s.leases.wanted_services import LEASE_NAME
from llmkube.k8s.rbac import LIST_AND_WATCH, Permission, Program

PROGRAM: Final = Program(
    "llmkube-gateway",
    (
        *(Permission(kind, LIST_AND_WATCH) for kind in (InferenceService, Model, EndpointSlice)),
        *scale_up_requests.PERMISSIONS,
    ),
)

_LEASES: Final = {
    "name": "leases",
    "group": "coordination.k8s.io",
    "resources": ["leases"],
    "operations": ["CREATE", "UPDATE"],
    "checks": [
        {
            "expression": f"object.metadata.name == '{LEASE_NAME}'",
            "message": f"the front door may only write the Lease {LEASE_NAME}",
        }
    ],
}


def gateway_policies(system_namespace: str) -> list[dict[str, Any]]:
    """Return the policy for the front door's account: a role cannot limit the names of the objects that it creates."""
    user = f"system:serviceaccount:{system_namespace}:{PROGRAM.name}"
    condition = {"name": "is-the-front-door", "expression": f"request.userInfo.username == '{user}'"}
    return Writer("gateway", condition).policies([_LEASES], system_namespace)
