"""Requests to an API server, as values; `k8s.client` sends them.

Facts: the Kubernetes API reference ("API Concepts": verbs, paging, watch, patch media types).
"""

from collections.abc import Mapping
from typing import Any

import attrs

from llmkube.base import json_text
from llmkube.k8s.resource import Key, Resource

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML, and every server since 1.16 knows this media type
JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""The Accept header for objects as rows of a table, with the server's own columns."""


@attrs.frozen
class ApiRequest:
    """One request, without the server's address and our credentials."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    body: bytes = attrs.field(default=b"", repr=False)  # may hold a Secret
    content_type: str = ""
    accept: str = JSON

    @property
    def call(self) -> str:
        """The request in a message: "GET /api/v1/pods"."""
        return f"{self.method} {self.path}"


def make_request(
    method: str,
    path: str,
    *,
    params: Mapping[str, str] | None = None,
    body: Any = None,
    content_type: str = JSON,
    accept: str = JSON,
) -> ApiRequest:
    """Return a request; empty parameters are omitted, and `body` is JSON data or None."""
    content = b"" if body is None else json_text.dumps(body)
    given = tuple((name, value) for name, value in (params or {}).items() if value)
    return ApiRequest(method, path, given, content, content_type if content else "", accept)


def connect(resource: Resource, key: Key, subresource: str, **params: str) -> ApiRequest:
    """Return a request to a subresource that is read or upgraded, such as `log` and `portforward` of a pod."""
    return make_request("GET", object_path(resource, key, subresource), params=params)


def object_path(resource: Resource, key: Key, subresource: str = "") -> str:
    """Return the path of one object, or of a part of it.

    Raises:
        ValueError: The key has no name: the path would be the collection's, and a DELETE would empty it.
    """
    if not key.name:
        raise ValueError(f"{resource.kind}: an object needs a name")
    return resource.path(key.namespace, key.name, subresource)
