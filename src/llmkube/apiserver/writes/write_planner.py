"""Create, update and patch as decisions on the object at the URL; all patches except apply become updates."""

import random
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from llmkube.apiserver.fields.strategic_merge import StrategicPatchError, strategic_merge_patch
from llmkube.apiserver.kinds.catalog import Catalog, in_version
from llmkube.apiserver.kinds.scale import SCALE, scale_with_replicas, scaled
from llmkube.apiserver.protocol import request_bodies
from llmkube.apiserver.protocol.negotiation import JSON_PATCH, MERGE_PATCH, OBJECT_TYPES, STRATEGIC_PATCH, content_type
from llmkube.apiserver.schema.defaults import prune, unknown_fields
from llmkube.apiserver.storage.revisions import Object, Ref, Transaction
from llmkube.apiserver.values.api_errors import (
    RequestRefusedError,
    already_exists,
    attach_warnings,
    bad_request,
    invalid,
    not_found,
    plain_internal,
    rejected,
    too_large,
)
from llmkube.apiserver.values.json_values import set_or_drop
from llmkube.apiserver.writes import strategy
from llmkube.apiserver.writes.deletion import stage
from llmkube.apiserver.writes.patches import (
    CopiedTooMuchError,
    PatchDocumentError,
    PatchFailedError,
    PatchTooLargeError,
    json_patch,
    merge_patch,
)
from llmkube.apiserver.writes.preparation import ObjectPreparation
from llmkube.apiserver.writes.request_objects import (
    check_conditional,
    check_name,
    check_namespace,
    check_patched,
    check_type,
    check_uid,
    check_version,
    decoding,
    parse_object,
    set_name_and_namespace,
    with_metadata,
    wrong_namespace,
)
from llmkube.apiserver.writes.request_target import Outcome, PlannedWrite, Target, outcome_of
from llmkube.apiserver.writes.write_options import WriteOptions
from llmkube.base.http.message import Request
from llmkube.k8s.resource import Key

JsonObject = dict[str, Any]

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so no words; kube-apiserver's alphabet
_SUFFIX_LENGTH: Final = 5
_LONGEST_PREFIX: Final = 63 - _SUFFIX_LENGTH
_NAME_ATTEMPTS: Final = 8

_CREATED_BY_UPDATE: Final = frozenset({"services", "endpoints", "events", "leases.coordination.k8s.io"})
"""Kinds that a PUT creates when they do not exist, as in kube-apiserver."""


class WritePlanner:
    """Plans creates, updates and patches over one catalog. Draws generated names; has no other state."""

    def __init__(self, catalog: Catalog, preparation: ObjectPreparation, rng: random.Random) -> None:
        self._catalog = catalog
        self._preparation = preparation
        self._rng = rng

    def plan_create(self, request: Request, target: Target) -> PlannedWrite:
        """Plan a POST.

        Raises:
            RequestRefusedError: The body is malformed.
        """
        options = WriteOptions.parse(request, applying=False)
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        body, duplicates = parse_object(target, request.body, media)
        check_type(target, body)
        return PlannedWrite(lambda tx: self._create(tx, target, body, options, duplicates), options.dry_run)

    def _create(
        self, tx: Transaction, target: Target, body: Mapping[str, Any], options: WriteOptions, duplicates: list[str]
    ) -> Outcome:
        wanted = with_metadata(body)
        named = self._with_name(tx, target, wanted)
        with decoding(target):
            wanted, warnings = self._preparation.decode(named, wanted, options, duplicates)
        with attach_warnings(warnings):
            check_namespace(self._catalog, tx, named)
            created = self._preparation.create(tx, named, wanted, options)
        taken = tx.get(named.ref)
        with attach_warnings([*warnings, *strategy.warnings(named.kind, created)]):
            if taken is not None:
                raise already_exists(named.subject, deleting="deletionTimestamp" in taken["metadata"])
        return outcome_of(named, tx.put(named.ref, created), status=201, warnings=warnings)

    def _with_name(self, tx: Transaction, target: Target, wanted: JsonObject) -> Target:
        """Return the target with the object's own name, generated if it has `generateName`."""
        metadata = wanted["metadata"]
        namespace = target.ref.key.namespace
        if metadata.get("namespace", namespace) != namespace:
            raise wrong_namespace()
        set_or_drop(metadata, "namespace", namespace)
        if metadata.get("resourceVersion"):
            raise plain_internal("resourceVersion should not be set on objects to be created")
        prefix = metadata.get("generateName")
        if not metadata.get("name") and prefix:
            for _ in range(_NAME_ATTEMPTS):
                suffix = "".join(self._rng.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
                metadata["name"] = prefix[:_LONGEST_PREFIX] + suffix
                if tx.get(Ref(target.ref.kind, Key(namespace, metadata["name"]))) is None:
                    break
        return target.at(metadata.get("name") or "")

    def plan_update(self, request: Request, target: Target) -> PlannedWrite:
        """Plan a PUT.

        Raises:
            RequestRefusedError: The body is malformed.
        """
        options = WriteOptions.parse(request, applying=False)
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        if target.subresource == "scale":
            body, duplicates = request_bodies.parse_object(request.body, media)
            if body.get("kind") not in {None, "", "Scale"}:
                raise bad_request("no kind is registered for the type v1.Scale")
        else:
            body, duplicates = parse_object(target, request.body, media)
            check_type(target, body)

        def decide(tx: Transaction) -> Outcome:
            stored = tx.get(target.ref)
            wanted = with_metadata(body)
            if stored is None and not target.subresource and target.ref.kind in _CREATED_BY_UPDATE:
                check_name(target, wanted)
                wanted["metadata"].pop("resourceVersion", None)  # the version that the client has seen is gone
                return self._create(tx, target.at(""), wanted, options, duplicates)
            if target.subresource == "scale":
                if stored is None:
                    raise not_found(target.subject)
                check_name(target, wanted)
                check_uid(target, stored, wanted["metadata"])
                with decoding(target):
                    return self._rewrite(tx, target, stored, wanted, options=options, strict_errors=[])
            with decoding(target):
                decoded, warnings = self._preparation.decode(target, wanted, options, duplicates)
            with attach_warnings(warnings):
                check_name(target, wanted)
                if stored is None:
                    raise not_found(target.subject)
                check_uid(target, stored, wanted["metadata"])
                check_conditional(target, wanted["metadata"])
                set_name_and_namespace(target, decoded)
                check_version(target, stored, wanted["metadata"])
            return self._replace(tx, target, stored, decoded, options=options, warnings=warnings)

        return PlannedWrite(decide, options.dry_run)

    def plan_patch(self, request: Request, target: Target, media: str) -> PlannedWrite:
        """Plan a JSON, merge or strategic merge patch.

        Raises:
            RequestRefusedError: The query parameters are invalid.
        """
        options = WriteOptions.parse(request, applying=False)
        try:
            patch, duplicates = request_bodies.parse(request.body, media)
        except RequestRefusedError as exc:
            refusal = exc if exc.code != 400 else bad_request(f"error decoding patch: {exc.message}")
            return PlannedWrite(partial(_refuse_if_exists, target, refusal), options.dry_run)

        def decide(tx: Transaction) -> Outcome:
            stored = tx.get(target.ref)
            if stored is None:
                raise not_found(target.subject)
            scaling = target.subresource == "scale"
            live = scale_with_replicas(target.scale_of(stored)) if scaling else in_version(target.kind, stored)
            patched = _patched(target, live, patch, media)
            request_bodies.check_bounds(patched)
            with decoding(target, patched):
                check_patched(target, patched)
            check_name(target, patched)
            with decoding(target, patch if media == STRATEGIC_PATCH else patched):
                request_bodies.check_shape(patched)
                wanted = with_metadata(patched)
                strict_errors = duplicates
                if scaling:
                    request_bodies.check_types(wanted, SCALE, "")
                    strict_errors = [*duplicates, *unknown_fields(prune(wanted, SCALE)[1])]
                return self._rewrite(tx, target, stored, wanted, options=options, strict_errors=strict_errors)

        return PlannedWrite(decide, options.dry_run)

    def _rewrite(
        self,
        tx: Transaction,
        target: Target,
        stored: Object,
        wanted: JsonObject,
        *,
        options: WriteOptions,
        strict_errors: list[str],
    ) -> Outcome:
        """Replace the stored object with a patched one, or with one that has the replicas of a Scale."""
        if target.subresource == "scale":
            assert target.kind.scale is not None, "the route has no scale otherwise"
            wanted, errors = scaled(in_version(target.kind, stored), wanted, target.kind.scale)
            if errors:
                raise invalid(target.kind_subject, errors)
        set_name_and_namespace(target, wanted)
        decoded, warnings = self._preparation.decode(target, wanted, options, strict_errors)
        with attach_warnings(warnings):
            check_version(target, stored, wanted["metadata"])
        return self._replace(tx, target, stored, decoded, options=options, warnings=warnings)

    def _replace(
        self,
        tx: Transaction,
        target: Target,
        stored: Object,
        wanted: JsonObject,
        *,
        options: WriteOptions,
        warnings: list[str],
    ) -> Outcome:
        """Replace the stored object with a decoded one, as far as this endpoint writes it."""
        with attach_warnings(warnings):
            changed = self._preparation.change(target, in_version(target.kind, stored), wanted, options)
        if changed is None:
            return outcome_of(target, stored, warnings=warnings)
        return outcome_of(target, stage(tx, target.ref, changed), warnings=warnings)


def _refuse_if_exists(target: Target, refusal: RequestRefusedError, tx: Transaction) -> Outcome:
    """Refuse a malformed patch; with 404 if there is no object to patch."""
    raise refusal if tx.get(target.ref) is not None else not_found(target.subject)


def _patched(target: Target, current: Object, patch: Any, media: str) -> Any:
    """Return the object after a patch; it is not validated yet.

    Raises:
        RequestRefusedError: 400 for a malformed patch, 422 for one that does not fit.
    """
    try:
        if media == JSON_PATCH:
            patched = json_patch(current, patch)
        elif not isinstance(patch, Mapping):
            message = "Invalid JSON Patch" if patch is None else "error decoding patch: it is not an object"
            raise bad_request(message)
        elif media == MERGE_PATCH:
            patched = merge_patch(current, patch)
        else:
            patched = {
                **strategic_merge_patch(current, patch, target.kind.schema),
                "apiVersion": current["apiVersion"],  # decoded as the kind at the URL, not as the one that it states
                "kind": current["kind"],
            }
    except PatchTooLargeError as exc:
        raise too_large(str(exc)) from exc
    except PatchDocumentError as exc:
        raise bad_request(str(exc)) from exc
    except StrategicPatchError as exc:
        raise plain_internal(str(exc)) from exc
    except PatchFailedError as exc:
        raise rejected(str(exc) if isinstance(exc, CopiedTooMuchError) else "") from exc
    return patched
