"""Custom kinds for tests of the embedded API server."""

from typing import Any

from llmkube.apiserver.kinds.kind_info import KindInfo, kinds_from_crd


def custom_kind(kind: str, **parts: dict[str, Any]) -> KindInfo:
    """Return the definition of a kind of `test.dev/v1`; `parts` are the properties of `spec`, `status` and so on."""
    fields = {name: {"type": "object", "properties": properties} for name, properties in parts.items()}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
    }
    names = {"kind": kind, "plural": f"{kind.lower()}s"}
    spec = {"group": "test.dev", "scope": "Namespaced", "names": names, "versions": [version]}
    return kinds_from_crd({"spec": spec})[0]
