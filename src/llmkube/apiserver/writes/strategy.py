"""The steps of a write, the same for every kind: complete, own, prepare, validate.

The order, as in kube-apiserver, for an object `sent` that is to replace `old` (None on create):

```python
obj, unknown = strategy.complete(kind, sent)                                  # prune, then defaults
obj = ownership.record_write(old, obj, manager, strategy.endpoint(kind, subresource), now=…)
obj = strategy.prepare(kind, obj, old, subresource)                           # drop what this endpoint cannot write
errors = strategy.check(kind, obj, old, subresource)                          # 422 when there are any
obj["metadata"]["generation"] = strategy.next_generation(kind, obj, old)
if old is not None and ownership.equal_except_times(old, obj): respond with old  # nothing changed
```

For an apply, `ownership.server_side_apply` comes first and `complete` after it: a default has no owner.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from llmkube.apiserver.fields import fieldset, managed_fields
from llmkube.apiserver.fields.fieldset import FieldSet
from llmkube.apiserver.fields.ownership import Endpoint
from llmkube.apiserver.kinds import builtin_rules
from llmkube.apiserver.kinds.catalog import CRDS
from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.schema import defaults, validation
from llmkube.apiserver.schema.structural import JsonObject
from llmkube.apiserver.values import metadata
from llmkube.apiserver.values.field_errors import ErrorType, FieldError, forbidden, invalid
from llmkube.apiserver.values.json_values import copy, go_plain, go_type_name, is_integer, is_object, same, set_or_drop

Old = Mapping[str, Any] | None

_SERVER_FIELDS: Final = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_STATUS: Final = FieldSet(frozenset({"f:status"}))
_SPEC: Final = FieldSet(frozenset({"f:spec"}))
_SPEC_AND_METADATA: Final = FieldSet(frozenset({"f:spec", "f:metadata"}))
_SLICES: Final = "endpointslices.discovery.k8s.io"
_MAX_REPLICAS: Final = 2**31 - 1


def endpoint(kind: KindInfo, subresource: str = "") -> Endpoint:
    """Return the properties of an endpoint for ownership; only built-in kinds have structure before it is set."""
    zero = defaults.zero(kind.schema) if kind.builtin else {}
    return Endpoint(kind.schema, subresource, zero, reset_fields(kind, subresource))


def reset_fields(kind: KindInfo, subresource: str = "") -> FieldSet:
    """Return the fields that an endpoint does not write, so that a write gives them no owner."""
    if subresource == "status":
        return _SPEC if kind.builtin else _SPEC_AND_METADATA
    if not subresource and kind.status_subresource:
        return _STATUS
    return fieldset.NOTHING


def complete(kind: KindInfo, obj: Mapping[str, Any], *, applied: bool = False) -> tuple[JsonObject, tuple[str, ...]]:
    """Return the object in its stored form, and the paths of the unknown fields that were dropped.

    A null that was sent is treated as missing; one that an apply left in a custom object stays, and is refused later.
    """
    fill = _behaviour(kind).fill
    if fill is None and defaults.is_complete(obj, kind.schema):  # such as a repeated apply
        return {**obj, **_stored_metadata(obj)}, ()
    completed, unknown = defaults.prune(obj, kind.schema)
    completed |= _stored_metadata(completed)
    if kind.builtin or not applied:
        defaults.drop_unset(completed, kind.schema, builtin=kind.builtin)
    defaults.fill(completed, kind.schema)
    if fill is not None and validation.well_typed(completed, kind.schema):
        fill(completed)
    return completed, unknown if kind.builtin else tuple(sorted(unknown))


def _stored_metadata(obj: Mapping[str, Any]) -> JsonObject:
    meta = obj.get("metadata")
    return {"metadata": metadata.stored_form(meta)} if isinstance(meta, Mapping) else {}


def complete_applied(kind: KindInfo, obj: Mapping[str, Any], subresource: str) -> JsonObject:
    """Return the result of an apply in its stored form.

    Its `managedFields` already have that form; if a custom object's status is applied, `prepare` uses only the status.
    """
    metadata = obj["metadata"]
    if subresource == "status" and not kind.builtin:
        completed, _ = complete(kind, {"status": obj["status"]} if "status" in obj else {}, applied=True)
        return {**_without_status(obj), **{name: completed[name] for name in ("status",) if name in completed}}
    managers = {name: metadata[name] for name in ("managedFields",) if name in metadata}
    rest = {**obj, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}
    completed, _ = complete(kind, rest, applied=True)
    completed["metadata"] |= managers
    return completed


def _without_status(obj: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in obj.items() if name != "status"}


def warnings(kind: KindInfo, obj: Mapping[str, Any]) -> list[str]:
    """Return kube-apiserver's warnings about an object that it accepts; the object has passed `check`."""
    return [*metadata.finalizer_warnings(obj.get("metadata") or {}), *_behaviour(kind).warnings(obj)]


def prepare(kind: KindInfo, obj: Mapping[str, Any], old: Old, subresource: str = "") -> JsonObject:
    """Return the object without the changes that the endpoint cannot write, and with what the kind adds.

    On an update, metadata that the server maintains and the client left out comes from the stored object; what the
    client changed in it stays, for `check` to refuse. A write to the object does not change `status` where it is a
    subresource; a write to `status` changes nothing else but `managedFields`, and in a built-in kind the rest of the
    metadata.
    """
    edits_in_place = _behaviour(kind).prepare is not None  # beyond metadata
    prepared = _editable(defaults.nullified(obj, kind.schema) if kind.builtin else obj, deep=edits_in_place)
    if old is None:
        _reset_status(kind, prepared)
        _prepare_kind(kind, prepared, None)
        return prepared
    is_status_write = subresource == "status"
    # In built-in kinds except CRDs a write to `status` also changes labels and the like.
    if is_status_write and (not kind.builtin or kind.resource.full_name == CRDS):
        return _status_only(prepared, old)
    if kind.status_subresource or is_status_write:
        kept = "spec" if is_status_write else "status"
        prepared.pop(kept, None)
        if kept in old:
            prepared[kept] = old[kept]
    _restore_metadata(kind, prepared.setdefault("metadata", {}), old.get("metadata") or {})
    if not is_status_write:
        _prepare_kind(kind, prepared, old)
    return prepared


def _prepare_kind(kind: KindInfo, obj: JsonObject, old: Old) -> None:
    hook = _behaviour(kind).prepare
    if hook is not None and validation.well_typed(obj, kind.schema):  # `check` refuses malformed objects
        hook(obj, old)


def _editable(obj: Mapping[str, Any], *, deep: bool) -> JsonObject:
    """Return a copy whose metadata can be edited in place, and with `deep` everything else too."""
    copied = {name: copy(value) if deep and name != "metadata" else value for name, value in obj.items()}
    if is_object(obj.get("metadata")):
        copied["metadata"] = dict(obj["metadata"])
    return copied


def _restore_metadata(kind: KindInfo, meta: JsonObject, before: Mapping[str, Any]) -> None:
    """Restore, in place, metadata that the server maintains and the client left out."""
    for name in _SERVER_FIELDS:
        if not meta.get(name) and name in before:
            meta[name] = before[name]
    if "creationTimestamp" in before:
        meta["creationTimestamp"] = before["creationTimestamp"]  # a client's value is ignored, not refused
    if not meta.get("resourceVersion") and kind.unconditional_update:
        meta["resourceVersion"] = before.get("resourceVersion", "")


def _reset_status(kind: KindInfo, obj: JsonObject) -> None:
    """Give a new object its initial status: none, or the empty structure of a built-in kind."""
    if kind.status_subresource:
        obj.pop("status", None)
        status = kind.schema.child("status") if kind.builtin else None
        if status is not None and status.has_default:
            obj["status"] = defaults.zero(status)


def check(kind: KindInfo, obj: Mapping[str, Any], old: Old, subresource: str = "") -> list[FieldError]:
    """Return all errors in a prepared object; empty means that it can be stored."""
    schema_errors = _schema_errors(kind, obj, old, subresource)
    if any(_is_metadata_error(error) and error.type is ErrorType.TYPE_INVALID for error in schema_errors):
        return schema_errors
    schema_errors = [error for error in schema_errors if not _is_metadata_error(error)]
    errors = metadata.check(obj, old, kind.name_rule)
    namespace = (obj.get("metadata") or {}).get("namespace")
    if namespace and not kind.resource.namespaced:
        errors.append(forbidden("metadata.namespace", "not allowed on this type"))
    errors += schema_errors
    if kind.builtin:
        if not schema_errors:
            behaviour = _behaviour(kind)
            errors += behaviour.check_status(obj) if subresource == "status" else behaviour.check(obj, old)
        return errors
    if kind.scale is not None:
        shown = "statusReplicasPath" if subresource == "status" else "specReplicasPath"
        errors += _check_replicas(obj, kind.scale[shown])
    return validation.with_rule_errors(errors, obj, old, kind.schema)


def _is_metadata_error(error: FieldError) -> bool:
    """Whether the metadata's own check reports the error already; a CRD may still restrict names."""
    return error.path.startswith("metadata") and error.path not in {"metadata.name", "metadata.generateName"}


def _schema_errors(kind: KindInfo, obj: Mapping[str, Any], old: Old, subresource: str) -> list[FieldError]:
    """Validate what the endpoint writes; in a custom kind's status, messages (not paths) begin at the status.

    `managedFields` are the server's own, and are not validated.
    """
    if subresource != "status" or kind.builtin or "status" not in obj:
        return validation.schema_errors(managed_fields.strip(obj), old, kind.schema, duplicates=not kind.builtin)
    schema, before = kind.schema.child("status"), (old or {}).get("status")
    errors = validation.schema_errors(obj["status"], before, schema, "status") if schema is not None else []
    return [attrs.evolve(error, detail=error.detail.removeprefix("status").removeprefix(".")) for error in errors]


def _check_replicas(obj: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the count that the scale subresource shows, as kube-apiserver does, whatever the schema is."""
    value: Any = obj
    for step in path.strip(".").split("."):
        if not is_object(value):
            yield invalid(path, 0, f"{path} accessor error: {_go_text(value)}, expected map[string]interface{{}}")
            return
        value = value.get(step)
        if value is None:
            return
    if not is_integer(value) or isinstance(value, float):  # 1.0 is an integer in a schema, but not here
        yield invalid(path, 0, f"{path} accessor error: {_go_text(value)}, expected int64")
    elif value < 0:
        yield invalid(path, value, "should be a non-negative integer")
    elif value > _MAX_REPLICAS:
        yield invalid(path, value, f"should be less than or equal to {_MAX_REPLICAS}")


def _go_text(value: Any) -> str:
    return f"{go_plain(value)} is of the type {go_type_name(value)}"


def next_generation(kind: KindInfo, obj: Mapping[str, Any], old: Old) -> int | None:
    """Return the object's generation after the write, incremented if the desired state or a slice's labels change.

    None if the kind has no generations, like the built-in kinds without a controller of their own.
    """
    if not kind.has_generation:
        return None
    if old is None:
        return 1
    meta, meta_before = obj.get("metadata") or {}, old.get("metadata") or {}
    before = int(meta_before.get("generation") or 0)
    if kind.resource.full_name == _SLICES and not same(meta.get("labels") or {}, meta_before.get("labels") or {}):
        return before + 1
    ignored = {"metadata", "status"} if kind.status_subresource else {"metadata"}
    desired, stored = ({name: value for name, value in side.items() if name not in ignored} for side in (obj, old))
    return before if same(desired, stored) else before + 1


def _behaviour(kind: KindInfo) -> builtin_rules.Behaviour:
    """Return the special rules of the kind, for well-typed objects."""
    return builtin_rules.BEHAVIOURS.get(kind.resource.full_name, builtin_rules.DEFAULT_BEHAVIOUR)


def _status_only(obj: JsonObject, old: Mapping[str, Any]) -> JsonObject:
    meta, sent = dict(old.get("metadata") or {}), obj.get("metadata") or {}
    kept = {**_without_status(old), "metadata": meta}
    if "status" in obj:
        kept["status"] = obj["status"]
    set_or_drop(meta, "managedFields", sent.get("managedFields"))
    return kept
