"""A deletion is only requested at first: finalizers and dependents may delay it."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from llmkube.apiserver.kinds.catalog import CRDS, NAMESPACES
from llmkube.apiserver.storage.revisions import Object, Ref, Transaction
from llmkube.apiserver.values.json_values import set_or_drop

Propagation = Literal["", "Background", "Foreground", "Orphan"]

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
INSTANCES: Final = "customresourcecleanup.apiextensions.k8s.io"
"""Finalizer of a CRD that is being deleted: its instances are deleted first."""


def delete(tx: Transaction, ref: Ref, stored: Object, now: str, propagation: Propagation = "") -> tuple[Object, bool]:
    """Stage the deletion of an object; return its last state, and whether it is removed already.

    An object with finalizers stays, marked with a deletionTimestamp, until the last one is removed (`stage`).
    """
    metadata = dict(stored["metadata"])
    finalizers = _with_propagation(metadata.get("finalizers") or [], propagation)
    if ref.kind == CRDS and "deletionTimestamp" not in metadata and INSTANCES not in finalizers:
        finalizers.append(INSTANCES)
    changed = {**stored, "metadata": metadata}
    set_or_drop(metadata, "finalizers", finalizers)
    if not has_finalizers(ref, changed):
        return tx.remove(ref, stored), True
    if "deletionTimestamp" in metadata:
        if finalizers == list(stored["metadata"].get("finalizers") or []):
            return stored, False  # a repeated request changes nothing
        return tx.put(ref, changed), False
    metadata["deletionTimestamp"] = now
    if ref.kind != NAMESPACES:
        metadata["deletionGracePeriodSeconds"] = 0
    if "generation" in metadata:
        metadata["generation"] += 1
    if ref.kind == NAMESPACES:
        changed["status"] = {**stored.get("status", {}), "phase": "Terminating"}
    if ref.kind == CRDS:
        changed["status"] = _terminating(stored.get("status", {}), now)
    return tx.put(ref, changed), False


def stage(tx: Transaction, ref: Ref, changed: Object) -> Object:
    """Stage an update, and return the object; one under deletion without finalizers is removed."""
    if "deletionTimestamp" in changed["metadata"] and not has_finalizers(ref, changed):
        tx.remove(ref, changed)
        return changed  # as written: only the watch event has the revision of the removal
    return tx.put(ref, changed)


def has_finalizers(ref: Ref, candidate: Mapping[str, Any]) -> bool:
    """Whether a finalizer still holds the object."""
    if candidate["metadata"].get("finalizers"):
        return True
    return ref.kind == NAMESPACES and bool((candidate.get("spec") or {}).get("finalizers"))


def without_finalizer(stored: Object, finalizer: str) -> Object:
    """Return the object without one of its finalizers."""
    metadata = dict(stored["metadata"])
    set_or_drop(metadata, "finalizers", [name for name in metadata.get("finalizers") or [] if name != finalizer])
    return {**stored, "metadata": metadata}


def _with_propagation(finalizers: list[str], propagation: Propagation) -> list[str]:
    if not propagation:
        return list(finalizers)
    kept = [name for name in finalizers if name not in {FOREGROUND, ORPHAN}]
    return kept + {"Foreground": [FOREGROUND], "Orphan": [ORPHAN]}.get(propagation, [])


def _terminating(status: Mapping[str, Any], now: str) -> dict[str, Any]:
    condition = {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": now,
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    }
    others = [other for other in status.get("conditions") or [] if other.get("type") != "Terminating"]
    return {**status, "conditions": [*others, condition]}
