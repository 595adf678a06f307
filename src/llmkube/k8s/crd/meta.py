"""Types that all Kubernetes objects share: metadata, owner references, conditions, references."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.fields import REQUIRED, Rule, Wired, field

GROUP: Final = "inference.llmkube.dev"
VERSION: Final = "v1alpha1"

QUANTITY: Final = r"^([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"
"""A Kubernetes quantity (`500m`, `1.5`, `24Gi`, `1e9`) without a sign: none here is negative."""

DECIMAL: Final = r"^[0-9]+(\.[0-9]+)?$"
"""A decimal number as a string, where a JSON float would lose digits: prices, percentages, factors."""

DURATION: Final = "^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"
"""A duration in Go's format: `300ms`, `1m30s`, `1.5h`."""

NAME_BYTES: Final = 253
"""The maximum length of an object's name."""

NAMED: Final[Mapping[str, Any]] = {"min_length": 1, "max_length": NAME_BYTES}
"""Bounds of a field that holds the name of an object."""

POSITIVE: Final = Rule("self.matches('^[0-9.]*[1-9]')", "must be more than 0")
"""For a quantity that must not be zero."""


@attrs.frozen(kw_only=True)
class OwnerReference(Wired):
    """Reference to an owner; the garbage collector deletes the object after its last owner."""

    api_version: str = field("API group and version of the owner.", REQUIRED)
    kind: str = field("Kind of the owner.", REQUIRED)
    name: str = field("Name of the owner.", REQUIRED)
    uid: str = field("UID of the owner.", REQUIRED)
    controller: bool | None = field("Whether this owner is the managing controller.")
    block_owner_deletion: bool | None = field("Whether a foreground deletion of the owner waits for this object.")


@attrs.frozen(kw_only=True)
class ObjectMeta(Wired):
    """Metadata of an object; timestamps are RFC 3339 strings as the server wrote them."""

    name: str = field("Name, unique within the namespace and the kind.", "")
    namespace: str = field("Namespace; empty for cluster-scoped kinds.", "")
    generate_name: str | None = field("Prefix for a name that the server generates.")
    uid: str = field("Unique identifier, set by the server.", "")
    resource_version: str = field("Opaque version, for optimistic concurrency and watches.", "")
    generation: int = field("Sequence number of the spec.", 0, format="int64")
    labels: Mapping[str, str] = field("Keys and values to select objects by.", dict)
    annotations: Mapping[str, str] = field("Keys and values that are not selectable.", dict)
    creation_timestamp: str | None = field("When the server created the object.")
    deletion_timestamp: str | None = field("When the deletion was requested.")
    deletion_grace_period_seconds: int | None = field("Seconds until the object is removed.", format="int64")
    finalizers: tuple[str, ...] = field("Identifiers of components that must act before the object is removed.", ())
    owner_references: tuple[OwnerReference, ...] = field("Owners of the object.", ())
    managed_fields: tuple[Mapping[str, Any], ...] = field("Fields by the manager that set them.", (), repr=False)


@attrs.frozen(kw_only=True)
class Condition(Wired):
    """One aspect of an object's current state; a list has each type once."""

    type: str = field(
        "Type of the condition, in CamelCase.",
        REQUIRED,
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    )
    status: str = field("Status of the condition.", REQUIRED, enum=("True", "False", "Unknown"))
    reason: str = field(
        "Reason for the last transition, as one CamelCase word for programs.",
        "",
        required=True,
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    )
    message: str = field("Details for people.", "", required=True, max_length=32768)
    last_transition_time: str = field("When the status last changed.", "", required=True, format="date-time")
    observed_generation: int | None = field(
        "metadata.generation that the condition was set for.", minimum=0, format="int64"
    )


@attrs.frozen(kw_only=True)
class LocalObjectReference(Wired):
    """Reference to an object in the same namespace."""

    name: str = field("Name of the object.", "", required=True, **NAMED)


@attrs.frozen(kw_only=True)
class SecretKeySelector(Wired):
    """Reference to one key of a Secret in the same namespace."""

    key: str = field("Key within the Secret.", REQUIRED, **NAMED)
    name: str = field("Name of the Secret.", "", required=True, **NAMED)
    optional: bool | None = field("Whether the Secret or its key may be missing.")


@attrs.frozen(kw_only=True)
class APIKeySecretRef(Wired):
    """Reference to the key of a Secret in the same namespace that holds API keys, one per line."""

    name: str = field("Name of the Secret.", "", required=True, **NAMED)
    key: str = field(
        "Key within the Secret; its value has one API key per line.", "api-key", **NAMED, pattern=r"^[-._a-zA-Z0-9]+$"
    )


@attrs.frozen(kw_only=True)
class ObjectReference(Wired):
    """Reference to an object in any namespace, as in Events."""

    api_version: str = field("API group and version.", "")
    kind: str = field("Kind.", "")
    name: str = field("Name.", "")
    namespace: str = field("Namespace; empty for cluster-scoped kinds.", "")
    uid: str = field("UID of the object.", "")
    resource_version: str = field("Version of the object.", "")
    field_path: str = field("Part of the object that the reference is to.", "")
