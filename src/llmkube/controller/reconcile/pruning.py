"""Remove folders of a namespace's volume that no Model names any more, by a Job; optional.

A folder is removed only if this controller has seen a Model name it, and no Model, workload or pod names it now.
Folders that only an earlier controller has seen stay. Models and pods are read again before the Job is created. No
fetch starts while the Job runs, so it cannot remove newly fetched files: a Model that is created meanwhile waits, and
fetches again if it has to.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Never

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.render.jobs import PRUNE_JOB, PRUNED, prune_job
from llmkube.controller.render.labels import MANAGED_BY
from llmkube.controller.render.model_sources import CACHE_FOLDER, cache_key
from llmkube.controller.render.storage import CACHE_CLAIM
from llmkube.controller.status.job_result import finished_at, is_complete
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import Pod

POLL_SECONDS: Final = 10.0
RETENTION_SECONDS: Final = 600.0
"""Retention of a folder that no Model names: a Model that is deleted and recreated finds its weights there."""

CALL_SECONDS: Final = 60.0

log = structlog.get_logger()


@attrs.define(eq=False)
class Pruner:
    """Record which folders Models have named, and since when none does; remove those past their retention."""

    context: PodContext
    _named: dict[str, set[str]] = attrs.field(factory=dict, init=False)
    _since: dict[tuple[str, str], float] = attrs.field(factory=dict, init=False)  # by namespace and key
    _reported_jobs: dict[str, str] = attrs.field(factory=dict, init=False)  # uid of the Job whose end was logged

    async def run(self) -> Never:
        """Prune every ten seconds until cancelled; failures are logged and retried later."""
        while True:
            await trio.sleep(POLL_SECONDS)
            self._record_named_folders()
            for namespace in list(self._named):
                try:
                    with trio.fail_after(CALL_SECONDS):
                        await self._prune(namespace)
                except (LLMKubeError, trio.TooSlowError) as error:
                    log.info("volume not pruned", namespace=namespace, error=str(error) or "no answer")
                    self._postpone(namespace)

    def _record_named_folders(self) -> None:
        """Record which folders are named now; start the retention of those that no longer are."""
        named: dict[str, set[str]] = {}
        for model in self.context.informers.models.values():
            named.setdefault(model.key.namespace, set()).update(_keys(model))
            if model.status.path.startswith(f"{CACHE_FOLDER}/"):
                self._named.setdefault(model.key.namespace, set()).add(model.status.cache_key)
        now = trio.current_time()
        for namespace, known in self._named.items():
            for key in known:
                if key in named.get(namespace, ()):
                    self._since.pop((namespace, key), None)
                else:
                    self._since.setdefault((namespace, key), now)

    async def _prune(self, namespace: str) -> None:
        await trio.lowlevel.checkpoint()
        claim = self.context.pods.volume_claims.get(Key(namespace, CACHE_CLAIM))
        if claim is None:  # the volume is gone, and all folders with it
            for key in self._named.pop(namespace):
                self._since.pop((namespace, key), None)
            return
        job = self.context.owned.jobs.get(Key(namespace, PRUNE_JOB))
        if job is not None and is_complete(job) and self._reported_jobs.get(namespace) != job.metadata.uid:
            self._reported_jobs[namespace] = job.metadata.uid
            keys = job.metadata.annotations.get(PRUNED, "").split(",")
            log.info("folders removed", namespace=namespace, folders=keys)
            for key in keys:
                self._since.pop((namespace, key), None)
                self._named[namespace].discard(key)
        due = trio.current_time() - RETENTION_SECONDS
        expired = {key for key in self._named[namespace] if self._since.get((namespace, key), due + 1) <= due}
        expired -= self._deployed(namespace, expired)
        if not expired or self._is_fetching(namespace) or (job is not None and not is_complete(job)):
            return  # a failed Job is retained for a day, and then recreated
        if job is not None:
            await self.context.owned.jobs.remove(job.key, claim.metadata.uid)
            return
        self.context.pruning.add(namespace)  # from here on no fetch starts
        try:
            expired -= await self._in_use(namespace, expired)
            if expired:
                await self.context.owned.jobs.ensure(prune_job(claim, sorted(expired), self.context.workloads))
            else:
                self._postpone(namespace)
        finally:
            self.context.pruning.discard(namespace)

    def _postpone(self, namespace: str) -> None:
        """Restart the retention of all folders of a namespace."""
        for place in self._since:
            if place[0] == namespace:
                self._since[place] = trio.current_time()

    def _deployed(self, namespace: str, keys: set[str]) -> set[str]:
        """Return the folders that a Deployment names, whose pods may not have been replaced yet."""
        live = [encode(one) for one in self.context.pods.deployments.values() if one.key.namespace == namespace]
        return _mentioned(keys, live) if keys else set()

    def _is_fetching(self, namespace: str) -> bool:
        return any(
            job.key.namespace == namespace and job.key.name != PRUNE_JOB and not finished_at(job)
            for job in self.context.pods.jobs.values()
        )

    async def _in_use(self, namespace: str, keys: set[str]) -> set[str]:
        """Return the folders that a Model or a pod names, as read from the server; `keys` if that is unknown."""
        client = self.context.client
        models = (await client.list(Model, namespace=namespace)).items  # DecodeError: a Model may name any folder
        named = {key for model in models for key in _keys(model)}
        pods = [pod for pod in (await client.list(Pod, namespace=namespace)).raw if _may_read(pod)]
        managers = {(pod["metadata"].get("labels") or {}).get(MANAGED_BY) for pod in pods}
        if managers - {CONTROLLER_FIELD_MANAGER}:
            return keys  # a foreign pod may read any folder
        return (keys & named) | _mentioned(keys, pods)


def _keys(model: Model) -> Iterator[str]:
    """Yield the folders that a Model names in its spec and its status."""
    yield cache_key(model.spec)
    if model.status.cache_key:
        yield model.status.cache_key


def _mentioned(keys: set[str], objects: Iterable[Mapping[str, Any]]) -> set[str]:
    texts = [json.dumps(one) for one in objects]
    return {key for key in keys if any(key in text for text in texts)}


def _may_read(pod: Mapping[str, Any]) -> bool:
    """Whether a pod mounts the claim and has not terminated."""
    volumes = pod.get("spec", {}).get("volumes") or ()
    claims = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes]
    return CACHE_CLAIM in claims and pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}
