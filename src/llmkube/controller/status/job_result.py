"""Result of a Model's Job: its completion, and the termination message of `llmkube fetch`. Pure.

The header of a mounted file is read by a Job as well, but only once a pod serves the file, so the header of an unused
file is never read: an earlier Job could attach a ReadWriteOnce volume to another node. Nothing waits for that Job. Its
result is valid for this source on this volume, and a new claim of the same name has it read again.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.controller.render.model_sources import cache_key, source_of
from llmkube.controller.render.storage import FETCH
from llmkube.controller.status.pods import terminated_state, trouble_of
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import Statement, find_condition
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.termination_message import Fetched, parse_failure, parse_fetch_result
from llmkube.k8s.workloads import Job, PersistentVolumeClaim, Pod
from llmkube.weights.errors import WeightsError
from llmkube.weights.source import ImageSource, LocalFile, VolumeSource


@attrs.frozen
class JobFacts:
    """Observed state of a Model's weights: its Job, the Job's pods, and the claim.

    Attributes:
        job: The Job of the current source.
        pods: Pods of that Job.
        claim: The claim for the weights: the Model's own, or the namespace's.
        percent: Progress that the Job reports; None if it has not reported any.
        obstacle: Reason why an optional Job could not be created; empty if there is none.
    """

    job: Job | None = None
    pods: tuple[Pod, ...] = ()
    claim: PersistentVolumeClaim | None = None
    percent: int | None = None
    obstacle: str = ""


def read_fetched(pods: Sequence[Pod]) -> Fetched | None:
    """Return the result of a successful fetch; None if no pod reported one."""
    ends = [end for pod in pods if (end := terminated_state(pod, FETCH)) is not None and not end.exit_code]
    return next(filter(None, (parse_fetch_result(end.message) for end in ends)), None)


def read_failure(pods: Sequence[Pod]) -> tuple[str, str]:
    """Return reason and message of the newest failed fetch; both empty if none failed."""
    newest = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    for pod in newest:
        end = terminated_state(pod, FETCH)
        if end is None or not end.exit_code:
            continue
        if end.reason == Reason.OOM_KILLED:
            return Reason.OOM_KILLED, "the fetch was killed: it used more memory than its node or a LimitRange allows"
        tail = end.message.strip().splitlines()
        message = tail[-1] if tail else f"the fetch exited with code {end.exit_code}"
        return parse_failure(end.message) or (Reason.FETCH_FAILED, message)
    return "", ""


def is_complete(job: Job | None) -> bool:
    """Whether a Job has succeeded."""
    return _end(job, "Complete") is not None


def is_failed(job: Job | None) -> bool:
    """Whether a Job has failed."""
    return _end(job, "Failed") is not None


def finished_at(job: Job | None) -> str:
    """Return when a Job finished, as an RFC 3339 timestamp; empty if it has not."""
    end = _end(job, "Complete") or _end(job, "Failed")
    return (end.last_transition_time or job.metadata.creation_timestamp or "") if job and end else ""


def _end(job: Job | None, kind: str) -> Condition | None:
    return find_condition(job.status.conditions, kind, "True") if job is not None else None


INSPECTED: Final = "Inspected"


def is_mounted(model: Model) -> bool:
    """Whether pods mount a Model's weights directly, without a fetch."""
    try:
        return isinstance(source_of(model.spec), VolumeSource | LocalFile | ImageSource)
    except WeightsError:
        return False


def is_inspected(model: Model) -> bool:
    """Whether a Job should read the header of a Model's file."""
    return model.spec.format == "gguf" and is_mounted(model)


def is_known(model: Model, observed: JobFacts) -> bool:
    """Whether the status has the header of the current file."""
    status = model.status
    return status.gguf is not None and (status.cache_key, status.cache_volume) == _identity(model, observed)


def inspected_facts(model: Model, observed: JobFacts) -> dict[str, Any]:
    """Return the status fields of the file; empty before its header has been read."""
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
    """Return the condition for reading the header."""
    if inspected_facts(model, observed):
        return Statement(INSPECTED, True, Reason.HEADER_READ, "status.gguf has the header's data")
    reason, message = _inspection_problem(observed)
    return Statement(INSPECTED, False, reason, message)


def _inspection_problem(observed: JobFacts) -> tuple[str, str]:
    if observed.obstacle:
        return Reason.JOB_REFUSED, observed.obstacle
    if observed.job is None:
        return Reason.NOT_IN_USE, "its header is read once a pod that serves it is running"
    name = observed.job.key.name
    reason, message = read_failure(observed.pods)
    if is_failed(observed.job):
        why = message or "the Job failed without a message: its pod may not fit on the node, or lack its volume"
        return reason or Reason.INSPECTION_FAILED, f"{why}; delete Job {name} to retry at once"
    trouble = trouble_of(observed.pods)
    inspecting = Reason.INSPECTING, f"Job {name} is reading the file's header"
    return (trouble.reason, trouble.message) if trouble is not None else inspecting


def _identity(model: Model, observed: JobFacts) -> tuple[str, str]:
    """Return the source's key, and the uid of the claim, if there is one."""
    return cache_key(model.spec), observed.claim.metadata.uid if observed.claim is not None else ""
