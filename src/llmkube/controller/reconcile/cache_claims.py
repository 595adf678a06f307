"""The volumes for weights: one for each namespace, or one for each service; made when missing, never changed."""

from typing import Any, Final

from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.render.storage import cache_claim, service_claim
from llmkube.controller.service_record import Weights
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import AlreadyExistsError, NameTakenError
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key, controller_key, is_controlled_by
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import PersistentVolumeClaim

PERMISSIONS: Final = (
    # Also the one that a Model names by `pvc://`.
    Permission(PersistentVolumeClaim, frozenset({"get", "create"})),
)


async def ensure_namespace_claim(context: PodContext, namespace: str) -> None:
    """Make the volume that all Models of a namespace share; one that an admin has made is as good."""
    await _create(context, cache_claim(namespace, context.workloads))


async def ensure_service_claim(context: PodContext, service: InferenceService, weights: Weights) -> None:
    """Make the volume that is a service's own, where its pods keep their weights on it.

    Raises:
        NameTakenError: A claim of that name is not this service's: it would be deleted with what it belongs to.
    """
    if not context.workloads.cache_per_service:
        return
    manifest = service_claim(service, context.workloads)
    key = Key.of(manifest)
    if not _mounts(weights, key.name):
        return
    live = context.pods.volume_claims.get(key)
    if live is None:
        if await _create(context, manifest):
            return
        live = await context.client.get(PersistentVolumeClaim, key)
    if is_controlled_by(live, service.metadata.uid) and not live.metadata.deletion_timestamp:
        return
    theirs = controller_key(live, InferenceService.RESOURCE.kind)
    error = NameTakenError(
        f'PersistentVolumeClaim "{key.name}" does not belong to this InferenceService, or is being deleted; rename '
        "the InferenceService, delete that claim, or name it in spec.modelCache.claimName to use it as it is"
    )
    error.passing = bool(live.metadata.deletion_timestamp) or theirs == service.key
    raise error


async def _create(context: PodContext, manifest: dict[str, Any]) -> bool:
    claim = decode(PersistentVolumeClaim, manifest)
    try:
        await context.client.create(claim, field_manager=CONTROLLER_FIELD_MANAGER)
    except AlreadyExistsError:
        return False
    return True


def _mounts(weights: Weights, claim: str) -> bool:
    volumes = (*weights.model.volumes, *weights.draft.volumes)
    return any(volume.get("persistentVolumeClaim", {}).get("claimName") == claim for volume in volumes)
