"""Field ownership, for server-side apply and for every other write.

An apply merges a configuration into the live object: a field that the manager owned and no longer names is removed
unless another manager owns it, and changing a value that another manager owns is a conflict unless the apply is forced.
Other writes take over the fields that they change.

Facts: KEP-555; `sigs.k8s.io/structured-merge-diff/merge`; `k8s.io/apimachinery/pkg/util/managedfields`.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.apiserver.fields import fieldset, managed_fields
from llmkube.apiserver.fields.fieldset import FieldSet, FieldSetError
from llmkube.apiserver.fields.managed_fields import Entry, Managers, Writer
from llmkube.apiserver.fields.merge import Comparison, MergeError, check, compare, merge, paths_of, remove, with_named
from llmkube.apiserver.schema.structural import JsonObject, Schema
from llmkube.apiserver.values.json_values import is_object, same
from llmkube.base.errors import UserError

_SERVER_FIELDS: Final = (
    *("name", "namespace", "creationTimestamp", "selfLink", "uid"),
    *("clusterName", "generation", "managedFields", "resourceVersion"),
)
_IDENTITY: Final = FieldSet.of(
    [("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _SERVER_FIELDS)]
)
"""Fields that no manager owns: the object's identity and metadata that the server maintains."""

_BEFORE_FIRST_APPLY: Final = "before-first-apply"

_NOTHING: Final[Mapping[str, Any]] = {}


@attrs.frozen
class Endpoint:
    """The properties of an endpoint that ownership depends on."""

    schema: Schema  # of the whole object
    subresource: str = ""  # such as `status`; part of the manager's identity
    zero: Mapping[str, Any] = _NOTHING
    """An object of the kind before anything is set (`defaults.zero`); built-in kinds have `spec: {}`."""
    reset: FieldSet = fieldset.NOTHING
    """Paths that this endpoint does not write (`strategy.reset_fields`); no manager gets to own them through it."""


@attrs.frozen
class Conflict:
    """A field that the apply would change and another manager owns."""

    manager: str  # as the message names it: `"kubectl-edit" using v1`
    path: str  # `.spec.replicas`

    @property
    def message(self) -> str:
        """The message of the Status cause (reason `FieldManagerConflict`, field `path`)."""
        return f"conflict with {self.manager}"


class ApplyConflictError(UserError):
    """Other managers own fields that the apply would change; the message is kube-apiserver's."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        self.conflicts = conflicts
        if len(conflicts) == 1:
            text = f"1 conflict: {conflicts[0].message}: {conflicts[0].path}"
        else:
            by_manager: dict[str, list[str]] = {}
            for conflict in conflicts:
                by_manager.setdefault(conflict.manager, []).append(f"- {conflict.path}")
            parts = ["\n".join([f"conflicts with {name}:", *paths]) for name, paths in sorted(by_manager.items())]
            text = f"{len(conflicts)} conflicts: " + "\n".join(parts)
        super().__init__(f"Apply failed with {text}")


class ApplyRefusedError(UserError):
    """The configuration cannot be applied as it is: an HTTP 400."""


def server_side_apply(
    live: Mapping[str, Any] | None,
    applied: Mapping[str, Any],
    manager: str,
    endpoint: Endpoint,
    *,
    now: str,
    force: bool = False,
) -> JsonObject:
    """Return the live object with the configuration applied; the caller fills in defaults afterwards.

    It has its `managedFields`, and shares what did not change, so treat it as immutable.

    Args:
        live: The stored object, or None to create.
        applied: The configuration as the client sent it, not defaulted and not pruned.
        manager: Name of the manager that applies; the caller has refused an empty one.
        endpoint: The endpoint that is written.
        now: RFC 3339, for the manager's entry when something changes.
        force: Take over fields that others own, instead of raising a conflict.

    Raises:
        ApplyRefusedError: Another apiVersion, or `managedFields` in the configuration.
        ApplyConflictError: Other managers own what would change, and `force` is off.
        MergeError: The configuration does not fit the schema.
    """
    if (applied.get("metadata") or {}).get("managedFields") is not None:
        raise ApplyRefusedError("metadata.managedFields must be nil")
    version = _check_version(live, applied)
    base = managed_fields.strip(live if live is not None else endpoint.zero)
    schema = endpoint.schema
    managers = _managers_of_apply(live, base, version, endpoint)
    writer = managed_fields.applier(manager, endpoint.subresource)

    last = managers.get(writer)
    if (error := next(check(applied, schema), None)) is not None:
        raise error
    named = paths_of(applied, schema).without_below(endpoint.reset)
    owned = named.difference(_IDENTITY)
    managers[writer] = Entry(named, version, last.time if last else "")
    merged = merge(base, applied, schema)
    if last is not None and owned == last.fields:
        owned = last.fields  # the same instance, whose JSON is cached
    elif last is not None:
        merged = _prune(merged, managers, last.fields, schema)

    change = compare(base, merged, schema).without_below(endpoint.reset)
    managers = _resolve_conflicts(managers, writer, change, force=force)
    if writer in managers:
        changed_at = now if change or live is None else managers[writer].time
        managers[writer] = Entry(owned, version, changed_at)
    return _with_managers(merged, managed_fields.cap_updaters(managers))


def record_write(
    live: Mapping[str, Any] | None, new: Mapping[str, Any], manager: str, endpoint: Endpoint, *, now: str
) -> JsonObject:
    """Return the object to be stored after a create, update or patch, with ownership updated.

    Call it with the object as the client wants it, defaulted and pruned, before the server's own changes.
    `managedFields` in `new` are used if they are valid (clients migrate their entries that way), and `[{}]` in it drops
    all managers. The other arguments are those of `server_side_apply`. An object that does not fit its schema (an item
    of a keyed list lacks its key) is recorded without an owner; validation refuses it later, with a more exact message.
    """
    base = managed_fields.strip(live if live is not None else endpoint.zero)
    wanted = managed_fields.strip(new)
    managers = _managers_of_update(live, new, by_subresource=bool(endpoint.subresource))
    if live is not None and not managers:
        return _with_managers(wanted, managers)  # ownership of this object is not tracked until its first apply
    version = str(new.get("apiVersion", ""))
    try:
        change = compare(base, wanted, endpoint.schema).without_below(endpoint.reset)
    except MergeError:
        return _with_managers(wanted, managers)
    taken = change.written.difference(_IDENTITY)
    managers = _resolve_conflicts(managers, None, change, force=True)
    if taken:
        writer = managed_fields.updater(manager, version, endpoint.subresource)
        before = managers[writer].fields if writer in managers else fieldset.NOTHING
        fresh = taken.difference(before)
        managers[writer] = Entry(before.union(fresh) if fresh else before, version, now)
    return _with_managers(wanted, managed_fields.cap_updaters(managers))


def equal_except_times(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two objects differ at most in the times of their `managedFields`, so that a write changes nothing."""
    return _equal_except("metadata", left, right) and _equal_metadata(left.get("metadata"), right.get("metadata"))


def _equal_metadata(left: Any, right: Any) -> bool:
    if not is_object(left) or not is_object(right):
        return same(left, right)
    ours, theirs = left.get("managedFields") or (), right.get("managedFields") or ()
    return (
        _equal_except("managedFields", left, right)
        and len(ours) == len(theirs)
        and all(_equal_except("time", *pair) for pair in zip(ours, theirs, strict=True))
    )


def _equal_except(ignored: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two objects are equal in every field except one, which may also be missing."""
    return left.keys() - {ignored} == right.keys() - {ignored} and all(
        same(value, right[name]) for name, value in left.items() if name != ignored
    )


def _check_version(live: Mapping[str, Any] | None, applied: Mapping[str, Any]) -> str:
    version = str(applied.get("apiVersion", ""))
    if live is not None and live.get("apiVersion") != version:
        raise ApplyRefusedError(
            "Incorrect version specified in apply patch. Specified patch version:"
            f" {version}, expected: {live.get('apiVersion')}"
        )
    return version


def _managers_of_apply(live: Mapping[str, Any] | None, base: JsonObject, version: str, endpoint: Endpoint) -> Managers:
    if live is None:
        return {}
    managers = managed_fields.parse_or_none((live.get("metadata") or {}).get("managedFields"))
    if managers:
        return managers
    # `before-first-apply` owns what was written before ownership was tracked, so that the first apply may conflict.
    owned = compare(endpoint.zero, base, endpoint.schema).written.difference(_IDENTITY)
    return {managed_fields.updater(_BEFORE_FIRST_APPLY, version): Entry(owned, version)} if owned else {}


def _managers_of_update(live: Mapping[str, Any] | None, new: Mapping[str, Any], *, by_subresource: bool) -> Managers:
    stored = managed_fields.parse_or_none(((live or {}).get("metadata") or {}).get("managedFields"))
    sent = (new.get("metadata") or {}).get("managedFields")
    if by_subresource:
        return stored
    if sent == [{}]:
        return {}
    try:
        return managed_fields.parse(sent) or stored
    except FieldSetError:
        return stored  # a client that does not understand the field must not destroy it


def _prune(merged: JsonObject, managers: Managers, last: FieldSet, schema: Schema) -> JsonObject:
    """Remove what the manager owned before and no manager owns now."""
    if not last.difference(managed_fields.all_owned(managers)):
        return merged
    last = with_named(last, schema)
    still_owned = with_named(managed_fields.all_owned(managers), schema)
    everything = with_named(paths_of(merged, schema), schema)

    pruned = remove(merged, last, schema)
    left = with_named(paths_of(pruned, schema), schema)
    pruned = remove(merged, everything.difference(left.union(still_owned)), schema)
    left = with_named(paths_of(pruned, schema), schema)
    kept: JsonObject = remove(merged, everything.difference(left).intersection(last), schema)
    return kept


def _resolve_conflicts(managers: Managers, writer: Writer | None, change: Comparison, *, force: bool) -> Managers:
    """Take what changed from all other managers, or raise a conflict."""
    written = change.written
    lost = {other: entry.fields.intersection(written) for other, entry in managers.items() if other != writer}
    if not force:
        conflicts = tuple(
            Conflict(str(other), fieldset.dotted(path))
            for other, fields in sorted(lost.items(), key=lambda item: str(item[0]))
            for path in fields
        )
        if conflicts:
            raise ApplyConflictError(conflicts)
    resolved: Managers = {}
    for other, entry in managers.items():
        fields = entry.fields
        if other != writer:
            fields = fields.difference(lost[other]).difference(change.removed)
        if fields:
            resolved[other] = attrs.evolve(entry, fields=fields)
    return resolved


def _with_managers(obj: JsonObject, managers: Managers) -> JsonObject:
    metadata = obj.setdefault("metadata", {})
    if entries := managed_fields.to_json(managers):
        metadata["managedFields"] = entries
    return obj
