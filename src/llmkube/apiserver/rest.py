"""What each verb does to an object, as a decision on a transaction: pure, so that the server can hold its lock over it.

The order of a write is kube-apiserver's: decode, patch, prune, default, reset what this endpoint does not write, record
who owns what, stamp the server's own fields, judge, store.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from llmkube.apiserver import bodies, strategy
from llmkube.apiserver.admission import Admission, complain
from llmkube.apiserver.apply import ApplyConflictError, ApplyRefusedError, server_side_apply
from llmkube.apiserver.catalog import NAMESPACES, SERVICES, Catalog, in_version, ref_of
from llmkube.apiserver.defaults import prune, unknown_fields
from llmkube.apiserver.deletion import delete, settle
from llmkube.apiserver.failures import (
    STALE,
    Cause,
    RequestRefusedError,
    Subject,
    already_exists,
    apply_conflict,
    bad_request,
    conflict,
    forbidden,
    invalid,
    method_not_allowed,
    no_such_path,
    not_found,
    plain_internal,
    success,
    undecodable,
    unprocessable,
    warning,
)
from llmkube.apiserver.fielderrors import Verbatim
from llmkube.apiserver.fielderrors import invalid as field_invalid
from llmkube.apiserver.jsonvalues import ABSENT, compact
from llmkube.apiserver.merge import MergeError
from llmkube.apiserver.negotiate import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    OBJECT_TYPES,
    STRATEGIC_PATCH,
    content_type,
    patch_types,
)
from llmkube.apiserver.options import DeleteOptions, WriteOptions
from llmkube.apiserver.patches import (
    PatchDocumentError,
    PatchFailedError,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from llmkube.apiserver.scale import SCALE, scale_with_replicas, scaled
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


_PERMANENT: Final = frozenset({"default", "kube-system", "kube-public"})
"""Namespaces that nobody may delete."""


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
        with _decoding(target):
            return self._planned(request, target, chosen)

    def _planned(self, request: Request, target: Target, chosen: Callable[[], Predicate]) -> Planned:
        named = bool(target.ref.key.name)
        custom = not target.kind.builtin
        placed = bool(target.ref.key.namespace) or not target.kind.resource.namespaced
        if not placed and custom:
            raise no_such_path()
        match request.method, named:
            case "POST", _ if placed and not target.subresource and (custom or not named):
                return self._plan_create(request, target.at(""))
            case "PUT", True:
                return self._plan_update(request, target)
            case "PATCH", True:
                return self._plan_patch(request, target)
            case "PUT" | "PATCH", False if custom:
                raise bad_request("name must be provided")
            case "DELETE", True if not target.subresource:
                return self._plan_delete(request, target)
            case "DELETE", False if placed:
                return self._plan_delete_all(request, target, chosen())
        verb = {"POST": "create", "DELETE": "delete"}.get(request.method, "")
        raise method_not_allowed(target.subject, verb) if custom else method_not_allowed()

    # -- create ------------------------------------------------------------------------------------------------------

    def _plan_create(self, request: Request, target: Target) -> Planned:
        options = WriteOptions.parse(request, applying=False)
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        body, duplicates = _parse_object(target, request.body, media)
        _check_type(target, body)
        return Planned(lambda tx: self._create(tx, target, body, options, duplicates), options.dry_run)

    def _create(
        self, tx: Transaction, target: Target, body: Mapping[str, Any], options: WriteOptions, duplicates: list[str]
    ) -> Answered:
        wanted = _with_metadata(body)
        named = self._named(tx, target, wanted)
        with _decoding(target):
            wanted, warnings = self._admission.decode(named, wanted, options, duplicates)
        with warning(warnings):
            self._check_namespace(tx, named)
            created = self._admission.create(tx, named, wanted, options)
            taken = tx.get(named.ref)
            if taken is not None:
                raise already_exists(named.subject, deleting="deletionTimestamp" in taken["metadata"])
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
            raise plain_internal("resourceVersion should not be set on objects to be created")
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
        if target.subresource == "scale":
            body, duplicates = bodies.parse_object(request.body, media)
            if body.get("kind") not in {None, "", "Scale"}:
                raise bad_request("no kind is registered for the type v1.Scale")
        else:
            body, duplicates = _parse_object(target, request.body, media)
            _check_type(target, body)

        def decide(tx: Transaction) -> Answered:
            stored = tx.get(target.ref)
            wanted = _with_metadata(body)
            if stored is None and not target.subresource and target.ref.kind in _CREATED_BY_UPDATE:
                _check_name(target, wanted)
                wanted["metadata"].pop("resourceVersion", None)  # whatever the client has seen, it is gone
                return self._create(tx, target.at(""), wanted, options, duplicates)
            if target.subresource == "scale":
                return self._put_scale(tx, target, wanted, options)
            with _decoding(target):
                decoded, warnings = self._admission.decode(target, wanted, options, duplicates)
            with warning(warnings):
                _check_name(target, wanted)
                if stored is None:
                    raise not_found(target.subject)
                _check_uid(target, stored, wanted["metadata"])
                _check_conditional(target, wanted["metadata"])
                _place(target, decoded)
                _check_version(target, stored, wanted["metadata"])
            return self._replace(tx, target, stored, decoded, options=options, warnings=warnings)

        return Planned(decide, options.dry_run)

    def _put_scale(self, tx: Transaction, target: Target, wanted: JsonObject, options: WriteOptions) -> Answered:
        stored = tx.get(target.ref)
        if stored is None:
            raise not_found(target.subject)
        _check_name(target, wanted)
        _check_uid(target, stored, wanted["metadata"])
        rescaled = self._rescaled(target, stored, wanted)
        with _decoding(target):
            decoded, warnings = self._decode(target, stored, rescaled, options, [])
        return self._replace(tx, target, stored, decoded, options=options, warnings=warnings)

    def _plan_patch(self, request: Request, target: Target) -> Planned:
        media = content_type(request.headers.get("content-type") or "none", patch_types(target.kind))
        applying = media == APPLY_PATCH
        options = WriteOptions.parse(request, applying=applying)
        if applying:
            manifest, duplicates = _parse_manifest(request.body, media)
            return Planned(lambda tx: self.apply(tx, target, manifest, options, duplicates), options.dry_run)
        try:
            patch, duplicates = bodies.parse(request.body, media)
        except RequestRefusedError as exc:
            unread = exc if exc.code != 400 else bad_request(f"error decoding patch: {exc.message}")
            return Planned(partial(_refuse_if_there, target, unread), options.dry_run)

        def decide(tx: Transaction) -> Answered:
            stored = tx.get(target.ref)
            if stored is None:
                raise not_found(target.subject)
            scaling = target.subresource == "scale"
            live = scale_with_replicas(target.scale_of(stored)) if scaling else in_version(target.kind, stored)
            patched = _patched(target, live, patch, media)
            _check_name(target, patched)
            if not scaling:
                _check_type(target, patched, patched=True)
            with _decoding(target, patch if media == STRATEGIC_PATCH else patched):
                bodies.check_shape(patched)
                wanted = _with_metadata(patched)
                complaints = duplicates
                if scaling:
                    bodies.check_types(wanted, SCALE, "")
                    complaints = [*duplicates, *unknown_fields(prune(wanted, SCALE)[1])]
                    wanted = self._rescaled(target, stored, wanted)
                wanted, warnings = self._decode(target, stored, wanted, options, complaints)
            return self._replace(tx, target, stored, wanted, options=options, warnings=warnings)

        return Planned(decide, options.dry_run)

    def _rescaled(self, target: Target, stored: Object, wanted: Mapping[str, Any]) -> JsonObject:
        assert target.kind.scale is not None, "the route has no scale otherwise"
        changed, errors = scaled(in_version(target.kind, stored), wanted, target.kind.scale)
        if errors:
            raise invalid(target.kind_subject, errors)
        return changed

    def _decode(
        self, target: Target, stored: Object, wanted: JsonObject, options: WriteOptions, duplicates: list[str]
    ) -> tuple[JsonObject, list[str]]:
        _place(target, wanted)
        decoded, warnings = self._admission.decode(target, wanted, options, duplicates)
        with warning(warnings):
            _check_version(target, stored, wanted["metadata"])
        return decoded, warnings

    def _replace(
        self,
        tx: Transaction,
        target: Target,
        stored: Object,
        wanted: JsonObject,
        *,
        options: WriteOptions,
        warnings: list[str],
    ) -> Answered:
        """Put a decoded object in the place of the stored one, as far as this endpoint writes it."""
        with warning(warnings):
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
        if not isinstance(manifest.get("metadata"), Mapping | None):
            raise _not_typed(target, {}, ".metadata: expected map")
        wanted = _with_metadata(manifest)
        if target.subresource == "scale":
            raise unprocessable("server-side apply on the scale subresource is not supported; patch or update it")
        _check_applied_type(target, wanted)
        stored = tx.get(target.ref)
        metadata = wanted["metadata"]
        if stored is None and target.subresource:
            raise not_found(target.subject)
        if stored is None and metadata.get("uid"):
            why = f"uid mismatch: the provided object specified uid {metadata['uid']}, and no existing object was found"
            raise conflict(target.subject, why)
        if stored is not None:
            _check_version(target, stored, metadata)
        metadata.pop("resourceVersion", None)
        with _decoding(target):
            warnings = complain(duplicates or [], options)
        old = None if stored is None else in_version(target.kind, stored)
        merged = self._merged(target, old, wanted, options)
        _place(target, merged)
        if stored is None:
            self._check_namespace(tx, target)
        with _decoding(target):
            bodies.check_shape(merged)
        new = self._admission.applied(tx, target, old, merged)
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
            raise _not_typed(target, wanted["metadata"], str(exc)) from exc

    # -- delete ------------------------------------------------------------------------------------------------------

    def _plan_delete(self, request: Request, target: Target) -> Planned:
        options = _delete_options(request)

        def decide(tx: Transaction) -> Answered:
            stored = tx.get(target.ref)
            if stored is None:
                raise not_found(target.subject)
            _check_delete_preconditions(target, stored, options)
            if target.ref.kind == NAMESPACES and target.ref.key.name in _PERMANENT:
                raise forbidden(target.subject, "this namespace may not be deleted")
            last, gone = delete(tx, target.ref, stored, self.timestamp(), options.propagation)
            if gone and target.ref.kind == SERVICES:
                return Answered(last)  # the one kind here whose deletion answers with the object
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
                    delete(tx, Ref(target.ref.kind, key), stored, self.timestamp(), options.propagation)
                    deleted.append(in_version(target.kind, stored))  # as they were chosen
            resource = target.kind.resource
            content = {"kind": target.kind.list_kind, "apiVersion": resource.api_version}
            metadata = {"resourceVersion": str(tx.revision), **({} if target.kind.builtin else {"continue": ""})}
            return Answered({**content, "metadata": metadata, "items": deleted}, is_object=False)

        return Planned(decide, options.dry_run)


def _delete_options(request: Request) -> DeleteOptions:
    body: JsonObject = {}
    if request.body.strip():
        media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
        body, _ = bodies.parse_object(request.body, media)
        if body.get("kind") not in {None, "", "DeleteOptions"}:
            raise bad_request(f'no kind "{body["kind"]}" is registered for version "{body.get("apiVersion") or ""}"')
    return DeleteOptions.parse(request, body)


def _parse_object(target: Target, body: bytes, media: str) -> tuple[JsonObject, list[str]]:
    """Read an object; a custom one must say what it is."""
    if target.kind.builtin:
        return bodies.parse_object(body, media)
    opening = f"the object provided is unrecognized (must be of type {target.kind.resource.kind})"
    try:
        content, duplicates = bodies.parse(body, media)
        content = {} if content is None else content
        bodies.check_envelope(content)
    except RequestRefusedError as exc:
        raise exc if exc.code != 400 else bad_request(f"{opening}: {exc.message} ({_summary(body)})") from exc
    for name, called in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        if not content.get(name):
            text = body.decode(errors="replace")
            raise bad_request(f"{opening}: Object '{called}' is missing in '{text}' ({_summary(body)})")
    bodies.check_shape(content)
    return content, duplicates


def _summary(body: bytes, longest: int = 30) -> str:
    if not body:
        return "<empty>"
    shown = body[:longest].decode(errors="replace") if body[:1] == b"{" else body[:longest].hex()
    return f"{shown} ..." if len(body) > longest else shown


def _parse_manifest(body: bytes, media: str) -> tuple[JsonObject, list[str]]:
    try:
        content, duplicates = bodies.parse(body, media)
    except RequestRefusedError as exc:
        raise exc if exc.code != 400 else bad_request(f"error decoding YAML: {exc.message}") from exc
    if content is not None and not isinstance(content, dict):
        raise bad_request("error decoding YAML: the body is not an object")
    return content or {}, duplicates


def _refuse_if_there(target: Target, refusal: RequestRefusedError, tx: Transaction) -> Answered:
    """Refuse a patch that does not read, once it is known that there is something to patch."""
    raise refusal if tx.get(target.ref) is not None else not_found(target.subject)


@contextmanager
def _decoding(target: Target, patched: Any = ABSENT) -> Iterator[None]:
    """Answer 400 to what does not read as the kind, or 422 when a patch made it so."""
    try:
        yield
    except bodies.DecodeError as exc:
        if patched is ABSENT:
            raise undecodable(target.kind.resource, str(exc)) from exc
        raise invalid(Subject(""), [field_invalid("patch", compact(patched), str(exc))]) from exc


def _answered(target: Target, stored: Object, *, status: int = 200, warnings: list[str] | None = None) -> Answered:
    """Answer with the object; a write (the one that has warnings, if only none) tells what is unwise in it."""
    said = () if warnings is None else (*warnings, *strategy.advice(target.kind, stored))
    if target.subresource == "scale":
        return Answered(target.scale_of(stored), status, is_object=False, warnings=said)
    return Answered(stored, status, warnings=said)


def _with_metadata(body: Mapping[str, Any]) -> JsonObject:
    """Return the body with metadata of its own, to be edited; nulls in it are left out: every Go client sends some."""
    metadata = body.get("metadata") or {}
    return {**body, "metadata": {name: value for name, value in metadata.items() if value is not None}}


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
    except PatchDocumentError as exc:
        raise bad_request(str(exc)) from exc
    except StrategicPatchError as exc:
        raise plain_internal(str(exc)) from exc
    except PatchFailedError as exc:
        raise unprocessable(str(exc)) from exc
    if not isinstance(patched, Mapping):
        raise bad_request("the patched object is not an object")
    return dict(patched)


def _not_typed(target: Target, metadata: Mapping[str, Any], why: str) -> RequestRefusedError:
    """Refuse a configuration that does not fit the schema, as kube-apiserver does: as an error of its own."""
    resource = target.kind.resource
    place = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"
    what = f"({place}; {resource.group}/{resource.version}, Kind={resource.kind})"
    return plain_internal(f"failed to create typed patch object {what}: {why}")


def _check_applied_type(target: Target, manifest: Mapping[str, Any]) -> None:
    """Refuse a configuration that is not of the kind at the URL, or does not say what it is."""
    resource = target.kind.resource
    version, kind = manifest.get("apiVersion") or "", manifest.get("kind") or ""
    if (version, kind) != (resource.api_version, resource.kind):
        raise bad_request(f"invalid object type: {'' if '/' in version else '/'}{version}, Kind={kind}")


def _check_type(target: Target, body: Mapping[str, Any], *, patched: bool = False) -> None:
    """Refuse a body that says it is something else; one that says nothing is taken for what the URL says."""
    resource = target.kind.resource
    version, kind = body.get("apiVersion"), body.get("kind")
    if version and version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind and kind != resource.kind and target.kind.builtin:
        why = f"converting ({version}.{kind}) to ({resource.kind}): unknown conversion"
        raise bad_request(f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}')
    if kind and kind != resource.kind and patched:
        said = f"{body.get('apiVersion') or resource.api_version}, Kind={kind}"
        raise bad_request(f"the kind in the data ({said}) does not match the expected kind ({resource.kind})")


def _check_name(target: Target, wanted: Mapping[str, Any]) -> None:
    """Refuse an object without its name, or with another one, before anything is made of it."""
    metadata = wanted.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not name:
        why = f"the name of the object ({target.ref.key.name} based on URL) was undeterminable"
        raise bad_request(f"{why}: name must be provided")
    if name != target.ref.key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.ref.key.name})")


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


def _check_uid(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse an update that was made for another object of that name; a patch may name a uid only to be refused it."""
    uid, live = metadata.get("uid"), stored["metadata"]["uid"]
    if uid and uid != live:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live}"
        raise conflict(target.subject, why)


def _check_conditional(target: Target, metadata: Mapping[str, Any]) -> None:
    """Refuse an update without a version where others' changes would be lost."""
    if not metadata.get("resourceVersion") and not target.kind.unconditional_update and target.subresource != "scale":
        missing = field_invalid("metadata.resourceVersion", Verbatim("0"), "must be specified for an update")
        raise invalid(target.subject, [missing])


def _check_version(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse a write that was made for an older state of the object."""
    version = str(metadata.get("resourceVersion") or "")
    if version in {"", "0", stored["metadata"]["resourceVersion"]}:
        return
    if not version.isdigit():
        raise plain_internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    raise conflict(target.subject, STALE)


def _check_delete_preconditions(target: Target, stored: Object, options: DeleteOptions) -> None:
    live = stored["metadata"]
    if options.uid and options.uid != live["uid"]:
        told = f"the UID in the precondition ({options.uid}) does not match the UID in record ({live['uid']})."
        raise conflict(target.kind_subject, f"{told} The object might have been deleted and then recreated")
    if options.resource_version and options.resource_version != live["resourceVersion"]:
        asked, there = options.resource_version, live["resourceVersion"]
        told = f"the ResourceVersion in the precondition ({asked}) does not match"
        why = f"{told} the ResourceVersion in record ({there}). The object might have been modified"
        raise conflict(target.kind_subject, why)
