"""Reconcile Models, which pods or hosts serve; the status of Models on hosts is derived from what they report.

For pods, the weights come from a Job, the engine or a mount. The volume for weights belongs to the namespace or to one
service; it is created if missing, and never changed.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.controller.informers import JOB_LABEL
from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.reconcile.workload_plans import weights_usage
from llmkube.controller.render.jobs import fetch_job, inspect_job
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.render.model_sources import claim_path, job_name, source_of
from llmkube.controller.render.storage import CACHE_CLAIM, Weights, cache_claim, service_claim
from llmkube.controller.status.job_result import JobFacts, finished_at, is_complete, is_failed, is_known, read_fetched
from llmkube.controller.status.model_status import (
    derive_model_status,
    derive_supplied_status,
    is_from_old_volume,
    revalidate_in_seconds,
    without_lost_volume,
)
from llmkube.controller.status.supply import Supply, choose_supply, has_header_read, is_remembered, weights_path
from llmkube.controller.writes.owned_objects import REFUSED, REFUSED_RETRY_SECONDS
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import AlreadyExistsError, NameTakenError, NotFoundError
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key, controller_key, is_controlled_by
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER, label_value
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.workloads import Job, PersistentVolumeClaim, Pod
from llmkube.weights.source import VolumeSource

PERMISSIONS: Final = (
    Permission(PersistentVolumeClaim, frozenset({"get", "create"})),  # also a claim that a Model names by `pvc://`
    Permission(Model, frozenset({"patch"})),  # only the finalizer; otherwise only the status is written
)


async def ensure_namespace_claim(context: PodContext, namespace: str) -> None:
    """Create the volume claim that all Models of a namespace share; an existing one of an admin is used as it is."""
    await _create(context, cache_claim(namespace, context.workloads))


async def ensure_service_claim(context: PodContext, service: InferenceService, weights: Weights) -> None:
    """Create a service's own volume claim, if its pods store their weights there.

    Raises:
        NameTakenError: A claim of that name does not belong to this service, and would be deleted with its owner.
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
    error.transient = bool(live.metadata.deletion_timestamp) or theirs == service.key
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


CLAIM_POLL_SECONDS: Final = 10.0
"""Interval between reads of a user's unbound claim: users' claims are not watched."""

PRUNING_POLL_SECONDS: Final = 10.0
"""Interval between checks whether a fetch may start: none does while folders of the volume are being removed."""


@attrs.frozen(eq=False)
class PodModels:
    """Reconcile Models that pods serve."""

    context: PodContext

    async def reconcile(self, cached: Model) -> None:
        """Start or continue the supply of a Model's weights, and write its status."""
        users = self.context.informers.users(cached.key)
        supply = choose_supply(
            cached, [weights_usage(self.context, service, cached) for service in users], self.context.workloads
        )
        newest = self.context.models.newest(cached)
        observed = await self._observe(newest, supply)
        if supply.by == "job":
            newest = without_lost_volume(newest, observed.claim)
        if not cached.metadata.deletion_timestamp:
            try:
                observed = attrs.evolve(observed, obstacle=await self._reconcile_jobs(newest, supply, observed))
            except REFUSED as error:
                reason = Reason.NAME_TAKEN if isinstance(error, NameTakenError) else Reason.INVALID
                supply = Supply("nothing", reason, str(error))
                self.context.queues.models.add_after(cached.key, REFUSED_RETRY_SECONDS)
            observed = attrs.evolve(
                observed, job=self.context.owned.jobs.get(Key(cached.key.namespace, job_name(cached)))
            )
        if _is_lost(supply, observed):
            observed = attrs.evolve(observed, job=None, pods=())
        status = derive_supplied_status(newest, supply, observed, now=self.context.utcnow())
        if status["phase"] == "Pending" and supply.by == "claim":
            self.context.queues.models.add_after(cached.key, CLAIM_POLL_SECONDS)
        await self.context.models.write(cached, status)

    @property
    def is_known(self) -> bool:
        """Whether all kinds have been listed that decide how weights reach pods, and for which services."""
        return self.context.informers.services.is_known and self.context.pods.can_make_models

    async def release(self, model: Model) -> None:
        """Remove the Jobs of a Model that a host serves now."""
        for key in self.context.pods.jobs_by_model.keys(model.key):
            await self.context.owned.jobs.remove(key, model.metadata.uid)

    async def _observe(self, model: Model, supply: Supply) -> JobFacts:
        key = Key(model.key.namespace, job_name(model))
        job = self.context.owned.jobs.get(key)
        observed = JobFacts(job, self.context.pods.pods_of_job(job), percent=self.context.percents.get(key))
        if supply.by in ("node", "image"):
            return observed
        if supply.by != "claim":
            cache = Key(model.key.namespace, CACHE_CLAIM)
            claim = self.context.pods.volume_claims.get(cache)
            if claim is None and supply.by == "job" and (finished_at(observed.job) or model.status.cache_volume):
                claim = await self._read_claim(cache)  # an admin may have created it, without our label
            return attrs.evolve(observed, claim=claim)
        source = source_of(model.spec)
        assert isinstance(source, VolumeSource), "checked by choose_supply"
        claim = await self._read_claim(Key(model.key.namespace, claim_path(source)[0]))
        if claim is None:
            self.context.queues.models.add_after(model.key, CLAIM_POLL_SECONDS)
        return attrs.evolve(observed, claim=claim)

    async def _read_claim(self, key: Key) -> PersistentVolumeClaim | None:
        try:
            return await self.context.client.get(PersistentVolumeClaim, key)
        except NotFoundError:
            return None

    async def _reconcile_jobs(self, model: Model, supply: Supply, observed: JobFacts) -> str:
        """Create the Job that is needed, and remove those of an earlier source; return why an optional one failed.

        A Job's template is immutable: a Job that has failed or is not running yet is created again from the current
        spec, which may add the Secret or the toleration that it lacked. A Job that is fetching continues.
        """
        key, lost = Key(model.key.namespace, job_name(model)), _is_lost(supply, observed)
        reads = has_header_read(model, supply)
        for one in self.context.pods.jobs_by_model.keys(model.key):
            if one != key or lost or not (reads or supply.by == "job"):
                await self.context.owned.jobs.remove(one, model.metadata.uid)
        if lost:
            return ""  # the Job is being removed, and the Model is reconciled once it is gone
        if reads:
            return await self._inspect(model, supply, observed)
        if supply.by != "job" or (is_remembered(model) and not await self._is_revalidation_due(model, observed)):
            return ""
        wanted = fetch_job(model, self.context.workloads)
        if observed.job is not None and _is_outdated(observed, wanted):
            await self.context.owned.jobs.remove(key, model.metadata.uid)
        elif observed.job is not None:
            await self._remove_job_without_result(model, observed)
        elif self.context.is_pruning(model.key.namespace):
            self.context.queues.models.add_after(model.key, PRUNING_POLL_SECONDS)
        else:
            await ensure_namespace_claim(self.context, model.key.namespace)
            await self.context.owned.jobs.ensure(wanted)
        return ""

    async def _inspect(self, model: Model, supply: Supply, observed: JobFacts) -> str:
        """Have a Job read the header of a mounted file, on a node of pods that serve it; return why it cannot."""
        services = self._labels_of_running_users(model.key)
        if is_known(model, observed):
            return ""
        if observed.job is not None:
            await self._remove_job_without_result(model, observed)
        elif services:
            try:
                path = weights_path(model, supply)
                await self.context.owned.jobs.ensure(inspect_job(model, path, services, self.context.workloads))
            except REFUSED as error:
                return str(error)
        return ""

    def _labels_of_running_users(self, model: Key) -> list[str]:
        users = self.context.informers.users(model)
        pods_of = self.context.pods.pods_of_service
        return [label_value(each.key.name) for each in users if any(pod.is_running for pod in pods_of(each.key))]

    async def _remove_job_without_result(self, model: Model, observed: JobFacts) -> None:
        """Remove a Job that completed but whose pod is gone: its successor finds the files, and reports them."""
        if observed.job is None or not is_complete(observed.job) or read_fetched(observed.pods) is not None:
            return
        if await self._has_lost_its_pods(observed.job):
            await self.context.owned.jobs.remove(observed.job.key, model.metadata.uid)

    async def _is_revalidation_due(self, model: Model, observed: JobFacts) -> bool:
        """Whether a fetched source is due for revalidation; the Job of the last revalidation is removed before."""
        wait_seconds = revalidate_in_seconds(model, observed.job, self.context.workloads, self.context.utcnow())
        if wait_seconds is None:
            return False
        if wait_seconds > 0:
            self.context.queues.models.add_after(model.key, wait_seconds)
            return False
        if observed.job is not None and finished_at(observed.job):
            await self.context.owned.jobs.remove(observed.job.key, model.metadata.uid)
            return False  # the Model is reconciled again once the Job is gone
        return observed.job is None

    async def _has_lost_its_pods(self, job: Job) -> bool:
        """Whether no pod of a Job is left; reads from the server, since the caches of pods and Jobs may differ."""
        selector = f"{JOB_LABEL}={job.key.name}"
        pods = await self.context.client.list(Pod, namespace=job.key.namespace, label_selector=selector)
        return not any(is_controlled_by(pod, job.metadata.uid) for pod in pods.items)


def _is_lost(supply: Supply, observed: JobFacts) -> bool:
    """Whether the Job's result was lost with an earlier claim; folders of nodes and images have no claim."""
    return supply.by not in ("node", "image") and is_from_old_volume(observed.job, observed.claim)


def _is_outdated(observed: JobFacts, wanted: Mapping[str, Any]) -> bool:
    """Whether a Job that has failed or is not running would differ if it were created now."""
    job = observed.job
    if job is None or job.metadata.annotations.get(DIGEST) == wanted["metadata"]["annotations"][DIGEST]:
        return False
    return is_failed(job) or not (finished_at(job) or any(pod.status.phase == "Running" for pod in observed.pods))


FINALIZER: Final = "inference.llmkube.dev/in-use"
"""Finalizer of early versions on Models that services refer to. It is no longer added, and is removed where found,
since no program would remove it once LLMKube is uninstalled. Deleting a Model does not change its services' pods."""


@attrs.frozen(eq=False)
class ModelReconciler:
    """Reconcile all Models; `in_pods` handles those that no host serves, and is None where there are no pods."""

    context: Context
    in_pods: PodModels | None = None

    async def reconcile(self, key: Key) -> None:
        """Reconcile one Model."""
        models = self.context.informers.models
        cached = models.get(key)
        if cached is None:
            self.context.models.forget(key)
            return
        if models.is_unreadable(key):
            return  # an older version is no basis for a write
        if FINALIZER in cached.metadata.finalizers:
            await self._remove_finalizer(cached)  # the patch reconciles it again
        elif self.in_pods is not None and not self.context.settings.is_for_hosts(cached):
            if self.in_pods.is_known:
                await self.in_pods.reconcile(cached)
        else:
            if self.in_pods is not None:
                await self.in_pods.release(cached)
            await self._reconcile_on_hosts(cached)

    async def _remove_finalizer(self, model: Model) -> None:
        remaining = [name for name in model.metadata.finalizers if name != FINALIZER]
        patch = {"metadata": {"resourceVersion": model.metadata.resource_version, "finalizers": remaining}}
        await self.context.client.patch(Model, model.key, patch, field_manager=CONTROLLER_FIELD_MANAGER)

    async def _reconcile_on_hosts(self, cached: Model) -> None:
        context = self.context
        if not context.settings.is_for_hosts(cached) or cached.metadata.deletion_timestamp:
            context.models.forget(cached.key)
            return
        if not context.hosts.leases.synced.is_set():
            return  # every Model is reconciled once they are listed
        status = derive_model_status(context.models.newest(cached), context.hosts.tracker.hosts, now=context.utcnow())
        await context.models.write(cached, status)
