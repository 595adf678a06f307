"""Rules of the built-in kinds that a schema cannot express: defaults, immutable fields and validation.

`BEHAVIOURS` has the functions of each kind: `fill` completes what a client sent, `prepare` makes the object ready to be
stored (create and update), `check` validates it.

Facts: `k8s.io/kubernetes/pkg/apis/*/validation` and `pkg/registry`.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from llmkube.apiserver.kinds import crd_rules, endpoint_rules, service_rules
from llmkube.apiserver.schema.structural import JsonObject
from llmkube.apiserver.values.field_errors import (
    FieldError,
    at,
    at_item,
    forbidden,
    immutable,
    invalid,
    required,
    too_long,
)
from llmkube.apiserver.values.json_values import same

Old = Mapping[str, Any] | None
Fill = Callable[[JsonObject], None]
Prepare = Callable[[JsonObject, Old], None]
Check = Callable[[Mapping[str, Any], Old], Iterator[FieldError]]

MAX_DATA_BYTES: Final = 1024 * 1024
"""Limit for all values of a Secret or ConfigMap together."""

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_REQUIRED_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _nothing(*_: Any) -> Any:
    return ()


@attrs.frozen
class Behaviour:
    """The special rules of one kind; None where there are none."""

    fill: Fill | None = None
    prepare: Prepare | None = None
    check: Check = _nothing
    warnings: Callable[[Mapping[str, Any]], list[str]] = _nothing
    check_status: Callable[[Mapping[str, Any]], Iterator[FieldError]] = _nothing


def _fill_namespace(obj: JsonObject) -> None:
    metadata = obj.get("metadata") or {}
    if metadata.get("name"):
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}


def _prepare_namespace(obj: JsonObject, old: Old) -> None:
    if old is None:
        obj["status"] = {"phase": "Active"}
        finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
        if "kubernetes" not in finalizers:
            finalizers.append("kubernetes")
    else:
        obj["spec"] = {**obj.get("spec", {}), "finalizers": (old.get("spec") or {}).get("finalizers", [])}


def _fill_secret(obj: JsonObject) -> None:
    plain = obj.pop("stringData", None)
    if plain:
        obj["data"] = {
            **(obj.get("data") or {}),
            **{name: base64.b64encode(value.encode()).decode() for name, value in plain.items()},
        }


def _check_secret(obj: Mapping[str, Any], old: Old) -> Iterator[FieldError]:
    data = obj.get("data") or {}
    yield from _check_keys(data, "data")
    if sum(_decoded_size(value) for value in data.values()) > MAX_DATA_BYTES:
        yield too_long("data", MAX_DATA_BYTES)
    for name in _REQUIRED_KEYS.get(obj.get("type", ""), ()):
        if name not in data:
            yield required(at_item("data", name))
    if old is not None:
        if obj.get("type") != old.get("type"):
            yield immutable("type", obj.get("type"))
        yield from _check_immutable(obj, old, ("data",))


def _check_config_map(obj: Mapping[str, Any], old: Old) -> Iterator[FieldError]:
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    yield from _check_keys(data, "data")
    yield from _check_keys(binary, "binaryData")
    for name in data.keys() & binary.keys():
        yield invalid(at_item("data", name), name, "duplicate of key present in binaryData")
    size = sum(len(value.encode()) for value in data.values()) + sum(map(_decoded_size, binary.values()))
    if size > MAX_DATA_BYTES:
        yield too_long("[]", MAX_DATA_BYTES)
    if old is not None:
        yield from _check_immutable(obj, old, ("data", "binaryData"))


def _decoded_size(text: str) -> int:
    return len(text) * 3 // 4 - text.count("=")


def _check_keys(data: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for name in data:
        if not _KEY.fullmatch(name):
            yield invalid(
                at_item(path, name),
                name,
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or"
                " 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
            )
        elif len(name) > 253:
            yield invalid(at_item(path, name), name, "must be no more than 253 characters")
        elif name in {".", ".."} or name.startswith(".."):
            yield invalid(at_item(path, name), name, "must not start with '..'" if name != "." else "must not be '.'")


def _check_immutable(obj: Mapping[str, Any], old: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[FieldError]:
    """Refuse changes to an object that is marked as immutable."""
    if not old.get("immutable"):
        return
    why = "field is immutable when `immutable` is set"
    if not obj.get("immutable"):
        yield forbidden("immutable", why)
    for name in names:
        if not same(obj.get(name) or {}, old.get(name) or {}):
            yield forbidden(name, why)


def _check_lease(obj: Mapping[str, Any], _old: Old) -> Iterator[FieldError]:
    spec = obj.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        yield invalid(at("spec", "leaseDurationSeconds"), duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        yield invalid(at("spec", "leaseTransitions"), transitions, "must be greater than or equal to 0")


def _check_event(obj: Mapping[str, Any], _old: Old) -> Iterator[FieldError]:
    involved = (obj.get("involvedObject") or {}).get("namespace") or ""
    namespace = (obj.get("metadata") or {}).get("namespace") or ""
    if involved != namespace and not (not involved and namespace == "default"):
        yield invalid("involvedObject.namespace", involved, "does not match event.namespace")


BEHAVIOURS: Final[Mapping[str, Behaviour]] = {
    "namespaces": Behaviour(fill=_fill_namespace, prepare=_prepare_namespace),
    "secrets": Behaviour(fill=_fill_secret, check=_check_secret),
    "configmaps": Behaviour(check=_check_config_map),
    "services": Behaviour(
        fill=service_rules.fill,
        prepare=service_rules.prepare,
        check=service_rules.check,
        warnings=service_rules.warnings,
        check_status=service_rules.check_status,
    ),
    "endpoints": Behaviour(check=endpoint_rules.check_endpoints, warnings=endpoint_rules.address_warnings),
    "endpointslices.discovery.k8s.io": Behaviour(
        fill=endpoint_rules.fill_slice, check=endpoint_rules.check_slice, warnings=endpoint_rules.slice_warnings
    ),
    "leases.coordination.k8s.io": Behaviour(check=_check_lease),
    "events": Behaviour(check=_check_event),
    "customresourcedefinitions.apiextensions.k8s.io": Behaviour(
        fill=crd_rules.fill, prepare=crd_rules.prepare, check=crd_rules.check
    ),
}
"""By the resource's full name; other kinds have no special rules."""

DEFAULT_BEHAVIOUR: Final = Behaviour()
