"""Everything that an agent does to the API server, for its Role."""

from typing import Final

from llmkube.k8s import events, hostwatch
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Lease, Secret, Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.rbac import APPLY, FOLLOW, Need, Program

PROGRAM: Final = Program(
    "llmkube-agent",
    (
        *(Need(kind, FOLLOW) for kind in (Model, InferenceService)),
        *(Need(kind, frozenset({"patch"}), subresource="status") for kind in (Model, InferenceService)),
        # Whether a service is gone of which only the claim of a dead host is left.
        Need(InferenceService, frozenset({"get"})),
        # What has the name of a service may be somebody else's, and is looked at before it is written.
        Need(Service, APPLY | {"get"}),
        # Both forms: an agent whose settings have changed takes the other one's back.
        Need(EndpointSlice, APPLY | {"delete"}),
        Need(Endpoints, APPLY | {"get", "delete"}),
        # What an earlier agent on this host has left, and every ten minutes what somebody has removed or changed.
        *(Need(kind, frozenset({"list"})) for kind in (Service, EndpointSlice, Endpoints)),
        # Its own sign of life, and the claims: created, taken over, given up; those of all hosts are followed.
        Need(Lease, APPLY | {"delete"}, place="system"),
        *hostwatch.NEEDS,
        # The one that `Model.spec.sourceSecretRef` names, when its file has to be fetched; never listed, never watched.
        Need(Secret, frozenset({"get"})),
        *events.NEEDS,
    ),
)
