"""The permissions of the front door in the API server: it reads what it serves, and writes which services it needs."""

from typing import Final

from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases import scale_up_requests
from llmkube.k8s.rbac import LIST_AND_WATCH, Permission, Program

PROGRAM: Final = Program(
    "llmkube-gateway",
    (
        *(Permission(kind, LIST_AND_WATCH) for kind in (InferenceService, Model, EndpointSlice)),
        *scale_up_requests.PERMISSIONS,
    ),
)
