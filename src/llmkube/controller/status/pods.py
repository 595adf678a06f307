"""Report why pods do not run, in the words of the scheduler, the kubelet or the container itself. Pure.

Of several problems, a lasting one takes precedence: an image that cannot be pulled over a container that crashes, and
that over a pod without a node.

A container in a crash loop is running for a while after each restart; it is reported until it is ready.
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from llmkube.base.messages import redact, shorten
from llmkube.k8s.wire.names import QUEUE_LABEL
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.k8s.workloads import ContainerStatus, ContainerTerminated, Pod

_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
_CONFIG_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
LOOPS: Final = 2
"""After this many restarts, a container has recovered only once it is ready, not when it is running."""

STABLE_RUN: Final = datetime.timedelta(minutes=10)
"""After a run of this length the kubelet resets its restart back-off."""

_MAX_MESSAGE_BYTES: Final = 1024


@attrs.frozen
class Trouble:
    """Problem of a pod; `transient` if it may resolve without any action."""

    reason: str
    message: str
    transient: bool = False


def trouble_of(pods: Iterable[Pod]) -> Trouble | None:
    """Return the most severe problem, or None; pods that are being deleted are ignored.

    Failed pods (such as Evicted ones, which stay until they are deleted) are ignored if there are others.
    """
    there = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    alive = [pod for pod in there if pod.status.phase != "Failed"]
    found = [trouble for pod in alive or there for trouble in _troubles(pod)]
    return min(found, key=lambda one: (_rank(one), one.message), default=None)


def shortage_message(pods: Sequence[Pod], resource: str) -> str:
    """Return the scheduler's message if a pod has no node because this resource is insufficient; otherwise nothing."""
    if not resource:
        return ""
    for pod in pods:
        message = _unscheduled(pod)
        if message and f"Insufficient {resource}" in message:
            return message
    return ""


def terminated_state(pod: Pod, container: str) -> ContainerTerminated | None:
    """Return the terminated state of a pod's container; None if it has not terminated."""
    for status in pod.status.container_statuses:
        if status.name == container:
            return status.state.terminated
    return None


def _rank(trouble: Trouble) -> int:
    if trouble.reason in _IMAGE_REASONS | _CONFIG_REASONS:
        return 0
    return 2 if trouble.transient else 1


def _troubles(pod: Pod) -> Iterator[Trouble]:
    unscheduled = _unscheduled(pod)
    if (gates := ", ".join(gate.name for gate in pod.spec.scheduling_gates)) and not pod.metadata.deletion_timestamp:
        queue = pod.metadata.labels.get(QUEUE_LABEL, "")
        where = f"queue {queue} of Kueue" if queue else "whoever set them"
        reason = Reason.WAITING_FOR_QUOTA if queue else Reason.UNSCHEDULABLE
        yield Trouble(reason, f"waits for {where}; scheduling gates: {_short(gates)}", transient=True)
    elif unscheduled:
        yield Trouble(Reason.UNSCHEDULABLE, _short(unscheduled), transient=True)
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        trouble = _container_trouble(status)
        if trouble:
            yield trouble
    if pod.status.phase == "Failed" and pod.status.reason:  # evicted by the node, or past a deadline
        yield Trouble(pod.status.reason, _short(pod.status.message or "the pod has failed"), transient=True)


def _unscheduled(pod: Pod) -> str:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and not pod.metadata.deletion_timestamp:
            return condition.message or condition.reason
    return ""


def _container_trouble(status: ContainerStatus) -> Trouble | None:
    waiting = status.state.waiting
    if waiting is not None and waiting.reason in _IMAGE_REASONS | _CONFIG_REASONS:
        return Trouble(waiting.reason, _short(f"container {status.name}: {waiting.message or waiting.reason}"))
    last = status.state.terminated or status.last_state.terminated
    if (waiting is not None and waiting.reason == Reason.CRASH_LOOP) or _loops(status, last):
        reason = Reason.OOM_KILLED if last is not None and last.reason == Reason.OOM_KILLED else Reason.CRASH_LOOP
        times = f"started {status.restart_count + 1} times"
        return Trouble(reason, _short(f"container {status.name} {_exit_text(last)}; {times}"))
    if status.state.terminated is not None and status.state.terminated.exit_code:
        reason = Reason.OOM_KILLED if status.state.terminated.reason == Reason.OOM_KILLED else Reason.CONTAINER_FAILED
        return Trouble(reason, _short(f"container {status.name} {_exit_text(status.state.terminated)}"), transient=True)
    return None


def _loops(status: ContainerStatus, last: ContainerTerminated | None) -> bool:
    """Whether an unready container has failed too often, and too soon after its start, to be just restarting."""
    if last is None or not last.exit_code or status.ready or status.restart_count < LOOPS:
        return False
    began, end = parse_timestamp(last.started_at), parse_timestamp(last.finished_at)
    return began is None or end is None or end - began < STABLE_RUN


def _exit_text(last: ContainerTerminated | None) -> str:
    if last is None:
        return "keeps exiting"
    if last.reason == Reason.OOM_KILLED:
        return "was killed: it used more memory than its limit, or than the node has"
    exited = f"exited with code {last.exit_code}"
    tail = last.message.strip().splitlines()
    return f"{exited}: {tail[-1].strip()}" if tail else exited


def _short(text: str) -> str:
    return shorten(redact(" ".join(text.split())), _MAX_MESSAGE_BYTES)
