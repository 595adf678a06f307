"""On a real kube-apiserver: our manifests are taken as they are, written once, and the rights for them are enough."""

import functools
import random

import attrs
import pytest
import trio

from controller.podobjects import FETCHED, SETTINGS
from envtest.test_real_controller import crds, installed, open_impersonated, until, utcnow
from k8s.api_calls import undeclared
from llmkube.controller.operator import run_controller
from llmkube.controller.rights import PROGRAM
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Service
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.rbac import rbac_manifests
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, Job, Pod, PodDisruptionBudget

pytestmark = pytest.mark.envtest
__all__ = ["crds"]  # the fixture, for pytest to find

SETTLED_SECONDS = 3.0
EVERYTHING = {
    "modelRef": "phi",
    "replicas": 2,
    "podLabels": {"team": "ml"},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "env": [{"name": "A", "value": "1"}, {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "resources": {"gpu": 1, "cpu": "1500m", "memory": "1024Mi"},
    "extraVolumes": [{"name": "extra", "emptyDir": {"sizeLimit": "1024Mi"}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    "probeOverrides": {"startup": {"failureThreshold": 9}},
    "autoscaling": {"maxReplicas": 4},
    "disruption": {"protectAlways": True},
    "endpoint": {"port": 9000, "type": "NodePort"},
    "revisionHistoryLimit": 3,
}


async def test_everything_is_written_once(client, crds, namespace, real_kubeconfig):
    """Job, Deployment, Service, autoscaler and budget are accepted, and what the server fills in is no difference."""
    system = f"{namespace}-system"
    program = attrs.evolve(PROGRAM, name=f"{namespace}-controller")
    settings = ControllerSettings(namespace=namespace, lease_namespace=system, workloads=SETTINGS)
    async with (
        installed(client, rbac_manifests(program, system_namespace=system, namespace=namespace)),
        open_impersonated(real_kubeconfig, system, program.name) as (limited, transport),
        trio.open_nursery() as nursery,
    ):
        run = functools.partial(run_controller, limited, settings, utcnow=utcnow, rng=random.Random())
        with trio.fail_after(60):
            await nursery.start(run)
        tag = {"namespace": namespace}
        source = {"source": "hf://org/repo/m.gguf", "hardware": {"accelerator": "cuda"}}
        await client.apply(Model, {"metadata": {**tag, "name": "phi"}, "spec": source}, field_manager="user")
        chat = {"metadata": {**tag, "name": "chat"}, "spec": EVERYTHING}
        await client.apply(InferenceService, chat, field_manager="user")

        await until(functools.partial(count, client, Pod, namespace), 1)  # of the Job, made by its controller
        [pod] = (await client.list(Pod, namespace=namespace)).items
        ended = {"exitCode": 0, "message": FETCHED, "reason": "Completed", "finishedAt": "2026-01-01T00:00:01Z"}
        status = {"name": "fetch", "ready": False, "restartCount": 0, "image": "x", "imageID": "",
                  "state": {"terminated": ended}}  # fmt: skip
        patch = {"status": {"phase": "Succeeded", "containerStatuses": [status]}}
        await client.patch(Pod, pod.key, patch, subresource="status", field_manager="kubelet")

        await until(functools.partial(exists, client, Deployment, namespace), True)
        for kind in (Service, HorizontalPodAutoscaler, PodDisruptionBudget):
            await until(functools.partial(exists, client, kind, namespace), True)
        await until(functools.partial(count, client, Pod, namespace), 3)
        await trio.sleep(SETTLED_SECONDS)
        before = len(transport.calls)
        for revision in range(5):  # each wakes the service
            noted = {"metadata": {"annotations": {"revision": str(revision)}}}
            await client.patch(InferenceService, Key(namespace, "chat"), noted, field_manager="user")
            await trio.sleep(0.3)
        written = [call for call in transport.calls[before:] if call.verbs & {"patch", "create", "delete"}]
        assert written == []
        assert (await client.get(Model, Key(namespace, "phi"))).status.phase == "Ready"
        assert await count(client, Job, namespace) == 1
        assert undeclared(transport.calls, PROGRAM, system) == set()
        nursery.cancel_scope.cancel()
    # The controller is gone, and so are its hands: the finalizer would keep the namespace.
    await client.patch(Model, Key(namespace, "phi"), {"metadata": {"finalizers": None}})


async def count(client, kind, namespace):
    return len((await client.list(kind, namespace=namespace)).raw)


async def exists(client, kind, namespace):
    try:
        await client.get(kind, Key(namespace, "chat"))
    except NotFoundError:
        return False
    return True
