"""A Model's phase and conditions, from what hosts report about its file. Pure.

| what is known | phase | reason |
|---|---|---|
| `Fetched` holds | Ready | ModelReady |
| `Fetched` does not hold, for any reason but `Fetching` | Failed | that reason |
| no live host serves the accelerator | Pending | NoHost |
| `Fetched` is at `Fetching` | Downloading, or Copying for a file that is on the host | DownloadStarted, CopyStarted |
| nothing yet | Pending | Pending |

The first row that fits wins. A `Fetched` condition about an older spec says nothing about this one.
"""

import datetime
from typing import Any, Final

from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.live_hosts import LiveHosts
from llmkube.k8s.wire.conditions import AVAILABLE, DEGRADED, FETCHED, PROGRESSING, Statement, Verdict, current, settle
from llmkube.k8s.wire.reasons import Reason

QUANTIZATION_MATCHES: Final = "QuantizationMatches"
_LOCAL_PREFIXES: Final = ("/", "file://", "builtin://")


def accelerator_of(model: Model) -> str:
    """What a Model asks to run on."""
    return model.spec.hardware.accelerator


def judge_model(model: Model, hosts: LiveHosts) -> Verdict:
    """Decide a Model's phase."""
    fetched = current(model.status.conditions, FETCHED, model.metadata.generation)
    if fetched is not None and fetched.status == "True":
        return Verdict("Ready", Reason.MODEL_READY, fetched.message or "the file is in place")
    if fetched is not None and fetched.reason != Reason.FETCHING:
        return Verdict("Failed", fetched.reason, fetched.message)
    accelerator = accelerator_of(model)
    if not hosts.serving(accelerator):
        return Verdict("Pending", Reason.NO_HOST, no_host_message(accelerator, hosts))
    if fetched is None:
        return Verdict("Pending", Reason.PENDING, "waiting for a host to fetch it once a service uses it")
    if model.spec.source.startswith(_LOCAL_PREFIXES):
        return Verdict("Copying", Reason.COPY_STARTED, fetched.message)
    return Verdict("Downloading", Reason.DOWNLOAD_STARTED, fetched.message)


def no_host_message(accelerator: str, hosts: LiveHosts) -> str:
    """Say that no host serves an accelerator, and what would help, or when a host that serves nothing now will."""
    none = f"no live host serves accelerator {accelerator}"
    if hosts.cordons:
        return f"{none}; " + ", ".join(f"{host} is cordoned {end}" for host, end in sorted(hosts.cordons.items()))
    return f"{none}; start `llmkube agent --accelerator {accelerator}` on one"


def judge_quantization(model: Model, found: str) -> Statement:
    """Say whether a file is quantized as the spec says; where either says nothing, nothing contradicts.

    Args:
        model: The Model.
        found: What the file's header says; empty when none was read.
    """
    wanted = model.spec.quantization or ""
    if not wanted or not found:
        unread = f"spec.quantization is {wanted}; no header was read"
        message = unread if wanted else "spec.quantization is unset"
        return Statement(QUANTIZATION_MATCHES, holds=True, reason=Reason.NOT_COMPARED, message=message)
    if _plain(wanted) == _plain(found):
        return Statement(QUANTIZATION_MATCHES, holds=True, reason=Reason.MATCHES, message=f"the file is {found}")
    message = f"spec.quantization is {wanted}, but the header says {found}: correct it, or name another file"
    return Statement(QUANTIZATION_MATCHES, holds=False, reason=Reason.QUANTIZATION_MISMATCH, message=message)


def label_quantization(model: Model, found: str) -> dict[str, str]:
    """Return `status.quantization`, if there is one; the arguments are those of `judge_quantization`."""
    label = found or model.spec.quantization
    return {"quantization": label} if label else {}


def derive_model_status(model: Model, hosts: LiveHosts, *, now: datetime.datetime) -> dict[str, Any]:
    """Return the part of a Model's status that the controller owns.

    Args:
        model: The Model as observed, with the host's conditions.
        hosts: The hosts that are alive.
        now: The time of a condition that flips here.
    """
    verdict = judge_model(model, hosts)
    said = {
        AVAILABLE: verdict.phase == "Ready",
        PROGRESSING: verdict.phase in {"Pending", "Downloading", "Copying"},
        DEGRADED: verdict.phase == "Failed",
    }
    statements = [Statement(kind, holds, verdict.reason, verdict.message) for kind, holds in said.items()]
    read = model.status.gguf if said[AVAILABLE] else None
    found = read.quantization if read is not None else ""
    statements.append(judge_quantization(model, found))
    conditions = settle(statements, model.status.conditions, generation=model.metadata.generation, now=now)
    ready_since = conditions[0]["lastTransitionTime"] if said[AVAILABLE] else model.status.last_updated
    return {
        "phase": verdict.phase,
        **label_quantization(model, found),
        "acceleratorReady": bool(hosts.serving(accelerator_of(model))),
        **({"lastUpdated": ready_since} if ready_since else {}),
        "conditions": conditions,
    }


def _plain(label: str) -> str:
    return label.upper().replace("-", "_").strip()
