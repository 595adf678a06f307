"""Everything that a controller does to the API server, for its Role."""

from typing import Final

from llmkube.controller import cluster_state
from llmkube.controller.reconcile import model_files, namespace, routers
from llmkube.controller.writes import status_writer
from llmkube.k8s import events, hostwatch, lease
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.rbac import FOLLOW, Need, Program

PROGRAM: Final = Program(
    "llmkube-controller",
    (
        *(Need(kind, FOLLOW | {"get"}) for kind in (Model, InferenceService)),
        # The endpoints of a host that is gone are taken out of service; nothing else in them is ever written.
        Need(EndpointSlice, FOLLOW | {"patch"}),
        *cluster_state.NEEDS,
        *model_files.NEEDS,
        *routers.NEEDS,
        *hostwatch.NEEDS,
        *status_writer.NEEDS,
        *events.NEEDS,
        *lease.NEEDS,
        *namespace.NEEDS,
    ),
)
