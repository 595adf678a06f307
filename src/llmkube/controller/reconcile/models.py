"""A Model is served by hosts or by pods; the status of what hosts serve follows from what they report.

A Model's weights come by a Job, an engine or a mount, and stay for as long as a service needs them. There is a volume
for weights for each namespace, or one for each service; it is made when missing, never changed.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.controller.informers import JOB_LABEL
from llmkube.controller.reconcile.context import Context, PodContext
from llmkube.controller.reconcile.workload_plans import user_of
from llmkube.controller.render.jobs import fetch_job, inspect_job
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.render.model_sources import claim_path, job_name, source_of
from llmkube.controller.render.storage import CACHE_CLAIM, Weights, cache_claim, service_claim
from llmkube.controller.status.job_result import JobFacts, ended_at, is_complete, is_failed, is_known, read_fetched
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
    Permission(PersistentVolumeClaim, frozenset({"get", "create"})),  # also the one that a Model names by `pvc://`
    Permission(Model, frozenset({"patch"})),  # the finalizer alone; else only its status is written
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


CLAIM_POLL_SECONDS: Final = 10.0
"""Between two looks at a user's claim that is not bound: those are not watched."""

PRUNING_POLL_SECONDS: Final = 10.0
"""Between two looks whether a fetch may begin: none does while folders of the volume are being removed."""


@attrs.frozen(eq=False)
class PodModels:
    """Look after the Models that pods serve."""

    context: PodContext

    async def reconcile(self, cached: Model) -> None:
        """Have a Model's weights brought, and say how far that is."""
        users = self.context.informers.users(cached.key)
        supply = choose_supply(
            cached, [user_of(self.context, service, cached) for service in users], self.context.workloads
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
        """Whether all is known that says how weights reach pods, and for whom."""
        return self.context.informers.services.is_known and self.context.pods.can_make_models

    async def release(self, model: Model) -> None:
        """End the Jobs of a Model that a host serves now."""
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
            if claim is None and supply.by == "job" and (ended_at(observed.job) or model.status.cache_volume):
                claim = await self._read_claim(cache)  # an admin may have made it, without our label
            return attrs.evolve(observed, claim=claim)
        source = source_of(model.spec)
        assert isinstance(source, VolumeSource), "choose_supply has looked"
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
        """Make the Job that is needed, and end those of an earlier source; return why an optional one failed.

        A Job's template cannot be changed: one that has failed, or does not run yet, is made anew as it is wanted now,
        with the Secret or the toleration that it lacked. One that fetches goes on.
        """
        key, lost = Key(model.key.namespace, job_name(model)), _is_lost(supply, observed)
        reads = has_header_read(model, supply)
        for one in self.context.pods.jobs_by_model.keys(model.key):
            if one != key or lost or not (reads or supply.by == "job"):
                await self.context.owned.jobs.remove(one, model.metadata.uid)
        if lost:
            return ""  # it is on its way out, and its end wakes the Model
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
        """Have the header of a mounted file read, beside pods that serve it; return why it cannot be."""
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
        return [label_value(user.key.name) for user in users if self.context.pods.has_running_pod(user.key)]

    async def _remove_job_without_result(self, model: Model, observed: JobFacts) -> None:
        """Remove a Job that has ended well and whose pod is gone: its successor finds what there is, and reports it."""
        if observed.job is None or not is_complete(observed.job) or read_fetched(observed.pods) is not None:
            return
        if await self._has_lost_its_pods(observed.job):
            await self.context.owned.jobs.remove(observed.job.key, model.metadata.uid)

    async def _is_revalidation_due(self, model: Model, observed: JobFacts) -> bool:
        """Whether a source that has been fetched is to be looked at now; the Job of the last look goes before."""
        wait_seconds = revalidate_in_seconds(model, observed.job, self.context.workloads, self.context.utcnow())
        if wait_seconds is None:
            return False
        if wait_seconds > 0:
            self.context.queues.models.add_after(model.key, wait_seconds)
            return False
        if observed.job is not None and ended_at(observed.job):
            await self.context.owned.jobs.remove(observed.job.key, model.metadata.uid)
            return False  # its end wakes the Model again
        return observed.job is None

    async def _has_lost_its_pods(self, job: Job) -> bool:
        """Whether no pod of a Job is left that could tell; asked of the server, for pods and Jobs come separately."""
        selector = f"{JOB_LABEL}={job.key.name}"
        pods = await self.context.client.list(Pod, namespace=job.key.namespace, label_selector=selector)
        return not any(is_controlled_by(pod, job.metadata.uid) for pod in pods.items)


def _is_lost(supply: Supply, observed: JobFacts) -> bool:
    """Whether what the Job has found went with an earlier claim; a folder of the nodes has none, nor has an image."""
    return supply.by not in ("node", "image") and is_from_old_volume(observed.job, observed.claim)


def _is_outdated(observed: JobFacts, wanted: Mapping[str, Any]) -> bool:
    """Whether a Job that gets nowhere would be another one today."""
    job = observed.job
    if job is None or job.metadata.annotations.get(DIGEST) == wanted["metadata"]["annotations"][DIGEST]:
        return False
    return is_failed(job) or not (ended_at(job) or any(pod.status.phase == "Running" for pod in observed.pods))


FINALIZER: Final = "inference.llmkube.dev/in-use"
"""Kept Models that services refer to, in early versions. No program is there to take it off once LLMKube is removed, so
none puts it on any more, and what has it loses it: a Model that goes leaves the pods of its services as they are."""


@attrs.frozen(eq=False)
class ModelReconciler:
    """Look after all Models; `in_pods` does it for those that no host serves, and is None where no pods are."""

    context: Context
    in_pods: PodModels | None = None

    async def reconcile(self, key: Key) -> None:
        """Bring one Model in line."""
        models = self.context.informers.models
        cached = models.get(key)
        if cached is None:
            self.context.models.forget(key)
            return
        if models.is_unreadable(key):
            return  # nothing can be written over its newest state from an older one
        if FINALIZER in cached.metadata.finalizers:
            await self._remove_finalizer(cached)  # the answer wakes it again
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
            return  # its arrival wakes every Model
        status = derive_model_status(context.models.newest(cached), context.hosts.tracker.hosts, now=context.utcnow())
        await context.models.write(cached, status)
