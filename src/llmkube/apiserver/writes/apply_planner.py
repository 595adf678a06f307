"""Apply merges a client's configuration into the live object, and records who has set which field.

When kubectl changes from client-side to server-side apply, it takes over the fields that it has applied before.
Client-side apply stores the whole manifest in an annotation. As long as a live object has it, a server-side apply by
the field manager `kubectl` does not conflict over a field that still has the value of that manifest, whichever manager
is recorded for it, and the annotation is updated with what is applied, so that the user may change back.

Facts: `k8s.io/apimachinery/pkg/util/managedfields/internal`: lastappliedmanager.go, lastappliedupdater.go.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from llmkube.apiserver.fields import fieldset
from llmkube.apiserver.fields.fieldset import FieldSet
from llmkube.apiserver.fields.merge import MergeError, check, compare, paths_of
from llmkube.apiserver.fields.ownership import ApplyConflictError, ApplyRefusedError, server_side_apply
from llmkube.apiserver.kinds.catalog import Catalog, in_version
from llmkube.apiserver.protocol import request_bodies
from llmkube.apiserver.schema.structural import JsonObject, Schema
from llmkube.apiserver.storage.revisions import Object, Transaction
from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.api_errors import (
    RequestRefusedError,
    apply_conflict,
    bad_request,
    conflict,
    not_found,
    plain_internal,
    status_cause,
    unprocessable,
)
from llmkube.apiserver.values.json_values import ABSENT, is_object
from llmkube.apiserver.values.metadata import MAX_ANNOTATION_BYTES, annotations_size
from llmkube.apiserver.writes import strategy
from llmkube.apiserver.writes.deletion import stage
from llmkube.apiserver.writes.preparation import ObjectPreparation, validation_warnings
from llmkube.apiserver.writes.request_objects import (
    check_applied_type,
    check_namespace,
    check_version,
    decoding,
    set_name_and_namespace,
    with_metadata,
)
from llmkube.apiserver.writes.request_target import Outcome, Target, outcome_of
from llmkube.apiserver.writes.write_options import WriteOptions

ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL: Final = "kubectl"
"""The default field manager of kubectl; the annotation is updated only for it."""

_ESCAPED: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""Go's escapes for characters that a browser might take for markup."""


def _apply_as_kubectl(
    attempt: Callable[..., JsonObject],
    live: Mapping[str, Any],
    applied: Mapping[str, Any],
    schema: Schema,
    *,
    force: bool,
) -> JsonObject:
    """Call `server_side_apply`, and ignore conflicts over fields that kubectl itself has applied before."""
    try:
        written = attempt(force=force)
    except ApplyConflictError as exc:
        own = {fieldset.dotted(path) for path in _unchanged_since_applied(live, schema)}
        left = tuple(conflict for conflict in exc.conflicts if conflict.path not in own)
        if left:
            raise ApplyConflictError(left) from exc
        written = attempt(force=True)
    return _update_annotation(written, applied)


def _unchanged_since_applied(live: Mapping[str, Any], schema: Schema) -> FieldSet:
    """Return the fields that have the same value as in the last client-side apply."""
    last = _last_applied(live)
    if last is None or any(check(last, schema)):
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


def _update_annotation(written: JsonObject, applied: Mapping[str, Any]) -> JsonObject:
    """Return the object with its annotation, if any, set to what was applied; dropped if it is too large."""
    if not _annotation(written):
        return written
    metadata = written["metadata"]
    annotations = {**metadata["annotations"], ANNOTATION: _as_annotation(applied)}
    if annotations_size(annotations) > MAX_ANNOTATION_BYTES:
        del annotations[ANNOTATION]
    return {**written, "metadata": {**metadata, "annotations": annotations}}


def _as_annotation(applied: Mapping[str, Any]) -> str:
    metadata = dict(applied.get("metadata") or {})
    if is_object(metadata.get("annotations")):
        metadata["annotations"] = {name: text for name, text in metadata["annotations"].items() if name != ANNOTATION}
    bare = {**applied, "metadata": metadata}
    return json.dumps(bare, ensure_ascii=False, separators=(",", ":"), sort_keys=True).translate(_ESCAPED) + "\n"


class ApplyPlanner:
    """Server-side apply over one catalog."""

    def __init__(self, catalog: Catalog, preparation: ObjectPreparation, timestamp: Callable[[], str]) -> None:
        self._catalog = catalog
        self._preparation = preparation
        self._timestamp = timestamp

    def apply(
        self,
        tx: Transaction,
        target: Target,
        manifest: Mapping[str, Any],
        options: WriteOptions,
        duplicates: list[str] | None = None,
    ) -> Outcome:
        """Merge a configuration into the live object, or create it.

        Raises:
            RequestRefusedError: 409 when other managers own what would change, 400 and 422 for an invalid
                configuration.
        """
        if not isinstance(manifest.get("metadata"), Mapping | None):
            raise _typed_patch_error(target, {}, ".metadata: expected map")
        wanted = with_metadata(manifest)
        if target.subresource == "scale":
            raise unprocessable("server-side apply on the scale subresource is not supported; patch or update it")
        check_applied_type(target, wanted)
        stored = tx.get(target.ref)
        metadata = wanted["metadata"]
        if stored is None and target.subresource:
            raise not_found(target.subject)
        if stored is None and metadata.get("uid"):
            why = f"uid mismatch: the provided object specified uid {metadata['uid']}, and no existing object was found"
            raise conflict(target.subject, why)
        if stored is not None:
            check_version(target, stored, metadata)
        metadata.pop("resourceVersion", None)
        with decoding(target):
            warnings = validation_warnings(duplicates or [], options)
        old = None if stored is None else in_version(target.kind, stored)
        merged = self._merged(target, old, wanted, options)
        set_name_and_namespace(target, merged)
        if stored is None:
            check_namespace(self._catalog, tx, target)
        with decoding(target):
            request_bodies.check_shape(_client_metadata(merged, old))
        new = self._preparation.applied(tx, target, old, merged)
        if new is None:
            return outcome_of(target, old or {}, warnings=warnings)
        if old is None:
            return outcome_of(target, tx.put(target.ref, new), status=201, warnings=warnings)
        return outcome_of(target, stage(tx, target.ref, new), warnings=warnings)

    def _merged(self, target: Target, old: Object | None, wanted: JsonObject, options: WriteOptions) -> JsonObject:
        endpoint, now = strategy.endpoint(target.kind, target.subresource), self._timestamp()
        attempt = partial(server_side_apply, old, wanted, options.manager, endpoint, now=now)
        try:
            if options.manager == KUBECTL:
                return _apply_as_kubectl(attempt, old or {}, wanted, endpoint.schema, force=options.force)
            return attempt(force=options.force)
        except ApplyConflictError as exc:
            causes = [status_cause("FieldManagerConflict", each.message, each.path) for each in exc.conflicts]
            raise apply_conflict(str(exc), causes) from exc
        except ApplyRefusedError as exc:
            raise bad_request(str(exc)) from exc
        except MergeError as exc:
            raise _typed_patch_error(target, wanted["metadata"], str(exc)) from exc


def _client_metadata(merged: JsonObject, old: Object | None) -> JsonObject:
    """Return the metadata that the client has set: without `managedFields` and unchanged fields."""
    metadata, before = merged.get("metadata"), {} if old is None else old["metadata"]
    if not isinstance(metadata, dict):
        return merged
    fresh = {name: value for name, value in metadata.items() if value is not before.get(name, ABSENT)}
    fresh.pop("managedFields", None)
    return {"metadata": fresh}


def _typed_patch_error(target: Target, metadata: Mapping[str, Any], why: str) -> RequestRefusedError:
    """Return the refusal of a configuration that does not fit the schema: a 500, as in kube-apiserver."""
    resource = target.kind.resource
    name = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"
    what = f"({name}; {resource.group}/{resource.version}, Kind={resource.kind})"
    return plain_internal(f"failed to create typed patch object {what}: {why}")
