"""`--from-cluster`: a pod connects to the address that this host advertises, in a Job that is deleted afterwards.

```
 listener on ADDRESS, any port ◀──connects, reads a word── pod of our image: `llmkube reach ADDRESS:PORT --word …`
 this program ──creates, polls, deletes──▶ Job ──termination message──▶ result
```

The word distinguishes this host from another machine with the same address. The Job is created with the user's
credentials; those of a host may not create Jobs and are rejected in advance.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import netloc
from llmkube.cli.commands.doctor.cluster import advertised_address, agent_config, may
from llmkube.cli.commands.doctor.findings import Finding, failed, passed
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.target_cluster import ClusterFlags, Origin, find_config
from llmkube.controller.render.storage import llmkube_container
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.auth.config import ClusterConfig, TokenFile
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.errors import ApiError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.termination_message import REACHED, parse_reach_result
from llmkube.k8s.workloads import ContainerTerminated, Job, Pod
from llmkube.supervisor.values.join_record import token_paths

LABEL: Final = "inference.llmkube.dev/doctor"
"""Label of the Job and its pod, with the Job's name."""

WAIT_SECONDS: Final = 120.0
"""Deadline for scheduling, pulling the image and connecting."""

POLL_SECONDS: Final = 1.0
DELETE_SECONDS: Final = 10.0
TTL_SECONDS: Final = 600
"""Time after which the cluster deletes a Job that this program could not delete."""

_STUCK: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError"}
)  # fmt: skip


def reach_job(key: Key, image: str, address: str, word: str) -> dict[str, Any]:
    """Return the manifest of the Job: one pod, without retries, token or privileges. Pure."""
    labels = {"app.kubernetes.io/part-of": "llmkube", LABEL: key.name}
    container = llmkube_container(WorkloadSettings(image), ["reach", address, "--word", word], (), ())
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{**container, "name": "reach"}],
    }
    return {
        "apiVersion": Job.RESOURCE.api_version,
        "kind": Job.RESOURCE.kind,
        "metadata": {"name": key.name, "namespace": key.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(WAIT_SECONDS),
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


@attrs.frozen
class ReachResult:
    """The result of a pod's attempt, or the problem that prevented it."""

    result: str = ""
    problem: str = ""


def read_pods(pods: Sequence[Pod]) -> ReachResult | None:
    """Return the result from the Job's pods; None while there is none. Pure."""
    for pod in pods:
        for status in pod.status.container_statuses:
            if status.state.terminated is not None:
                return _read_termination(status.state.terminated)
            if status.state.waiting is not None and status.state.waiting.reason in _STUCK:
                waiting = status.state.waiting
                return ReachResult(problem=f"its pod does not start: {waiting.reason} {waiting.message}".strip())
        if pod.status.phase == "Failed":
            return ReachResult(problem=f"its pod failed: {pod.status.reason} {pod.status.message}".strip())
    return None


def _read_termination(ended: ContainerTerminated) -> ReachResult:
    result = parse_reach_result(ended.message)
    if result is not None:
        return ReachResult(result=result)
    detail = ended.message.strip()[-300:] or ended.reason
    return ReachResult(problem=f"its pod exited with {ended.exit_code}: {detail}; is its image LLMKube's?")


def check_of(here: Installation, where: ClusterFlags, image: str | None) -> Callable[[], Awaitable[Finding]]:
    """Return the check, with a Job in the cluster that the user named.

    Raises:
        UserError: The user did not name a cluster, or the credentials are the host's and not the user's.
    """
    config, origin = find_config(where.kubeconfig, where.context, here.folder)
    if origin is not Origin.NAMED:
        raise UserError("--from-cluster creates a Job: name the cluster with --kubeconfig or --context")
    refuse_host_identity(config, here.folder)

    async def check() -> Finding:
        address = await advertised_address(here, where)
        if not address:
            raise UserError("this host has no address that pods can reach; set one with the agent's --host-ip")
        async with open_client(config) as client:
            chosen = image or await find_image(client, agent_config(here).lease_namespace)
            return await try_from_pod(client, where.namespace or config.namespace, chosen, address)

    return check


def refuse_host_identity(config: ClusterConfig, state_dir: Path) -> None:
    """Reject the credentials that `llmkube agent join` stores.

    Raises:
        UserError: The configuration uses them.
    """
    if isinstance(config.identity, TokenFile) and config.identity.path in token_paths(state_dir):
        raise UserError(
            "--from-cluster: this kubeconfig is the host's own, which may not create Jobs; name yours with "
            "--kubeconfig or --context"
        )


async def find_image(client: Client, namespace: str) -> str:
    """Return the image of the controller in its namespace, which is LLMKube's.

    Raises:
        UserError: No controller can be found.
    """
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    selector = "app.kubernetes.io/part-of=llmkube,app.kubernetes.io/component=controller"
    try:
        found = await client.get_json(path, params={"labelSelector": selector})
        return str(found["items"][0]["spec"]["template"]["spec"]["containers"][0]["image"])
    except (ApiError, LookupError, TypeError) as exc:
        raise UserError(
            f"--from-cluster: no controller found in namespace {namespace}, whose image the pod would run; "
            "name an image of LLMKube: --image REPOSITORY@sha256:…"
        ) from exc


async def try_from_pod(client: Client, namespace: str, image: str, address: str) -> Finding:
    """Listen, let a pod connect, and return the finding.

    Args:
        client: Client with the user's credentials.
        namespace: Namespace of the Job.
        image: LLMKube's image.
        address: Address that this host advertises.
    """
    key = Key(namespace, f"llmkube-doctor-{secrets.token_hex(4)}")
    if not await may(client, {"verb": "create", "group": "batch", "resource": "jobs", "namespace": namespace}):
        return assess_reach(key, address, ReachResult(problem=f"you may not create Jobs in {namespace}"))
    word = secrets.token_hex(8)
    async with _serve_word(address, word) as endpoint, _open_job(client, reach_job(key, image, endpoint, word), key):
        outcome = None
        with trio.move_on_after(WAIT_SECONDS):
            while outcome is None:
                pods = await client.list(Pod, namespace=namespace, label_selector=f"{LABEL}={key.name}")
                outcome = read_pods(pods.items)
                if outcome is None:
                    await trio.sleep(POLL_SECONDS)
        outcome = outcome or ReachResult(problem=f"its pod did not finish within {WAIT_SECONDS:g} s")
        return assess_reach(key, endpoint, outcome)


def assess_reach(job: Key, address: str, outcome: ReachResult) -> Finding:
    """Check that a pod reached this host at its advertised address. Pure."""
    if outcome.problem:
        return failed(
            f"Job {job}: {outcome.problem}",
            why="whether pods can reach this host is not known",
            fix="fix that, and repeat; --image and --namespace choose another image and namespace",
        )
    if outcome.result != REACHED:
        return failed(
            f"{address} cannot be reached: {outcome.result}",
            why="neither pods nor clients of the cluster can reach services on this host",
            fix="open this host's firewall for the nodes, or advertise another address with --host-ip",
        )
    return passed(f"a pod reached {address}")


@asynccontextmanager
async def _open_job(client: Client, manifest: Mapping[str, Any], key: Key) -> AsyncIterator[None]:
    path = f"/apis/{Job.RESOURCE.api_version}/namespaces/{key.namespace}/jobs"
    await client.request_json("POST", path, body=manifest)
    try:
        yield
    finally:
        with trio.move_on_after(DELETE_SECONDS, shield=True):
            with contextlib.suppress(LLMKubeError):  # the cluster deletes it (TTL_SECONDS)
                await client.delete(Job, key, propagation="Background")


@asynccontextmanager
async def _serve_word(address: str, word: str) -> AsyncIterator[str]:
    """Listen on a free port of the address and send a word to every client; yield `ADDRESS:PORT`."""

    async def send_word(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.move_on_after(POLL_SECONDS):
                try:
                    await stream.send_all(f"{word}\n".encode())
                except trio.BrokenResourceError:
                    return  # the client has closed the connection

    listeners = await open_listeners(address, 0)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, send_word, listeners)
        yield netloc((address, port))
        nursery.cancel_scope.cancel(reason="the pod has finished")
