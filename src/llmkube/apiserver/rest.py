"""What each verb does to an object, as a decision on a transaction: pure, so that the server can hold its lock over it.

The order of a write is kube-apiserver's: decode, patch, prune, default, reset what this endpoint does not write, record
who owns what, stamp the server's own fields, judge, store.
"""

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from llmkube.apiserver import bodies, strategy
from llmkube.apiserver.admission import Admission, complain
from llmkube.apiserver.apply import ApplyConflictError, ApplyRefusedError, server_side_apply
from llmkube.apiserver.catalog import NAMESPACES, Catalog, in_version, ref_of
from llmkube.apiserver.deletion import delete, settle
from llmkube.apiserver.failures import (
    STALE,
    Cause,
    RequestRefusedError,
    already_exists,
    apply_conflict,
    bad_request,
    conflict,
    forbidden,
    invalid,
    method_not_allowed,
    not_found,
    success,
    unprocessable,
)
from llmkube.apiserver.jsonvalues import copy
from llmkube.apiserver.merge import MergeError
from llmkube.apiserver.negotiate import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, OBJECT_TYPES, content_type, patch_types
from llmkube.apiserver.options import DeleteOptions, WriteOptions
from llmkube.apiserver.patches import (
    PatchDocumentError,
    PatchFailedError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from llmkube.apiserver.scale import scaled
from llmkube.apiserver.selectors import Predicate
from llmkube.apiserver.store import Object, Ref, Store, Transaction
from llmkube.apiserver.strategic import StrategicPatchError
from llmkube.apiserver.target import Answered, Planned, Target
from llmkube.base.http import Request
from llmkube.k8s.resource import Key

JsonObject = dict[str, Any]

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words; the alphabet of kube-apiserver
_SUFFIX_LENGTH: Final = 5
_LONGEST_PREFIX: Final = 63 - _SUFFIX_LENGTH
_NAME_ATTEMPTS: Final = 8

_CREATED_BY_UPDATE: Final = frozenset({"services", "endpoints", "events", "leases.coordination.k8s.io"})
"""Kinds that a PUT creates when they are not there, as kube-apiserver allows."""


class Rest:
    """The verbs over one catalog. Holds no state of its own; `plan` turns a request into a decision."""

    def __init__(self, catalog: Catalog, utcnow: Callable[[], datetime], rng: random.Random) -> None:
        self._catalog = catalog
        self._utcnow = utcnow
        self._rng = rng
        self._admission = Admission(rng, self.timestamp)

    def timestamp(self) -> str:
        """Return the time as objects carry it: RFC 3339 in whole seconds, UTC."""
        return self._utcnow().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def read(self, store: Store, target: Target) -> Answered:
        """Return an object, or its Scale.

        Raises:
            RequestRefusedError: 404.
        """
        stored = store.get(target.ref)
        if stored is None:
            raise not_found(target.subject)
        return _answered(target, stored)

    def plan(self, request: Request, target: Target, chosen: Callable[[], Predicate]) -> Planned:
        """Return what a request that changes something will do; its body is read here, outside of the lock.

        Raises:
            RequestRefusedError: The request is wrong whatever the state is.
        """
        named = bool(target.ref.key.name)
        placed = bool(target.ref.key.namespace) or not target.kind.resource.namespaced
        match request.method, named:
            case "POST", False if placed:
                return self._plan_create(request, target)
            case "PUT", True:
                return self._plan_update(request, target)
            case "PATCH", True:
                return self._plan_patch(request, target)
            case "DELETE", True if not target.subresource:
                return self._plan_delete(request, target)
            case "DELETE", False if placed:
                return self._plan_delete_all(request, target, chosen())
        raise method_not_allowed()

    # -- create ------------------------------------------------------------------------------------------------------

    def _plan_create(self, request: Request, target: Target) -> Planned:
        options = WriteOptions.parse(request, applying=False)
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        body, duplicates = bodies.parse_object(request.body, media)
        _check_type(target, body)
        return Planned(lambda tx: self._create(tx, target, body, options, duplicates), options.dry_run)

    def _create(
        self, tx: Transaction, target: Target, body: Mapping[str, Any], options: WriteOptions, duplicates: list[str]
    ) -> Answered:
        wanted = _with_metadata(body)
        named = self._named(tx, target, wanted)
        wanted, warnings = self._admission.decode(named, wanted, options, duplicates)
        self._check_namespace(tx, named)
        created = self._admission.create(tx, named, wanted, options)
        if tx.get(named.ref) is not None:
            raise already_exists(named.subject)
        return _answered(named, tx.put(named.ref, created), status=201, warnings=warnings)

    def _named(self, tx: Transaction, target: Target, wanted: JsonObject) -> Target:
        """Return the target with the object's own name, made up if it asks for that."""
        metadata = wanted["metadata"]
        namespace = target.ref.key.namespace
        if metadata.get("namespace", namespace) != namespace:
            raise _wrong_namespace()
        if namespace:
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        prefix = metadata.get("generateName")
        if not metadata.get("name") and prefix:
            for _ in range(_NAME_ATTEMPTS):
                suffix = "".join(self._rng.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
                metadata["name"] = prefix[:_LONGEST_PREFIX] + suffix
                if tx.get(Ref(target.ref.kind, Key(namespace, metadata["name"]))) is None:
                    break
        return target.at(metadata.get("name") or "")

    def _check_namespace(self, tx: Transaction, target: Target) -> None:
        """Refuse to create where there is no namespace, or one that is going away."""
        name = target.ref.key.namespace
        if not name:
            return
        home = tx.get(Ref(NAMESPACES, Key("", name)))
        if home is None:
            kind = self._catalog.versions(NAMESPACES)[0]
            raise not_found(Target(kind, ref_of(kind, "", name)).subject)
        if "deletionTimestamp" in home["metadata"]:
            cause = Cause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
            why = f"unable to create new content in namespace {name} because it is being terminated"
            raise forbidden(target.subject, why, cause=cause)

    # -- update and patch --------------------------------------------------------------------------------------------

    def _plan_update(self, request: Request, target: Target) -> Planned:
        options = WriteOptions.parse(request, applying=False)
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        body, duplicates = bodies.parse_object(request.body, media)
        if target.subresource != "scale":
            _check_type(target, body)

        versioned = bool((body.get("metadata") or {}).get("resourceVersion"))  # it was there when the client looked

        def decide(tx: Transaction) -> Answered:
            stored = tx.get(target.ref)
            if stored is None:
                if target.subresource or target.ref.kind not in _CREATED_BY_UPDATE or versioned:
                    raise not_found(target.subject)
                return self._create(tx, target.at(""), body, options, duplicates)
            wanted = _with_metadata(body)
            if target.subresource == "scale":
                wanted = self._rescaled(target, stored, wanted)
            return self._replace(tx, target, stored, wanted, options=options, duplicates=duplicates)

        return Planned(decide, options.dry_run)

    def _plan_patch(self, request: Request, target: Target) -> Planned:
        media = content_type(request.headers.get("content-type") or "", patch_types(target.kind))
        applying = media == APPLY_PATCH
        options = WriteOptions.parse(request, applying=applying)
        if applying:
            manifest, duplicates = bodies.parse_object(request.body, media)
            return Planned(lambda tx: self.apply(tx, target, manifest, options, duplicates), options.dry_run)
        patch, duplicates = bodies.parse(request.body, media)

        def decide(tx: Transaction) -> Answered:
            stored = tx.get(target.ref)
            if stored is None:
                raise not_found(target.subject)
            if target.subresource == "scale":
                wanted = self._rescaled(target, stored, _patched(target, target.scale_of(stored), patch, media))
            else:
                wanted = _patched(target, in_version(target.kind, stored), patch, media)
            return self._replace(tx, target, stored, wanted, options=options, duplicates=duplicates)

        return Planned(decide, options.dry_run)

    def _rescaled(self, target: Target, stored: Object, wanted: Mapping[str, Any]) -> JsonObject:
        assert target.kind.scale is not None, "the route has no scale otherwise"
        changed, errors = scaled(in_version(target.kind, stored), wanted, target.kind.scale)
        if errors:
            raise invalid(target.kind_subject, errors)
        return changed

    def _replace(
        self,
        tx: Transaction,
        target: Target,
        stored: Object,
        wanted: JsonObject,
        *,
        options: WriteOptions,
        duplicates: list[str],
    ) -> Answered:
        """Put a wanted object in the place of the stored one, as far as this endpoint writes it."""
        _check_type(target, wanted)
        _place(target, wanted)
        _check_preconditions(target, stored, wanted["metadata"])
        wanted, warnings = self._admission.decode(target, wanted, options, duplicates)
        changed = self._admission.change(target, in_version(target.kind, stored), wanted, options)
        if changed is None:
            return _answered(target, stored, warnings=warnings)
        after, _ = settle(tx, target.ref, changed)
        return _answered(target, after, warnings=warnings)

    # -- apply -------------------------------------------------------------------------------------------------------

    def apply(
        self,
        tx: Transaction,
        target: Target,
        manifest: Mapping[str, Any],
        options: WriteOptions,
        duplicates: list[str] | None = None,
    ) -> Answered:
        """Lay a configuration over the live object, or create it.

        Raises:
            RequestRefusedError: 409 when others own what would change, 400 and 422 for a bad configuration.
        """
        wanted = _with_metadata(manifest)
        if target.subresource == "scale":
            raise unprocessable("server-side apply on the scale subresource is not supported; patch or update it")
        _check_type(target, wanted, required=True)
        _place(target, wanted)
        stored = tx.get(target.ref)
        metadata = wanted["metadata"]
        if stored is None and target.subresource:
            raise not_found(target.subject)
        if stored is None and metadata.get("uid"):
            why = f"uid mismatch: the provided object specified uid {metadata['uid']}, and no existing object was found"
            raise conflict(target.subject, why)
        if stored is not None:
            _check_preconditions(target, stored, metadata)
        metadata.pop("resourceVersion", None)
        warnings = complain(target, duplicates or [], options)
        if stored is None:
            self._check_namespace(tx, target)
        old = None if stored is None else in_version(target.kind, stored)
        new = self._admission.applied(tx, target, old, self._merged(target, old, wanted, options))
        if new is None:
            return _answered(target, old or {}, warnings=warnings)
        if old is None:
            return _answered(target, tx.put(target.ref, new), status=201, warnings=warnings)
        after, _ = settle(tx, target.ref, new)
        return _answered(target, after, warnings=warnings)

    def _merged(self, target: Target, old: Object | None, wanted: JsonObject, options: WriteOptions) -> JsonObject:
        try:
            return server_side_apply(
                old,
                wanted,
                options.manager,
                schema=target.kind.schema,
                now=self.timestamp(),
                force=options.force,
                **strategy.ownership(target.kind, target.subresource),
            ).object
        except ApplyConflictError as exc:
            causes = [Cause("FieldManagerConflict", each.message, each.path) for each in exc.conflicts]
            raise apply_conflict(str(exc), causes) from exc
        except ApplyRefusedError as exc:
            raise bad_request(str(exc)) from exc
        except MergeError as exc:
            resource = target.kind.resource
            what = f"({target.ref.key}; {resource.api_version}, Kind={resource.kind})"
            raise bad_request(f"failed to create typed patch object {what}: {exc}") from exc

    # -- delete ------------------------------------------------------------------------------------------------------

    def _plan_delete(self, request: Request, target: Target) -> Planned:
        options = _delete_options(request)

        def decide(tx: Transaction) -> Answered:
            stored = tx.get(target.ref)
            if stored is None:
                raise not_found(target.subject)
            _check_delete_preconditions(target, stored, options)
            last, gone = delete(tx, target.ref, stored, self.timestamp(), options.propagation)
            if gone:
                return Answered(success(target.subject_with_uid(stored)), is_object=False)
            return Answered(last)

        return Planned(decide, options.dry_run)

    def _plan_delete_all(self, request: Request, target: Target, chosen: Predicate) -> Planned:
        options = _delete_options(request)

        def decide(tx: Transaction) -> Answered:
            deleted = []
            for key, stored in tx.store.list(target.ref.kind, target.ref.key.namespace):
                if chosen(stored):
                    last, _ = delete(tx, Ref(target.ref.kind, key), stored, self.timestamp(), options.propagation)
                    deleted.append(in_version(target.kind, last))
            resource = target.kind.resource
            content = {"kind": target.kind.list_kind, "apiVersion": resource.api_version}
            metadata = {"resourceVersion": str(tx.revision)}
            return Answered({**content, "metadata": metadata, "items": deleted}, is_object=False)

        return Planned(decide, options.dry_run)


def _delete_options(request: Request) -> DeleteOptions:
    body: JsonObject = {}
    if request.body.strip():
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        body, _ = bodies.parse_object(request.body, media)
    return DeleteOptions.parse(request, body)


def _answered(target: Target, stored: Object, *, status: int = 200, warnings: list[str] | None = None) -> Answered:
    if target.subresource == "scale":
        return Answered(target.scale_of(stored), status, is_object=False, warnings=tuple(warnings or ()))
    return Answered(stored, status, warnings=tuple(warnings or ()))


def _with_metadata(body: Mapping[str, Any]) -> JsonObject:
    wanted: JsonObject = copy(body)
    if wanted.get("metadata") is None:
        wanted["metadata"] = {}
    metadata = wanted["metadata"]
    for name in [name for name, value in metadata.items() if value is None]:
        del metadata[name]  # a null creationTimestamp is what every Go client sends
    return wanted


def _patched(target: Target, current: Object, patch: Any, media: str) -> JsonObject:
    """Return the object after a patch.

    Raises:
        RequestRefusedError: 400 for a malformed patch, 422 for one that does not fit.
    """
    try:
        if media == JSON_PATCH:
            patched = json_patch(current, patch)
        elif not isinstance(patch, Mapping):
            raise bad_request("json: cannot unmarshal the patch into an object")
        elif media == MERGE_PATCH:
            patched = merge_patch(current, patch)
        else:
            patched = strategic_merge_patch(current, patch, target.kind.schema)
    except (PatchDocumentError, StrategicPatchError) as exc:
        raise bad_request(str(exc)) from exc
    except PatchFailedError as exc:
        raise unprocessable(str(exc)) from exc
    if not isinstance(patched, Mapping):
        raise bad_request("the patched object is not an object")
    bodies.check_shape(patched)
    return _with_metadata(patched)


def _check_type(target: Target, body: Mapping[str, Any], *, required: bool = False) -> None:
    """Refuse a body that says it is something else; one that says nothing is taken for what the URL says."""
    resource = target.kind.resource
    version, kind = body.get("apiVersion"), body.get("kind")
    if required and not (version and kind):
        raise bad_request(f"invalid object type: {version or ''}, Kind={kind or ''}: apiVersion and kind must be set")
    if version and version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind and kind != resource.kind:
        said = f"{body.get('apiVersion') or resource.api_version}, Kind={kind}"
        raise bad_request(f"the kind in the data ({said}) does not match the expected kind ({resource.kind})")


def _place(target: Target, wanted: JsonObject) -> None:
    """Put the object where the URL says; refuse one that says it is somewhere else."""
    metadata, key = wanted["metadata"], target.ref.key
    name = metadata.get("name")
    if name and name != key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({key.name})")
    namespace = metadata.get("namespace")
    if namespace and namespace != key.namespace:
        raise _wrong_namespace()
    metadata["name"] = key.name  # what the body leaves out, the URL says
    if key.namespace:
        metadata["namespace"] = key.namespace


def _wrong_namespace() -> RequestRefusedError:
    return bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _check_preconditions(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse a write that was made for another object of that name, or for an older state of this one."""
    live = stored["metadata"]
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if uid and uid != live["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live['uid']}"
        raise conflict(target.subject, why)
    if version and version != live["resourceVersion"]:
        raise conflict(target.subject, STALE)


def _check_delete_preconditions(target: Target, stored: Object, options: DeleteOptions) -> None:
    live = stored["metadata"]
    if options.uid and options.uid != live["uid"]:
        why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {live['uid']}"
        raise conflict(target.subject, why)
    if options.resource_version and options.resource_version != live["resourceVersion"]:
        seen = f"ResourceVersion in object meta: {live['resourceVersion']}"
        why = f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, {seen}"
        raise conflict(target.subject, why)
