"""Turns a client's object into the stored one: decoded, owned, prepared, stamped, validated.

The steps are in `strategy`; here they are combined for the three kinds of write (create, change, apply), with the
values that only the server knows: uids, times, addresses.
"""

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.apiserver.fields.ownership import equal_except_times, record_write
from llmkube.apiserver.kinds import crd_rules
from llmkube.apiserver.kinds.catalog import CRDS, SERVICES
from llmkube.apiserver.kinds.service_rules import allocate_cluster_ip, init_families
from llmkube.apiserver.protocol.request_bodies import DecodeError, check_types
from llmkube.apiserver.schema.defaults import unknown_fields
from llmkube.apiserver.storage.revisions import Object, Transaction
from llmkube.apiserver.values.api_errors import invalid
from llmkube.apiserver.values.field_errors import invalid as field_invalid
from llmkube.apiserver.values.json_values import set_or_drop
from llmkube.apiserver.writes import strategy
from llmkube.apiserver.writes.request_target import Target
from llmkube.apiserver.writes.write_options import WriteOptions

JsonObject = dict[str, Any]

_SERVER_FIELDS: Final = frozenset(
    {"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"}
)
"""Metadata that a client cannot set on a new object; its values are ignored."""


class ObjectPreparation:
    """Turns a client's object into its stored form. Draws uids; is otherwise a function of its arguments."""

    def __init__(self, rng: random.Random, timestamp: Callable[[], str]) -> None:
        self._rng = rng
        self._timestamp = timestamp

    def decode(
        self, target: Target, wanted: JsonObject, options: WriteOptions, duplicates: Sequence[str]
    ) -> tuple[JsonObject, list[str]]:
        """Return the object pruned and defaulted, with the warnings for what was dropped.

        Raises:
            DecodeError: Something was dropped and validation is strict, or a field has the wrong type.
        """
        resource = target.kind.resource
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **wanted}
        if target.kind.builtin:
            check_types(typed, target.kind.schema, "")
        completed, dropped = strategy.complete(target.kind, typed)
        return completed, validation_warnings([*duplicates, *unknown_fields(dropped)], options)

    def create(self, tx: Transaction, target: Target, wanted: JsonObject, options: WriteOptions) -> JsonObject:
        """Return a new object, ready to be stored.

        Raises:
            RequestRefusedError: 422.
        """
        bare, endpoint = _without(wanted, _SERVER_FIELDS), strategy.endpoint(target.kind)
        return self._new(tx, target, record_write(None, bare, options.manager, endpoint, now=self._timestamp()))

    def change(self, target: Target, old: Object, wanted: JsonObject, options: WriteOptions) -> JsonObject | None:
        """Return the object after an update or a patch, ready to be stored; None when nothing changes.

        Raises:
            RequestRefusedError: 422.
        """
        endpoint = strategy.endpoint(target.kind, target.subresource)
        return self._changed(target, old, record_write(old, wanted, options.manager, endpoint, now=self._timestamp()))

    def applied(self, tx: Transaction, target: Target, old: Object | None, merged: JsonObject) -> JsonObject | None:
        """Return the object after an apply, ready to be stored; None when nothing changes.

        Raises:
            RequestRefusedError: 422.
        """
        completed = strategy.complete_applied(target.kind, merged, target.subresource)
        if old is None:
            return self._new(tx, target, _without(completed, _SERVER_FIELDS))
        return self._changed(target, old, completed)

    def _new(self, tx: Transaction, target: Target, owned: JsonObject) -> JsonObject:
        _check_kind(target, owned)
        stamped = strategy.prepare(target.kind, owned, None)
        meta = stamped["metadata"]
        meta["uid"] = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        meta["creationTimestamp"] = self._timestamp()
        set_or_drop(meta, "generation", strategy.next_generation(target.kind, stamped, None))
        if target.ref.kind == SERVICES:
            _init_families(target, stamped, None)
            _allocate_addresses(tx, target, stamped)
        _check(target, stamped, None)
        if target.ref.kind == CRDS:
            stamped["status"] = crd_rules.accepted_status(stamped, self._timestamp())
        return stamped

    def _changed(self, target: Target, old: Object, owned: JsonObject) -> JsonObject | None:
        _check_kind(target, owned)
        stamped = strategy.prepare(target.kind, owned, old, target.subresource)
        if target.ref.kind == SERVICES and not target.subresource:
            _init_families(target, stamped, old)
        set_or_drop(stamped["metadata"], "generation", strategy.next_generation(target.kind, stamped, old))
        if equal_except_times(old, stamped):
            return None  # it was validated when it was stored
        _check(target, stamped, old)
        if target.ref.kind == CRDS and not target.subresource and "deletionTimestamp" not in stamped["metadata"]:
            stamped["status"] = crd_rules.accepted_status(stamped, self._timestamp())
            return None if equal_except_times(old, stamped) else stamped
        return stamped


def validation_warnings(strict_errors: Sequence[str], options: WriteOptions) -> list[str]:
    """Return the errors of strict decoding as warnings.

    Raises:
        DecodeError: There are errors, and validation is strict.
    """
    if not strict_errors or options.validation == "Ignore":
        return []
    if options.validation == "Strict":
        raise DecodeError("strict decoding error: " + ", ".join(strict_errors))
    return list(strict_errors)


def _check_kind(target: Target, owned: Object) -> None:
    """Refuse a custom object with another kind, or (after a patch) another version."""
    resource = target.kind.resource
    kind, version = str(owned.get("kind")), str(owned.get("apiVersion"))
    errors = [field_invalid("kind", kind, f"must be {resource.kind}")] if kind != resource.kind else []
    if version != resource.api_version:
        errors.append(field_invalid("apiVersion", version, f"must be {resource.api_version}"))
    if errors:
        group = version.rpartition("/")[0]
        raise invalid(attrs.evolve(target.kind_subject, resource=kind, group=group), errors)


def _check(target: Target, stamped: Object, old: Object | None) -> None:
    errors = strategy.check(target.kind, stamped, old, target.subresource)
    if errors:
        raise invalid(target.kind_subject, errors)


def _without(wanted: Mapping[str, Any], names: frozenset[str]) -> JsonObject:
    return {**wanted, "metadata": {name: value for name, value in wanted["metadata"].items() if name not in names}}


def _allocate_addresses(tx: Transaction, target: Target, service: JsonObject) -> None:
    """Give a Service the addresses that it would get in a cluster (see `service_rules`)."""
    spec = service.setdefault("spec", {})
    if spec.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP"):
        taken = {str((other.get("spec") or {}).get("clusterIP")) for _, other in tx.store.list(SERVICES)}
        spec["clusterIP"] = allocate_cluster_ip(str(target.ref.key), taken)
    spec.setdefault("clusterIPs", [spec["clusterIP"]])


def _init_families(target: Target, service: JsonObject, old: Object | None) -> None:
    before = None if old is None else old.get("spec") or {}
    errors = init_families(service.setdefault("spec", {}), before)
    if errors:
        raise invalid(target.kind_subject, errors)
