"""Which fields of the objects have been given, and which of them take effect on a host whatever the runtime."""

from collections.abc import Iterator
from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import changed_paths
from llmkube.k8s.wire.names import RESTARTED_AT

# Fields that take effect on a host without reaching the command line
HONOURED_BY_THE_HOST: Final = frozenset(
    {
        "spec.modelRef",
        "spec.runtime",
        "spec.hosts.modelRef",
        "spec.hosts.replicas",
        "spec.replicas",
        "spec.suspend",
        "spec.priority",
        "spec.evictionProtection",
        "spec.endpoint.path",
        "spec.apiKeySecretRef.name",
        "spec.apiKeySecretRef.key",
        "spec.env",
        "Model.spec.source",
        "Model.spec.sha256",
        "Model.spec.sourceSecretRef.name",
        "Model.spec.files",
        "Model.spec.format",
        "Model.spec.quantization",
        "Model.spec.hardware.accelerator",
        "Model.spec.hardware.memoryBudget",
        "Model.spec.hardware.memoryFraction",
        "Model.spec.hardware.gpu.enabled",
    }
)
"""Fields that take effect without reaching the command line."""


def given_paths(isvc: InferenceService, model: Model) -> Iterator[str]:
    """Yield the paths of the fields that say something else than their defaults."""
    spec = isvc.spec
    if spec.pod_annotations.keys() == {RESTARTED_AT}:  # it has its effect; others are for pods alone
        spec = attrs.evolve(spec, pod_annotations={})
    yield from changed_paths(spec, "spec")
    yield from changed_paths(model.spec, "Model.spec")
