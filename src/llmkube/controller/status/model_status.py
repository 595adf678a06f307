"""Derive the status of a Model, in pods and on hosts. Pure.

For a Model in pods:

| observed | phase | reason |
|---|---|---|
| every service's engine fetches the weights itself, or only the engine could | Ready | RuntimeResolved |
| the source cannot be fetched or mounted | Failed | SourceInvalid, SourceUnsupported, SourceNotAllowed, … |
| `pvc://`, the claim is missing | Failed | PVCNotFound |
| `pvc://`, the claim is not bound yet; it may be bound with the first pod | Pending | PVCNotBound |
| `pvc://`, the claim is bound | Ready | PVCModelReady |
| a path on the nodes, below an allowed folder | Ready | NodePath |
| `oci://` with the engine's file | Ready | ImageVolume |
| every service fetches into its own volume | Ready | WorkloadResolved |
| the weights of the current source are on the namespace's claim | Ready | ModelReady |
| the Job has failed | Failed | as reported by `llmkube fetch`, or why its pod could not run |
| the Job's pod cannot start | Pending | ImagePullBackOff, Unschedulable, … |
| a pod of the Job has failed, and the Job retries | Downloading | as reported by `llmkube fetch` |
| the Job's pod is running, or has succeeded | Downloading | DownloadStarted |
| none of these | Pending | Pending |

`supply` decides how the weights are supplied, and `job_result` reads the header of a mounted file. The progress of a
fetch is reported in steps of five percent (`reconcile.pod_polling`). A mounted Model is Ready at once; another Job
reads its header later.

A source with `refreshPolicy: OnChange` is revalidated by the same Job, created again: if the source has changed, the
Job fetches it into another folder, and the new path in the status causes the services' pods to be replaced. Until then,
and if the revalidation fails, the Model stays Ready with the files that it has; the condition UpToDate reports the last
revalidation. Weights are lost with their volume: if the claim is gone or was created again, no result of the old one is
valid any more.

The status records where the weights are and the key of their source, because Jobs, pods and their termination messages
are deleted. These are the only fields of the status that the controller reads back.

For a Model on hosts, from their reports:

| observed | phase | reason |
|---|---|---|
| `Fetched` is True | Ready | ModelReady |
| `Fetched` is not True, for any reason but `Fetching` | Failed | that reason |
| no live host serves the accelerator | Pending | NoHost |
| `Fetched` has the reason `Fetching` | Downloading, or Copying for a local file | DownloadStarted, CopyStarted |
| none of these | Pending | Pending |

The first matching row applies. A `Fetched` condition of an older generation is ignored.
"""

import datetime
from collections.abc import Collection
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.controller.render.model_sources import CACHE_FOLDER, cache_key, claim_path, refreshes_on_change, source_of
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.job_result import (
    JobFacts,
    finished_at,
    inspected_facts,
    inspection_statement,
    is_complete,
    is_failed,
    read_failure,
    read_fetched,
)
from llmkube.controller.status.pods import trouble_of
from llmkube.controller.status.supply import Supply, has_header_read, is_remembered, weights_path
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.conditions import (
    AVAILABLE,
    DEGRADED,
    FETCHED,
    PROGRESSING,
    Statement,
    Verdict,
    current,
    find_condition,
    settle,
)
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.termination_message import Fetched
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.k8s.workloads import Job, PersistentVolumeClaim
from llmkube.weights.source import VolumeSource

QUANTIZATION_MATCHES: Final = "QuantizationMatches"
_LOCAL_PREFIXES: Final = ("/", "file://", "builtin://")


def accelerator_of(model: Model) -> str:
    """Return the accelerator that a Model requires."""
    return model.spec.hardware.accelerator


def assess_model(model: Model, hosts: LiveHosts) -> Verdict:
    """Return a Model's phase and the reason for it."""
    fetched = current(model.status.conditions, FETCHED, model.metadata.generation)
    if fetched is not None and fetched.status == "True":
        return Verdict("Ready", Reason.MODEL_READY, fetched.message or "the file is in place")
    if fetched is not None and fetched.reason != Reason.FETCHING:
        return Verdict("Failed", fetched.reason, fetched.message)
    accelerator, is_local = accelerator_of(model), model.spec.source.startswith(_LOCAL_PREFIXES)
    if not hosts.serving(accelerator):
        return Verdict("Pending", Reason.NO_HOST, no_host_message(accelerator, hosts))
    if fetched is None:
        action = "read" if is_local else "fetched"
        return Verdict("Pending", Reason.PENDING, f"no service uses it yet; its file is {action} once one does")
    if is_local:
        return Verdict("Copying", Reason.COPY_STARTED, fetched.message)
    return Verdict("Downloading", Reason.DOWNLOAD_STARTED, fetched.message)


def no_host_message(accelerator: str, hosts: LiveHosts) -> str:
    """Return the message that no host serves an accelerator, with a fix or the end of the hosts' cordon."""
    none = f"no machine serves accelerator {accelerator}"
    if hosts.cordons:
        return f"{none}; " + ", ".join(f"{host} is cordoned {end}" for host, end in sorted(hosts.cordons.items()))
    if hosts.one_machine and hosts.accelerators:
        return not_served_here(accelerator, frozenset[str]().union(*hosts.accelerators.values()))
    return f"{none}; start `llmkube agent --accelerator {accelerator}` on one that has it"


def not_served_here(accelerator: str, served: Collection[str]) -> str:
    """Return the message that the only machine does not serve an accelerator, with a fix."""
    return (
        f"the Model requires {accelerator}, but this machine serves {', '.join(sorted(served))}; "
        f"set spec.hardware.accelerator to one of them, or see `llmkube doctor` for what {accelerator} needs"
    )


def quantization_statement(model: Model, found: str) -> Statement:
    """Return the condition whether the file has the quantization of the spec; True if either is unknown.

    Args:
        model: The Model.
        found: Quantization in the file's header; empty if none was read.
    """
    wanted = model.spec.quantization or ""
    if not wanted or not found:
        unread = f"spec.quantization is {wanted}; no header was read"
        message = unread if wanted else "spec.quantization is unset"
        return Statement(QUANTIZATION_MATCHES, True, Reason.NOT_COMPARED, message)
    if _plain(wanted) == _plain(found):
        return Statement(QUANTIZATION_MATCHES, True, Reason.MATCHES, f"the file's quantization is {found}")
    message = f"spec.quantization is {wanted}, but the file's header has {found}: correct it, or name another file"
    return Statement(QUANTIZATION_MATCHES, False, Reason.QUANTIZATION_MISMATCH, message)


def label_quantization(model: Model, found: str) -> dict[str, str]:
    """Return `status.quantization`, if it is known; for the arguments see `quantization_statement`."""
    label = found or model.spec.quantization
    return {"quantization": label} if label else {}


def derive_model_status(model: Model, hosts: LiveHosts, *, now: datetime.datetime) -> dict[str, Any]:
    """Return the status fields of a Model on hosts that the controller owns.

    Args:
        model: The Model as observed, with the host's conditions.
        hosts: The hosts that are alive.
        now: Transition time of conditions that change.
    """
    verdict = assess_model(model, hosts)
    ready = verdict.phase == "Ready"
    header = model.status.gguf if ready else None
    found = header.quantization if header is not None else ""
    statements = [*_phase_statements(verdict), quantization_statement(model, found)]
    conditions = settle(statements, model.status.conditions, generation=model.metadata.generation, now=now)
    ready_since = conditions[0]["lastTransitionTime"] if ready else model.status.last_updated
    return {
        "phase": verdict.phase,
        **label_quantization(model, found),
        "acceleratorReady": bool(hosts.serving(accelerator_of(model))),
        **({"lastUpdated": ready_since} if ready_since else {}),
        "conditions": conditions,
    }


def _phase_statements(verdict: Verdict) -> list[Statement]:
    moving = verdict.phase in {"Pending", "Downloading", "Copying"}
    reported = {AVAILABLE: verdict.phase == "Ready", PROGRESSING: moving, DEGRADED: verdict.phase == "Failed"}
    return [Statement(kind, holds, verdict.reason, verdict.message) for kind, holds in reported.items()]


def _plain(label: str) -> str:
    return label.upper().replace("-", "_").strip()


def assess_supply(model: Model, supply: Supply, observed: JobFacts) -> Verdict:
    """Return a Model's phase and reason by the first table above."""
    if supply.by == "nothing":
        return Verdict("Failed", supply.reason, supply.message)
    if supply.by == "runtime":
        return Verdict("Ready", Reason.RUNTIME_RESOLVED, "the engine fetches it itself")
    if supply.by == "node":
        return Verdict("Ready", Reason.NODE_PATH, "the file has to exist on every node that serves it")
    if supply.by == "image":
        return Verdict("Ready", "ImageVolume", "the kubelet mounts it into each pod that serves it")
    if supply.by == "pods":
        note = "; spec.prefetch has no effect: each service has its own volume" if model.spec.prefetch else ""
        return Verdict("Ready", Reason.WORKLOAD_RESOLVED, f"each pod fetches it into its own volume{note}")
    if supply.by == "claim":
        return _assess_claim(model, observed.claim)
    return _assess_job(model, observed)


def derive_supplied_status(
    model: Model, supply: Supply, observed: JobFacts, *, now: datetime.datetime
) -> dict[str, Any]:
    """Return the status of a Model in pods, without the fields that only hosts report.

    Args:
        model: The Model as observed.
        supply: The supply of its weights.
        observed: The observed state of that.
        now: Transition time of conditions that change.
    """
    verdict = assess_supply(model, supply, observed)
    facts = _facts(model, supply, observed) if verdict.phase == "Ready" else {}
    ready = verdict.phase == "Ready"
    found = str((facts.get("gguf") or {}).get("quantization") or "")
    reported = [
        *_phase_statements(verdict),
        quantization_statement(model, found),
        *([up_to_date_statement(model, observed)] if supply.by == "job" and refreshes_on_change(model.spec) else []),
        *([inspection_statement(model, observed)] if has_header_read(model, supply) else []),
    ]
    conditions = settle(reported, model.status.conditions, generation=model.metadata.generation, now=now)
    return {
        "phase": verdict.phase,
        **facts,
        **label_quantization(model, found),
        **({"lastUpdated": conditions[0]["lastTransitionTime"]} if ready else {}),
        "conditions": conditions,
    }


def _assess_claim(model: Model, claim: PersistentVolumeClaim | None) -> Verdict:
    source = source_of(model.spec)
    assert isinstance(source, VolumeSource), "checked by choose_supply"
    name, _ = claim_path(source)
    if claim is None:
        return Verdict("Failed", Reason.PVC_NOT_FOUND, f'PersistentVolumeClaim "{name}" not found in this namespace')
    if claim.status.phase != "Bound":
        return Verdict("Pending", Reason.PVC_NOT_BOUND, f'PersistentVolumeClaim "{name}" is not bound to a volume yet')
    return Verdict("Ready", Reason.PVC_MODEL_READY, f'it is on PersistentVolumeClaim "{name}"')


def _assess_job(model: Model, observed: JobFacts) -> Verdict:
    job, fetched = observed.job, read_fetched(observed.pods)
    if is_remembered(model):
        newer = newer_version(model, observed)
        size = format_bytes(newer.size_bytes) if newer is not None else model.status.size
        return Verdict("Ready", Reason.MODEL_READY, f"{size} on the namespace's volume")
    if job is None:
        return Verdict("Pending", Reason.PENDING, "waiting for the Job that fetches it")
    if fetched is not None and is_complete(job):
        return Verdict("Ready", Reason.MODEL_READY, f"{format_bytes(fetched.size_bytes)} on the namespace's volume")
    # A pod may still be seen running after its Job is complete: the two caches are updated separately.
    running = any(pod.status.phase == "Running" for pod in observed.pods)
    if is_complete(job) and not running:
        return Verdict("Pending", Reason.NO_RESULT, f"Job {job.key.name} is complete, but its pod wrote no result")
    reason, message = read_failure(observed.pods)
    if is_failed(job):
        failed = find_condition(job.status.conditions, "Failed")
        reported = (failed.reason, failed.message) if failed else ("", "")
        again = f"; delete Job {job.key.name} to retry at once"
        return Verdict("Failed", reason or reported[0] or Reason.FETCH_FAILED, f"{message or reported[1]}{again}")
    trouble = trouble_of(observed.pods)
    if trouble is not None and not reason:
        return Verdict("Pending", trouble.reason, trouble.message)
    share = "" if observed.percent is None or not running else f": {observed.percent} %"
    if reason and fetched is None:
        return Verdict("Downloading", reason, f"{message}; the Job retries{share}")
    if running or fetched is not None:
        return Verdict("Downloading", Reason.DOWNLOAD_STARTED, f"Job {job.key.name} is fetching it{share}")
    # A quota that forbids the Job's pods, or a missing ConfigMap, is reported only in Events, which are not read.
    name = job.key.name
    message = f"Job {name} is waiting for its pod to start; `kubectl describe job {name}` shows why"
    return Verdict("Pending", Reason.PENDING, message)


def _facts(model: Model, supply: Supply, observed: JobFacts) -> dict[str, Any]:
    """Return the status fields of the weights: from a fetch that has just finished, or as recorded in the status."""
    if supply.by != "job":
        path = weights_path(model, supply)
        read = inspected_facts(model, observed) if has_header_read(model, supply) else {}
        return {**({"path": path} if path else {}), **read}
    status, key, newer = model.status, cache_key(model.spec), newer_version(model, observed)
    if is_remembered(model) and newer is None:
        facts: dict[str, Any] = {"size": status.size, "sha256": status.sha256, "path": status.path}
        facts |= {"sourceETag": status.source_etag, "sourceContentLength": status.source_content_length}
        facts["lastRevalidated"] = status.last_revalidated
        gguf, files = status.gguf, status.staged_files
    else:
        fetched = newer or read_fetched(observed.pods)
        assert fetched is not None, "the Model is Ready because of this result"
        facts = {"size": format_bytes(fetched.size_bytes), "sha256": fetched.sha256}
        facts["path"] = f"{CACHE_FOLDER}/{key}/{fetched.path}"
        if refreshes_on_change(model.spec):
            facts |= {"sourceETag": fetched.etag, "sourceContentLength": fetched.size_bytes}
            facts["lastRevalidated"] = finished_at(observed.job)
        gguf, files = fetched.gguf, fetched.files
    facts = {name: value for name, value in facts.items() if value}
    if gguf is not None:
        facts["gguf"] = encode(gguf)
    if len(files) > 1:
        facts["stagedFiles"] = list(files)
    volume = observed.claim.metadata.uid if observed.claim is not None else status.cache_volume
    return {"cacheKey": key, **facts, **({"cacheVolume": volume} if volume else {})}


UP_TO_DATE: Final = "UpToDate"

_LONG_AGO: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def without_lost_volume(model: Model, claim: PersistentVolumeClaim | None) -> Model:
    """Return the Model without the status fields of a volume that is gone."""
    volume = model.status.cache_volume
    if not volume or (claim is not None and claim.metadata.uid == volume):
        return model
    return attrs.evolve(model, status=attrs.evolve(model.status, path="", cache_volume=""))


def is_from_old_volume(job: Job | None, claim: PersistentVolumeClaim | None) -> bool:
    """Whether a Job's files were lost with an earlier claim: a Job is always created after its claim."""
    if job is None or not finished_at(job):
        return False
    made = job.metadata.creation_timestamp or ""
    return claim is None or (claim.metadata.creation_timestamp or "") > made


def revalidate_in_seconds(
    model: Model, job: Job | None, settings: WorkloadSettings, now: datetime.datetime
) -> float | None:
    """Return the seconds until a fetched source is due for revalidation; None if it never is.

    Timestamps are from the cluster's clock and `now` is from ours; with an interval of an hour the skew does not
    matter.
    """
    if not refreshes_on_change(model.spec) or not is_remembered(model):
        return None
    times = filter(None, map(parse_timestamp, (model.status.last_revalidated, finished_at(job))))
    since = now - max(times, default=_LONG_AGO)
    return max(settings.look_seconds - since.total_seconds(), 0.0)


def newer_version(model: Model, observed: JobFacts) -> Fetched | None:
    """Return the result of a revalidation that is not in the status yet; None if there is none."""
    if not refreshes_on_change(model.spec) or not is_remembered(model) or not is_complete(observed.job):
        return None
    return read_fetched(observed.pods) if finished_at(observed.job) != model.status.last_revalidated else None


def up_to_date_statement(model: Model, observed: JobFacts) -> Statement:
    """Return the condition with the result of the last revalidation; it is retained when its Job is gone."""
    fetched = read_fetched(observed.pods) if is_complete(observed.job) else None
    if fetched is not None and fetched.kept:
        message = f"the last check failed: {fetched.kept}; the existing file is kept"
        return Statement(UP_TO_DATE, False, Reason.LOOK_FAILED, message)
    if fetched is not None:
        message = "the file matched its source at the last check"
        return Statement(UP_TO_DATE, True, Reason.IN_SYNC, message)
    before = find_condition(model.status.conditions, UP_TO_DATE)
    if before is not None and is_remembered(model):
        return Statement(UP_TO_DATE, before.status == "True", before.reason, before.message)
    return Statement(UP_TO_DATE, False, Reason.NOT_FETCHED, "nothing has been fetched yet")
