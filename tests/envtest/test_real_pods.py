"""On a real kube-apiserver: our manifests are taken as they are, written once, and the rights for them are enough."""

import functools
import random
import sys

import attrs
import pytest
import trio

from controller.podobjects import FETCHED, SETTINGS
from envtest.test_real_controller import crds, installed, open_impersonated, until, utcnow
from k8s.api_calls import undeclared
from llmkube.controller.health import ControllerHealth
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
    "apiKeySecretRef": {"name": "chat-keys"},
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


async def test_a_missing_rule_costs_what_needs_it(client, crds, namespace, real_kubeconfig):
    """Without the rules for autoscalers and routers a Model's Job is made all the same, and /readyz names them."""
    system = f"{namespace}-system"
    program = attrs.evolve(PROGRAM, name=f"{namespace}-controller")
    settings = ControllerSettings(namespace=namespace, lease_namespace=system, workloads=SETTINGS)
    removed = {"horizontalpodautoscalers", "modelrouters"}
    manifests = list(rbac_manifests(program, system_namespace=system, namespace=namespace))
    for role in manifests:
        if "rules" in role:
            kept = ({**rule, "resources": sorted(set(rule["resources"]) - removed)} for rule in role["rules"])
            role["rules"] = [rule for rule in kept if rule["resources"]]
    health = ControllerHealth()
    async with (
        installed(client, manifests),
        open_impersonated(real_kubeconfig, system, program.name) as (limited, _),
        trio.open_nursery() as nursery,
    ):
        run = functools.partial(run_controller, limited, settings, utcnow=utcnow, rng=random.Random(), health=health)
        with trio.fail_after(60):
            await nursery.start(run)
        source = {"source": "hf://org/repo/m.gguf", "hardware": {"accelerator": "cuda"}}
        named = {"namespace": namespace, "name": "phi"}
        await client.apply(Model, {"metadata": named, "spec": source}, field_manager="user")
        chat = {"metadata": {"namespace": namespace, "name": "chat"}, "spec": {"modelRef": "phi"}}
        await client.apply(InferenceService, chat, field_manager="user")
        await until(functools.partial(count, client, Job, namespace), 1)
        ready, words = health.ready()
        assert ready
        assert "cannot list HorizontalPodAutoscalers: spec.autoscaling has no effect (" in words
        assert "cannot list ModelRouters: their status is not updated (" in words
        assert words.count("; cannot list ") == 2
        nursery.cancel_scope.cancel()


async def count(client, kind, namespace):
    return len((await client.list(kind, namespace=namespace)).raw)


async def exists(client, kind, namespace):
    try:
        await client.get(kind, Key(namespace, "chat"))
    except NotFoundError:
        return False
    return True


async def llmkube(kubeconfig, namespace, *words):
    """Run the real program; return its exit code and all that it printed."""
    command = [sys.executable, "-m", "llmkube", *words, "-n", namespace, "--kubeconfig", str(kubeconfig)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


async def patch_pods(client, namespace, selector, status):
    """Be the kubelet: give the pods of a label their status, as soon as there are any."""
    await until(functools.partial(has_pods, client, namespace, selector), True)
    for pod in (await client.list(Pod, namespace=namespace, label_selector=selector)).items:
        await client.patch(pod.__class__, pod.key, {"status": status}, subresource="status", field_manager="kubelet")


async def has_pods(client, namespace, selector):
    return bool((await client.list(Pod, namespace=namespace, label_selector=selector)).items)


async def test_commands_judge_a_service_in_pods_by_its_pods(client, crds, namespace, real_kubeconfig):
    """`deploy`, `status`, `list` and `logs` say of a service in pods what the kubelet says, and it can become Ready."""
    settings = ControllerSettings(namespace=namespace, lease_namespace=namespace, workloads=SETTINGS)
    run = functools.partial(llmkube, real_kubeconfig, namespace)
    deploy = ("deploy", "chat", "--source", "hf://org/repo/m.gguf", "--accelerator", "cuda", "--gpu")
    container = {"name": "llamacpp", "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            control = functools.partial(run_controller, client, settings, utcnow=utcnow, rng=random.Random())
            await nursery.start(control)
        assert (await run(*deploy, "--no-wait"))[0] == 0
        ended = {"exitCode": 0, "message": FETCHED, "reason": "Completed", "finishedAt": "2026-01-01T00:00:01Z"}
        fetched = {**container, "name": "fetch", "state": {"terminated": ended}}
        await patch_pods(client, namespace, "batch.kubernetes.io/job-name",
                         {"phase": "Succeeded", "containerStatuses": [fetched]})  # fmt: skip

        waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x": not found'}
        await patch_pods(client, namespace, "app=chat",
                         {"containerStatuses": [{**container, "state": {"waiting": waiting}}]})  # fmt: skip
        code, text = await run(*deploy, "--timeout", "60")
        assert code == 1, text
        assert "cannot be served: ImagePullBackOff: container llamacpp: Back-off pulling image" in text
        assert "What to do: correct spec.image" in text
        assert "last error   ImagePullBackOff: container llamacpp" in (await run("status", "chat"))[1]
        assert "ImagePullBackOff" in (await run("list", "services"))[1]
        assert "is not running: ImagePullBackOff: container llamacpp" in (await run("logs", "chat"))[1]

        running = {**container, "ready": True, "started": True, "state": {"running": {}}}
        ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
        await patch_pods(client, namespace, "app=chat",
                         {"phase": "Running", "conditions": ready, "containerStatuses": [running]})  # fmt: skip
        code, text = await run(*deploy, "--timeout", "60")
        assert (code, "InferenceService" in text and "is Ready at http" in text) == (0, True), text
        nursery.cancel_scope.cancel()
    await client.patch(Model, Key(namespace, "chat"), {"metadata": {"finalizers": None}})
