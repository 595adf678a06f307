"""A Model's phase where pods serve it: who brings its weights, and how far that is. Pure.

| what is known | phase | reason |
|---|---|---|
| every service's engine fetches for itself, or nobody else could | Ready | RuntimeResolved |
| the source cannot be fetched or mounted | Failed | SourceInvalid, SourceUnsupported, SourceNotAllowed, … |
| `pvc://`, the claim is missing | Failed | PVCNotFound |
| `pvc://`, the claim has no volume yet | Pending | PVCNotBound |
| `pvc://`, the claim is bound | Ready | PVCModelReady |
| a path on the nodes, below a folder that is allowed | Ready | NodePath |
| every service fetches into a volume of its own | Ready | WorkloadResolved |
| the weights of this very source are on the namespace's claim | Ready | ModelReady |
| the Job has failed | Failed | what `llmkube fetch` said, or what kept its pod from running |
| the Job's pod cannot start | Pending | ImagePullBackOff, Unschedulable, … |
| the Job's pod runs | Downloading | DownloadStarted |
| nothing yet | Pending | Pending |

A source that is followed (`refreshPolicy: OnChange`) is looked at again by the same Job, made anew: what it finds
changed it fetches into another folder, and the new path in the status is what replaces the services' pods. Until then,
and when the look fails, the Model stays Ready with what it has; the condition UpToDate says how the last look went.

Weights are on a volume, and go with it: when the claim is not there any more, or was made anew, nothing that was
remembered or told of the old one counts.

A Job that fetches tells how far it is, in steps of five percent (`progress`). What is mounted is Ready at once; another
Job reads its header meanwhile (`inspection`).

That the weights are there is remembered in the status, together with the key of the source that they came from: Jobs
and pods go, and so does the message that a container leaves. It is the one thing that the controller reads back.
"""

import datetime
import posixpath
from collections.abc import Sequence
from typing import Any, Final, Literal

import attrs

from llmkube.base.units import format_bytes
from llmkube.controller.render.storage import (
    CACHE_FOLDER,
    SOURCE_FOLDER,
    cache_key,
    claimed,
    follows,
    published_name,
    source_of,
)
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.inspection import inspected_facts, is_inspected, judge_inspection
from llmkube.controller.status.job_result import (
    Seen,
    ended_at,
    is_complete,
    is_failed,
    read_failure,
    read_fetched,
)
from llmkube.controller.status.model_status import judge_quantization
from llmkube.controller.status.pods import trouble_of
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import changed_paths
from llmkube.k8s.wire.conditions import AVAILABLE, DEGRADED, PROGRESSING, Statement, Verdict, find_condition, settle
from llmkube.k8s.wire.termination_message import Fetched
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.k8s.workloads import Job, PersistentVolumeClaim
from llmkube.weights.errors import WeightsError
from llmkube.weights.source import BucketFile, HubRepository, LocalFile, VolumeSource

UP_TO_DATE: Final = "UpToDate"
NO_RESULT: Final = "NoResult"

Bringer = Literal["nobody", "runtime", "claim", "node", "pods", "job"]

_LONG_AGO: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)
_SOURCE: Final = "Model.spec.source"
_TOLERATIONS: Final = "Model.spec.prefetchTolerations"
_BY_FETCHING: Final = (
    "Model.spec.files",
    "Model.spec.mmproj",
    "Model.spec.prefetch",  # and prefetchTolerations
    "Model.spec.refreshPolicy",
    "Model.spec.sha256",
    "Model.spec.sourceSecretRef",
)
"""Beginnings of the paths of what only somebody who fetches can give effect to."""


@attrs.frozen
class User:
    """How one service wants its weights: its engine fetches for itself, or each of its pods does."""

    brings_weights: bool = False
    fetches_itself: bool = False


@attrs.frozen
class Supply:
    """Who brings a Model's weights; for `nobody`, why."""

    by: Bringer
    reason: str = ""
    message: str = ""


def choose_supply(model: Model, users: Sequence[User], settings: WorkloadSettings) -> Supply:
    """Decide who brings a Model's weights.

    Args:
        model: The Model.
        users: How each service that refers to it wants them.
        settings: Which paths on nodes may be named.
    """
    fetchers = [user for user in users if not user.brings_weights]
    brought = bool(users) and not fetchers and not model.spec.prefetch
    try:
        source = source_of(model.spec)
        if isinstance(source, VolumeSource):
            claimed(source)
            return Supply("claim")
    except WeightsError as error:
        return Supply("runtime") if brought else Supply("nobody", error.reason, str(error))
    if isinstance(source, LocalFile) and (_is_allowed(source, settings) or not brought):
        return _on_node(source, settings)
    if brought:
        return Supply("runtime")
    if isinstance(source, BucketFile) and model.spec.format != "gguf":
        advice = "copy the folder to a claim and write pvc://CLAIM/PATH, or name a Hugging Face repository"
        message = f"{source.redacted}: of a bucket only GGUF files are fetched, not {model.spec.format}: {advice}"
        return Supply("nobody", "SourceUnsupported", message)
    if isinstance(source, HubRepository) and model.spec.format != "gguf":
        return Supply("runtime")  # tens of files in a layout that only the engine's own loader knows
    if fetchers and all(user.fetches_itself for user in fetchers) and not model.spec.prefetch:
        return Supply("pods")
    return Supply("job")


def without_effect(model: Model, supply: Supply, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of fields without effect, once it is known who brings the weights.

    Args:
        model: The Model.
        supply: Who brings its weights.
        paths: Those that have none by the container's plan, which does not know that.
    """
    if supply.by in ("job", "pods"):
        kept = (_TOLERATIONS,) if supply.by == "pods" else ()  # pods tolerate what their service says
        return tuple(path for path in paths if path in kept or not path.startswith((_SOURCE, *_BY_FETCHING)))
    if supply.by in ("claim", "node"):
        mounted = [path for path in paths if path != _SOURCE]
        given = [path for path in changed_paths(model.spec, "Model.spec") if path.startswith(_BY_FETCHING)]
        return tuple(dict.fromkeys((*mounted, *given)))
    return tuple(paths)


def is_remembered(model: Model) -> bool:
    """Whether the status says that the weights of this very source are on the namespace's claim."""
    return model.status.cache_key == cache_key(model.spec) and bool(model.status.path)


def forget_lost(model: Model, claim: PersistentVolumeClaim | None) -> Model:
    """Return the Model without what its status says of a volume that is gone."""
    volume = model.status.cache_volume
    if not volume or (claim is not None and claim.metadata.uid == volume):
        return model
    return attrs.evolve(model, status=attrs.evolve(model.status, path="", cache_volume=""))


def is_of_old_volume(job: Job | None, claim: PersistentVolumeClaim | None) -> bool:
    """Whether what a Job has fetched went with an earlier claim: each Job is made after its claim."""
    if job is None or not ended_at(job):
        return False
    made = job.metadata.creation_timestamp or ""
    return claim is None or (claim.metadata.creation_timestamp or "") > made


def look_in_seconds(model: Model, job: Job | None, settings: WorkloadSettings, now: datetime.datetime) -> float | None:
    """Return how long to wait until a source that has been fetched is looked at again; None when it never is.

    The moments are those of the cluster's clock and `now` is ours; at an hour's interval their difference is nothing.
    """
    if not follows(model.spec) or not is_remembered(model):
        return None
    looks = filter(None, map(parse_timestamp, (model.status.last_revalidated, ended_at(job))))
    since = now - max(looks, default=_LONG_AGO)
    return max(settings.look_seconds - since.total_seconds(), 0.0)


def judge_supply(model: Model, supply: Supply, seen: Seen) -> Verdict:
    """Decide a Model's phase; the table above."""
    if supply.by == "nobody":
        return Verdict("Failed", supply.reason, supply.message)
    if supply.by == "runtime":
        return Verdict("Ready", "RuntimeResolved", "the engine fetches it for itself")
    if supply.by == "node":
        return Verdict("Ready", "NodePath", "it is expected on every node that serves it")
    if supply.by == "pods":
        return Verdict("Ready", "WorkloadResolved", "each pod fetches it into a volume of its own")
    if supply.by == "claim":
        return _judge_claim(model, seen.claim)
    return _judge_job(model, seen)


def derive_supplied_status(
    model: Model, supply: Supply, seen: Seen, *, users: Sequence[str] = (), now: datetime.datetime
) -> dict[str, Any]:
    """Return the status of a Model that pods serve, except what only a host could say.

    Args:
        model: The Model as observed.
        supply: Who brings its weights.
        seen: What is known of that.
        users: The services that refer to it, by name, for one that is to be deleted.
        now: The time of a condition that flips here.
    """
    verdict = judge_supply(model, supply, seen)
    facts = _facts(model, supply, seen) if verdict.phase == "Ready" else {}
    ready = verdict.phase == "Ready"
    said = [
        Statement(AVAILABLE, ready, verdict.reason, verdict.message),
        _progressing(model, verdict, users),
        Statement(DEGRADED, verdict.phase == "Failed", verdict.reason, verdict.message),
        judge_quantization(model, str((facts.get("gguf") or {}).get("quantization") or "")),
        *([_up_to_date(model, seen)] if supply.by == "job" and follows(model.spec) else []),
        *([judge_inspection(model, seen)] if has_header_read(model, supply) else []),
    ]
    conditions = settle(said, model.status.conditions, generation=model.metadata.generation, now=now)
    return {
        "phase": verdict.phase,
        **facts,
        **({"lastUpdated": conditions[0]["lastTransitionTime"]} if ready else {}),
        "conditions": conditions,
    }


def has_header_read(model: Model, supply: Supply) -> bool:
    """Whether a Job reads the header of a file that nobody fetches."""
    return supply.by in ("claim", "node") and is_inspected(model)


def weights_path(model: Model, supply: Supply) -> str:
    """Return where a pod finds the weights, once the Model is Ready; empty when only a finished fetch could tell."""
    if supply.by == "job":
        return model.status.path if is_remembered(model) else ""
    if supply.by in ("runtime", "nobody"):
        return ""
    source = source_of(model.spec)
    if isinstance(source, VolumeSource):
        return f"{SOURCE_FOLDER}/{claimed(source).path}"
    if isinstance(source, LocalFile):
        return f"{SOURCE_FOLDER}/{posixpath.basename(source.path)}"
    name = published_name(source)
    return f"{CACHE_FOLDER}/{cache_key(model.spec)}/{name}" if name else ""


def _is_allowed(source: LocalFile, settings: WorkloadSettings) -> bool:
    path = posixpath.normpath(source.path)
    return any(path.startswith(f"{folder.rstrip('/')}/") for folder in settings.host_paths)


def _on_node(source: LocalFile, settings: WorkloadSettings) -> Supply:
    if _is_allowed(source, settings):
        return Supply("node")
    allowed = ", ".join(settings.host_paths) or "none"
    message = (
        f"{source.path} is a path on a node, and pods may only have folders that the operator allows ({allowed}); copy "
        "the file to a claim and write pvc://CLAIM/PATH, or let the operator allow its folder"
    )
    return Supply("nobody", "SourceNotAllowed", message)


def _judge_claim(model: Model, claim: PersistentVolumeClaim | None) -> Verdict:
    source = source_of(model.spec)
    assert isinstance(source, VolumeSource), "choose_supply has looked"
    name = claimed(source).claim
    if claim is None:
        return Verdict("Failed", "PVCNotFound", f'there is no PersistentVolumeClaim "{name}" in this namespace')
    if claim.status.phase != "Bound":
        return Verdict("Pending", "PVCNotBound", f'PersistentVolumeClaim "{name}" is not bound to a volume yet')
    return Verdict("Ready", "PVCModelReady", f'it is on PersistentVolumeClaim "{name}"')


def _judge_job(model: Model, seen: Seen) -> Verdict:
    job, fetched = seen.job, read_fetched(seen.pods)
    if is_remembered(model):
        news = _news(model, seen)
        size = format_bytes(news.size_bytes) if news is not None else model.status.size
        return Verdict("Ready", "ModelReady", f"{size} on the namespace's volume")
    if job is None:
        return Verdict("Pending", "Pending", "waiting for the Job that fetches it")
    if fetched is not None and is_complete(job):
        return Verdict("Ready", "ModelReady", f"{format_bytes(fetched.size_bytes)} on the namespace's volume")
    if is_complete(job):
        return Verdict("Pending", NO_RESULT, f"Job {job.key.name} has ended, and its pod has not told what it fetched")
    reason, message = read_failure(seen.pods)
    if is_failed(job):
        failed = find_condition(job.status.conditions, "Failed")
        said = (failed.reason, failed.message) if failed else ("", "")
        again = f"; delete Job {job.key.name} to have it tried again at once"
        return Verdict("Failed", reason or said[0] or "FetchFailed", f"{message or said[1]}{again}")
    trouble = trouble_of(seen.pods)
    if trouble is not None and not reason:
        return Verdict("Pending", trouble.reason, trouble.message)
    if any(pod.status.phase == "Running" for pod in seen.pods):
        share = "" if seen.percent is None else f": {seen.percent} %"
        return Verdict("Downloading", "DownloadStarted", f"Job {job.key.name} fetches it{share}")
    if reason:
        return Verdict("Downloading", reason, f"{message}; the Job tries again")
    # A Job whose pods a quota forbids, or lack a ConfigMap, tells that in Events alone, and those are not read.
    name = job.key.name
    message = f"Job {name} waits for its pod to start; if it does not, `kubectl describe job {name}` says why"
    return Verdict("Pending", "Pending", message)


def _facts(model: Model, supply: Supply, seen: Seen) -> dict[str, Any]:
    """Return what the status tells about the weights: from the fetch that has just ended, or as it stands there."""
    if supply.by != "job":
        path = weights_path(model, supply)
        read = inspected_facts(model, seen) if has_header_read(model, supply) else {}
        return {**({"path": path} if path else {}), **read}
    status, key, news = model.status, cache_key(model.spec), _news(model, seen)
    if is_remembered(model) and news is None:
        facts: dict[str, Any] = {"size": status.size, "sha256": status.sha256, "path": status.path}
        facts |= {"sourceETag": status.source_etag, "sourceContentLength": status.source_content_length}
        facts["lastRevalidated"] = status.last_revalidated
        gguf, files = status.gguf, status.staged_files
    else:
        fetched = news or read_fetched(seen.pods)
        assert fetched is not None, "it is Ready by what the fetch told"
        facts = {"size": format_bytes(fetched.size_bytes), "sha256": fetched.sha256}
        facts["path"] = f"{CACHE_FOLDER}/{key}/{fetched.path}"
        if follows(model.spec):
            facts |= {"sourceETag": fetched.etag, "sourceContentLength": fetched.size_bytes}
            facts["lastRevalidated"] = ended_at(seen.job)
        gguf, files = fetched.gguf, fetched.files
    facts = {name: value for name, value in facts.items() if value}
    if gguf is not None:
        facts["gguf"] = encode(gguf)
    if len(files) > 1:
        facts["stagedFiles"] = list(files)
    volume = seen.claim.metadata.uid if seen.claim is not None else status.cache_volume
    return {"cacheKey": key, **facts, **({"cacheVolume": volume} if volume else {})}


def _news(model: Model, seen: Seen) -> Fetched | None:
    """Return what a later look at a source has brought that the status does not tell yet."""
    if not follows(model.spec) or not is_remembered(model) or not is_complete(seen.job):
        return None
    return read_fetched(seen.pods) if ended_at(seen.job) != model.status.last_revalidated else None


def _up_to_date(model: Model, seen: Seen) -> Statement:
    """Say how the last look at a source went; what it said stays when its Job is gone."""
    fetched = read_fetched(seen.pods) if is_complete(seen.job) else None
    if fetched is not None and fetched.kept:
        return Statement(UP_TO_DATE, holds=False, reason="LookFailed", message=f"what is there is kept: {fetched.kept}")
    if fetched is not None:
        return Statement(UP_TO_DATE, holds=True, reason="InSync", message="it is what the source had at the last look")
    before = find_condition(model.status.conditions, UP_TO_DATE)
    if before is not None and is_remembered(model):
        return Statement(UP_TO_DATE, before.status == "True", before.reason, before.message)
    return Statement(UP_TO_DATE, holds=False, reason="NotFetched", message="nothing has been fetched yet")


def _progressing(model: Model, verdict: Verdict, users: Sequence[str]) -> Statement:
    if model.metadata.deletion_timestamp and users:
        waits = f"it is deleted once nothing refers to it any more: {', '.join(sorted(users))}"
        return Statement(PROGRESSING, holds=True, reason="InUse", message=waits)
    return Statement(PROGRESSING, verdict.phase in {"Pending", "Downloading"}, verdict.reason, verdict.message)
