"""How routers of this process reach a service: through the gateway, which knows how far each engine is, and its key."""

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.router.config.compile_router import ResolvedService
from llmkube.router.config.model_digest import model_digest
from llmkube.router.config.service_slots import is_replicated, slots_of, splits_cache


def through_gateway(gateway_url: str, service: InferenceService, model: Model | None) -> ResolvedService:
    """Return where a service answers, and what its engine can.

    Args:
        gateway_url: The gateway's address.
        service: The service.
        model: What it serves; None while that is not there.
    """
    return ResolvedService(
        base_url=f"{gateway_url}/v1",
        model=str(service.key),
        slots=slots_of(service.spec),
        splits_cache=splits_cache(service.spec),
        is_replicated=is_replicated(service.spec),
        model_digest=model_digest(service.spec, model),
    )
