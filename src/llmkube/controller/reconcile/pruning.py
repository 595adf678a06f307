"""Folders of a namespace's volume that no Model names any more are removed by a Job, if the operator wants that.

Only what this controller has seen a Model name, and sees no Model, workload or pod name now, is ever removed; what a
predecessor has seen is left alone. Before a Job is made, Models and pods are read anew. No fetch begins while it runs,
so nothing that has just been fetched can go: a Model that comes in between waits, and fetches again if need be.
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
from llmkube.controller.status.job_result import ended_at, is_complete
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import Pod

POLL_SECONDS: Final = 10.0
RETENTION_SECONDS: Final = 600.0
"""How long a folder stays without a name: a Model that is deleted and made again finds its weights there."""

CALL_SECONDS: Final = 60.0

log = structlog.get_logger()


@attrs.define(eq=False)
class Pruner:
    """Remember which folders Models have named, and since when none does."""

    context: PodContext
    _named: dict[str, set[str]] = attrs.field(factory=dict, init=False)
    _since: dict[tuple[str, str], float] = attrs.field(factory=dict, init=False)  # by namespace and key
    _reported_jobs: dict[str, str] = attrs.field(factory=dict, init=False)  # uid of the Job whose end is known

    async def run(self) -> Never:
        """Look every ten seconds; what cannot be done is tried again later, and never fatal."""
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
        """Note which folders are named now, and begin or end the wait of the others."""
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
        if claim is None:  # all of it went with the volume
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
            return  # a Job that has failed stays for a day, and is made again then
        if job is not None:
            await self.context.owned.jobs.remove(job.key, claim.metadata.uid)
            return
        self.context.pruning.add(namespace)  # from here on no fetch begins
        try:
            expired -= await self._in_use(namespace, expired)
            if expired:
                await self.context.owned.jobs.ensure(prune_job(claim, sorted(expired), self.context.workloads))
            else:
                self._postpone(namespace)
        finally:
            self.context.pruning.discard(namespace)

    def _postpone(self, namespace: str) -> None:
        """Begin all waits of a namespace anew."""
        for place in self._since:
            if place[0] == namespace:
                self._since[place] = trio.current_time()

    def _deployed(self, namespace: str, keys: set[str]) -> set[str]:
        """Return those that a Deployment names: its pods may not have been replaced yet."""
        live = [encode(one) for one in self.context.pods.deployments.values() if one.key.namespace == namespace]
        return _mentioned(keys, live) if keys else set()

    def _is_fetching(self, namespace: str) -> bool:
        return any(
            job.key.namespace == namespace and job.key.name != PRUNE_JOB and not ended_at(job)
            for job in self.context.pods.jobs.values()
        )

    async def _in_use(self, namespace: str, keys: set[str]) -> set[str]:
        """Return those that a Model or a pod names, asked of the server; all of them if it cannot be known."""
        client = self.context.client
        models = (await client.list(Model, namespace=namespace)).items  # DecodeError: one that could name any of them
        named = {key for model in models for key in _keys(model)}
        pods = [pod for pod in (await client.list(Pod, namespace=namespace)).raw if _may_read(pod)]
        if any(_is_foreign(pod) for pod in pods):
            return keys  # what a foreign pod reads is not known
        return (keys & named) | _mentioned(keys, pods)


def _keys(model: Model) -> Iterator[str]:
    """Return the folders that a Model names, now and by what its status remembers."""
    yield cache_key(model.spec)
    if model.status.cache_key:
        yield model.status.cache_key


def _mentioned(keys: set[str], objects: Iterable[Mapping[str, Any]]) -> set[str]:
    texts = [json.dumps(one) for one in objects]
    return {key for key in keys if any(key in text for text in texts)}


def _may_read(pod: Mapping[str, Any]) -> bool:
    """Whether a pod mounts the claim and has not ended."""
    volumes = pod.get("spec", {}).get("volumes") or ()
    claims = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes]
    return CACHE_CLAIM in claims and pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}


def _is_foreign(pod: Mapping[str, Any]) -> bool:
    return (pod["metadata"].get("labels") or {}).get(MANAGED_BY) != CONTROLLER_FIELD_MANAGER
