"""What is known of a Model's Job: its end, and the last words of the container that ran `llmkube fetch`. Pure."""

import json
from collections.abc import Sequence

import attrs

from llmkube.controller.render.storage import FETCH
from llmkube.controller.status.pods import ended
from llmkube.k8s.codec import DecodeError, decode
from llmkube.k8s.crd.meta import find_condition
from llmkube.k8s.crd.model import GGUFStatus
from llmkube.k8s.workloads import Job, PersistentVolumeClaim, Pod


@attrs.frozen
class Fetched:
    """What `llmkube fetch` has left in its container's termination message.

    Attributes:
        path: Where the engine's file is, below the folder that was asked for.
        size_bytes: Of all files together.
        sha256: Digest of the engine's file, if it is a single one.
        gguf: What its header says.
        files: All of them, by name.
        etag: The server's word for the version.
        kept: Why the source could not be compared with what was there; empty when it was.
    """

    path: str
    size_bytes: int
    sha256: str = ""
    gguf: GGUFStatus | None = None
    files: tuple[str, ...] = ()
    etag: str = ""
    kept: str = ""


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
    """Return what a fetch that succeeded has left, or None when no pod tells."""
    for pod in pods:
        end = ended(pod, FETCH)
        if end is None or end.exit_code:
            continue
        try:
            said = json.loads(end.message)
            gguf = decode(GGUFStatus, said["gguf"]) if said.get("gguf") else None
            files = tuple(str(name) for name in said.get("files") or ())
            sha256, etag, kept = (str(said.get(name) or "") for name in ("sha256", "etag", "kept"))
            return Fetched(_below(str(said["path"])), int(said["sizeBytes"]), sha256, gguf, files, etag, kept)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, DecodeError):
            continue
    return None


def read_failure(pods: Sequence[Pod]) -> tuple[str, str]:
    """Return reason and message of the newest fetch that failed; both empty when none has said anything."""
    newest = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    for pod in newest:
        end = ended(pod, FETCH)
        if end is None or not end.exit_code:
            continue
        if end.reason == "OOMKilled":
            return "OOMKilled", "fetching was killed because it used more memory than its node has"
        try:
            said = json.loads(end.message)
            return str(said["reason"]), str(said["message"])
        except (ValueError, TypeError, KeyError, RecursionError):
            tail = end.message.strip().splitlines()
            return "FetchFailed", tail[-1] if tail else f"fetching ended with exit code {end.exit_code}"
    return "", ""


def _below(path: str) -> str:
    """Return a path that stays in the folder that was asked for.

    Raises:
        ValueError: It leads out of it.
    """
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not below the folder")
    return path


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
