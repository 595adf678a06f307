"""What must hold of the object at the URL, and of where it is, before a write may happen."""

from collections.abc import Mapping
from typing import Any

from llmkube.apiserver.kinds.catalog import NAMESPACES, Catalog, ref_of
from llmkube.apiserver.storage.revisions import Object, Ref, Transaction
from llmkube.apiserver.values.api_errors import (
    STALE,
    RequestRefusedError,
    StatusCause,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
    plain_internal,
)
from llmkube.apiserver.values.field_errors import Verbatim
from llmkube.apiserver.values.field_errors import invalid as field_invalid
from llmkube.apiserver.writes.request_target import Target
from llmkube.apiserver.writes.write_options import DeleteOptions
from llmkube.k8s.resource import Key

JsonObject = dict[str, Any]


def check_namespace(catalog: Catalog, tx: Transaction, target: Target) -> None:
    """Refuse to create where there is no namespace, or one that is going away."""
    name = target.ref.key.namespace
    if not name:
        return
    home = tx.get(Ref(NAMESPACES, Key("", name)))
    if home is None:
        kind = catalog.versions(NAMESPACES)[0]
        raise not_found(Target(kind, ref_of(kind, "", name)).subject)
    if "deletionTimestamp" in home["metadata"]:
        cause = StatusCause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise forbidden(target.subject, why, cause=cause)


def check_name(target: Target, wanted: Mapping[str, Any]) -> None:
    """Refuse an object without its name, or with another one, before anything is made of it."""
    metadata = wanted.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not name:
        why = f"the name of the object ({target.ref.key.name} based on URL) was undeterminable"
        raise bad_request(f"{why}: name must be provided")
    if name != target.ref.key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.ref.key.name})")


def place(target: Target, wanted: JsonObject) -> None:
    """Put the object where the URL says; refuse one that says it is somewhere else."""
    metadata, key = wanted["metadata"], target.ref.key
    name = metadata.get("name")
    if name and name != key.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({key.name})")
    namespace = metadata.get("namespace")
    if namespace and namespace != key.namespace:
        raise wrong_namespace()
    metadata["name"] = key.name  # what the body leaves out, the URL says
    if key.namespace:
        metadata["namespace"] = key.namespace


def wrong_namespace() -> RequestRefusedError:
    """Refuse an object that says it is in another namespace."""
    return bad_request("the namespace of the provided object does not match the namespace sent on the request")


def check_uid(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse an update that was made for another object of that name; a patch may name a uid only to be refused it."""
    uid, live = metadata.get("uid"), stored["metadata"]["uid"]
    if uid and uid != live:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {live}"
        raise conflict(target.subject, why)


def check_conditional(target: Target, metadata: Mapping[str, Any]) -> None:
    """Refuse an update without a version where others' changes would be lost."""
    if not metadata.get("resourceVersion") and not target.kind.unconditional_update and target.subresource != "scale":
        missing = field_invalid("metadata.resourceVersion", Verbatim("0"), "must be specified for an update")
        raise invalid(target.subject, [missing])


def check_version(target: Target, stored: Object, metadata: Mapping[str, Any]) -> None:
    """Refuse a write that was made for an older state of the object."""
    version = str(metadata.get("resourceVersion") or "")
    if version in {"", "0", stored["metadata"]["resourceVersion"]}:
        return
    if not version.isdigit():
        raise plain_internal(f'strconv.ParseUint: parsing "{version}": invalid syntax')
    raise conflict(target.subject, STALE)


def check_delete_preconditions(target: Target, stored: Object, options: DeleteOptions) -> None:
    """Refuse to delete another object than the client has in mind, or a newer state of it."""
    live = stored["metadata"]
    if options.uid and options.uid != live["uid"]:
        told = f"the UID in the precondition ({options.uid}) does not match the UID in record ({live['uid']})."
        raise conflict(target.kind_subject, f"{told} The object might have been deleted and then recreated")
    if options.resource_version and options.resource_version != live["resourceVersion"]:
        asked, there = options.resource_version, live["resourceVersion"]
        told = f"the ResourceVersion in the precondition ({asked}) does not match"
        why = f"{told} the ResourceVersion in record ({there}). The object might have been modified"
        raise conflict(target.kind_subject, why)
