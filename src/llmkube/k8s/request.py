"""What to ask an API server, as values: a request is pure, sending it is `k8s.client`'s business.

Wire facts are those of the Kubernetes API reference ("API Concepts": verbs, paging, watch, patch media types).
"""

from collections.abc import Mapping
from typing import Any

import attrs

from llmkube.base import json_text
from llmkube.k8s.resource import Key, Resource

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML, and every server since 1.16 knows this media type
JSON = "application/json"


@attrs.frozen
class ApiRequest:
    """One request: everything but the server's address and our credentials."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: bytes = attrs.field(default=b"", repr=False)  # may hold a Secret
    content_type: str = ""

    @property
    def call(self) -> str:
        """The request in a message: "GET /api/v1/pods"."""
        return f"{self.method} {self.path}"


def make_request(
    method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, content_type: str = JSON
) -> ApiRequest:
    """Return a request; parameters that are empty are not sent, and `body` is JSON data or None."""
    content = b"" if body is None else json_text.dumps(body)
    given = tuple((name, value) for name, value in (params or {}).items() if value)
    return ApiRequest(method, path, given, content, content_type if content else "")


def connect(resource: Resource, key: Key, subresource: str, **params: str) -> ApiRequest:
    """Reach into an object, as `log` and `portforward` do into a pod; the latter wishes for another protocol."""
    return make_request("GET", object_path(resource, key, subresource), params=params)


def object_path(resource: Resource, key: Key, subresource: str = "") -> str:
    """Return the path of one object, or of a part of it.

    Raises:
        ValueError: The key has no name: the path without a name is the collection's, and a DELETE there would empty it.
    """
    if not key.name:
        raise ValueError(f"{resource.kind}: an object needs a name")
    return resource.path(key.namespace, key.name, subresource)
