"""The kinds of objects that the controller makes: for InferenceServices and Models in pods, and for ModelRouters."""

from llmkube.controller.informers import PodInformers
from llmkube.controller.writes.owned_objects import OwnedObjects
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.wire.names import AGENT_MANAGER


class OwnedKinds:
    """One `OwnedObjects` per kind; all but the Jobs belong to InferenceServices."""

    def __init__(self, client: Client, informers: PodInformers) -> None:
        self.deployments = OwnedObjects(client, InferenceService, informers.deployments)
        self.groups = OwnedObjects(client, InferenceService, informers.groups)
        # Agents list the port of their engine in the same Service while a Model moves to a host.
        self.kubernetes_services = OwnedObjects(client, InferenceService, informers.kubernetes_services, AGENT_MANAGER)
        self.autoscalers = OwnedObjects(client, InferenceService, informers.autoscalers)
        self.budgets = OwnedObjects(client, InferenceService, informers.budgets)
        self.monitors = OwnedObjects(client, InferenceService, informers.monitors)
        self.objectives = OwnedObjects(client, InferenceService, informers.objectives)
        self.routes = OwnedObjects(client, InferenceService, informers.routes)
        self.jobs = OwnedObjects(client, Model, informers.jobs)


class RouterKinds:
    """One `OwnedObjects` per kind that a ModelRouter has; they share the informers of the other objects in pods."""

    def __init__(self, client: Client, informers: PodInformers) -> None:
        self.config_maps = OwnedObjects(client, ModelRouter, informers.config_maps)
        self.deployments = OwnedObjects(client, ModelRouter, informers.deployments)
        self.kubernetes_services = OwnedObjects(client, ModelRouter, informers.kubernetes_services)
        self.network_policies = OwnedObjects(client, ModelRouter, informers.network_policies)
        self.budgets = OwnedObjects(client, ModelRouter, informers.budgets)
        self.monitors = OwnedObjects(client, ModelRouter, informers.monitors)
