"""Everything that a controller does to the API server, for its Role."""

from typing import Final

from llmkube.controller import informers
from llmkube.controller.reconcile import namespace, pod_models, routers
from llmkube.controller.writes import status_writer
from llmkube.k8s import events, hostwatch, lease
from llmkube.k8s.rbac import Program

PROGRAM: Final = Program(
    "llmkube-controller",
    (
        *informers.NEEDS,
        *pod_models.NEEDS,
        *routers.NEEDS,
        *hostwatch.NEEDS,
        *status_writer.NEEDS,
        *events.NEEDS,
        *lease.NEEDS,
        *namespace.NEEDS,
    ),
)
