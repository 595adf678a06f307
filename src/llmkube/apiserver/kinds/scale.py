"""The scale subresource shows the replica counts of any kind as an `autoscaling/v1` Scale, and writes them back."""

from collections.abc import Mapping
from typing import Any

from llmkube.apiserver.schema.builtin_types import type_schema
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.storage.revisions import Object
from llmkube.apiserver.values.api_errors import internal
from llmkube.apiserver.values.field_errors import FieldError, invalid
from llmkube.apiserver.values.json_values import copy, is_integer

JsonObject = dict[str, Any]

SCALE = Schema.parse(type_schema("io.k8s.api.autoscaling.v1.Scale"))
"""Schema of a Scale."""

_SHOWN_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(stored: Object, paths: Mapping[str, str]) -> JsonObject:
    """Return the Scale of an object; a missing count in its status is 0.

    Raises:
        RequestRefusedError: 500, its spec has no replica count.
    """
    metadata = {name: stored["metadata"][name] for name in _SHOWN_METADATA if name in stored["metadata"]}
    status: JsonObject = {"replicas": _get(stored, paths["statusReplicasPath"]) or 0}
    if selector := _get(stored, paths.get("labelSelectorPath") or ""):
        status["selector"] = selector
    path = paths["specReplicasPath"]
    replicas = _get(stored, path)
    if replicas is None:
        raise internal(f'the spec replicas field "{paths["specReplicasPath"]}" does not exist')
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def is_scale(shown: Mapping[str, Any]) -> bool:
    """Whether the object to be shown is a Scale, not an object of the kind that it belongs to."""
    return shown.get("apiVersion") == "autoscaling/v1" and shown.get("kind") == "Scale"


def scale_with_replicas(scale: JsonObject) -> JsonObject:
    """Return a Scale that has its replicas even when they are 0, so that a patch finds the field."""
    return {**scale, "spec": {"replicas": 0, **scale["spec"]}}


def scaled(stored: Object, wanted: Mapping[str, Any], paths: Mapping[str, str]) -> tuple[JsonObject, list[FieldError]]:
    """Return the object with the replicas of a Scale, and the errors in that Scale."""
    spec = wanted.get("spec") or {}
    replicas = spec.get("replicas", 0) if isinstance(spec, Mapping) else None
    if replicas is None:
        replicas = 0
    if not is_integer(replicas):
        return copy(stored), [invalid("spec.replicas", replicas, "must be an integer")]
    changed: JsonObject = copy(stored)
    _set(changed, paths["specReplicasPath"], int(replicas))
    version = (wanted.get("metadata") or {}).get("resourceVersion")
    if version:
        changed["metadata"]["resourceVersion"] = version
    return changed, []


def _get(document: Any, path: str) -> Any:
    """Follow a plain dotted path, the only form that a CRD allows here."""
    for step in path.strip(".").split("."):
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def _set(document: JsonObject, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for step in parents:
        document = document.setdefault(step, {})
    document[last] = value
