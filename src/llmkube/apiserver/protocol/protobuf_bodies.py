"""Go's clients send protobuf: `kubectl create namespace NAME` since 1.32, controller-runtime for every built-in kind.

The table has what kubectl creates, and what programs on a host write: endpoints, Leases, Events.

Bodies only: clients that send protobuf accept JSON as an answer. A kind that is not in the table is answered with 415.
The table has the number of every field that a client may set and the kind's schema has; one newer than both is dropped,
as unknown fields of JSON are. What type a field has is in the schema; where that says nothing, it is a text.

Facts: `k8s.io/apimachinery/pkg/runtime/generated.proto` (the envelope) and the `generated.proto` of meta/v1, core/v1,
discovery/v1, coordination/v1 and authorization/v1 (field numbers, which never change).
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS
from llmkube.apiserver.protocol.openapi_protobuf import fields
from llmkube.apiserver.schema.parts import flag, list_of, number, structure, text, top_level
from llmkube.apiserver.schema.structural import ANYTHING, Schema
from llmkube.apiserver.values.api_errors import bad_request, unsupported_media_type
from llmkube.k8s.wire.times import timestamp

JsonObject = dict[str, Any]

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_SIGN: Final = 1 << 63

Numbers = Mapping[int, tuple[str, Any]]
"""By its number, the name of a message's field and the `Numbers` of what is in it."""


def decode(body: bytes) -> JsonObject:
    """Return the object in a protobuf envelope.

    Raises:
        RequestRefusedError: 400 for bytes that are no such envelope, 415 for a kind that is not read this way.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        envelope = dict(fields(body[len(_MAGIC) :]))
        kind = _message(envelope.get(1, b""), _TYPE_META, ANYTHING)
        named = kind.get("apiVersion", ""), kind.get("kind", "")
        if named not in _KINDS:
            raise unsupported_media_type(["application/json", "application/yaml"])
        return {**kind, **_message(envelope.get(2, b""), _KINDS[named], _SCHEMAS[named])}
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
    return bytes.decode(raw)  # a number where a text should be is a TypeError


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
"""Fields that are no pointers: Go writes 0 where nothing was set."""
_MICRO_TIMES: Final = frozenset({"acquireTime", "eventTime", "lastObservedTime", "renewTime"})


def _numbers(**given: int | tuple[int, Numbers]) -> Numbers:
    pairs = {name: each if isinstance(each, tuple) else (each, {}) for name, each in given.items()}
    return {field_number: (name, inner) for name, (field_number, inner) in pairs.items()}


_TYPE_META: Final = _numbers(apiVersion=1, kind=2)
_OWNER: Final = _numbers(kind=1, name=3, uid=4, apiVersion=5, controller=6, blockOwnerDeletion=7)
_METADATA: Final = (
    1,
    _numbers(
        name=1,
        generateName=2,
        namespace=3,
        uid=5,
        resourceVersion=6,
        creationTimestamp=8,
        labels=11,
        annotations=12,
        ownerReferences=(13, _OWNER),
        finalizers=14,
    ),
)
_NAME: Final = _numbers(name=1)
_REFERENCE: Final = _numbers(kind=1, namespace=2, name=3, uid=4, apiVersion=5, resourceVersion=6, fieldPath=7)
_SERVICE_SPEC: Final = _numbers(
    ports=(1, _numbers(name=1, protocol=2, port=3, targetPort=4, nodePort=5, appProtocol=6)),
    selector=2,
    clusterIP=3,
    type=4,
    externalIPs=5,
    sessionAffinity=7,
    loadBalancerIP=8,
    loadBalancerSourceRanges=9,
    externalName=10,
    externalTrafficPolicy=11,
    healthCheckNodePort=12,
    publishNotReadyAddresses=13,
    sessionAffinityConfig=(14, _numbers(clientIP=(1, _numbers(timeoutSeconds=1)))),
    ipFamilyPolicy=17,
    clusterIPs=18,
    ipFamilies=19,
    allocateLoadBalancerNodePorts=20,
    loadBalancerClass=21,
    internalTrafficPolicy=22,
    trafficDistribution=23,
)
_ENDPOINT: Final = _numbers(
    addresses=1,
    conditions=(2, _numbers(ready=1, serving=2, terminating=3)),
    hostname=3,
    targetRef=(4, _REFERENCE),
    deprecatedTopology=5,
    nodeName=6,
    zone=7,
    hints=(8, _numbers(forZones=(1, _NAME), forNodes=(2, _NAME))),
)
_OLD_ADDRESS: Final = _numbers(ip=1, targetRef=(2, _REFERENCE), hostname=3, nodeName=4)
_SUBSET: Final = _numbers(
    addresses=(1, _OLD_ADDRESS),
    notReadyAddresses=(2, _OLD_ADDRESS),
    ports=(3, _numbers(name=1, port=2, protocol=3, appProtocol=4)),
)
_LEASE: Final = _numbers(
    holderIdentity=1,
    leaseDurationSeconds=2,
    acquireTime=3,
    renewTime=4,
    leaseTransitions=5,
    strategy=6,
    preferredHolder=7,
)
_RESOURCE: Final = _numbers(namespace=1, verb=2, group=3, version=4, resource=5, subresource=6, name=7)
_ACCESS: Final = _numbers(resourceAttributes=(1, _RESOURCE), nonResourceAttributes=(2, _numbers(path=1, verb=2)))
_DELETE_OPTIONS: Final = _numbers(
    gracePeriodSeconds=1,
    preconditions=(2, _numbers(uid=1, resourceVersion=2)),
    orphanDependents=3,
    propagationPolicy=4,
    dryRun=5,
)
_EVENT: Final = _numbers(
    metadata=_METADATA,
    involvedObject=(2, _REFERENCE),
    reason=3,
    message=4,
    source=(5, _numbers(component=1, host=2)),
    firstTimestamp=6,
    lastTimestamp=7,
    count=8,
    type=9,
    eventTime=10,
    series=(11, _numbers(count=1, lastObservedTime=2)),
    action=12,
    related=(13, _REFERENCE),
    reportingComponent=14,
    reportingInstance=15,
)
_SLICE_PORT: Final = _numbers(name=1, protocol=2, port=3, appProtocol=4)
_KINDS: Final[Mapping[tuple[str, str], Numbers]] = {
    ("v1", "Namespace"): _numbers(metadata=_METADATA, spec=(2, _numbers(finalizers=1))),
    ("v1", "ConfigMap"): _numbers(metadata=_METADATA, data=2, binaryData=3, immutable=4),
    ("v1", "Secret"): _numbers(metadata=_METADATA, data=2, type=3, stringData=4, immutable=5),
    ("v1", "ServiceAccount"): _numbers(
        metadata=_METADATA, secrets=(2, _REFERENCE), imagePullSecrets=(3, _NAME), automountServiceAccountToken=4
    ),
    ("v1", "Service"): _numbers(metadata=_METADATA, spec=(2, _SERVICE_SPEC)),
    ("v1", "Endpoints"): _numbers(metadata=_METADATA, subsets=(2, _SUBSET)),
    ("discovery.k8s.io/v1", "EndpointSlice"): _numbers(
        metadata=_METADATA, endpoints=(2, _ENDPOINT), ports=(3, _SLICE_PORT), addressType=4
    ),
    ("coordination.k8s.io/v1", "Lease"): _numbers(metadata=_METADATA, spec=(2, _LEASE)),
    ("v1", "Event"): _EVENT,
    ("v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("meta.k8s.io/v1", "DeleteOptions"): _DELETE_OPTIONS,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _numbers(metadata=_METADATA, spec=(2, _ACCESS)),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): _numbers(
        metadata=_METADATA, spec=(2, _numbers(namespace=1))
    ),
}
_DELETION: Final = structure(gracePeriodSeconds=number(), orphanDependents=flag(), dryRun=list_of(text()))
_SCHEMAS: Final[Mapping[tuple[str, str], Schema]] = {
    **dict.fromkeys(_KINDS, Schema.parse(top_level(""))),
    **{named: Schema.parse(_DELETION) for named in _KINDS if named[1] == "DeleteOptions"},
    **{(kind.resource.api_version, kind.resource.kind): kind.schema for kind in BUILTIN_KINDS},
}
