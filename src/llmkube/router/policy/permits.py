"""The backends that a request may reach at all: class ∩ tenant ∩ region ∩ capability ∩ models, computed once.

The transport connects only with a `Permit`, and only `permits_for` creates one. Everything later (rules, weights,
health, fallback) can only reorder or shrink the set.
"""

from collections.abc import Mapping
from typing import Final, NoReturn, final

import attrs

from llmkube.router.config.routing_config import Backend, RoutingConfig, matches_any
from llmkube.router.policy.request_facts import Principal, RequestFacts

_MAKER: Final = object()


@final
class Permit:
    """The permission to send a request, or others with equal facts, to a backend; only `permits_for` creates it."""

    __slots__ = ("backend",)

    backend: Backend

    def __init__(self, backend: Backend, maker: object) -> None:
        if maker is not _MAKER:
            raise TypeError("only permits_for creates a Permit")
        object.__setattr__(self, "backend", backend)

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("only permits_for creates a Permit: it cannot be subclassed")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Permit does not change: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Permit does not change: {name}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # used by copy, deepcopy and pickle
        raise TypeError("a Permit cannot be copied: only permits_for creates one")

    def __repr__(self) -> str:
        return f"Permit({self.backend.name!r})"


@attrs.frozen
class Permits:
    """The backends that a request may reach, and why it may not reach the others.

    Attributes:
        allowed: By the backend's name, in the order of the config.
        refused: The cause for each other backend, for people.
        model_allowed: Whether the team may use the model that the request names, on any backend.
    """

    allowed: Mapping[str, Permit]
    refused: Mapping[str, str]
    model_allowed: bool = True


def permits_for(config: RoutingConfig, facts: RequestFacts) -> Permits:
    """Return the backends that a request may reach, whichever rule applies."""
    limits = _limits_of(config, facts.principal)
    for who, patterns in limits:
        if not matches_any(patterns, facts.model):
            why = f"{who} may not use the model {facts.model or '(none named)'}"
            if patterns is facts.principal.models:
                why += f", only {', '.join(patterns)}"
            return Permits({}, dict.fromkeys(config.backends, why), model_allowed=False)
    sensitive = facts.classes & config.classes.sensitive
    regions, needs = facts.regions, facts.capabilities
    allowed: dict[str, Permit] = {}
    refused: dict[str, str] = {}
    for backend in config.candidates(facts.model):
        name = backend.name
        if sensitive and not backend.local:
            classes = ", ".join(sorted(sensitive))
            refused[name] = f"data of class {classes} must stay local, and this backend is not"
        elif regions and backend.region not in regions:
            where = backend.region or "no named region"
            refused[name] = f"the data may go to {', '.join(sorted(regions))}, and this backend is in {where}"
        elif needs and not needs <= backend.capabilities:
            lacking = ", ".join(sorted(needs - backend.capabilities))
            refused[name] = f"the request needs {lacking}, which this backend does not have"
        elif closed := [who for who, patterns in limits if not _serves_allowed(config, backend, patterns)]:
            refused[name] = f"{closed[0]} may not use the model {backend.model} that it serves"
        elif backend.missing or not backend.base_url:
            refused[name] = backend.missing or "its address is unknown"
        else:
            allowed[name] = Permit(backend, _MAKER)
    return Permits(allowed, refused)


def _limits_of(config: RoutingConfig, principal: Principal) -> list[tuple[str, tuple[str, ...]]]:
    """Return the patterns that a request's model must match: those of its team and of its key, where these have any."""
    limits, by_team = [], config.auth.models_of_team
    if by_team:
        limits.append((f"team {principal.team or 'unknown'}", by_team.get(principal.team, ())))
    if principal.models:
        limits.append((f"the key for {principal.name}", principal.models))
    return limits


def _serves_allowed(config: RoutingConfig, backend: Backend, patterns: tuple[str, ...]) -> bool:
    """Return whether a team or key may use the model that a backend serves, by the clients' name for it or by its own.

    A rule may send any model name to any backend: without this check, a team that may use only `phi-*` could reach
    another model with a header that a rule matches. For a backend that gets the client's model name, that was checked.
    """
    if not backend.model or matches_any(patterns, backend.model) or matches_any(patterns, backend.model_id):
        return True
    return any(matches_any(patterns, each) for each in config.ids_of.get(backend.name, ()))
