"""Objects as their uid and resourceVersion name them: what is read of one state is the same wherever it comes from."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import attrs

from llmkube.k8s.codec import decode
from llmkube.k8s.resource import Object

T = TypeVar("T", bound=Object)

REMEMBERED: Final = 256
"""States of objects that may still come again: a watch repeats the answer to a write, often before it is there."""


@attrs.define(eq=False)
class VersionDecoder:
    """Decode each state of an object once, however often one API server sends it; without its managedFields.

    Agent and controller in one process share the objects of their watches, and a writer those of its answers.
    """

    _states: OrderedDict[tuple[type, str, str], Any] = attrs.field(factory=OrderedDict, init=False)

    def decode(self, kind: type[T], raw: Mapping[str, Any]) -> T:
        """Return the object.

        Raises:
            DecodeError: It is malformed.
        """
        state = _state_of(kind, raw)
        if state is None:
            return decode(kind, without_managed_fields(raw))
        known: T | None = self._states.get(state)
        if known is None:
            known = self._states[state] = decode(kind, without_managed_fields(raw))
            if len(self._states) > REMEMBERED:
                self._states.popitem(last=False)
        return known


def without_managed_fields(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out who owns which field: half of an object's size, and an update without it leaves it alone."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping) or "managedFields" not in metadata:
        return raw
    return {**raw, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def resource_version_of(obj: Mapping[str, Any]) -> str:
    """The resourceVersion of a JSON object or list, or empty."""
    metadata = obj.get("metadata")
    return str(metadata.get("resourceVersion") or "") if isinstance(metadata, Mapping) else ""


def _state_of(kind: type, raw: Mapping[str, Any]) -> tuple[type, str, str] | None:
    """Return what names the state of an object for good; None for one that does not say it."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    return (kind, uid, version) if isinstance(uid, str) and isinstance(version, str) and uid and version else None
