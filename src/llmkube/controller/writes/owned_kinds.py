"""The kinds of objects that the controller makes: for InferenceServices and Models in pods, and for ModelRouters."""

import attrs

from llmkube.controller.informers import PodInformers
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.k8s.builtins import ConfigMap, Service
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.extensions import HTTPRoute, LeaderWorkerSet, PodMonitor, ServiceLevelObjective
from llmkube.k8s.wire.names import AGENT_MANAGER
from llmkube.k8s.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    NetworkPolicy,
    PodDisruptionBudget,
)


@attrs.frozen(eq=False)
class OwnedKinds:
    """One `OwnedObjects` per kind; all but the Jobs belong to InferenceServices."""

    deployments: OwnedObjects[Deployment]
    groups: OwnedObjects[LeaderWorkerSet]
    kubernetes_services: OwnedObjects[Service]
    autoscalers: OwnedObjects[HorizontalPodAutoscaler]
    budgets: OwnedObjects[PodDisruptionBudget]
    monitors: OwnedObjects[PodMonitor]
    objectives: OwnedObjects[ServiceLevelObjective]
    routes: OwnedObjects[HTTPRoute]
    jobs: OwnedObjects[Job]

    @classmethod
    def on(cls, client: Client, informers: PodInformers) -> "OwnedKinds":
        """Return what reads from these informers and writes to this API server."""
        return cls(
            deployments=OwnedObjects(client, InferenceService, informers.deployments),
            groups=OwnedObjects(client, InferenceService, informers.groups),
            # Agents list the port of their engine in the same Service while a Model moves to a host.
            kubernetes_services=OwnedObjects(client, InferenceService, informers.kubernetes_services, AGENT_MANAGER),
            autoscalers=OwnedObjects(client, InferenceService, informers.autoscalers),
            budgets=OwnedObjects(client, InferenceService, informers.budgets),
            monitors=OwnedObjects(client, InferenceService, informers.monitors),
            objectives=OwnedObjects(client, InferenceService, informers.objectives),
            routes=OwnedObjects(client, InferenceService, informers.routes),
            jobs=OwnedObjects(client, Model, informers.jobs),
        )


@attrs.frozen(eq=False)
class RouterKinds:
    """One `OwnedObjects` per kind that a ModelRouter has; they share the informers of the other objects in pods."""

    config_maps: OwnedObjects[ConfigMap]
    deployments: OwnedObjects[Deployment]
    kubernetes_services: OwnedObjects[Service]
    network_policies: OwnedObjects[NetworkPolicy]
    budgets: OwnedObjects[PodDisruptionBudget]
    monitors: OwnedObjects[PodMonitor]

    @classmethod
    def on(cls, client: Client, informers: PodInformers) -> "RouterKinds":
        """Return what reads from these informers and writes to this API server."""
        return cls(
            config_maps=OwnedObjects(client, ModelRouter, informers.config_maps),
            deployments=OwnedObjects(client, ModelRouter, informers.deployments),
            kubernetes_services=OwnedObjects(client, ModelRouter, informers.kubernetes_services),
            network_policies=OwnedObjects(client, ModelRouter, informers.network_policies),
            budgets=OwnedObjects(client, ModelRouter, informers.budgets),
            monitors=OwnedObjects(client, ModelRouter, informers.monitors),
        )
