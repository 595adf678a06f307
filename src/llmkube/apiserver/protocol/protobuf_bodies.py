"""Go's clients send protobuf: `kubectl create namespace NAME` since 1.32, controller-runtime for every built-in kind.

The table has what kubectl creates, and what programs on a host write: endpoints, Leases, Events.

Bodies only: clients that send protobuf accept JSON as an answer. A kind that is not in the table is answered with 415.
The table has every field that a client may set and the kind's schema has; one newer than both is dropped, as unknown
fields of JSON are.

Facts: `k8s.io/apimachinery/pkg/runtime/generated.proto` (the envelope) and the `generated.proto` of meta/v1, core/v1,
discovery/v1, coordination/v1 and authorization/v1 (field numbers, which never change).
"""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

from llmkube.apiserver.protocol.openapi_protobuf import fields
from llmkube.apiserver.values.api_errors import bad_request, unsupported_media_type
from llmkube.k8s.wire.times import timestamp

JsonObject = dict[str, Any]

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_SIGN: Final = 1 << 63

Read = Callable[[Any], Any]
"""Turns a field's raw value (a number or bytes) into JSON."""


@attrs.frozen
class Field:
    """One field of a message; `repeated` fields are lists, `keyed` ones maps."""

    name: str
    read: Read
    repeated: bool = False
    keyed: bool = False


Message = Mapping[int, Field]


def decode(body: bytes) -> JsonObject:
    """Return the object in a protobuf envelope.

    Raises:
        RequestRefusedError: 400 for bytes that are no such envelope, 415 for a kind that is not read this way.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        envelope = _message(_ENVELOPE)(body[len(_MAGIC) :])
        kind = envelope.get("typeMeta", {})
        table = _KINDS.get((kind.get("apiVersion", ""), kind.get("kind", "")))
        if table is None:
            raise unsupported_media_type(["application/json", "application/yaml"])
        return {**kind, **_message(table)(envelope.get("raw", b""))}
    except (ValueError, IndexError, OverflowError, OSError, TypeError) as exc:
        raise bad_request(f"the protobuf message is malformed: {exc}") from exc


def _message(table: Message) -> Read:
    def read(data: bytes) -> JsonObject:
        message: JsonObject = {}
        for number, raw in fields(data):
            field = table.get(number)
            if field is None:
                continue
            value = field.read(raw)
            if field.keyed:
                message.setdefault(field.name, {})[value.get("key", "")] = value.get("value", "")
            elif field.repeated:
                message.setdefault(field.name, []).append(value)
            elif value not in ("", {}, None):  # Go writes empty texts and messages where nothing was set
                message[field.name] = value
        return message

    return read


def _text(raw: bytes) -> str:
    return bytes.decode(raw)  # a number where a text should be is a TypeError


def _as_is(raw: bytes) -> bytes:
    return memoryview(raw).tobytes()  # of a number, `bytes` would make as many zeros


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _integer(raw: int) -> int:
    return raw - 2 * _SIGN if raw >= _SIGN else raw


def _set_integer(raw: int) -> int | None:
    return _integer(raw) or None  # Go writes 0 where nothing was set


def _set_flag(raw: int) -> bool | None:
    return bool(raw) or None  # the same of a flag that is no pointer


def _time(raw: bytes) -> str | None:
    seconds = dict(fields(raw)).get(1)
    return timestamp(datetime.fromtimestamp(seconds, UTC)) if seconds else None


def _micro_time(raw: bytes) -> str | None:
    seconds, nanos = (dict(fields(raw)).get(number, 0) for number in (1, 2))
    if not seconds and not nanos:
        return None
    moment = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=nanos // 1000)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"  # as Go writes a MicroTime, always with six digits


def _int_or_string(raw: bytes) -> int | str:
    arms = dict(fields(raw))
    return _text(arms.get(3, b"")) if arms.get(1) else _integer(arms.get(2, 0))


def _pair(value: Read) -> Read:
    return _message({1: Field("key", _text), 2: Field("value", value)})


def _texts(**numbers: int) -> dict[int, Field]:
    return {number: Field(name, _text) for name, number in numbers.items()}


_MAP: Final = _pair(_text)

_ENVELOPE: Final[Message] = {
    1: Field("typeMeta", _message(_texts(apiVersion=1, kind=2))),
    2: Field("raw", _as_is),
}
_OWNER: Final[Message] = {
    **_texts(kind=1, name=3, uid=4, apiVersion=5),
    6: Field("controller", bool),
    7: Field("blockOwnerDeletion", bool),
}
_META: Final[Message] = {
    **_texts(name=1, generateName=2, namespace=3, uid=5, resourceVersion=6),
    8: Field("creationTimestamp", _time),
    11: Field("labels", _MAP, keyed=True),
    12: Field("annotations", _MAP, keyed=True),
    13: Field("ownerReferences", _message(_OWNER), repeated=True),
    14: Field("finalizers", _text, repeated=True),
}
_METADATA: Final = Field("metadata", _message(_META))
_REFERENCE: Final = _texts(kind=1, namespace=2, name=3, uid=4, apiVersion=5, resourceVersion=6, fieldPath=7)
_SERVICE_PORT: Final[Message] = {
    **_texts(name=1, protocol=2, appProtocol=6),
    3: Field("port", _integer),
    4: Field("targetPort", _int_or_string),
    5: Field("nodePort", _set_integer),
}
_AFFINITY: Final[Message] = {1: Field("clientIP", _message({1: Field("timeoutSeconds", _integer)}))}
_SERVICE_SPEC: Final[Message] = {
    **_texts(clusterIP=3, type=4, sessionAffinity=7, loadBalancerIP=8, externalName=10, externalTrafficPolicy=11),
    **_texts(ipFamilyPolicy=17, loadBalancerClass=21, internalTrafficPolicy=22, trafficDistribution=23),
    1: Field("ports", _message(_SERVICE_PORT), repeated=True),
    2: Field("selector", _MAP, keyed=True),
    5: Field("externalIPs", _text, repeated=True),
    9: Field("loadBalancerSourceRanges", _text, repeated=True),
    12: Field("healthCheckNodePort", _set_integer),
    13: Field("publishNotReadyAddresses", _set_flag),
    14: Field("sessionAffinityConfig", _message(_AFFINITY)),
    18: Field("clusterIPs", _text, repeated=True),
    19: Field("ipFamilies", _text, repeated=True),
    20: Field("allocateLoadBalancerNodePorts", bool),
}
_ENDPOINT: Final[Message] = {
    **_texts(hostname=3, nodeName=6, zone=7),
    1: Field("addresses", _text, repeated=True),
    2: Field(
        "conditions", _message({n: Field(name, bool) for n, name in enumerate(("ready", "serving", "terminating"), 1)})
    ),
    4: Field("targetRef", _message(_REFERENCE)),
    5: Field("deprecatedTopology", _MAP, keyed=True),
    8: Field(
        "hints",
        _message(
            {
                1: Field("forZones", _message(_texts(name=1)), repeated=True),
                2: Field("forNodes", _message(_texts(name=1)), repeated=True),
            }
        ),
    ),
}
_OLD_ADDRESS: Final[Message] = {**_texts(ip=1, hostname=3, nodeName=4), 2: Field("targetRef", _message(_REFERENCE))}
_SUBSET: Final[Message] = {
    1: Field("addresses", _message(_OLD_ADDRESS), repeated=True),
    2: Field("notReadyAddresses", _message(_OLD_ADDRESS), repeated=True),
    3: Field(
        "ports", _message({**_texts(name=1, protocol=3, appProtocol=4), 2: Field("port", _integer)}), repeated=True
    ),
}
_LEASE: Final[Message] = {
    **_texts(holderIdentity=1, strategy=6, preferredHolder=7),
    2: Field("leaseDurationSeconds", _integer),
    3: Field("acquireTime", _micro_time),
    4: Field("renewTime", _micro_time),
    5: Field("leaseTransitions", _integer),
}
_SERIES: Final = _message({1: Field("count", _integer), 2: Field("lastObservedTime", _micro_time)})
_ACCESS: Final[Message] = {
    1: Field(
        "resourceAttributes",
        _message(_texts(namespace=1, verb=2, group=3, version=4, resource=5, subresource=6, name=7)),
    ),
    2: Field("nonResourceAttributes", _message(_texts(path=1, verb=2))),
}
_DELETE_OPTIONS: Final[Message] = {
    **_texts(propagationPolicy=4),
    1: Field("gracePeriodSeconds", _integer),
    2: Field("preconditions", _message(_texts(uid=1, resourceVersion=2))),
    3: Field("orphanDependents", bool),
    5: Field("dryRun", _text, repeated=True),
}
_KINDS: Final[Mapping[tuple[str, str], Message]] = {
    ("v1", "Namespace"): {
        1: _METADATA,
        2: Field("spec", _message({1: Field("finalizers", _text, repeated=True)})),
    },
    ("v1", "ConfigMap"): {
        1: _METADATA,
        2: Field("data", _MAP, keyed=True),
        3: Field("binaryData", _pair(_base64), keyed=True),
        4: Field("immutable", bool),
    },
    ("v1", "Secret"): {
        1: _METADATA,
        2: Field("data", _pair(_base64), keyed=True),
        3: Field("type", _text),
        4: Field("stringData", _MAP, keyed=True),
        5: Field("immutable", bool),
    },
    ("v1", "ServiceAccount"): {
        1: _METADATA,
        2: Field("secrets", _message(_REFERENCE), repeated=True),
        3: Field("imagePullSecrets", _message(_texts(name=1)), repeated=True),
        4: Field("automountServiceAccountToken", bool),
    },
    ("v1", "Service"): {1: _METADATA, 2: Field("spec", _message(_SERVICE_SPEC))},
    ("v1", "Endpoints"): {1: _METADATA, 2: Field("subsets", _message(_SUBSET), repeated=True)},
    ("discovery.k8s.io/v1", "EndpointSlice"): {
        **_texts(addressType=4),
        1: _METADATA,
        2: Field("endpoints", _message(_ENDPOINT), repeated=True),
        3: Field(
            "ports", _message({**_texts(name=1, protocol=2, appProtocol=4), 3: Field("port", _integer)}), repeated=True
        ),
    },
    ("coordination.k8s.io/v1", "Lease"): {1: _METADATA, 2: Field("spec", _message(_LEASE))},
    ("v1", "Event"): {
        **_texts(reason=3, message=4, type=9, action=12, reportingComponent=14, reportingInstance=15),
        1: _METADATA,
        2: Field("involvedObject", _message(_REFERENCE)),
        5: Field("source", _message(_texts(component=1, host=2))),
        6: Field("firstTimestamp", _time),
        7: Field("lastTimestamp", _time),
        8: Field("count", _set_integer),
        10: Field("eventTime", _micro_time),
        11: Field("series", _SERIES),
        13: Field("related", _message(_REFERENCE)),
    },
    ("v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("meta.k8s.io/v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): {1: _METADATA, 2: Field("spec", _message(_ACCESS))},
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): {
        1: _METADATA,
        2: Field("spec", _message(_texts(namespace=1))),
    },
}
