"""What is known of a Model's Job: its end, and the last words of the container that ran `llmkube fetch`. Pure.

The header of a file that is not fetched is read by a Job as well, once a pod serves it; nothing waits for that. Before
that it could take a volume away that only one node at a time may have. So a file that no service uses is not read. What
is found holds for this source on this volume: with another claim of that name it is read again.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.controller.render.model_sources import cache_key, source_of
from llmkube.controller.render.storage import FETCH
from llmkube.controller.status.pods import terminated_state, trouble_of
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import Statement, find_condition
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.termination_message import Fetched, parse_failure, parse_fetch_result
from llmkube.k8s.workloads import Job, PersistentVolumeClaim, Pod
from llmkube.weights.errors import WeightsError
from llmkube.weights.source import ImageSource, LocalFile, VolumeSource


@attrs.frozen
class JobFacts:
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
    ends = [end for pod in pods if (end := terminated_state(pod, FETCH)) is not None and not end.exit_code]
    return next(filter(None, (parse_fetch_result(end.message) for end in ends)), None)


def read_failure(pods: Sequence[Pod]) -> tuple[str, str]:
    """Return reason and message of the newest fetch that failed; both empty when none has said anything."""
    newest = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    for pod in newest:
        end = terminated_state(pod, FETCH)
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


INSPECTED: Final = "Inspected"


def is_mounted(model: Model) -> bool:
    """Whether a Model's weights are where pods can mount them already."""
    try:
        return isinstance(source_of(model.spec), VolumeSource | LocalFile | ImageSource)
    except WeightsError:
        return False


def is_inspected(model: Model) -> bool:
    """Whether a Model's file is one whose header a Job reads."""
    return model.spec.format == "gguf" and is_mounted(model)


def is_known(model: Model, observed: JobFacts) -> bool:
    """Whether the status holds the header of this very file."""
    status = model.status
    return status.gguf is not None and (status.cache_key, status.cache_volume) == _identity(model, observed)


def inspected_facts(model: Model, observed: JobFacts) -> dict[str, Any]:
    """Return what the status holds of the file; nothing before it has been read."""
    if is_known(model, observed):
        size, gguf = model.status.size, model.status.gguf
    else:
        found = read_fetched(observed.pods) if is_complete(observed.job) else None
        if found is None:
            return {}
        size, gguf = format_bytes(found.size_bytes), found.gguf
    key, volume = _identity(model, observed)
    facts = {"cacheKey": key, "cacheVolume": volume, "size": size, "gguf": encode(gguf) if gguf is not None else None}
    return {name: value for name, value in facts.items() if value}


def inspection_statement(model: Model, observed: JobFacts) -> Statement:
    """Say how reading the header goes."""
    if inspected_facts(model, observed):
        return Statement(INSPECTED, True, Reason.HEADER_READ, "status.gguf holds what the header says")
    reason, message = _inspection_problem(observed)
    return Statement(INSPECTED, False, reason, message)


def _inspection_problem(observed: JobFacts) -> tuple[str, str]:
    if observed.obstacle:
        return Reason.JOB_REFUSED, observed.obstacle
    if observed.job is None:
        return Reason.NOT_IN_USE, "its header is read once a pod that serves it runs"
    name = observed.job.key.name
    reason, message = read_failure(observed.pods)
    if is_failed(observed.job):
        why = message or "the Job failed and left no message: its pod may not fit on the node, or not get the volume"
        return reason or Reason.INSPECTION_FAILED, f"{why}; delete Job {name} to try again at once"
    trouble = trouble_of(observed.pods)
    return (
        (trouble.reason, trouble.message)
        if trouble is not None
        else (Reason.INSPECTING, f"Job {name} reads its header")
    )


def _identity(model: Model, observed: JobFacts) -> tuple[str, str]:
    """Return the source's key, and the volume where it has one."""
    return cache_key(model.spec), observed.claim.metadata.uid if observed.claim is not None else ""
