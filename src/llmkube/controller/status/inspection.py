"""The header of a file that is not fetched is read by a Job, once a pod serves it; nothing waits for that. Pure.

Before that it could take a volume away that only one node at a time may have. So a file that no service uses is not
read. What is found holds for this source on this volume: with another claim of that name it is read again.
"""

from typing import Any, Final

from llmkube.base.units import format_bytes
from llmkube.controller.render.model_sources import cache_key, source_of
from llmkube.controller.status.job_result import Seen, is_complete, is_failed, read_failure, read_fetched
from llmkube.controller.status.pods import trouble_of
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import Statement
from llmkube.weights.errors import WeightsError
from llmkube.weights.source import ImageSource, LocalFile, VolumeSource

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


def is_known(model: Model, seen: Seen) -> bool:
    """Whether the status holds the header of this very file."""
    status = model.status
    return status.gguf is not None and (status.cache_key, status.cache_volume) == _identity(model, seen)


def inspected_facts(model: Model, seen: Seen) -> dict[str, Any]:
    """Return what the status holds of the file; nothing before it has been read."""
    if is_known(model, seen):
        size, gguf = model.status.size, model.status.gguf
    else:
        found = read_fetched(seen.pods) if is_complete(seen.job) else None
        if found is None:
            return {}
        size, gguf = format_bytes(found.size_bytes), found.gguf
    key, volume = _identity(model, seen)
    facts = {"cacheKey": key, "cacheVolume": volume, "size": size, "gguf": encode(gguf) if gguf is not None else None}
    return {name: value for name, value in facts.items() if value}


def judge_inspection(model: Model, seen: Seen) -> Statement:
    """Say how reading the header goes."""
    if inspected_facts(model, seen):
        return Statement(INSPECTED, holds=True, reason="HeaderRead", message="status.gguf holds what the header says")
    reason, message = _hindrance(seen)
    return Statement(INSPECTED, holds=False, reason=reason, message=message)


def _hindrance(seen: Seen) -> tuple[str, str]:
    if seen.obstacle:
        return "JobRefused", seen.obstacle
    if seen.job is None:
        return "NotInUse", "its header is read once a pod that serves it runs"
    name = seen.job.key.name
    reason, message = read_failure(seen.pods)
    if is_failed(seen.job):
        why = message or "the Job failed and left no message: its pod may not fit on the node, or not get the volume"
        return reason or "InspectionFailed", f"{why}; delete Job {name} to try again at once"
    trouble = trouble_of(seen.pods)
    return (trouble.reason, trouble.message) if trouble is not None else ("Inspecting", f"Job {name} reads its header")


def _identity(model: Model, seen: Seen) -> tuple[str, str]:
    """Return the source's key, and the volume where it has one."""
    return cache_key(model.spec), seen.claim.metadata.uid if seen.claim is not None else ""
