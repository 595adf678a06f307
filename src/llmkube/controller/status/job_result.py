"""What is known of a Model's Job: its end, and the last words of the container that ran `llmkube fetch`. Pure."""

from collections.abc import Sequence

import attrs

from llmkube.controller.render.fetch_container import FETCH
from llmkube.controller.status.pods import ended
from llmkube.k8s.wire.conditions import find_condition
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.termination_message import Fetched, parse_failure, parse_fetched
from llmkube.k8s.workloads import Job, PersistentVolumeClaim, Pod


@attrs.frozen
class Seen:
    """What is known of a Model's weights: its Job, that Job's pods, and the claim: its own, or the namespace's.

    Attributes:
        job: The Job of this very source.
        pods: That Job's.
        claim: The one that holds the weights, or shall.
        percent: How far the Job says that it is; None when it has not said.
        obstacle: Why the Job could not be made, where the Model does not wait for it; empty when it could.
    """

    job: Job | None = None
    pods: tuple[Pod, ...] = ()
    claim: PersistentVolumeClaim | None = None
    percent: int | None = None
    obstacle: str = ""


def read_fetched(pods: Sequence[Pod]) -> Fetched | None:
    """Return what a fetch that succeeded has left, or None when no pod left a result."""
    ends = [end for pod in pods if (end := ended(pod, FETCH)) is not None and not end.exit_code]
    return next(filter(None, (parse_fetched(end.message) for end in ends)), None)


def read_failure(pods: Sequence[Pod]) -> tuple[str, str]:
    """Return reason and message of the newest fetch that failed; both empty when none has said anything."""
    newest = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    for pod in newest:
        end = ended(pod, FETCH)
        if end is None or not end.exit_code:
            continue
        if end.reason == Reason.OOM_KILLED:
            return Reason.OOM_KILLED, "fetching was killed because it used more memory than its node has"
        tail = end.message.strip().splitlines()
        words = tail[-1] if tail else f"fetching ended with exit code {end.exit_code}"
        return parse_failure(end.message) or (Reason.FETCH_FAILED, words)
    return "", ""


def is_complete(job: Job | None) -> bool:
    """Whether a Job has succeeded."""
    return _holds(job, "Complete")


def is_failed(job: Job | None) -> bool:
    """Whether a Job has been given up."""
    return _holds(job, "Failed")


def ended_at(job: Job | None) -> str:
    """Return when a Job has ended, as Kubernetes writes it; empty while it has not."""
    for kind in ("Complete", "Failed"):
        found = find_condition(job.status.conditions, kind) if job is not None else None
        if job is not None and found is not None and found.status == "True":
            return found.last_transition_time or job.metadata.creation_timestamp or ""
    return ""


def _holds(job: Job | None, kind: str) -> bool:
    found = find_condition(job.status.conditions, kind) if job is not None else None
    return found is not None and found.status == "True"
