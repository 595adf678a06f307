"""A refused request is answered with a Status in kube-apiserver's own words, because clients parse them.

Facts: Kubernetes API conventions, "Response Status Kind"; wording as kube-apiserver 1.32 writes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs

from llmkube.apiserver.values.field_errors import FieldError
from llmkube.k8s.resource import Resource

JsonObject = dict[str, Any]

_MAX_ERRORS: Final = 500  # errors that are reported; kube-apiserver reports all
_ERRORS_BYTES: Final = 1024 * 1024


def status_cause(reason: str, message: str, field: str = "") -> JsonObject:
    """Return a cause for `details.causes` of a Status: a field and its problem."""
    cause = {"reason": reason, "message": message}
    return {**cause, "field": field} if field else cause


@attrs.frozen
class Subject:
    """The subject of a Status: `resource` is a plural for missing objects and a kind for invalid ones."""

    resource: str
    group: str = ""
    name: str = ""
    uid: str = ""

    @property
    def qualified(self) -> str:
        """The resource with its group: `models.inference.llmkube.dev`, `services`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def to_json(self) -> JsonObject:
        """Return the subject as in `details`."""
        fields = {"name": self.name, "group": self.group, "kind": self.resource, "uid": self.uid}
        return {name: value for name, value in fields.items() if value}


class RequestRefusedError(Exception):
    """The request is refused. The Status is the response, never a crash.

    Args:
        code: The HTTP status.
        reason: The machine-readable reason (`NotFound`); empty where kube-apiserver gives none.
        message: The text that kubectl prints.
        details: The `details` object, or None.
        token: A continue token for the rest of a list that has expired.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None, *, token: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.token = token
        self.reason = reason
        self.message = message
        self.warnings: tuple[str, ...] = ()  # sent with the refusal
        self.details = None if details is None else dict(details)

    def to_status(self) -> JsonObject:
        """Return the `Status` object to send."""
        metadata = {"continue": self.token} if self.token else {}
        status: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


@contextmanager
def attach_warnings(warnings: Sequence[str]) -> Iterator[None]:
    """Add the warnings to a refusal that is raised in the body."""
    try:
        yield
    except RequestRefusedError as exc:
        exc.warnings = (*warnings, *exc.warnings)
        raise


def success(subject: Subject) -> JsonObject:
    """Return the `Status` that answers a completed delete."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": subject.to_json()}


def not_found(subject: Subject) -> RequestRefusedError:
    """Refuse: there is no object of that name."""
    return RequestRefusedError(404, "NotFound", f'{subject.qualified} "{subject.name}" not found', subject.to_json())


def no_such_resource() -> RequestRefusedError:
    """Refuse: the built-in kind has no such subresource."""
    return RequestRefusedError(404, "NotFound", "the server could not find the requested resource", {})


def no_such_path() -> RequestRefusedError:
    """Refuse: nothing is served at that path; clients read it as "the resource type is unknown"."""
    return RequestRefusedError(404, "NotFound", "the server could not find the requested resource")


def already_exists(subject: Subject, *, deleting: bool = False) -> RequestRefusedError:
    """Refuse to create: the name is taken, perhaps by an object that is being deleted."""
    message = f'{"object is being deleted: " if deleting else ""}{subject.qualified} "{subject.name}" already exists'
    return RequestRefusedError(409, "AlreadyExists", message, subject.to_json())


def conflict(subject: Subject, why: str) -> RequestRefusedError:
    """Refuse a write whose precondition does not hold."""
    message = f'Operation cannot be fulfilled on {subject.qualified} "{subject.name}": {why}'
    return RequestRefusedError(409, "Conflict", message, subject.to_json())


STALE = "the object has been modified; please apply your changes to the latest version and try again"
"""Cause of a conflict over an old resourceVersion."""


def apply_conflict(message: str, causes: Sequence[JsonObject]) -> RequestRefusedError:
    """Refuse an apply that would take over fields of other managers."""
    return RequestRefusedError(409, "Conflict", message, {"causes": list(causes)})


def invalid(subject: Subject, errors: Sequence[FieldError]) -> RequestRefusedError:
    """Refuse an object with invalid content; `subject.resource` is its kind, not its plural."""
    reported = _limited(errors)
    summary = list(dict.fromkeys(map(str, reported)))  # the message has each error once, the causes may repeat it
    if len(reported) < len(errors):
        summary.append(f"and {len(errors) - len(reported)} more errors")
    listed = summary[0] if len(summary) == 1 else "[" + ", ".join(summary) + "]"
    causes = [status_cause(error.reason, error.message, error.path or "<nil>") for error in reported]
    details = {**subject.to_json(), "causes": causes}
    return RequestRefusedError(422, "Invalid", f'{subject.qualified} "{subject.name}" is invalid: {listed}', details)


def _limited(errors: Sequence[FieldError]) -> Sequence[FieldError]:
    """Return as many of the errors as fit into a response: each may show a value of a megabyte."""
    remaining = _ERRORS_BYTES
    for number, error in enumerate(errors[:_MAX_ERRORS]):
        remaining -= len(str(error))
        if remaining < 0:
            return errors[: number + 1]
    return errors[:_MAX_ERRORS]


def bad_request(message: str) -> RequestRefusedError:
    """Refuse a malformed request."""
    return RequestRefusedError(400, "BadRequest", message)


def plain_internal(message: str) -> RequestRefusedError:
    """Refuse with a 500 without a reason, as kube-apiserver does for errors that it does not expect."""
    return RequestRefusedError(500, "", message)


def unprocessable(message: str) -> RequestRefusedError:
    """Refuse a patch that is valid but does not fit the object."""
    return RequestRefusedError(422, "Invalid", message)


def rejected(why: str = "") -> RequestRefusedError:
    """Refuse a JSON patch that does not apply to this object; kube-apiserver gives a cause only for a limit."""
    summary = "the server rejected our request due to an error in our request"
    return RequestRefusedError(422, "Invalid", f"{summary}: {why}" if why else summary, {})


def forbidden(subject: Subject, why: str, *, cause: JsonObject | None = None) -> RequestRefusedError:
    """Refuse a write that the state of the server forbids."""
    details = subject.to_json()
    if cause is not None:
        details["causes"] = [cause]
    return RequestRefusedError(403, "Forbidden", f'{subject.qualified} "{subject.name}" is forbidden: {why}', details)


def unauthorized() -> RequestRefusedError:
    """Refuse a caller without the token."""
    return RequestRefusedError(401, "Unauthorized", "Unauthorized")


def method_not_allowed(subject: Subject | None = None, verb: str = "") -> RequestRefusedError:
    """Refuse a verb that the resource does not have; for a custom one, kube-apiserver names the verb."""
    if subject is None:
        message = "the server does not allow this method on the requested resource"
        return RequestRefusedError(405, "MethodNotAllowed", message, {})
    message = f'{verb} is not supported on resources of kind "{subject.qualified}"'
    return RequestRefusedError(405, "MethodNotAllowed", message, attrs.evolve(subject, name="").to_json())


def not_acceptable(offered: Sequence[str]) -> RequestRefusedError:
    """Refuse to respond in a format that the server does not have."""
    message = "only the following media types are accepted: " + ", ".join(offered)
    return RequestRefusedError(406, "NotAcceptable", message)


def undecodable(resource: Resource, why: str) -> RequestRefusedError:
    """Refuse a body that cannot be decoded as its kind."""
    kind, version = resource.kind, resource.version
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {why}')


def unsupported_media_type(accepted: Sequence[str]) -> RequestRefusedError:
    """Refuse a body in a format that the server does not read."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return RequestRefusedError(415, "UnsupportedMediaType", message)


def too_large(why: str) -> RequestRefusedError:
    """Refuse a body over a limit."""
    return RequestRefusedError(413, "RequestEntityTooLarge", f"Request entity too large: {why}")


def expired(message: str) -> RequestRefusedError:
    """Refuse a resourceVersion that is no longer in the event log: the client must list again."""
    return RequestRefusedError(410, "Expired", message)


def too_large_revision(requested: int, current: int) -> RequestRefusedError:
    """Refuse a read at a resourceVersion that this server has not reached."""
    message = f"Too large resource version: {requested}, current: {current}"
    cause = status_cause("ResourceVersionTooLarge", "Too large resource version")
    return RequestRefusedError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def internal(message: str) -> RequestRefusedError:
    """Report a failure of the server itself (such as a full disk); nothing was written."""
    details = {"causes": [{"message": message}]}
    return RequestRefusedError(500, "InternalError", f"Internal error occurred: {message}", details)
