"""On a real kube-apiserver: what a stolen token of the controller may write, and what the controller itself may."""

import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from controller.podobjects import SETTINGS, cluster_model, pod_service
from controller.render.test_pod_policy import REFUSED, mounted
from envtest.test_real_controller import crds, make_model, open_impersonated
from envtest.test_real_host_identity import MERGE, PLURALS, put
from envtest.test_real_pod_policy import printed_pods
from llmkube.controller.policies import controller_policies
from llmkube.controller.render.jobs import fetch_job, inspect_job, prune_job
from llmkube.controller.render.labels import MANAGED_BY, owned_manifest
from llmkube.controller.render.manifests import WantedPods, deployment
from llmkube.controller.render.pod_policy import HOST_PATHS
from llmkube.controller.render.storage import CACHE_CLAIM, Weights, cache_claim, serving_storage
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import ApiError, ForbiddenError
from llmkube.k8s.workloads import Deployment, PersistentVolumeClaim
from llmkube.programs.config import ALLOWANCES
from llmkube.programs.gateway.rights import PROGRAM as FRONT_DOOR
from llmkube.programs.gateway.rights import gateway_policies
from llmkube.runtimes.registry import container_plan_for

pytestmark = pytest.mark.envtest
__all__ = ["crds"]  # the fixture, for pytest to find

READY_SECONDS = 60.0
PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "Event": "/api/v1/namespaces/{}/events",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "Namespace": "/api/v1/namespaces",
}
OWNER = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "InferenceService", "name": "chat", "uid": "s-1"}
OURS = {"labels": {MANAGED_BY: "llmkube-controller"}, "ownerReferences": [{**OWNER, "controller": True}]}
SLICE = "inference.llmkube.dev/service"


@attrs.frozen(eq=False)
class Thief:
    """The controller's account, with every right that a role could give it: only the policies remain."""

    client: Client
    namespace: str

    async def create(self, manifest: Mapping[str, Any], namespace: str = "") -> Any:
        space = namespace or self.namespace
        body = {**manifest, "metadata": {**manifest["metadata"], "namespace": space}}
        if manifest["kind"] == "Namespace":
            del body["metadata"]["namespace"]
        path = PATHS[manifest["kind"]].format(space)
        return await self.client.request_json("POST", path, params={"dryRun": "All"}, body=body)

    async def patch(self, kind: str, name: str, body: Mapping[str, Any]) -> None:
        path = f"{PATHS[kind].format(self.namespace)}/{name}"
        await self.client.request_json("PATCH", path, params={"dryRun": "All"}, body=body, content_type=MERGE)

    async def refused(self, words: str, attempt: Any) -> None:
        with pytest.raises(ForbiddenError) as caught:
            await attempt
        assert words in str(caught.value)

    async def error_of(self, manifest: Mapping[str, Any]) -> str:
        try:
            await self.create(manifest)
        except ApiError as error:
            return str(error)
        return ""


@asynccontextmanager
async def open_thief(
    client: Client,
    kubeconfig: Any,
    namespace: str,
    program: str = "llmkube-controller",
    policies: Callable[[str], list[dict[str, Any]]] = controller_policies,
    **allowed: Any,
) -> AsyncIterator[Thief]:
    """Give an account all rights, install the policies for it, and wait until the server enforces the last one."""
    system = f"{namespace}-{len(allowed)}"
    account = {"kind": "ServiceAccount", "name": program, "namespace": system}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    await client.request_json("POST", path, body={"metadata": {"name": system}, "subjects": [account], "roleRef": role})
    installed = policies(system)
    for manifest in installed:
        for variable in manifest["spec"].get("variables", ()):  # as the chart does
            variable["expression"] = str(allowed.get(variable["name"], variable["expression"]))
    try:
        for manifest in installed:
            await put(client, manifest)
        async with open_impersonated(kubeconfig, system, program) as (stolen, _):
            thief = Thief(stolen, namespace)
            with trio.fail_after(READY_SECONDS):
                probes = (one("Namespace", "elsewhere"), one("ConfigMap"), broken_pod(), event(namespace))
                for manifest in (one("Lease", spec={}), *(probes if policies is controller_policies else ())):
                    while not await _is_refused(thief, manifest):
                        await trio.sleep(0.1)
            yield thief
    finally:
        with trio.move_on_after(READY_SECONDS, shield=True):
            for manifest in installed:
                await client.request_json("DELETE", f"{PLURALS[manifest['kind']]}/{manifest['metadata']['name']}")
            await client.request_json("DELETE", f"{path}/{system}")


async def _is_refused(thief: Thief, manifest: Mapping[str, Any]) -> bool:
    try:
        await thief.create(manifest)
    except ForbiddenError as error:
        return "ValidatingAdmissionPolicy" in str(error)
    return False


def one(kind: str, name: str = "x", *, metadata: Mapping[str, Any] | None = None, **content: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, **(metadata or {})}, **content}


def event(namespace: str) -> dict[str, Any]:
    about = {"kind": "Pod", "apiVersion": "v1", "name": "p", "namespace": namespace}
    return one("Event", involvedObject=about, reportingComponent="kubelet")


def rendered(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Deployment of a service as the controller would write it if its own check let it."""
    service, model = pod_service(**spec), cluster_model()
    weights = serving_storage(service, model, "/models/0/m.gguf", SETTINGS)
    return deployment(service, container_plan_for(service, model), SETTINGS, WantedPods(weights=Weights(weights)))


def broken_pod(**fields: Any) -> dict[str, Any]:
    manifest = rendered({})
    manifest["spec"]["template"]["spec"] |= fields or {"hostPID": True}
    return manifest


async def test_t11_no_pod_beyond_what_the_operator_allows(client, crds, namespace, real_kubeconfig):
    """Each field that the controller refuses is refused to its token as well, unless the operator allows it."""
    open_thief_ = functools.partial(open_thief, client, real_kubeconfig, namespace)
    everything = {"allow": [*ALLOWANCES, "priorityClasses"], "hostPaths": ["/srv/models"]}
    async with open_thief_() as closed, open_thief_(**everything) as allowed:
        tried, wrong = 0, []
        inside = (mounted("/srv/models/a", readOnly=True), "", HOST_PATHS)
        outside = (
            mounted("/srv/models/a"),
            mounted("/srv/models-2", readOnly=True),
            mounted("/srv/models/../x", readOnly=True),
        )
        for spec, path, value in [*REFUSED, inside]:
            manifest = rendered(spec)
            if "ofTomorrow" in str(spec) or await Thief(client, namespace).error_of(manifest):
                continue  # the server drops the field, or knows no such pod on this platform
            _, source, field = path.partition(".sources[0].")
            if source and field not in json.dumps(await Thief(client, namespace).create(manifest)):
                continue  # older servers drop it
            tried += 1
            closed_error, allowed_error = await closed.error_of(manifest), await allowed.error_of(manifest)
            if f"workloads.allow.{value}" not in closed_error or (allowed_error and spec != REFUSED[0][0]):
                wrong.append((spec, closed_error, allowed_error))
        assert wrong == []
        assert tried > 25
        for spec in outside:
            error = await allowed.error_of(rendered(spec))
            assert "workloads.allow.hostPaths" in error or "must not contain '..'" in error  # the server's own check
        for fields in ({"serviceAccountName": "admin"}, {"automountServiceAccountToken": True}):
            await allowed.refused("no ServiceAccount", allowed.create(broken_pod(**fields)))
        for fields in ({"hostPID": True}, {"hostIPC": True}, {"nodeName": "n"}):
            await allowed.refused("nothing of its node", allowed.create(broken_pod(**fields)))
        await closed.refused("namespaces of Kubernetes", closed.create(rendered({}), "kube-system"))
        job = fetch_job(cluster_model(), SETTINGS)
        job["spec"]["template"]["spec"]["volumes"].append({"name": "v", "hostPath": {"path": "/"}})
        await closed.refused("workloads.allow.hostPaths", closed.create(job))


async def test_the_controller_s_own_pods_pass(client, crds, namespace, real_kubeconfig):
    """The pods of guides and examples, Jobs, and claims are admitted with everything off."""
    async with open_thief(client, real_kubeconfig, namespace) as controller:
        claim = decode(PersistentVolumeClaim, {"metadata": {"name": CACHE_CLAIM, "namespace": "ml", "uid": "c-1"}})
        model = cluster_model()
        jobs = (
            fetch_job(model, SETTINGS),
            inspect_job(cluster_model("pvc://claim/m.gguf"), "/m.gguf", ["chat"], SETTINGS),
            prune_job(claim, ["a"], SETTINGS),
        )
        for manifest in (*jobs, cache_claim("ml", SETTINGS)):
            await controller.create(manifest)
        for _, template in printed_pods():
            spec = {"selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}
            service = pod_service()
            await controller.create(owned_manifest(Deployment.RESOURCE, service, "x", OURS["labels"], {"spec": spec}))


async def test_t11_no_object_of_others(client, crds, namespace, real_kubeconfig):
    """No foreign ConfigMap, EndpointSlice, Deployment, Lease or claim is written, and no user's spec."""
    admin = Thief(client, namespace)
    await make_model(client, namespace, "probe")
    await client.request_json("POST", PATHS["ConfigMap"].format(namespace), body=one("ConfigMap", "theirs"))
    slice_ = {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8080}],
    }
    published = {"labels": {SLICE: "chat", "endpointslice.kubernetes.io/managed-by": "llmkube-agent"}}
    of_chat = {"kubernetes.io/service-name": "chat", "endpointslice.kubernetes.io/managed-by": "llmkube-controller"}
    chat = {"metadata": {"name": "chat", "namespace": namespace}, "spec": {"modelRef": "probe"}}
    served = await client.apply(InferenceService, chat, field_manager="user")
    owner = {**OWNER, "controller": True, "uid": served.metadata.uid}  # without one the garbage collector deletes it
    own = {"labels": {**OURS["labels"], **of_chat}, "ownerReferences": [owner]}
    for name, metadata in (("theirs", {}), ("chat.mac", published), ("chat.own", own)):
        body = one("EndpointSlice", name, metadata=metadata, **slice_)
        await client.request_json("POST", PATHS["EndpointSlice"].format(namespace), body=body)
    async with open_thief(client, real_kubeconfig, namespace) as thief:
        owned, label = "may only write objects that a Model", "only creates objects with the label"
        await thief.refused(owned, thief.patch("ConfigMap", "theirs", {"data": {"a": "b"}}))
        await thief.refused(owned, thief.create(one("ConfigMap", metadata={"labels": OURS["labels"]})))
        await thief.refused(label, thief.create(one("ConfigMap", metadata={**OURS, "labels": {}})))
        await thief.create(one("ConfigMap", metadata=OURS))
        finalizers = {**OURS, "finalizers": ["example.org/stuck"]}
        await thief.refused("no finalizers", thief.create(one("ConfigMap", metadata=finalizers)))

        ready = [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]
        stolen = [{"addresses": ["10.6.6.6"], "conditions": {"ready": False}}]
        await thief.patch("EndpointSlice", "chat.mac", {"endpoints": ready})
        not_ready = "only marks endpoints as not ready"
        await thief.refused(not_ready, thief.patch("EndpointSlice", "chat.mac", {"endpoints": stolen}))
        await thief.refused("nothing but endpoints", thief.patch("EndpointSlice", "chat.mac", {"ports": []}))
        await thief.refused("agents have published", thief.patch("EndpointSlice", "theirs", {"endpoints": ready}))

        await thief.create(one("EndpointSlice", metadata=own, **slice_))
        await thief.patch("EndpointSlice", "chat.own", {"endpoints": stolen})
        moved = {"metadata": {"labels": {"kubernetes.io/service-name": "bank"}}}
        to_bank = {**own, "labels": own["labels"] | moved["metadata"]["labels"]}
        belongs = "belongs to an InferenceService"
        await thief.refused(belongs, thief.create(one("EndpointSlice", metadata=to_bank, **slice_)))
        await thief.refused(belongs, thief.patch("EndpointSlice", "chat.own", moved))
        orphan = {"labels": own["labels"]}
        await thief.refused(belongs, thief.create(one("EndpointSlice", metadata=orphan, **slice_)))
        foreign = {**OURS, "labels": OURS["labels"] | {"kubernetes.io/service-name": "chat"}}
        await thief.refused("of others", thief.create(one("EndpointSlice", metadata=foreign, **slice_)))

        ports = {"ports": [{"port": 80}]}
        selects = {SLICE: "chat"}
        scaled = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "bank"}, "maxReplicas": 2}
        amount = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        await thief.create(one("Service", metadata=OURS, spec={**ports, "selector": selects}))
        for words, kind, spec in (
            ("the selector contains", "Service", {**ports, "selector": {"app": "bank"}}),
            ("no externalName", "Service", {**ports, "selector": selects, "externalIPs": ["10.0.0.9"]}),
            ("the selector contains", "NetworkPolicy", {"podSelector": {}}),
            ("scales the Deployment", "HorizontalPodAutoscaler", scaled),
            ("selects no existing volume", "PersistentVolumeClaim", {**amount, "volumeName": "pv-1"}),
            ("its own Lease", "Lease", {}),
        ):
            await thief.refused(words, thief.create(one(kind, metadata=OURS, spec=spec)))
        await thief.refused("its own Events", thief.create(event(namespace)))
        model = f"/apis/inference.llmkube.dev/v1alpha1/namespaces/{namespace}/models/probe"
        with pytest.raises(ApiError, match="changes no object of a user"):
            await thief.client.request_json("PATCH", model, body={"spec": {"source": "https://evil.example/m.gguf"}},
                                            content_type=MERGE)  # fmt: skip
    await admin.patch("ConfigMap", "theirs", {"data": {"a": "b"}})  # nobody else is confined


async def test_a_stolen_front_door_writes_its_own_lease_only(client, real_kubeconfig, namespace):
    """No Lease of a host, of a claim or of an election: a role alone cannot limit the names of what it creates."""
    async with open_thief(client, real_kubeconfig, namespace, FRONT_DOOR.name, gateway_policies) as thief:
        await thief.create(one("Lease", "llmkube-gateway", spec={}))
        for name in ("mac", "claim.default.chat", "llmkube-controller"):
            await thief.refused("only write the Lease llmkube-gateway", thief.create(one("Lease", name, spec={})))
