"""What to ask an API server, as values: building a request is pure, sending it is `k8s.client`'s business.

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


def any_request(
    method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, content_type: str = JSON
) -> ApiRequest:
    """A request for a kind that is known by its data only; `body` is JSON data or None."""
    content = b"" if body is None else json_text.dumps(body)
    return ApiRequest(method, path, _params(**(params or {})), content, content_type if content else "")


def get(resource: Resource, key: Key) -> ApiRequest:
    """Read one object."""
    return ApiRequest("GET", _object_path(resource, key))


def list_page(
    resource: Resource,
    namespace: str | None,
    *,
    label_selector: str = "",
    field_selector: str = "",
    limit: int = 0,
    continue_token: str = "",
) -> ApiRequest:
    """Read one page; resourceVersion stays unset, which is a quorum read: never older than what was acknowledged."""
    params = _params(
        labelSelector=label_selector,
        fieldSelector=field_selector,
        limit=str(limit or ""),
        **{"continue": continue_token},
    )
    return ApiRequest("GET", resource.path(namespace), params)


def watch(
    resource: Resource, namespace: str | None, *, resource_version: str, label_selector: str = "", timeout_seconds: int
) -> ApiRequest:
    """Follow a collection from a resourceVersion, with bookmarks; the server ends it after `timeout_seconds`."""
    params = _params(
        watch="1",
        allowWatchBookmarks="true",
        resourceVersion=resource_version,
        timeoutSeconds=str(timeout_seconds),
        labelSelector=label_selector,
    )
    return ApiRequest("GET", resource.path(namespace), params)


def connect(resource: Resource, key: Key, subresource: str, **params: str) -> ApiRequest:
    """Reach into an object, as `log` and `portforward` do into a pod; the latter wishes for another protocol."""
    return ApiRequest("GET", _object_path(resource, key, subresource), _params(**params))


def create(resource: Resource, namespace: str, obj: Mapping[str, Any], *, field_manager: str = "") -> ApiRequest:
    """Create an object in its namespace ("" for a cluster-scoped kind)."""
    return ApiRequest("POST", resource.path(namespace), _params(fieldManager=field_manager), json_text.dumps(obj), JSON)


def update(
    resource: Resource, key: Key, obj: Mapping[str, Any], *, subresource: str = "", field_manager: str = ""
) -> ApiRequest:
    """Replace an object; the resourceVersion inside makes it fail when another client wrote first."""
    path = _object_path(resource, key, subresource)
    return ApiRequest("PUT", path, _params(fieldManager=field_manager), json_text.dumps(obj), JSON)


def merge_patch(
    resource: Resource, key: Key, patch: Mapping[str, Any], *, subresource: str = "", field_manager: str = ""
) -> ApiRequest:
    """Change the named fields of an object (RFC 7386: null removes)."""
    path = _object_path(resource, key, subresource)
    return ApiRequest("PATCH", path, _params(fieldManager=field_manager), json_text.dumps(patch), MERGE_PATCH)


def apply(
    resource: Resource, manifest: Mapping[str, Any], *, field_manager: str, force: bool, subresource: str = ""
) -> ApiRequest:
    """Server-side apply: the manifest is the whole of what this manager wants; apiVersion and kind are filled in."""
    body = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
    path = _object_path(resource, Key.of(manifest), subresource)
    params = _params(fieldManager=field_manager, force="true" if force else "")
    return ApiRequest("PATCH", path, params, json_text.dumps(body), APPLY_PATCH)


def delete(
    resource: Resource, key: Key, *, uid: str = "", resource_version: str = "", propagation: str = ""
) -> ApiRequest:
    """Delete an object, only if it is still this incarnation or version when a precondition is given."""
    preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if preconditions:
        options["preconditions"] = preconditions
    if propagation:
        options["propagationPolicy"] = propagation
    return ApiRequest("DELETE", _object_path(resource, key), (), json_text.dumps(options), JSON)


def _object_path(resource: Resource, key: Key, subresource: str = "") -> str:
    if not key.name:  # the path without a name is the collection's: a DELETE there would empty it
        raise ValueError(f"{resource.kind}: an object needs a name")
    return resource.path(key.namespace, key.name, subresource)


def _params(**params: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in params.items() if value)
