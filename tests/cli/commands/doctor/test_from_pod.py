"""`--from-cluster`: the Job on the embedded API server, with a kubelet that really connects to the given address."""

import json
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import trio

from cli.commands.doctor.limited_api import allowed_by
from cli.commands.doctor.places import check_finding
from cli.commands.doctor.test_cluster import Reviews
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.base.errors import UserError
from llmkube.cli.commands.doctor import from_pod
from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.from_pod import (
    LABEL,
    find_image,
    reach_job,
    read_pods,
    refuse_host_identity,
    try_from_pod,
)
from llmkube.k8s.auth.config import BearerToken, ClusterConfig, TokenFile
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.exchange import TransportSender
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Job, Pod
from llmkube.programs.fetch_job.reach import try_connect
from memory_api_server import EVERY_KIND

IMAGE = "registry.example/llmkube@sha256:0"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
KEY = Key("default", "llmkube-doctor-1")


@asynccontextmanager
async def cluster(refused=frozenset()):
    """Open a client of the embedded API server whose user lacks these rights."""
    server = ApiServer(Store(), kinds=EVERY_KIND, utcnow=lambda: datetime(2026, 1, 1, tzinfo=UTC), rng=random.Random(7))
    await server.ensure_namespaces()
    async with open_transport(server.handle) as transport:
        reviews = Reviews(transport, refused)
        reviews.review = allowed_by(refused)
        yield Client(TransportSender(reviews, "http://apiserver"))


async def run_kubelet(client, state_of):
    """Create a pod for each new Job; `state_of` returns the state of its container."""
    seen = set()
    while True:
        for job in (await client.get_json(JOBS))["items"]:
            name = job["metadata"]["name"]
            if name in seen:
                continue
            seen.add(name)
            template = job["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{name}-x", "namespace": "default", "labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            }
            await client.request_json("POST", "/api/v1/namespaces/default/pods", body=pod)
            await trio.sleep(0.05)  # running, not yet ended
            state = await state_of(template["spec"]["containers"][0])
            status = {"phase": "Running", "containerStatuses": [{"name": "reach", "state": state}]}
            path = f"/api/v1/namespaces/default/pods/{name}-x/status"
            body = {"status": status}
            await client.request_json("PATCH", path, body=body, content_type="application/merge-patch+json")
        await trio.sleep(0.02)


async def dialled(container):
    """Connect as the pod's program would; return the terminated state with its result."""
    program, address, flag, word = container["args"]
    assert (container["command"], program, flag) == (["llmkube"], "reach", "--word")
    host, _, port = address.rpartition(":")
    message = json.dumps({"result": await try_connect(host, int(port), word)})
    return {"terminated": {"exitCode": 0, "message": message, "reason": "Completed"}}


async def outcome(client, state_of, monkeypatch, address="127.0.0.1"):
    monkeypatch.setattr(from_pod, "POLL_SECONDS", 0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_kubelet, client, state_of))
        with trio.fail_after(60):
            found = await try_from_pod(client, "default", IMAGE, address)
        nursery.cancel_scope.cancel()
    return found


async def test_pod_reaches_this_host_and_the_job_is_deleted(monkeypatch):
    """Over a real socket; no Job is left in the cluster."""
    async with cluster() as client:
        found = await outcome(client, dialled, monkeypatch)
        assert found.verdict is Verdict.PASS
        assert found.found.startswith("a pod reached 127.0.0.1:")
        assert (await client.get_json(JOBS))["items"] == []


async def test_a_pod_that_gets_no_answer_reports_the_errno(monkeypatch):
    """A closed port acts like a firewall."""

    async def walled(container):
        program, address, flag, word = container["args"]
        return await dialled({**container, "args": [program, f"{address.rpartition(':')[0]}:1", flag, word]})

    async with cluster() as client:
        check_finding(await outcome(client, walled, monkeypatch), "fail", " cannot be reached: ECONNREFUSED")


async def test_another_machine_at_the_address_is_no_success(monkeypatch):
    """The other machine does not know the secret word."""

    async def other(container):
        return await dialled({**container, "args": [*container["args"][:3], "another"]})

    async with cluster() as client:
        found = await outcome(client, other, monkeypatch)
        check_finding(found, "fail", " cannot be reached: another machine answers there")


async def test_image_that_cannot_be_pulled_is_reported_and_the_job_is_deleted(monkeypatch):
    """The whole deadline is not waited for."""

    async def stuck(_):
        await trio.lowlevel.checkpoint()
        return {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{IMAGE}"'}}

    async with cluster() as client:
        found = await outcome(client, stuck, monkeypatch)
        check_finding(found, "fail", ": its pod does not start: ImagePullBackOff")
        assert "--image" in found.fix
        assert (await client.get_json(JOBS))["items"] == []


async def test_unfinished_pod_times_out_and_the_job_is_deleted(monkeypatch):
    """A cluster without a node never runs the pod."""
    monkeypatch.setattr(from_pod, "WAIT_SECONDS", 0.3)
    monkeypatch.setattr(from_pod, "POLL_SECONDS", 0.05)
    async with cluster() as client:
        found = await try_from_pod(client, "default", IMAGE, "127.0.0.1")
        check_finding(found, "fail", "did not finish")
        assert (await client.get_json(JOBS))["items"] == []


async def test_ctrl_c_leaves_no_job(monkeypatch):
    """The deletion is shielded from cancellation, with a deadline."""
    async with cluster() as client:
        with trio.move_on_after(0.5):
            await try_from_pod(client, "default", IMAGE, "127.0.0.1")
        assert (await client.get_json(JOBS))["items"] == []


async def test_without_the_right_no_job_is_created():
    """The access review comes first."""
    async with cluster(frozenset({("create", "jobs")})) as client:
        found = await try_from_pod(client, "default", IMAGE, "127.0.0.1")
        check_finding(found, "fail", ": you may not create Jobs in default")
        assert (await client.get_json(JOBS))["items"] == []


def test_job_has_no_rights_and_deletes_itself():
    """No token, no root, no capabilities, no retry, and a time to live."""
    job = reach_job(KEY, IMAGE, "192.168.1.5:40001", "w")
    decode(Job, job)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 120, 600)
    assert (pod["automountServiceAccountToken"], pod["restartPolicy"]) == (False, "Never")
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["args"] == ["reach", "192.168.1.5:40001", "--word", "w"]
    assert container["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["template"]["metadata"]["labels"][LABEL] == KEY.name


def pod_with(state=None, **status):
    statuses = [] if state is None else [{"name": "reach", "state": state}]
    metadata = {"name": "p", "namespace": "default"}
    return decode(Pod, {"metadata": metadata, "status": {"containerStatuses": statuses, **status}})


@pytest.mark.parametrize(
    ("pod", "result", "problem"),
    [
        (pod_with({"terminated": {"exitCode": 0, "message": '{"result":"ok"}'}}), "ok", ""),
        (pod_with({"terminated": {"exitCode": 2, "message": "No such command"}}), "", "exited with 2: No such command"),
        (pod_with({"terminated": {"exitCode": 1, "message": "[]"}}), "", "is its image LLMKube's?"),
        (pod_with({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "", "OOMKilled"),
        (pod_with({"waiting": {"reason": "ErrImagePull", "message": "not found"}}), "", "ErrImagePull not found"),
        (pod_with(phase="Failed", reason="DeadlineExceeded"), "", "DeadlineExceeded"),
    ],
)
def test_what_a_pod_reports(pod, result, problem):
    """A pod yields its result or the reason for having none."""
    found = read_pods([pod])
    assert found.result == result
    assert problem in found.problem


@pytest.mark.parametrize(
    "pods", [[], [pod_with()], [pod_with({"waiting": {"reason": "ContainerCreating"}})], [pod_with({"running": {}})]]
)
def test_a_pod_that_has_no_result_yet_is_waited_for(pods):
    """Its image is being pulled, or it is being created, or it runs."""
    assert read_pods(pods) is None


def test_host_identity_cannot_create_jobs(tmp_path):
    """A user's own credentials pass."""
    token = tmp_path / f"host-{'a' * 12}.token"
    token.write_text("t")
    with pytest.raises(UserError, match="this kubeconfig is the host's own"):
        refuse_host_identity(ClusterConfig(server="https://c", identity=TokenFile(token)), tmp_path)
    refuse_host_identity(ClusterConfig(server="https://c", identity=TokenFile(Path("/mine"))), tmp_path)
    refuse_host_identity(ClusterConfig(server="https://c", identity=BearerToken("t")), tmp_path)


async def test_the_image_is_the_controller_s_unless_it_is_named():
    """It is found by the chart's labels; otherwise the error names --image."""
    labels = {"app.kubernetes.io/part-of": "llmkube", "app.kubernetes.io/component": "controller"}
    pod = {"containers": [{"name": "controller", "image": IMAGE}]}
    async with cluster() as client:
        with pytest.raises(UserError, match="--image REPOSITORY"):
            await find_image(client, "default")
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "c", "namespace": "default", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        }
        await client.request_json("POST", "/apis/apps/v1/namespaces/default/deployments", body=deployment)
        assert await find_image(client, "default") == IMAGE
