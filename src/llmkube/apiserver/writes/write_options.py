"""The options of a write besides its body: dry run, field manager, field validation, deletion."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import attrs

from llmkube.apiserver.protocol.negotiation import OBJECT_TYPES, content_type
from llmkube.apiserver.protocol.request_bodies import parse_flag, parse_object
from llmkube.apiserver.values.api_errors import RequestRefusedError, Subject, bad_request, invalid
from llmkube.apiserver.values.field_errors import FieldError, forbidden, not_supported, required, too_long
from llmkube.apiserver.values.field_errors import invalid as invalid_value
from llmkube.apiserver.writes.deletion import Propagation
from llmkube.base.http.message import Request

Validation = Literal["Strict", "Warn", "Ignore"]

MAX_MANAGER: Final = 128
"""The longest name of a field manager, in characters."""


@attrs.frozen
class WriteOptions:
    """The query parameters of a create, update, patch or delete."""

    manager: str = "unknown"
    dry_run: bool = False
    validation: Validation = "Warn"
    force: bool = False

    @classmethod
    def parse(cls, request: Request, *, applying: bool) -> "WriteOptions":
        """Parse them; a client that does not name its field manager is identified by its User-Agent.

        Raises:
            RequestRefusedError: 422 for an unknown value, or an apply without a field manager.
        """
        manager = request.param("fieldManager")
        errors: list[FieldError] = []
        if applying and not manager:
            errors.append(required("fieldManager", "is required for apply patch"))
        if len(manager.encode()) > MAX_MANAGER:
            errors.append(too_long("fieldManager", MAX_MANAGER))
        errors += (
            invalid_value("fieldManager", manager, f"invalid character U+{ord(letter):04X} (at position {position})")
            for position, letter in enumerate(manager)
            if not letter.isprintable()
        )
        force = parse_flag(request.param("force"))
        if force is not None and not applying:
            errors.append(forbidden("force", "may not be specified for non-apply patch"))
        validation = request.param("fieldValidation") or "Warn"
        if validation not in {"Strict", "Warn", "Ignore"}:
            errors.append(not_supported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
        dry_run = [value for name, value in request.query if name == "dryRun"]
        errors += _check_dry_run(dry_run)
        if errors:
            options_kind = {"PATCH": "PatchOptions", "PUT": "UpdateOptions"}.get(request.method, "CreateOptions")
            raise invalid(Subject(options_kind, "meta.k8s.io"), errors)
        agent = (request.headers.get("user-agent") or "").split("/")[0].strip()[:MAX_MANAGER]
        return cls(manager or agent or "unknown", bool(dry_run), cast("Validation", validation), bool(force))


@attrs.frozen
class DeleteOptions:
    """The options of a deletion: propagation to dependents, and preconditions."""

    propagation: Propagation = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False

    @classmethod
    def parse(cls, request: Request) -> "DeleteOptions":
        """Parse the body (a `DeleteOptions` object, or nothing) and the query; the body takes precedence.

        Raises:
            RequestRefusedError: 400 or 422, an invalid value.
        """
        body: dict[str, Any] = {}
        if request.body.strip():
            media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
            body, _ = parse_object(request.body, media)
            if body.get("kind") not in {None, "", "DeleteOptions"}:
                version = body.get("apiVersion") or ""
                raise bad_request(f'no kind "{body["kind"]}" is registered for version "{version}"')
        propagation = body.get("propagationPolicy") or request.param("propagationPolicy")
        orphan = body.get("orphanDependents")
        if orphan is None:
            orphan = parse_flag(request.param("orphanDependents"))
        if propagation and orphan is not None:
            why = "orphanDependents and deletionPropagation cannot be both set"
            raise _invalid_options([invalid_value("propagationPolicy", propagation, why)])
        if orphan is not None:
            propagation = "Orphan" if orphan else "Background"
        if propagation not in {"", "Background", "Foreground", "Orphan"}:
            allowed = ["Foreground", "Background", "Orphan", "nil"]
            raise _invalid_options([not_supported("propagationPolicy", propagation, allowed)])
        preconditions = body.get("preconditions") or {}
        if not isinstance(preconditions, Mapping):
            raise bad_request("json: cannot unmarshal value into Go struct field DeleteOptions.preconditions")
        dry_run = body.get("dryRun") or [value for name, value in request.query if name == "dryRun"]
        if errors := _check_dry_run(dry_run):
            raise _invalid_options(errors)
        return cls(
            propagation=cast("Propagation", propagation),
            uid=str(preconditions.get("uid") or ""),
            resource_version=str(preconditions.get("resourceVersion") or ""),
            dry_run=bool(dry_run),
        )


def _check_dry_run(values: Any) -> list[FieldError]:
    is_valid = isinstance(values, list) and all(value == "All" for value in values)
    return [] if is_valid else [not_supported("dryRun", values, ["All"])]


def _invalid_options(errors: list[FieldError]) -> RequestRefusedError:
    return invalid(Subject("DeleteOptions", "meta.k8s.io"), errors)
