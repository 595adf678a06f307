"""The figures of a service on the page: those of `llmkube list`, `ps` and `status`."""

from typing import Any

from llmkube.cli.view.advice import advice
from llmkube.cli.view.output import context_in_effect, runs_on, served_by
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.service_health import State, service_health


def page_facts(service: InferenceService, model: Model | None) -> dict[str, Any]:
    """Return the figures of a service as JSON values; texts are those that the commands print."""
    health, spec = service_health(service, model), service.spec
    is_ready = health.state is State.READY
    return {
        "name": service.key.name,
        "namespace": service.key.namespace,
        "model": spec.model_ref,
        "phase": service.status.phase,
        "state": health.state.name.lower(),
        "reason": "" if is_ready else health.reason,
        "message": "" if is_ready else health.message,
        "advice": advice(health.reason, service.key) if health.failing else "",
        "since": health.since,
        "priority": spec.priority,
        "pinned": spec.activation.pin if spec.activation is not None else False,
        "stopped": spec.replicas == 0,
        "size": model.status.size if model is not None else "",
        "runsOn": runs_on(service, model),
        "engine": served_by(service),
        "context": context_in_effect(service, model),
        "slots": spec.parallel_slots,
        "vision": model is not None and model.status.reads_pictures,
    }
