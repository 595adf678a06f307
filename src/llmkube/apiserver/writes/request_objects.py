"""Checks of an object that a client sent: it is readable, and has the type, name and namespace of the URL."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llmkube.apiserver.kinds.catalog import NAMESPACES, Catalog, ref_of
from llmkube.apiserver.protocol import request_bodies
from llmkube.apiserver.storage.revisions import Object, Ref, Transaction
from llmkube.apiserver.values.api_errors import (
    STALE,
    RequestRefusedError,
    Subject,
    bad_request,
    conflict,
    forbidden,
    internal,
    invalid,
    not_found,
    plain_internal,
    status_cause,
    undecodable,
)
from llmkube.apiserver.values.field_errors import Verbatim
from llmkube.apiserver.values.field_errors import invalid as field_invalid
from llmkube.apiserver.values.json_values import ABSENT, compact
from llmkube.apiserver.writes.request_target import Target
from llmkube.apiserver.writes.write_options import DeleteOptions
from llmkube.k8s.resource import Key

JsonObject = dict[str, Any]


def parse_object(target: Target, body: bytes, media: str) -> tuple[JsonObject, list[str]]:
    """Parse an object; a custom one must state its apiVersion and kind."""
    if target.kind.builtin:
        return request_bodies.parse_object(body, media)
    prefix = f"the object provided is unrecognized (must be of type {target.kind.resource.kind})"
    try:
        content, duplicates = request_bodies.parse(body, media)
        content = {} if content is None else content
        request_bodies.check_envelope(content)
    except RequestRefusedError as exc:
        raise exc if exc.code != 400 else bad_request(f"{prefix}: {exc.message} ({_summary(body)})") from exc
    for name, field in (("kind", "Kind"), ("apiVersion", "apiVersion")):
        if not content.get(name):
            text = body.decode(errors="replace")
            raise bad_request(f"{prefix}: Object '{field}' is missing in '{text}' ({_summary(body)})")
    request_bodies.check_shape(content)
    return content, duplicates


def _summary(body: bytes, longest: int = 30) -> str:
    if not body:
        return "<empty>"
    shown = body[:longest].decode(errors="replace") if body[:1] == b"{" else body[:longest].hex()
    return f"{shown} ..." if len(body) > longest else shown


def parse_manifest(body: bytes, media: str) -> tuple[JsonObject, list[str]]:
    """Parse a configuration to be applied."""
    try:
        content, duplicates = request_bodies.parse(body, media)
    except RequestRefusedError as exc:
        raise exc if exc.code != 400 else bad_request(f"error decoding YAML: {exc.message}") from exc
    if content is not None and not isinstance(content, dict):
        raise bad_request("error decoding YAML: the body is not an object")
    return content or {}, duplicates


@contextmanager
def decoding(target: Target, patched: Any = ABSENT) -> Iterator[None]:
    """Turn a DecodeError into a 400, or into a 422 when a patch caused it."""
    try:
        yield
    except request_bodies.DecodeError as exc:
        if patched is ABSENT:
            raise undecodable(target.kind.resource, str(exc)) from exc
        raise invalid(Subject(""), [field_invalid("patch", compact(patched), str(exc))]) from exc


def with_metadata(body: Mapping[str, Any]) -> JsonObject:
    """Return the body with metadata that can be edited, without its nulls: every Go client sends some."""
    metadata = body.get("metadata") or {}
    return {**body, "metadata": {name: value for name, value in metadata.items() if value is not None}}


def check_applied_type(target: Target, manifest: Mapping[str, Any]) -> None:
    """Refuse a configuration that is not of the kind at the URL, or does not state its type."""
    resource = target.kind.resource
    version, kind = (text if isinstance(text := manifest.get(name), str) else "" for name in ("apiVersion", "kind"))
    if (version, kind) != (resource.api_version, resource.kind):
        raise bad_request(f"invalid object type: {'' if '/' in version else '/'}{version}, Kind={kind}")


def check_patched(target: Target, patched: Any) -> None:
    """Refuse a patched object that no longer states its type; a custom object's type is compared later.

    Raises:
        DecodeError: It is not an object of the kind.
        RequestRefusedError: 500, a custom object has no apiVersion, which kube-apiserver does not expect.
    """
    if not isinstance(patched, Mapping):
        raise request_bodies.DecodeError("couldn't get version/kind; json parse error: the body is not an object")
    resource = target.kind.resource
    version, kind = patched.get("apiVersion"), patched.get("kind")
    if not isinstance(version, str | None) or not isinstance(kind, str | None):
        why = "couldn't get version/kind; json parse error: apiVersion or kind is not a string"
        raise request_bodies.DecodeError(why)
    if target.subresource == "scale":
        return
    if not target.kind.builtin:
        if not kind:
            raise request_bodies.DecodeError(f"Object 'Kind' is missing in '{compact(patched)}'")
        if not version:
            raise internal("Object 'apiVersion' is missing in 'object has no apiVersion field'")
    elif (version or resource.api_version, kind or resource.kind) != (resource.api_version, resource.kind):
        raise request_bodies.DecodeError(f'no kind "{kind}" is registered for version "{version}"')


def check_type(target: Target, body: Mapping[str, Any]) -> None:
    """Refuse a body with another type; a body without a type has the type of the URL."""
    resource = target.kind.resource
    version, kind = body.get("apiVersion"), body.get("kind")
    if version and version != resource.api_version:
        expected = f"the expected API version ({resource.api_version})"
        raise bad_request(f"the API version in the data ({version}) does not match {expected}")
    if kind and kind != resource.kind and target.kind.builtin:
        why = f"converting ({version}.{kind}) to ({resource.kind}): unknown conversion"
        raise bad_request(f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}')


def check_namespace(catalog: Catalog, tx: Transaction, target: Target) -> None:
    """Refuse to create in a namespace that does not exist or is being deleted."""
    name = target.ref.key.namespace
    if not name:
        return
    namespace = tx.get(Ref(NAMESPACES, Key("", name)))
    if namespace is None:
        kind = catalog.versions(NAMESPACES)[0]
        raise not_found(Target(kind, ref_of(kind, "", name)).subject)
    if "deletionTimestamp" in namespace["metadata"]:
        cause = status_cause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise forbidden(target.subject, why, cause=cause)


def check_name(target: Target, wanted: Mapping[str, Any]) -> None:
    """Refuse an object without a name, or with a different name than the URL."""
    metadata = wanted.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not name:
        why = f"the name of the object ({target.ref.key.name} based on URL) was undeterminable"
        raise bad_request(f"{why}: name must be provided")
    if name != target.ref.key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.ref.key.name})")


def set_name_and_namespace(target: Target, wanted: JsonObject) -> None:
    """Set the name and the namespace from the URL; refuse an object with others."""
    metadata, key = wanted["metadata"], target.ref.key
    name = metadata.get("name")
    if name and name != key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({key.name})")
    namespace = metadata.get("namespace")
    if namespace and namespace != key.namespace:
        raise wrong_namespace()
    metadata["name"] = key.name  # the body may omit it
    if key.namespace:
        metadata["namespace"] = key.namespace


def wrong_namespace() -> RequestRefusedError:
    """Return the refusal of an object with another namespace."""
    return bad_request("the namespace of the provided object does not match the namespace sent on the request")


def check_uid(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse an update that was made for another object of that name."""
    uid, live = metadata.get("uid"), stored["metadata"]["uid"]
    if uid and uid != live:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live}"
        raise conflict(target.subject, why)


def check_conditional(target: Target, metadata: Mapping[str, Any]) -> None:
    """Refuse an update without a resourceVersion, which could overwrite others' changes."""
    if not metadata.get("resourceVersion") and not target.kind.unconditional_update and target.subresource != "scale":
        missing = field_invalid("metadata.resourceVersion", Verbatim("0"), "must be specified for an update")
        raise invalid(target.subject, [missing])


def check_version(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse a write that was made for an older version of the object."""
    version = str(metadata.get("resourceVersion") or "")
    if version in {"", "0", stored["metadata"]["resourceVersion"]}:
        return
    if not version.isdigit():
        raise plain_internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    raise conflict(target.subject, STALE)


def check_delete_preconditions(target: Target, stored: Object, options: DeleteOptions) -> None:
    """Refuse to delete an object with another uid or resourceVersion than the preconditions."""
    live = stored["metadata"]
    if options.uid and options.uid != live["uid"]:
        message = f"the UID in the precondition ({options.uid}) does not match the UID in record ({live['uid']})."
        raise conflict(target.kind_subject, f"{message} The object might have been deleted and then recreated")
    if options.resource_version and options.resource_version != live["resourceVersion"]:
        requested, current = options.resource_version, live["resourceVersion"]
        message = f"the ResourceVersion in the precondition ({requested}) does not match"
        message += f" the ResourceVersion in record ({current}). The object might have been modified"
        raise conflict(target.kind_subject, message)
