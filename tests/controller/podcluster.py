"""A cluster in which pods run: helpers play the controllers of Jobs and Deployments, scheduler and kubelet."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from controller.cluster import SETTLED, Cluster, open_cluster
from controller.podobjects import FETCHED, HUB_FILE, SETTINGS
from llmkube.controller.render.labels import MANAGED_BY
from llmkube.k8s.builtins import CustomResourceDefinition
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CONTROLLER_FIELD_MANAGER
from llmkube.k8s.workloads import Deployment, Job, PersistentVolumeClaim, Pod

KUBE = "kube-controller-manager"


@attrs.define(eq=False)
class Hands:
    """A test's actions on a cluster with pods, as a user and as the parts of Kubernetes."""

    cluster: Cluster
    starved: set[str] = attrs.field(factory=set)  # Deployments whose pods find no node

    @property
    def client(self):
        return self.cluster.client

    # -- a user ------------------------------------------------------------------------------------------------------

    async def create_model(self, name: str = "phi", source: str = HUB_FILE, **spec: Any) -> None:
        body = {"source": source, "hardware": {"accelerator": "cuda"}, **spec}
        await self.cluster.apply_object(Model, name, {"spec": body}, manager="user")

    async def create_service(self, name: str = "chat", **spec: Any) -> None:
        await self.cluster.create_service(name, **spec)

    async def apply(self, name: str = "chat", **spec: Any) -> None:
        """Apply a service, and wait until everything has settled."""
        await self.create_service(name, **spec)
        await trio.sleep(SETTLED)

    async def start(self, name: str = "chat", **spec: Any) -> None:
        """Apply the Model and a service of it, and wait until everything has settled."""
        await self.create_model()
        await self.apply(name, **spec)

    async def where(self, name: str = "chat") -> str:
        return await self.cluster.where(name)

    async def model_where(self, name: str = "phi") -> str:
        await trio.sleep(SETTLED)
        status = (await self.cluster.model(name)).status
        reasons = [one.reason for one in status.conditions if one.type == "Available"]
        return f"{status.phase}/{reasons[0]}" if reasons else status.phase

    async def json(self, kind: type[Any], name: str = "chat") -> dict[str, Any]:
        return encode(await self.client.get(kind, Key("ml", name)))

    async def exists(self, kind: type[Any], name: str = "chat") -> bool:
        try:
            await self.client.get(kind, Key("ml", name))
        except NotFoundError:
            return False
        return True

    async def names(self, kind: type[Any]) -> list[str]:
        return sorted(one.key.name for one in (await self.client.list(kind, namespace="ml")).items)

    # -- Kubernetes --------------------------------------------------------------------------------------------------

    async def finish_job(
        self, code: int = 0, message: str = FETCHED, *, with_pod: bool = True, job: Job | None = None
    ) -> None:
        """End a Job, or the running one, with this termination message."""
        if job is None:
            [job] = [one for one in (await self.client.list(Job, namespace="ml")).items if not one.status.conditions]
        if with_pod:
            ended = {"terminated": {"exitCode": code, "message": message}}
            await self.job_pod(job, ended, "Failed" if code else "Succeeded")
        kind = "Failed" if code else "Complete"
        held = {"type": kind, "status": "True", "reason": "BackoffLimitExceeded" if code else "CompletionsReached"}
        await self._status(Job, job.key.name, {"conditions": [held]})

    async def end_job(self, code: int = 0, message: str = FETCHED) -> None:
        """End the running Job, and wait until everything has settled."""
        await self.finish_job(code, message)
        await trio.sleep(SETTLED)

    async def job_pod(self, job: Job, state: Mapping[str, Any], phase: str, **status: Any) -> None:
        labels = {MANAGED_BY: CONTROLLER_FIELD_MANAGER, "batch.kubernetes.io/job-name": job.key.name}
        status |= {"phase": phase, "containerStatuses": [{"name": "fetch", "state": dict(state)}]}
        await self.make_pod(f"{job.key.name}-x", labels, status, owner=job)

    async def make_pod(
        self,
        name: str,
        labels: Mapping[str, str],
        status: Mapping[str, Any],
        *,
        owner: Job | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        if not await self.exists(Pod, name):
            body: dict[str, Any] = {"metadata": {"name": name, "namespace": "ml", "labels": dict(labels)}}
            body["spec"] = dict(spec or {})
            if owner is not None:
                who = {"apiVersion": Job.RESOURCE.api_version, "kind": Job.RESOURCE.kind, "name": owner.key.name}
                body["metadata"]["ownerReferences"] = [{**who, "uid": owner.metadata.uid, "controller": True}]
            await self.client.create(decode(Pod, body), field_manager=KUBE)
        await self._status(Pod, name, status)

    async def service_pod(self, status: Mapping[str, Any], *, name: str = "chat", number: int = 1) -> None:
        """Give a service a pod in this state."""
        template = (await self.json(Deployment, name))["spec"]["template"]
        await self.make_pod(f"{name}-{number}", template["metadata"]["labels"], status, spec=template["spec"])

    async def roll_out(self, name: str = "chat", *, ready: int | None = None, updated: int | None = None) -> None:
        """Set a Deployment's pods, all of the newest template, and the number of ready ones."""
        live = await self.client.get(Deployment, Key("ml", name))
        replicas = live.spec.replicas
        await self._status(
            Deployment,
            name,
            {
                "observedGeneration": live.metadata.generation,
                "replicas": replicas,
                "updatedReplicas": replicas if updated is None else updated,
                "readyReplicas": replicas if ready is None else ready,
            },
        )

    async def bind(self, claim: str) -> None:
        await self._status(PersistentVolumeClaim, claim, {"phase": "Bound"})

    async def install(self, *kinds: type[Any]) -> None:
        """Install kinds of other operators, with any spec and status."""
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        for kind in kinds:
            resource = kind.RESOURCE
            version = {
                "name": resource.version,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
            }
            spec = {
                "group": resource.group,
                "names": {"kind": resource.kind, "plural": resource.plural},
                "scope": "Namespaced",
                "versions": [version],
            }
            body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
            manifest = {**body, "metadata": {"name": resource.full_name}}
            await self.client.apply(CustomResourceDefinition, manifest, field_manager="user")

    async def bring_up(self, *, accelerator: str = "cuda", **spec: Any) -> None:
        """One service whose Model is fetched and whose pods answer."""
        await self.create_model(hardware={"accelerator": accelerator})
        await self.apply(**spec)
        await self.end_job()
        await self.roll_out()
        await trio.sleep(SETTLED)

    async def run_kubernetes(self) -> None:
        """Play all of it every ten seconds: Jobs succeed, Deployments get their replicas."""
        while True:
            await trio.sleep(10)
            for job in (await self.client.list(Job)).items:
                if not job.status.conditions and not job.metadata.deletion_timestamp:
                    await self.finish_job(job=job)
            for live in (await self.client.list(Deployment)).items:
                done = live.status.observed_generation == live.metadata.generation
                if live.key.name in self.starved:
                    continue
                if not done or live.status.ready_replicas != live.spec.replicas:
                    await self.roll_out(live.key.name)

    async def _status(self, kind: type[Any], name: str, status: Mapping[str, Any]) -> None:
        patch = {"status": dict(status)}
        await self.client.patch(kind, Key("ml", name), patch, subresource="status", field_manager=KUBE)


@asynccontextmanager
async def open_pods(**settings: Any) -> AsyncIterator[Hands]:
    """Run an API server with the kinds of a cluster, and a controller that makes pods."""
    async with open_cluster(workloads=settings.pop("workloads", SETTINGS), **settings) as cluster:
        yield Hands(cluster)
