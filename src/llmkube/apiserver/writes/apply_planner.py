"""Apply lays a client's configuration over the live object, and remembers who has set what."""

from collections.abc import Callable, Mapping
from typing import Any

from llmkube.apiserver.fields.last_applied import apply_as
from llmkube.apiserver.fields.merge import MergeError
from llmkube.apiserver.fields.ownership import ApplyConflictError, ApplyRefusedError
from llmkube.apiserver.kinds.catalog import Catalog, in_version
from llmkube.apiserver.protocol import request_bodies
from llmkube.apiserver.storage.revisions import Object, Transaction
from llmkube.apiserver.values.api_errors import (
    RequestRefusedError,
    StatusCause,
    apply_conflict,
    bad_request,
    conflict,
    not_found,
    plain_internal,
    unprocessable,
)
from llmkube.apiserver.values.json_values import ABSENT
from llmkube.apiserver.writes import strategy
from llmkube.apiserver.writes.deletion import settle
from llmkube.apiserver.writes.preconditions import check_namespace, check_version, place
from llmkube.apiserver.writes.preparation import ObjectPreparation, complain
from llmkube.apiserver.writes.request_objects import check_applied_type, decoding, with_metadata
from llmkube.apiserver.writes.request_target import Outcome, Target, outcome_of
from llmkube.apiserver.writes.write_options import WriteOptions

JsonObject = dict[str, Any]


class ApplyPlanner:
    """Server-side apply over one catalog."""

    def __init__(self, catalog: Catalog, admission: ObjectPreparation, timestamp: Callable[[], str]) -> None:
        self._catalog = catalog
        self._admission = admission
        self._timestamp = timestamp

    def apply(
        self,
        tx: Transaction,
        target: Target,
        manifest: Mapping[str, Any],
        options: WriteOptions,
        duplicates: list[str] | None = None,
    ) -> Outcome:
        """Lay a configuration over the live object, or create it.

        Raises:
            RequestRefusedError: 409 when others own what would change, 400 and 422 for a bad configuration.
        """
        if not isinstance(manifest.get("metadata"), Mapping | None):
            raise _not_typed(target, {}, ".metadata: expected map")
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
            warnings = complain(duplicates or [], options)
        old = None if stored is None else in_version(target.kind, stored)
        merged = self._merged(target, old, wanted, options)
        place(target, merged)
        if stored is None:
            check_namespace(self._catalog, tx, target)
        with decoding(target):
            request_bodies.check_shape(_of_clients(merged, old))
        new = self._admission.applied(tx, target, old, merged)
        if new is None:
            return outcome_of(target, old or {}, warnings=warnings)
        if old is None:
            return outcome_of(target, tx.put(target.ref, new), status=201, warnings=warnings)
        after, _ = settle(tx, target.ref, new)
        return outcome_of(target, after, warnings=warnings)

    def _merged(self, target: Target, old: Object | None, wanted: JsonObject, options: WriteOptions) -> JsonObject:
        try:
            return apply_as(
                old,
                wanted,
                options.manager,
                schema=target.kind.schema,
                now=self._timestamp(),
                force=options.force,
                **strategy.ownership(target.kind, target.subresource),
            ).object
        except ApplyConflictError as exc:
            causes = [StatusCause("FieldManagerConflict", each.message, each.path) for each in exc.conflicts]
            raise apply_conflict(str(exc), causes) from exc
        except ApplyRefusedError as exc:
            raise bad_request(str(exc)) from exc
        except MergeError as exc:
            raise _not_typed(target, wanted["metadata"], str(exc)) from exc


def _of_clients(merged: JsonObject, old: Object | None) -> JsonObject:
    """Return what the client can have got wrong: neither what is written down about it, nor what was there before."""
    metadata, before = merged.get("metadata"), {} if old is None else old["metadata"]
    if not isinstance(metadata, dict):
        return merged
    fresh = {name: value for name, value in metadata.items() if value is not before.get(name, ABSENT)}
    fresh.pop("managedFields", None)
    return {"metadata": fresh}


def _not_typed(target: Target, metadata: Mapping[str, Any], why: str) -> RequestRefusedError:
    """Refuse a configuration that does not fit the schema, as kube-apiserver does: as an error of its own."""
    resource = target.kind.resource
    place = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"
    what = f"({place}; {resource.group}/{resource.version}, Kind={resource.kind})"
    return plain_internal(f"failed to create typed patch object {what}: {why}")
