"""On a real kube-apiserver: S3 and S12 as they were run, by `dev`, who may write our two kinds and nothing else.

Pods are made by the real controllers of Deployments and ReplicaSets and judged by the API server's own Pod Security.
"""

import functools
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from charts.helm_runs import render
from controller.pod_security import against_baseline, against_restricted
from controller.podobjects import FETCHED, SETTINGS, cluster_model, pod_service
from controller.render.test_pod_policy import ATTACK, EXAMPLES, GUIDES, REFUSED, printed
from envtest.test_real_controller import crds, installed, open_impersonated, until, utcnow
from envtest.test_real_pods import patch_pods
from llmkube.controller.operator import run_controller
from llmkube.controller.render.manifests import WantedPods, deployment
from llmkube.controller.render.pod_policy import service_refusals
from llmkube.controller.render.storage import Storage, Weights, serving_storage
from llmkube.controller.rights import PROGRAM
from llmkube.controller.settings import Allowance, ControllerSettings
from llmkube.k8s.client import Client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import PRIORITIES, InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.rbac import rbac_manifests
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Pod
from llmkube.runtimes.registry import container_plan_for

pytestmark = pytest.mark.envtest
__all__ = ["crds"]  # the fixture, for pytest to find

SETTLED_SECONDS = 3.0
PREFIX = "llmkube-service-"
ENFORCE = "pod-security.kubernetes.io/enforce"
KINDS = "apis/inference.llmkube.dev/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
OWN_IMAGE = {
    "runtime": "generic",
    "image": "example.org/own",
    "command": ["/bin/own"],
    "skipModelInit": True,
    "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}}],
}
WITHOUT_USER = {"runtime": "vllm", "skipModelInit": True}
REPOSITORY = {"source": "org/repo", "format": "safetensors", "hardware": {"accelerator": "cpu"}}


@attrs.frozen(eq=False)
class Scene:
    """A namespace with our controller, its administrator, and `dev`."""

    admin: Client
    dev: Client
    namespace: str

    async def apply(self, kind: type[Any], name: str, spec: Mapping[str, Any]) -> None:
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": dict(spec)}
        await self.dev.apply(kind, body, field_manager="dev")

    async def serve(self, name: str, **spec: Any) -> None:
        await self.apply(InferenceService, name, {"modelRef": "phi", **spec})

    async def condition(self, kind: str, name: str = "chat") -> tuple[str, str, str]:
        """Return status, reason and message of a condition of a service."""
        service = await self.admin.get(InferenceService, Key(self.namespace, name))
        found = [one for one in service.status.conditions if one.type == kind]
        return (found[0].status, found[0].reason, found[0].message) if found else ("", "", "")

    async def wait_for_condition(self, kind: str, status: str, reason: str, name: str = "chat") -> str:
        async def now() -> tuple[str, str]:
            return (await self.condition(kind, name))[:2]

        await until(now, (status, reason))
        return (await self.condition(kind, name))[2]

    async def template(self, name: str = "chat") -> dict[str, Any] | None:
        try:
            live = encode(await self.admin.get(Deployment, Key(self.namespace, name)))
        except NotFoundError:
            return None
        template: dict[str, Any] = live["spec"]["template"]
        return template

    async def made(self, name: str = "chat") -> dict[str, Any]:
        """Return the template of a service's Deployment, once there is one."""

        async def there() -> bool:
            return await self.template(name) is not None

        await until(there, True)
        template = await self.template(name)
        assert template is not None
        return template

    async def pods(self, name: str = "chat") -> int:
        found = await self.admin.list(Pod, namespace=self.namespace, label_selector=f"app={name}")
        return len(found.raw)


@asynccontextmanager
async def open_scene(
    client: Client, kubeconfig: Any, namespace: str, level: str, **allowed: Any
) -> AsyncIterator[Scene]:
    """Label a namespace, run the controller with the rights that it prints, and let `dev` in."""
    await client.request_json("PATCH", f"/api/v1/namespaces/{namespace}",
                              body={"metadata": {"labels": {ENFORCE: level}}},
                              content_type="application/merge-patch+json")  # fmt: skip
    rules = [
        {"apiGroups": ["inference.llmkube.dev"], "resources": ["models", "inferenceservices"], "verbs": ["*"]},
    ]
    path = f"{RBAC}/{namespace}"
    await client.request_json("POST", f"{path}/roles", body={"metadata": {"name": "dev"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "dev", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "dev"}
    binding = {"metadata": {"name": "dev"}, "subjects": [subject], "roleRef": role}
    await client.request_json("POST", f"{path}/rolebindings", body=binding)
    system = f"{namespace}-system"
    program = attrs.evolve(PROGRAM, name=f"{namespace}-controller")
    workloads = attrs.evolve(SETTINGS, **allowed)
    settings = ControllerSettings(namespace=namespace, lease_namespace=system, workloads=workloads)
    async with (
        installed(client, rbac_manifests(program, system_namespace=system, namespace=namespace)),
        open_impersonated(kubeconfig, system, program.name) as (limited, _),
        open_impersonated(kubeconfig, namespace, "dev") as (dev, _),
        trio.open_nursery() as nursery,
    ):
        with trio.fail_after(60):
            await nursery.start(
                functools.partial(run_controller, limited, settings, utcnow=utcnow, rng=random.Random())
            )
        yield Scene(client, dev, namespace)
        nursery.cancel_scope.cancel()
    for model in (await client.list(Model, namespace=namespace)).items:
        await client.patch(Model, model.key, {"metadata": {"finalizers": None}})


async def test_s3_dev_gets_no_pod_that_reaches_out(client, crds, namespace, real_kubeconfig):
    """S3: hostPath, root, a projected token, every taint, system priority: no pod, and each switch is named."""
    async with open_scene(client, real_kubeconfig, namespace, "privileged") as scene:
        with pytest.raises(ForbiddenError):
            await scene.dev.list(Pod, namespace=namespace)
        await scene.apply(Model, "phi", {"source": "org/repo", "hardware": {"accelerator": "cpu"}})
        await scene.serve("chat", **ATTACK)
        message = await scene.wait_for_condition("Accepted", "False", "NotAllowed")
        for field, value in (
            ("spec.securityContext.runAsUser", "root"),
            ("spec.securityContext.privileged", "privileged"),
            ("spec.extraVolumes[0].hostPath.path", "hostPaths"),
            ("spec.extraVolumes[1].projected.sources[0].serviceAccountToken", "tokens"),
            ("spec.tolerations[0]", "controlPlane"),
            ("spec.priorityClassName", "priorityClasses"),
        ):
            assert field in message
            assert f"(workloads.allow.{value})" in message
        await trio.sleep(SETTLED_SECONDS)
        assert await scene.template() is None
        assert await scene.pods() == 0


async def test_s3_the_operator_can_allow_it(client, crds, namespace, real_kubeconfig):
    """With every value on, the same service has its pod: what kept it away is the switches, and nothing else."""
    read_only = [{**mount, "readOnly": True} for mount in ATTACK["extraVolumeMounts"]]
    allowed = {"allow": frozenset(Allowance), "host_paths": ("/",), "priority_classes": ("*",)}
    async with open_scene(client, real_kubeconfig, namespace, "privileged", **allowed) as scene:
        await scene.apply(Model, "phi", {"source": "org/repo", "hardware": {"accelerator": "cpu"}})
        await scene.serve("chat", **{**ATTACK, "extraVolumeMounts": read_only})
        template = await scene.made()
        assert template["spec"]["containers"][0]["securityContext"]["privileged"] is True
        await until(scene.pods, 1)


async def test_s3_running_workloads_are_not_touched(client, crds, namespace, real_kubeconfig):
    """Own image, command and Secret make a pod that "baseline" admits; an edit that asks for more changes nothing."""
    async with open_scene(client, real_kubeconfig, namespace, "baseline") as scene:
        await scene.apply(Model, "phi", {"source": "org/repo", "hardware": {"accelerator": "cpu"}})
        await scene.serve("chat", **OWN_IMAGE)
        before = await scene.made()
        await until(scene.pods, 1)
        await scene.serve("chat", **{**OWN_IMAGE, "command": ["/bin/other"], "podSecurityContext": {"runAsUser": 0}})
        await scene.wait_for_condition("Accepted", "False", "NotAllowed")
        await trio.sleep(SETTLED_SECONDS)
        assert await scene.template() == before
        await scene.serve("chat", **{**OWN_IMAGE, "command": ["/bin/other"]})
        await scene.wait_for_condition("Accepted", "True", "Accepted")


async def test_s3_a_restricted_namespace_is_served_and_names_root_images(client, crds, namespace, real_kubeconfig):
    """The Job and llama.cpp's own image are admitted; an image that runs as root is reported, with the fix."""
    async with open_scene(client, real_kubeconfig, namespace, "restricted") as scene:
        await scene.apply(Model, "phi", {"source": "hf://org/repo/m.gguf", "hardware": {"accelerator": "cpu"}})
        await scene.apply(Model, "repo", REPOSITORY)
        await scene.serve("chat")
        await scene.apply(InferenceService, "rooted", {"modelRef": "repo", **WITHOUT_USER})
        ended = {"exitCode": 0, "message": FETCHED, "reason": "Completed", "finishedAt": "2026-01-01T00:00:01Z"}
        status = {"name": "fetch", "ready": False, "restartCount": 0, "image": "x", "imageID": "",
                  "state": {"terminated": ended}}  # fmt: skip
        done = {"phase": "Succeeded", "containerStatuses": [status]}
        await patch_pods(client, namespace, "batch.kubernetes.io/job-name", done)  # admitted: it is there
        await until(scene.pods, 1)

        message = await scene.wait_for_condition("Degraded", "True", "PodSecurity", "rooted")
        for part in ('"restricted"', "runAsNonRoot", "spec.podSecurityContext.runAsUser"):
            assert part in message
        assert await scene.pods("rooted") == 0
        user = {"podSecurityContext": {"runAsUser": 2000, "runAsNonRoot": True}}
        await scene.apply(InferenceService, "rooted", {"modelRef": "repo", **WITHOUT_USER, **user})
        await until(functools.partial(scene.pods, "rooted"), 1)


async def test_s12_critical_does_not_outrank_a_pod(client, crds, namespace, real_kubeconfig):
    """S12: with the chart's default classes, the pod of `priority: critical` has the rank of a pod without a class."""
    classes = [each for each in render() if each["kind"] == "PriorityClass"]
    async with (
        installed(client, classes),
        open_scene(client, real_kubeconfig, namespace, "baseline", priority_class_prefix=PREFIX) as scene,
    ):
        await scene.apply(Model, "phi", {"source": "org/repo", "hardware": {"accelerator": "cpu"}})
        for priority in PRIORITIES:
            await scene.serve(priority, **OWN_IMAGE, priority=priority)
            await until(functools.partial(scene.pods, priority), 1)
            [pod] = (await client.list(Pod, namespace=namespace, label_selector=f"app={priority}")).raw
            assert pod["spec"]["priority"] == PRIORITIES.index(priority) - PRIORITIES.index("critical")
            assert pod["spec"]["preemptionPolicy"] == ("Never" if priority == "batch" else "PreemptLowerPriority")
            assert pod["spec"]["priorityClassName"] == f"{PREFIX}{priority}"
        await scene.serve("other", **OWN_IMAGE, priorityClassName="system-node-critical")
        assert "system-node-critical" in await scene.wait_for_condition("Accepted", "False", "NotAllowed", "other")
        assert await scene.template("other") is None


# -- our words for Pod Security, against the server's -----------------------------------------------------------------

PLAIN = {"name": "c", "image": "x"}
CLOSED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# Another platform, a field that there is not, and one that only a pod with users of its own may have.
UNTRIED = {"ofTomorrow", "procMount", "windowsOptions"}
BEYOND = [
    spec
    for spec, field, value in REFUSED
    if value in ("privileged", "root", "hostNamespaces", "hostPaths") and not UNTRIED & set(field.split("."))
]


def pod_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod that has of a service's spec what a user can say of a pod, as it is."""
    context = {**CLOSED, **spec.get("securityContext", {})}
    if context.get("privileged"):
        del context["allowPrivilegeEscalation"]  # no container may be both
    container = {**PLAIN, "securityContext": context}
    for name, probe in spec.get("probeOverrides", {}).items():
        container[f"{name}Probe"] = probe
    pod: dict[str, Any] = {"containers": [container], "securityContext": spec.get("podSecurityContext", {})}
    if "extraVolumes" in spec:
        pod["volumes"] = list(spec["extraVolumes"])
    annotations = {name.replace("/vllm", "/c"): text for name, text in spec.get("podAnnotations", {}).items()}
    return {"metadata": {"name": "tried", "annotations": annotations}, "spec": pod}


async def test_our_pod_security_messages_are_the_server_s(client, namespace):
    """The tests' "baseline" and "restricted" are those of admission, pod by pod."""
    tried = [{}, *BEYOND, {"securityContext": {"runAsNonRoot": None}}, {"securityContext": {"capabilities": {}}},
             {"securityContext": {"allowPrivilegeEscalation": None}}, {"securityContext": {"seccompProfile": None}},
             {"extraVolumes": [{"name": "v", "secret": {"secretName": "s"}}]},
             {"extraVolumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}]  # fmt: skip
    for level, judge in (("baseline", against_baseline), ("restricted", against_restricted)):
        await client.request_json("PATCH", f"/api/v1/namespaces/{namespace}",
                                  body={"metadata": {"labels": {ENFORCE: level}}},
                                  content_type="application/merge-patch+json")  # fmt: skip
        for spec in tried:
            pod = pod_of(spec)
            assert (await forbidden(client, namespace, pod)) == bool(judge(pod)), (level, spec)


async def forbidden(client: Client, namespace: str, pod: Mapping[str, Any]) -> bool:
    """Whether Pod Security refuses a pod."""
    try:
        await client.request_json("POST", f"/api/v1/namespaces/{namespace}/pods", params={"dryRun": "All"}, body=pod)
    except ForbiddenError as error:
        return "violates PodSecurity" in str(error)
    return False


# -- what the guides and the examples print ---------------------------------------------------------------------------


def printed_pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the template of each service in pods that the guides and the examples print, by its name."""
    for path in (GUIDES, *EXAMPLES):
        objects = printed(path)
        models = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Model"}
        for one in objects:
            spec = one["spec"]
            if one["kind"] != "InferenceService" or spec.get("runtime") == "echo":
                continue  # a runtime of another package
            model = cluster_model(**models.get(spec["modelRef"], {"source": "org/repo"}))
            if model.spec.hardware.accelerator == "metal":
                continue
            service = pod_service(one["metadata"]["name"], **{k: v for k, v in spec.items() if k != "modelRef"})
            assert service_refusals(service.spec, SETTINGS) == ()
            plan = container_plan_for(service, model)
            weights = serving_storage(service, model, "/models/0/m.gguf", SETTINGS) if plan.uses_weights else Storage()
            live = deployment(service, plan, SETTINGS, WantedPods(weights=Weights(weights)))
            yield f"{path.name}/{one['metadata']['name']}", live["spec"]["template"]


async def test_the_pods_of_guides_and_examples_are_admitted(client, namespace):
    """Each is admitted where "baseline" is enforced, and by "restricted" too where it is llama.cpp's own image."""
    pods = dict(printed_pods())
    assert len(pods) >= 6
    restricted = set()
    for level in ("baseline", "restricted"):
        await client.request_json("PATCH", f"/api/v1/namespaces/{namespace}",
                                  body={"metadata": {"labels": {ENFORCE: level}}},
                                  content_type="application/merge-patch+json")  # fmt: skip
        for name, template in pods.items():
            # There is no RuntimeClass here, which is another reason to refuse a pod.
            spec = {key: part for key, part in template["spec"].items() if key != "runtimeClassName"}
            refused = await forbidden(client, namespace, {"metadata": {"name": "tried"}, "spec": spec})
            if level == "baseline":
                assert not refused, name
            elif not refused:
                restricted.add(name)
    assert restricted == {name for name, one in pods.items() if one["spec"]["containers"][0]["name"] == "llama-server"}
