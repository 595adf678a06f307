"""Clients select the form of the response by Accept: JSON, a Table (`kubectl get`), or metadata only.

Protobuf is not available except for the OpenAPI v2 document, so a client that prefers it gets its second choice.
"""

import re
from functools import lru_cache
from typing import Final, Literal, cast, get_args

import attrs

from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.protocol import protobuf_bodies
from llmkube.apiserver.values.api_errors import not_acceptable, unsupported_media_type

Shape = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]

JSON: Final = "application/json"
JSON_OR_YAML: Final = (JSON, "application/yaml")
OBJECT_TYPES: Final = (*JSON_OR_YAML, protobuf_bodies.MEDIA_TYPE)
"""Media types of an object in a request."""
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


def patch_types(kind: KindInfo) -> tuple[str, ...]:
    """Return the patch types that a kind accepts; kubectl chooses from those in the OpenAPI document."""
    if kind.builtin:
        return (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
    return (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


@attrs.frozen
class MediaType:
    """One choice of an Accept header: a type and its parameters."""

    type: str
    parameters: tuple[tuple[str, str], ...] = ()
    quality: float = 1.0

    def get(self, name: str) -> str:
        """Return a parameter, or the empty string."""
        return dict(self.parameters).get(name, "")

    def accepts(self, content_type: str) -> bool:
        """Whether a response of that type is accepted, wildcards included."""
        if self.type in {"*/*", content_type}:
            return True
        return self.type.endswith("/*") and content_type.startswith(self.type[:-1])


def parse_accept(header: str) -> list[MediaType]:
    """Return the choices, best first; an empty header accepts anything."""
    choices = []
    for entry in filter(None, (part.strip() for part in header.split(","))):
        media, *rest = (piece.strip() for piece in entry.split(";"))
        parameters = [(name.strip(), value.strip(' "')) for name, _, value in (item.partition("=") for item in rest)]
        try:
            quality = float(dict(parameters).get("q", "1"))
        except ValueError:
            quality = 1.0
        choices.append(MediaType(media.lower(), tuple(pair for pair in parameters if pair[0] != "q"), quality))
    choices.sort(key=lambda choice: -choice.quality)  # stable: ties keep their order
    return choices or [MediaType("*/*")]


@lru_cache(maxsize=64)  # each client has one or two
def negotiate(header: str) -> Shape:
    """Return the shape that the client prefers among those that the server supports.

    Raises:
        RequestRefusedError: 406, the client accepts nothing that the server can write.
    """
    for choice in parse_accept(header):
        if not choice.accepts(JSON):
            continue
        shape = choice.get("as")
        if not shape:
            return ""
        if choice.get("g") == "meta.k8s.io" and choice.get("v") in {"v1", "v1beta1"} and shape in get_args(Shape):
            return cast("Shape", shape)
    raise not_acceptable([JSON])


_CONTENT_TYPE: Final = re.compile(r"[^;\s]+")


def content_type(header: str, accepted: tuple[str, ...]) -> str:
    """Return the body's media type; a missing header means the first one accepted.

    Raises:
        RequestRefusedError: 415, it is not one of those accepted.
    """
    match = _CONTENT_TYPE.match(header.strip())
    if match is None:
        return accepted[0]
    if match[0].lower() not in accepted:
        raise unsupported_media_type(accepted)
    return match[0].lower()
