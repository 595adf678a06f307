"""The day of a migration on a real kube-apiserver: what the Go implementation leaves, taken over by ours."""

import functools
import random

import attrs
import pytest
import trio

from controller.podobjects import FETCHED, SETTINGS
from e2e.addresses import own_address
from e2e.separate_programs import chat, eventually
from e2e.up_process import ANSWER
from envtest.test_real_agent import SYSTEM, TEST_SECONDS, is_gone, open_real_cluster
from envtest.test_real_controller import crds, installed, open_impersonated, until, utcnow
from envtest.test_real_pods import patch_pods
from llmkube.cli.commands.tools.rbac import agent_manifests
from llmkube.controller.operator import run_controller
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.rights import PROGRAM
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.rbac import rbac_manifests
from llmkube.k8s.request import APPLY_PATCH
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_LABEL
from llmkube.k8s.workloads import Deployment, Job
from llmkube.supervisor.host_policies import host_policies
from migration.leavings import (
    MARK,
    SITE,
    agents_objects,
    cache_key,
    controllers_claim,
    controllers_deployment,
    controllers_service,
)

pytestmark = [pytest.mark.envtest, pytest.mark.e2e]
__all__ = ["crds"]  # the fixture, for pytest to find

HERE = ("--namespace", "default")
KEY = Key("default", "demo")
READY = {"type": "Ready", "status": "True"}
CONTAINER = {"name": "fetch", "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
PLURALS = {"Service": "/api/v1/{}/services", "EndpointSlice": "/apis/discovery.k8s.io/v1/{}/endpointslices",
           "Endpoints": "/api/v1/{}/endpoints"}  # fmt: skip


async def create(client, body):
    path = PLURALS[body["kind"]].format(f"namespaces/{body['metadata']['namespace']}")
    await client.request_json("POST", path, body=body)


async def ready_slices(client):
    """The slices behind the Service that lead to an engine which is said to answer, by name."""
    found = await client.list(EndpointSlice, namespace="default", label_selector="kubernetes.io/service-name=demo")
    return {one.metadata.name for one in found.items if any(end.conditions.ready is not False for end in one.endpoints)}


async def test_an_agent_takes_over_what_their_agent_has_left(assets, tmp_path):
    """A Mac's service keeps a ready endpoint and its address throughout, and has nothing of theirs at the end."""
    address = own_address()
    agents = [*agent_manifests(SYSTEM, "default", "box", (f"{address}/32",), ()), *host_policies(SYSTEM)]
    with trio.fail_after(TEST_SECONDS):
        async with open_real_cluster(assets, tmp_path, agents, ("llmkube-agent-box",)) as (_, box, _):
            client = box.client
            await box.apply_demo()
            for body in agents_objects("demo", address=address, port=50123):
                await create(client, body)
            before = await client.get(Service, KEY)
            await eventually(lambda: ready_slices(client), lambda names: len(names) == 2)  # theirs and its mirror
            seen = []
            async with trio.open_nursery() as nursery:

                async def look():
                    while True:
                        seen.append(await ready_slices(client))

                nursery.start_soon(look)
                async with box.open_agent(address, *HERE) as agent:
                    await eventually(lambda: ready_slices(client), lambda names: names == {"demo.box"})
                    await box.wait_ready()
                    _, host, port = await box.slice()
                    assert await chat(f"http://{host}:{port}") == ANSWER
                    assert all(seen)
                    after = await client.get(Service, KEY)
                    assert await is_gone(client, Endpoints, KEY)
                    assert "of an earlier agent not deleted" not in agent.err
                nursery.cancel_scope.cancel()
            assert after.spec.cluster_ip == before.spec.cluster_ip
            assert after.metadata.labels[SERVICE_LABEL] == "demo"
            assert not [name for name in (*after.metadata.labels, *after.metadata.annotations) if MARK in name]
            assert [owner.kind for owner in after.metadata.owner_references] == ["InferenceService"]


async def has_jobs(client, namespace):
    return bool((await client.list(Job, namespace=namespace)).items)


async def test_a_controller_takes_over_what_their_controller_has_made(client, crds, namespace, real_kubeconfig):
    """Their pods count as ready until ours can be made; then Deployment and Service have nothing of theirs."""
    system, key = f"{namespace}-system", Key(namespace, "chat")
    program = attrs.evolve(PROGRAM, name=f"{namespace}-controller")
    settings = ControllerSettings(namespace=namespace, lease_namespace=system, workloads=SETTINGS)
    source = "https://huggingface.co/org/Model-GGUF/resolve/main/Model-Q4_K_M.gguf"
    group = f"/apis/{SITE}/v1alpha1/namespaces/{namespace}"
    for kind, name, spec in (
        ("Model", "phi", {"source": source, "hardware": {"accelerator": "cpu"}}),
        ("InferenceService", "chat", {"modelRef": "phi"}),
    ):
        head = {"apiVersion": f"{SITE}/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        await client.request_json("POST", f"{group}/{kind.lower()}s", body={**head, "spec": spec})
    path = "/apis/scheduling.k8s.io/v1/priorityclasses/llmkube-normal"  # of their chart
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "llmkube-normal"}}
    await client.request_json(
        "PATCH", path, params={"fieldManager": "helm"}, body={**body, "value": 10000}, content_type=APPLY_PATCH
    )
    owner = (await client.get(InferenceService, key)).metadata.uid
    for path, body in (
        ("/api/v1/namespaces/{}/persistentvolumeclaims", controllers_claim(namespace)),
        ("/api/v1/namespaces/{}/services", controllers_service("chat", owner=owner, namespace=namespace)),
        (
            "/apis/apps/v1/namespaces/{}/deployments",
            controllers_deployment("chat", "phi", source, owner=owner, namespace=namespace),
        ),
    ):
        params = {"fieldManager": "manager"}
        await client.request_json("POST", path.format(namespace), params=params, body=body)
    before, theirs = await client.get(Service, key), await client.get(Deployment, key)
    await patch_pods(client, namespace, "app=chat", {"phase": "Running", "conditions": [READY]})

    async def theirs_ready():
        return (await client.get(Deployment, key)).status.ready_replicas

    await until(theirs_ready, 1)  # their service answers before ours looks at it for the first time
    phases = set()

    async def phase():
        found = (await client.get(InferenceService, key)).status
        phases.add(found.phase)
        return found.phase, found.ready_replicas

    async with (
        installed(client, rbac_manifests(program, system_namespace=system, namespace=namespace)),
        open_impersonated(real_kubeconfig, system, program.name) as (limited, _),
        trio.open_nursery() as nursery,
    ):
        run = functools.partial(run_controller, limited, settings, utcnow=utcnow, rng=random.Random())
        nursery.start_soon(run)
        await until(phase, ("Progressing", 1))
        await until(functools.partial(has_jobs, client, namespace), True)
        [job] = (await client.list(Job, namespace=namespace)).items
        args = encode(job)["spec"]["template"]["spec"]["containers"][0]["args"]
        assert args[args.index("--adopt") + 1] == f"/models/{cache_key(source)}"
        assert phases <= {"", "Progressing"}
        assert encode(await client.get(Deployment, key))["spec"] == encode(theirs)["spec"]  # not a pod is replaced yet

        ended = {"exitCode": 0, "message": FETCHED, "reason": "Completed", "finishedAt": "2026-01-01T00:00:01Z"}
        fetched = {**CONTAINER, "state": {"terminated": ended}}
        done = {"phase": "Succeeded", "containerStatuses": [fetched]}
        await patch_pods(client, namespace, "batch.kubernetes.io/job-name", done)

        async def is_ours():
            found = [await client.get(kind, key) for kind in (Deployment, Service)]
            return all(DIGEST in one.metadata.annotations for one in found)

        await until(is_ours, True)
        nursery.cancel_scope.cancel()
    live, after = encode(await client.get(Deployment, key)), await client.get(Service, key)
    pod = live["spec"]["template"]
    assert live["metadata"]["uid"] == theirs.metadata.uid
    assert "initContainers" not in pod["spec"]
    assert {one["name"] for one in pod["spec"]["volumes"]} == {"models", "engine-scratch"}
    assert "priorityClassName" not in pod["spec"]
    assert "fsGroup" not in pod["spec"]["securityContext"]
    assert "karpenter.sh/do-not-disrupt" not in pod["metadata"].get("annotations", {})
    assert not [name for name in live["metadata"]["annotations"] if MARK in name]
    assert (after.spec.cluster_ip, after.metadata.uid) == (before.spec.cluster_ip, before.metadata.uid)
    assert encode(after)["spec"]["ports"][0]["targetPort"] == "http"
