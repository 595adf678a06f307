"""Decodes protobuf bodies, which Go's clients send.

`kubectl create namespace NAME` does since 1.32, controller-runtime does for every built-in kind. The kinds that kubectl
creates are decoded, and those that programs on a host write: endpoints, Leases, Events.

Bodies only: clients that send protobuf accept JSON responses. A kind whose fields have no numbers in
`schema.builtin_types` is refused with 415. A field without a number is dropped, as unknown fields of JSON are. The
schema has the type of a field; where it has none, the field is a text.

Facts: `k8s.io/apimachinery/pkg/runtime/generated.proto` (the envelope).
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.protocol.openapi_protobuf import fields
from llmkube.apiserver.schema.builtin_types import Numbers, field_numbers, type_schema
from llmkube.apiserver.schema.structural import ANYTHING, Schema
from llmkube.apiserver.values.api_errors import bad_request, unsupported_media_type
from llmkube.k8s.wire.times import timestamp

JsonObject = dict[str, Any]

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_SIGN: Final = 1 << 63

_TYPE_META: Final[Numbers] = {1: ("apiVersion", {}), 2: ("kind", {})}


def decode(body: bytes) -> JsonObject:
    """Return the object in a protobuf envelope.

    Raises:
        RequestRefusedError: 400 for bytes that are not such an envelope, 415 for a kind that is not decoded.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        envelope = dict(fields(body[len(_MAGIC) :]))
        kind = _message(envelope.get(1, b""), _TYPE_META, ANYTHING)
        type_meta = kind.get("apiVersion", ""), kind.get("kind", "")
        if type_meta not in _MESSAGES:
            raise unsupported_media_type(["application/json", "application/yaml"])
        return {**kind, **_message(envelope.get(2, b""), *_MESSAGES[type_meta])}
    except (ValueError, IndexError, OverflowError, OSError, TypeError) as exc:
        raise bad_request(f"the protobuf message is malformed: {exc}") from exc


def _message(data: bytes, numbers: Numbers, schema: Schema) -> JsonObject:
    message: JsonObject = {}
    for field_number, raw in fields(data):
        if field_number not in numbers:
            continue
        name, inner = numbers[field_number]
        field = schema.child(name) or ANYTHING
        if field.items is not None:
            message.setdefault(name, []).append(_value(raw, name, inner, field.items))
        elif field.additional is not None:
            pair = dict(fields(raw))
            message.setdefault(name, {})[_text(pair.get(1, b""))] = _value(pair.get(2, b""), "", {}, field.additional)
        elif (value := _value(raw, name, inner, field)) not in ("", {}, None):
            message[name] = value  # Go writes empty texts and messages where nothing was set
    return message


def _value(raw: Any, name: str, inner: Numbers, schema: Schema) -> Any:
    """Return a field's raw value (a number or bytes) as JSON; None where nothing was set."""
    if schema.int_or_string:
        arms = dict(fields(raw))
        return _text(arms.get(3, b"")) if arms.get(1) else _integer(arms.get(2, 0))
    match schema.raw.get("format") or schema.type:
        case _ if inner:
            return _message(raw, inner, schema)
        case "boolean" | "int32" | "int64" as kind:
            value = bool(raw) if kind == "boolean" else _integer(raw)
            return value or None if name in _ZERO_IS_UNSET else value
        case "byte":
            return base64.b64encode(raw).decode()
        case "date-time":
            return _time(raw, micro=name in _MICRO_TIMES)
    return _text(raw)


def _text(raw: bytes) -> str:
    return bytes.decode(raw)  # raises TypeError if it is a number


def _integer(raw: int) -> int:
    return raw - 2 * _SIGN if raw >= _SIGN else raw


def _time(raw: bytes, *, micro: bool) -> str | None:
    seconds, nanos = (dict(fields(raw)).get(each, 0) for each in (1, 2))
    if not seconds and not (micro and nanos):
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    if not micro:
        return timestamp(moment)
    return f"{moment + timedelta(microseconds=nanos // 1000):%Y-%m-%dT%H:%M:%S.%f}Z"  # always with six digits, as Go


_ZERO_IS_UNSET: Final = frozenset({"count", "healthCheckNodePort", "nodePort", "publishNotReadyAddresses"})
"""Fields that are not pointers: Go writes 0 where nothing was set."""
_MICRO_TIMES: Final = frozenset({"acquireTime", "eventTime", "lastObservedTime", "renewTime"})


_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_REVIEW: Final = "authorization.k8s.io/v1"
_TYPES: Final[Mapping[tuple[str, str], str]] = {
    **{(kind.resource.api_version, kind.resource.kind): kind.definition for kind in BUILTIN_KINDS},
    ("v1", "DeleteOptions"): f"{_META}.DeleteOptions",
    ("meta.k8s.io/v1", "DeleteOptions"): f"{_META}.DeleteOptions",
    (_REVIEW, "SelfSubjectAccessReview"): "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    (_REVIEW, "SelfSubjectRulesReview"): "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
}
_PARSED: Final = {kind.definition: kind.schema for kind in BUILTIN_KINDS}
_MESSAGES: Final = {
    type_meta: (numbers, _PARSED.get(name) or Schema.parse(type_schema(name)))
    for type_meta, name in _TYPES.items()
    if (numbers := field_numbers(name))
}
