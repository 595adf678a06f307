"""The facts of a request on which policy is based; nothing else in a request affects its route."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from llmkube.router.config.data_classes import classes_in, header_values
from llmkube.router.config.routing_config import RoutingConfig, Tokens

CAPABILITIES_HEADER: Final = "x-llmkube-capabilities"
REGION_HEADER: Final = "x-llmkube-region"
COMPLEXITY_HEADER: Final = "x-llmkube-task-complexity"

VISION: Final = "vision"
AUDIO: Final = "audio"
TOOLS: Final = "tools"

_PARTS: Final[Mapping[str, str]] = {
    "image_url": VISION,
    "input_image": VISION,
    "image": VISION,
    "input_audio": AUDIO,
    "audio": AUDIO,
}
"""Types of content parts (chat completions, responses, messages), and the capability that each needs."""
_MAX_DEPTH: Final = 8
_NONE: Final = frozenset[str]()


@attrs.frozen(kw_only=True)
class Principal:
    """The client of a request, identified by its key or token.

    Attributes:
        team: "" if the router needs no authentication.
        tenant: The unit of fair sharing: a digest of the key or of the token's subject, else the address.
        is_owner: Whether it may load, unload and pin models: with a key of the team `owner`, or without authentication.
        name: Holder of its key; "" for tokens and keys without one.
        models: Patterns of the models that its key may use; empty for every model.
    """

    team: str = ""
    tenant: str = ""
    is_owner: bool = False
    name: str = ""
    models: tuple[str, ...] = ()


ANONYMOUS: Final = Principal()


@attrs.frozen(kw_only=True)
class RequestFacts:
    """Facts of one request.

    Attributes:
        model: The model in its body; "" if there is none.
        classes: Data classes in lower case, or the default.
        complexity: The declared complexity, in lower case.
        capabilities: Tags that it needs: those in its header, and those that its body implies (`vision`, `audio`,
            `tools`).
        regions: Regions to which its data may go, in lower case; empty means anywhere.
        headers: Headers with names in lower case; values of a repeated header are joined with ", ".
        principal: The client.
    """

    model: str
    classes: frozenset[str] = frozenset()
    complexity: str = ""
    capabilities: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # contain clients' keys
    principal: Principal = ANONYMOUS


def facts_of(
    config: RoutingConfig, headers: Mapping[str, str], body: Mapping[str, Any] | None, principal: Principal
) -> RequestFacts:
    """Return the facts of a request.

    Args:
        config: The config.
        headers: Headers with names in lower case; values of a repeated header are joined with ", ".
        body: The JSON object; None if the request has none.
        principal: The client.
    """
    named, default = headers.get(config.classes.header), config.classes.default
    classes = (classes_in(named) if named else _NONE) or (classes_in(default) if default else _NONE)
    capabilities = header_values(headers[CAPABILITIES_HEADER]) if CAPABILITIES_HEADER in headers else _NONE
    model = ""
    if body is not None:
        value = body.get("model")
        model = value if isinstance(value, str) else ""
        if config.capabilities:  # others cannot be required of any backend
            capabilities |= config.capabilities & _implied_capabilities(body)
    return RequestFacts(
        model=model,
        classes=classes,
        complexity=headers.get(COMPLEXITY_HEADER, "").strip().lower(),
        capabilities=capabilities,
        regions=header_values(headers[REGION_HEADER]) if REGION_HEADER in headers else _NONE,
        headers=headers if config.auth.tokens is None else _with_team(headers, config.auth.tokens, principal),
        principal=principal,
    )


def _with_team(headers: Mapping[str, str], tokens: Tokens, principal: Principal) -> Mapping[str, str]:
    """Return the headers with the authenticated team, in place of any that the client claims."""
    rest = {name: value for name, value in headers.items() if name != tokens.team_header}
    return rest | ({tokens.team_header: principal.team} if principal.team else {})


def _implied_capabilities(body: Mapping[str, Any]) -> set[str]:
    """Return the capabilities that a body requires."""
    needs = {TOOLS} if body.get("tools") or body.get("functions") else set()
    for key in ("messages", "input", "system"):
        turns = body.get(key)
        if isinstance(turns, list):
            needs.update(_needs_of(turns, 0))
    return needs


def _needs_of(parts: list[Any], depth: int) -> Iterator[str]:
    for part in parts:
        if type(part) is dict:
            need = _PARTS.get(kind) if isinstance(kind := part.get("type"), str) else None
            if need:
                yield need
            content = part.get("content")
            if type(content) is list and depth < _MAX_DEPTH:
                yield from _needs_of(content, depth + 1)
