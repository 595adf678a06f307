"""The verbs, as pure decisions on a transaction, so that the server can hold its lock over them.

The order of a write is kube-apiserver's: decode, patch, prune, default, reset what this endpoint does not write, record
field ownership, set the server's own fields, validate, store.
"""

import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from llmkube.apiserver.kinds.catalog import NAMESPACES, SERVICES, Catalog, in_version
from llmkube.apiserver.protocol.negotiation import APPLY_PATCH, content_type, patch_types
from llmkube.apiserver.storage.revisions import Ref, Store, Transaction
from llmkube.apiserver.values.api_errors import (
    bad_request,
    forbidden,
    method_not_allowed,
    no_such_path,
    not_found,
    success,
)
from llmkube.apiserver.values.selectors import Predicate
from llmkube.apiserver.writes.apply_planner import ApplyPlanner
from llmkube.apiserver.writes.deletion import delete
from llmkube.apiserver.writes.preparation import ObjectPreparation
from llmkube.apiserver.writes.request_objects import check_delete_preconditions, decoding, parse_manifest
from llmkube.apiserver.writes.request_target import Outcome, PlannedWrite, Target, outcome_of
from llmkube.apiserver.writes.write_options import DeleteOptions, WriteOptions
from llmkube.apiserver.writes.write_planner import WritePlanner
from llmkube.base.http.message import Request
from llmkube.k8s.wire.times import timestamp

_PERMANENT: Final = frozenset({"default", "kube-system", "kube-public"})
"""Namespaces that cannot be deleted."""


class RestHandlers:
    """The verbs over one catalog. Stateless; `plan` turns a request into a decision."""

    def __init__(self, catalog: Catalog, utcnow: Callable[[], datetime], rng: random.Random) -> None:
        self._utcnow = utcnow
        preparation = ObjectPreparation(rng, self.timestamp)
        self._writing = WritePlanner(catalog, preparation, rng)
        self.apply_planner = ApplyPlanner(catalog, preparation, self.timestamp)

    def timestamp(self) -> str:
        """Return the time in the form that objects use: RFC 3339 in whole seconds, UTC."""
        return timestamp(self._utcnow())

    def read(self, store: Store, target: Target) -> Outcome:
        """Return an object, or its Scale.

        Raises:
            RequestRefusedError: 404.
        """
        stored = store.get(target.ref)
        if stored is None:
            raise not_found(target.subject)
        return outcome_of(target, stored)

    def plan(self, request: Request, target: Target, selector: Callable[[], Predicate]) -> PlannedWrite:
        """Return the decision for a request that changes something; its body is parsed here, outside the lock.

        Raises:
            RequestRefusedError: The request is invalid regardless of the state.
        """
        with decoding(target):
            return self._plan(request, target, selector)

    def _plan(self, request: Request, target: Target, selector: Callable[[], Predicate]) -> PlannedWrite:
        has_name = bool(target.ref.key.name)
        is_custom = not target.kind.builtin
        has_namespace = bool(target.ref.key.namespace) or not target.kind.resource.namespaced
        if not has_namespace and is_custom:
            raise no_such_path()
        match request.method, has_name:
            case "POST", _ if has_namespace and not target.subresource and (is_custom or not has_name):
                return self._writing.plan_create(request, target.at(""))
            case "PUT", True:
                return self._writing.plan_update(request, target)
            case "PATCH", True:
                return self._plan_patch(request, target)
            case "PUT" | "PATCH", False if is_custom:
                raise bad_request("name must be provided")
            case "DELETE", True if not target.subresource:
                return self._plan_delete(request, target)
            case "DELETE", False if has_namespace and target.ref.kind != NAMESPACES:
                return self._plan_delete_all(request, target, selector())
        verb = {"POST": "create", "DELETE": "delete"}.get(request.method, "")
        raise method_not_allowed(target.subject, verb) if is_custom else method_not_allowed()

    def _plan_patch(self, request: Request, target: Target) -> PlannedWrite:
        media = content_type(request.headers.get("content-type") or "none", patch_types(target.kind))
        if media != APPLY_PATCH:
            return self._writing.plan_patch(request, target, media)
        options = WriteOptions.parse(request, applying=True)
        manifest, duplicates = parse_manifest(request.body, media)
        return PlannedWrite(
            lambda tx: self.apply_planner.apply(tx, target, manifest, options, duplicates), options.dry_run
        )

    def _plan_delete(self, request: Request, target: Target) -> PlannedWrite:
        options = DeleteOptions.parse(request)

        def decide(tx: Transaction) -> Outcome:
            stored = tx.get(target.ref)
            if stored is None:
                raise not_found(target.subject)
            check_delete_preconditions(target, stored, options)
            if target.ref.kind == NAMESPACES and target.ref.key.name in _PERMANENT:
                raise forbidden(target.subject, "this namespace may not be deleted")
            last, gone = delete(tx, target.ref, stored, self.timestamp(), options.propagation)
            if gone and target.ref.kind == SERVICES:
                return Outcome(last)  # the one kind here whose deletion returns the object
            if gone:
                return Outcome(success(target.subject_with_uid(stored)), is_object=False)
            return Outcome(last)

        return PlannedWrite(decide, options.dry_run)

    def _plan_delete_all(self, request: Request, target: Target, selector: Predicate) -> PlannedWrite:
        options = DeleteOptions.parse(request)

        def decide(tx: Transaction) -> Outcome:
            deleted = []
            for key, stored in tx.store.list(target.ref.kind, target.ref.key.namespace):
                if selector(stored):
                    delete(tx, Ref(target.ref.kind, key), stored, self.timestamp(), options.propagation)
                    deleted.append(in_version(target.kind, stored))  # as they were before the deletion
            resource = target.kind.resource
            content = {"kind": target.kind.list_kind, "apiVersion": resource.api_version}
            metadata = {"resourceVersion": str(tx.revision), **({} if target.kind.builtin else {"continue": ""})}
            return Outcome({**content, "metadata": metadata, "items": deleted}, is_object=False)

        return PlannedWrite(decide, options.dry_run)
