"""kubectl that changes from client-side to server-side apply takes over what it has applied before.

Client-side apply keeps the whole manifest in an annotation. As long as a live object has it, a server-side apply of the
field manager `kubectl` does not conflict over a field that still is as that manifest said, whichever manager is
recorded for it, and the annotation follows what is applied: the user may go back.

Facts: `k8s.io/apimachinery/pkg/util/managedfields/internal`: lastappliedmanager.go, lastappliedupdater.go.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from llmkube.apiserver.fields import fieldset
from llmkube.apiserver.fields.fieldset import FieldSet
from llmkube.apiserver.fields.merge import MergeError, compare, misfits, paths_of
from llmkube.apiserver.fields.ownership import ApplyConflictError, Written, same_but_for_times, server_side_apply
from llmkube.apiserver.schema.structural import JsonObject, Schema
from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.json_values import is_object
from llmkube.apiserver.values.metadata import MAX_ANNOTATION_BYTES, annotations_size

ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL: Final = "kubectl"
"""The field manager of kubectl; any other name opts out."""

_ESCAPED: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""How Go writes what a browser might take for markup."""


def apply_as(
    live: Mapping[str, Any] | None,
    applied: Mapping[str, Any],
    manager: str,
    *,
    schema: Schema,
    now: str,
    force: bool,
    subresource: str,
    zero: Mapping[str, Any],
    reset: FieldSet,
) -> Written:
    """Do what `server_side_apply` does and raise what it raises; kubectl's own past is no obstacle to kubectl."""

    def attempt(*, force: bool) -> Written:
        return server_side_apply(
            live, applied, manager, schema=schema, now=now, force=force, subresource=subresource, zero=zero, reset=reset
        )

    if manager != KUBECTL:
        return attempt(force=force)
    try:
        written = attempt(force=force)
    except ApplyConflictError as exc:
        own = {fieldset.dotted(path) for path in _still_as_applied(live or {}, schema)}
        left = tuple(conflict for conflict in exc.conflicts if conflict.path not in own)
        if left:
            raise ApplyConflictError(left) from exc
        written = attempt(force=True)
    return _followed(live, written, applied)


def _still_as_applied(live: Mapping[str, Any], schema: Schema) -> FieldSet:
    """The fields that are as the last client-side apply has set them."""
    last = _last_applied(live)
    if last is None or any(misfits(last, schema)):
        return fieldset.NOTHING
    try:
        change = compare(last, live, schema)
        return paths_of(last, schema).difference(change.modified).difference(change.added).difference(change.removed)
    except MergeError:
        return fieldset.NOTHING


def _last_applied(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    try:
        last = json_text.read(_annotation(live))
    except ValueError:
        return None
    return last if is_object(last) and last.get("apiVersion") == live.get("apiVersion") else None


def _annotation(obj: Mapping[str, Any]) -> str:
    return str(((obj.get("metadata") or {}).get("annotations") or {}).get(ANNOTATION) or "")


def _followed(live: Mapping[str, Any] | None, written: Written, applied: Mapping[str, Any]) -> Written:
    """Return the write with the annotation, where there is one, saying what was applied; dropped if it has no room."""
    if not _annotation(written.object):
        return written
    metadata = written.object["metadata"]
    annotations = {**metadata["annotations"], ANNOTATION: _as_annotation(applied)}
    if annotations_size(annotations) > MAX_ANNOTATION_BYTES:
        del annotations[ANNOTATION]
    obj: JsonObject = {**written.object, "metadata": {**metadata, "annotations": annotations}}
    return Written(obj, live is not None and same_but_for_times(live, obj))


def _as_annotation(applied: Mapping[str, Any]) -> str:
    metadata = dict(applied.get("metadata") or {})
    if is_object(metadata.get("annotations")):
        metadata["annotations"] = {name: text for name, text in metadata["annotations"].items() if name != ANNOTATION}
    bare = {**applied, "metadata": metadata}
    return json.dumps(bare, ensure_ascii=False, separators=(",", ":"), sort_keys=True).translate(_ESCAPED) + "\n"
