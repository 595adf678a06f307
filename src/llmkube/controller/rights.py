"""All API permissions of the controller, for its Role."""

from typing import Final

from llmkube.controller import informers
from llmkube.controller.reconcile import models, namespace, routers
from llmkube.controller.writes import status_writer
from llmkube.k8s import events
from llmkube.k8s.leases import host_monitor, lease
from llmkube.k8s.rbac import Program

PROGRAM: Final = Program(
    "llmkube-controller",
    (
        *informers.PERMISSIONS,
        *models.PERMISSIONS,
        *routers.PERMISSIONS,
        *host_monitor.PERMISSIONS,
        *status_writer.PERMISSIONS,
        *events.PERMISSIONS,
        *lease.PERMISSIONS,
        *namespace.PERMISSIONS,
    ),
)
