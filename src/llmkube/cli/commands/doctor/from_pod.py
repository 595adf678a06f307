"""`--from-cluster`: a pod tries the address that this host advertises, in a Job that is deleted afterwards.

```
 listener on ADDRESS, any port ◀──dials, reads one word── pod of our image: `llmkube reach ADDRESS:PORT --word …`
 this program ──creates, looks, deletes──▶ Job ──termination message──▶ what the pod got
```

The word tells this host from another machine that has the same address. Jobs are made with the user's own credentials:
those of a host may make none, and are refused here before the API server refuses them.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import netloc
from llmkube.cli.commands.doctor.cluster import may
from llmkube.cli.commands.doctor.findings import Finding, failed, passed
from llmkube.controller.render.storage import llmkube_container
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.auth.config import ClusterConfig, TokenFile
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ApiError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.termination_message import REACHED, parse_reach_result
from llmkube.k8s.workloads import ContainerState, Job, Pod
from llmkube.supervisor.values.join_record import token_paths

LABEL: Final = "inference.llmkube.dev/doctor"
"""On the Job and its pod: the Job's name."""

WAIT_SECONDS: Final = 120.0
"""What scheduling, pulling and trying may take."""

POLL_SECONDS: Final = 1.0
DELETE_SECONDS: Final = 10.0
TTL_SECONDS: Final = 600
"""After which the cluster removes a Job that this program could not delete."""

_STUCK: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
     "CreateContainerError", "RunContainerError"}
)  # fmt: skip


def reach_job(key: Key, image: str, address: str, word: str) -> dict[str, Any]:
    """Return the Job: one pod, once, without a token and without rights on its node. Pure."""
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
    """What a pod's status tells: either the result of its try, or why there is none."""

    result: str = ""
    problem: str = ""


def read_pods(pods: Sequence[Pod]) -> ReachResult | None:
    """Return what the Job's pod tells; None while it tells nothing yet. Pure."""
    for pod in pods:
        for status in pod.status.container_statuses:
            if status.state.terminated is not None:
                return _read_termination(status.state)
            if status.state.waiting is not None and status.state.waiting.reason in _STUCK:
                waiting = status.state.waiting
                return ReachResult(problem=f"its pod does not start: {waiting.reason} {waiting.message}".strip())
        if pod.status.phase == "Failed":
            return ReachResult(problem=f"its pod failed: {pod.status.reason} {pod.status.message}".strip())
    return None


def _read_termination(state: ContainerState) -> ReachResult:
    assert state.terminated is not None, "the caller has looked"
    result = parse_reach_result(state.terminated.message)
    if result is not None:
        return ReachResult(result=result)
    detail = state.terminated.message.strip()[-300:] or state.terminated.reason
    return ReachResult(problem=f"its pod ended with {state.terminated.exit_code}: {detail}; is it LLMKube's image?")


def refuse_host_identity(config: ClusterConfig, state_dir: Path) -> None:
    """Refuse the credentials that `llmkube agent join` has left.

    Raises:
        UserError: They are these.
    """
    if isinstance(config.identity, TokenFile) and config.identity.path in token_paths(state_dir):
        raise UserError(
            "--from-cluster: this kubeconfig is the host's own, which may make no Jobs; name yours with --kubeconfig "
            "or --context"
        )


async def find_image(client: Client, namespace: str) -> str:
    """Return the image of the controller in its namespace, which is ours.

    Raises:
        UserError: There is none to be seen.
    """
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    selector = "app.kubernetes.io/part-of=llmkube,app.kubernetes.io/component=controller"
    try:
        found = await client.get_json(path, params={"labelSelector": selector})
        return str(found["items"][0]["spec"]["template"]["spec"]["containers"][0]["image"])
    except (ApiError, LookupError, TypeError) as exc:
        raise UserError(
            f"--from-cluster: no controller is to be seen in namespace {namespace}, whose image the pod would run; "
            "name one of LLMKube: --image REPOSITORY@sha256:…"
        ) from exc


async def try_from_pod(client: Client, namespace: str, image: str, address: str) -> Finding:
    """Listen, have a pod dial, and return what it got.

    Args:
        client: With the user's own credentials.
        namespace: Where the Job is made.
        image: Of this program.
        address: What this host advertises.
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
        outcome = outcome or ReachResult(problem=f"its pod has not ended within {WAIT_SECONDS:g} s")
        return assess_reach(key, endpoint, outcome)


def assess_reach(job: Key, address: str, outcome: ReachResult) -> Finding:
    """A pod reached this host at the address that it advertises. Pure."""
    if outcome.problem:
        return failed(
            f"Job {job}: {outcome.problem}",
            why="whether pods reach this host is not known",
            fix="mend that, and repeat; --image names another image, --namespace another place",
        )
    if outcome.result != REACHED:
        return failed(
            f"{address} cannot be reached: {outcome.result}",
            why="services that run here answer no pod, and no client through the cluster",
            fix="open this host's firewall for the nodes, or advertise another address: --host-ip",
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
            with contextlib.suppress(LLMKubeError):  # the cluster removes it (KEPT_SECONDS)
                await client.delete(Job, key, propagation="Background")


@asynccontextmanager
async def _serve_word(address: str, word: str) -> AsyncIterator[str]:
    """Tell everyone who connects one word; the value is where."""

    async def send_word(stream: trio.SocketStream) -> None:
        async with stream:
            with trio.move_on_after(POLL_SECONDS):
                try:
                    await stream.send_all(f"{word}\n".encode())
                except trio.BrokenResourceError:
                    return  # it has gone

    listeners = await open_listeners(address, 0)
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, send_word, listeners)
        yield netloc((address, port))
        nursery.cancel_scope.cancel(reason="the pod has tried")
