"""The parts that every Kubernetes object shares: its name tag, its owners, its conditions."""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.k8s.fields import REQUIRED, Rule, Wired, field

GROUP: Final = "inference.llmkube.dev"
VERSION: Final = "v1alpha1"

QUANTITY: Final = r"^([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$"
"""What Kubernetes reads as an amount (`500m`, `1.5`, `24Gi`, `1e9`), without a sign: nothing here is negative."""

DECIMAL: Final = r"^[0-9]+(\.[0-9]+)?$"
"""A number as a text, where a float of the wire would lose digits: prices, percentages, factors."""

DURATION: Final = "^([0-9]+([.][0-9]+)?(ms|s|m|h))+$"
"""A time span as Go writes it: `300ms`, `1m30s`, `1.5h`."""

NAME_BYTES: Final = 253
"""The longest name of an object."""

NAMED: Final[Mapping[str, Any]] = {"min_length": 1, "max_length": NAME_BYTES}
"""Bounds of a field that has the name of an object in it."""

POSITIVE: Final = Rule("self.matches('^[0-9.]*[1-9]')", "must be more than 0")
"""For a quantity of which none makes no sense."""


@attrs.frozen(kw_only=True)
class OwnerReference(Wired):
    """Tie an object to its owner: the garbage collector deletes it when the last owner is gone."""

    api_version: str = field("API group and version of the owner.", REQUIRED)
    kind: str = field("Kind of the owner.", REQUIRED)
    name: str = field("Name of the owner.", REQUIRED)
    uid: str = field("UID of the owner.", REQUIRED)
    controller: bool | None = field("True for the one owner that manages the object.")
    block_owner_deletion: bool | None = field("Hold a foreground deletion of the owner until this object is gone.")


@attrs.frozen(kw_only=True)
class ObjectMeta(Wired):
    """Name, version and lifecycle of an object; timestamps are RFC 3339 strings as the server wrote them."""

    name: str = field("Name, unique within the namespace and the kind.", "")
    namespace: str = field("Namespace; empty for cluster-scoped kinds.", "")
    generate_name: str | None = field("Prefix for a name that the server makes up.")
    uid: str = field("Identity in time and space, set by the server.", "")
    resource_version: str = field("Opaque version for conflicts and watches.", "")
    generation: int = field("Counts the changes of the spec.", 0, format="int64")
    labels: Mapping[str, str] = field("Keys to select by.", dict)
    annotations: Mapping[str, str] = field("Keys to carry along.", dict)
    creation_timestamp: str | None = field("When the server created the object.")
    deletion_timestamp: str | None = field("When deletion was asked for.")
    deletion_grace_period_seconds: int | None = field("Seconds until removal.", format="int64")
    finalizers: tuple[str, ...] = field("Who must act before removal.", ())
    owner_references: tuple[OwnerReference, ...] = field("Who owns the object.", ())
    managed_fields: tuple[Mapping[str, Any], ...] = field("Who set which field.", (), repr=False)


@attrs.frozen(kw_only=True)
class Condition(Wired):
    """One statement about an object, with its reason; a list holds each type once."""

    type: str = field(
        "What the statement is about, in CamelCase.",
        REQUIRED,
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    )
    status: str = field("Whether the statement holds.", REQUIRED, enum=("True", "False", "Unknown"))
    reason: str = field(
        "Why, as one CamelCase word for programs.",
        "",
        required=True,
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
    )
    message: str = field("Why, as a sentence for people.", "", required=True, max_length=32768)
    last_transition_time: str = field("When the status last changed.", "", required=True, format="date-time")
    observed_generation: int | None = field(
        "The generation of the spec that the statement is about.", minimum=0, format="int64"
    )


@attrs.frozen(kw_only=True)
class LocalObjectReference(Wired):
    """Name an object in the same namespace."""

    name: str = field("Name of the object.", "", required=True, **NAMED)


@attrs.frozen(kw_only=True)
class SecretKeySelector(Wired):
    """Name one key of a Secret in the same namespace."""

    key: str = field("Key within the Secret.", REQUIRED, **NAMED)
    name: str = field("Name of the Secret.", "", required=True, **NAMED)
    optional: bool | None = field("Tolerate that the Secret or its key is missing.")


@attrs.frozen(kw_only=True)
class APIKeySecretRef(Wired):
    """Name the key of a Secret in the same namespace that holds API keys, one per line."""

    name: str = field("Name of the Secret.", "", required=True, **NAMED)
    key: str = field(
        "Key within the Secret; its value has one API key per line.",
        "api-key",
        **NAMED,
        pattern=r"^[-._a-zA-Z0-9]+$",
    )


@attrs.frozen(kw_only=True)
class ObjectReference(Wired):
    """Point at an object from elsewhere, as Events do."""

    api_version: str = field("API group and version.", "")
    kind: str = field("Kind.", "")
    name: str = field("Name.", "")
    namespace: str = field("Namespace; empty for cluster-scoped kinds.", "")
    uid: str = field("UID, when a particular incarnation is meant.", "")
    resource_version: str = field("Version that was seen.", "")
    field_path: str = field("The part of the object that is meant.", "")
