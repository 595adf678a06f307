"""A path names a resource: where it is, is known before anything is looked up."""

import urllib.parse
from functools import lru_cache

import attrs


@attrs.frozen
class Route:
    """What `/api/v1/…` or `/apis/GROUP/VERSION/…` points at; an empty name means the collection."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


_OF_NAMESPACES = frozenset({"status", "finalize"})  # /namespaces/NAME/status is the namespace's own


@lru_cache(maxsize=1024)  # clients ask for the same few again and again
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
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and not group and rest[2] in _OF_NAMESPACES):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or not all(rest):
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return Route(group, version, plural, namespace, name, subresource)
