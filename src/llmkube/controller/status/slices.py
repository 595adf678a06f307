"""What becomes of the endpoints of a host that is gone. Pure."""

from typing import Any

from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.codec import encode


def is_in_service(piece: EndpointSlice) -> bool:
    """Whether clients are sent to any endpoint of a slice; a readiness that is not stated counts as ready."""
    return any(endpoint.conditions.ready is not False for endpoint in piece.endpoints)


def out_of_service(piece: EndpointSlice) -> dict[str, Any]:
    """Return the merge patch after which no endpoint of this very version of a slice is ready."""
    endpoints = encode(piece)["endpoints"]
    return {
        "metadata": {"resourceVersion": piece.metadata.resource_version},
        "endpoints": [
            {**endpoint, "conditions": {**(endpoint.get("conditions") or {}), "ready": False}} for endpoint in endpoints
        ],
    }
