"""Routes, and responses about the server itself: health, version, discovery, OpenAPI and access reviews."""

import urllib.parse
from functools import lru_cache
from typing import Any, Final

import attrs

from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.protocol import discovery, openapi, openapi_protobuf
from llmkube.apiserver.protocol.negotiation import JSON, OBJECT_TYPES, content_type, parse_accept
from llmkube.apiserver.protocol.request_bodies import parse_object
from llmkube.apiserver.protocol.responses import JSON_HEADERS, answer
from llmkube.apiserver.values.api_errors import method_not_allowed, no_such_path, not_acceptable
from llmkube.apiserver.values.json_text import write
from llmkube.base.http.message import Request, Response


@attrs.frozen
class Route:
    """The target of `/api/v1/…` or `/apis/GROUP/VERSION/…`; an empty name means the collection."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


_SUBRESOURCES = frozenset({"status", "finalize"})  # /namespaces/NAME/status is the namespace's own


@lru_cache(maxsize=1024)  # clients repeat the same few paths
def parse_path(raw_path: str) -> Route | None:
    """Return the route of a raw (still percent-encoded) path; None when it names no resource."""
    parts = [urllib.parse.unquote(part) for part in raw_path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and not group and rest[2] in _SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or not all(rest):
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return Route(group, version, plural, namespace, name, subresource)


_HEALTH_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})


def respond(request: Request, catalog: Catalog) -> Response:
    """Answer a request for a path that is not a resource.

    Raises:
        RequestRefusedError: 404, nothing is served there; 405, the path is read-only; 406.
    """
    path = request.raw_path.rstrip("/") or "/"
    if path in _HEALTH_PATHS:
        return Response.text(200, "ok")
    if request.method not in {"GET", "HEAD"}:
        raise method_not_allowed()
    accept = request.headers.get("accept") or ""
    match path.strip("/").split("/"):
        case ["version"]:
            return _document(write(discovery.VERSION))
        case ["openapi", "v2"]:
            return _swagger(catalog, accept)
        case ["openapi", "v3"]:
            return _document(write(openapi.root(catalog)))
        case ["openapi", "v3", *rest]:
            return _document(write(_require(openapi.document_v3(catalog, "/".join(rest)))))
        case ["api" | "apis", *rest]:
            return _discovery(catalog, path, accept, may_aggregate=not rest)
    raise no_such_path()


def _discovery(catalog: Catalog, path: str, accept: str, *, may_aggregate: bool) -> Response:
    aggregated_version = discovery.preferred_aggregation(accept) if may_aggregate else ""
    if aggregated_version:
        media = f"{JSON};g=apidiscovery.k8s.io;v={aggregated_version};as=APIGroupDiscoveryList"
        everything = discovery.aggregated(catalog, core=path == "/api", api_version=aggregated_version)
        return _document(write(everything) + b"\n", media)
    content: Any = None
    match path.strip("/").split("/"):
        case ["api"]:
            content = discovery.core_versions()
        case ["apis"]:
            content = discovery.group_list(catalog)
        case ["api", version]:
            content = discovery.resource_list(catalog, "", version)
        case ["apis", group]:
            content = discovery.group(catalog, group)
        case ["apis", group, version]:
            content = discovery.resource_list(catalog, group, version)
    return _document(write(_require(content)) + b"\n")


def _require(content: Any) -> Any:
    if content is None:
        raise no_such_path()
    return content


def _document(content: bytes, media: str = JSON) -> Response:
    return Response(200, JSON_HEADERS.with_("Content-Type", media), content)


def _swagger(catalog: Catalog, accept: str) -> Response:
    document = openapi.document_v2(catalog)
    for choice in parse_accept(accept):
        if choice.type in {openapi_protobuf.ACCEPTED, openapi_protobuf.MEDIA_TYPE}:
            return _document(openapi_protobuf.encode_document(document), openapi_protobuf.MEDIA_TYPE)
        if choice.accepts(JSON):
            return _document(write(document))
    raise not_acceptable([JSON, openapi_protobuf.MEDIA_TYPE])


def review(request: Request, route: Route) -> Response:
    """Answer `kubectl auth can-i`: the holder of the token may do everything.

    Raises:
        RequestRefusedError: 404, the path is not that of a review; 405.
    """
    review_kind = discovery.REVIEWS.get(route.plural)
    if review_kind is None or (route.group, route.version) != discovery.REVIEW_VERSION or route.name:
        raise no_such_path()
    if request.method != "POST":
        raise method_not_allowed()
    media = content_type(request.headers.get("content-type") or "", OBJECT_TYPES)
    content, _ = parse_object(request.body, media)
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    urls = {"verbs": ["*"], "nonResourceURLs": ["*"]}
    rules = {"resourceRules": [everything], "nonResourceRules": [urls], "incomplete": False}
    status = {"allowed": True} if review_kind == "SelfSubjectAccessReview" else rules
    return answer(201, {**content, "status": status})
