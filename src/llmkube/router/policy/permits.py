"""Which backends a request may reach at all: class ∩ tenant ∩ region ∩ capability ∩ models, computed once.

A `Permit` is the only thing by which the transport dials, and only `permits_for` makes one. What comes after, rules,
weights, health, fallback, reorders or shrinks the set.
"""

from collections.abc import Mapping
from typing import Final, NoReturn, final

import attrs

from llmkube.router.config.routing_config import Backend, RoutingConfig, matches_any
from llmkube.router.policy.request_facts import RequestFacts

_MAKER: Final = object()


@final
class Permit:
    """Leave to send one request to one backend. `permits_for` alone makes it.

    Attributes:
        backend: Where to.
    """

    __slots__ = ("backend",)

    backend: Backend

    def __init__(self, backend: Backend, maker: object) -> None:
        if maker is not _MAKER:
            raise TypeError("only permits_for makes a Permit")
        object.__setattr__(self, "backend", backend)

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("only permits_for makes a Permit: there is no kind of it that another makes")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Permit does not change: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Permit does not change: {name}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # what copy, deepcopy and pickle ask
        raise TypeError("a Permit is not copied: only permits_for makes one")

    def __repr__(self) -> str:
        return f"Permit({self.backend.name!r})"


@attrs.frozen
class Permits:
    """What a request may reach, and why not the rest.

    Attributes:
        allowed: By the backend's name, in the order of the config.
        refused: Why each other backend is closed to it, for people.
        model_allowed: Whether the team may use the model that the request names, whatever backend would answer.
    """

    allowed: Mapping[str, Permit]
    refused: Mapping[str, str]
    model_allowed: bool = True


def permits_for(config: RoutingConfig, facts: RequestFacts) -> Permits:
    """Return which backends a request may reach, whatever rule decides."""
    patterns = _patterns_of(config, facts)
    if patterns is not None and not matches_any(patterns, facts.model):
        why = f"team {facts.principal.team or 'unknown'} may not use the model {facts.model or 'that is not named'}"
        return Permits({}, dict.fromkeys(config.backends, why), model_allowed=False)
    sensitive = facts.classes & config.classes.sensitive
    regions, needs = facts.regions, facts.capabilities
    allowed: dict[str, Permit] = {}
    refused: dict[str, str] = {}
    for name, backend in config.backends.items():
        if sensitive and not backend.local:
            classes = ", ".join(sorted(sensitive))
            refused[name] = f"data class {classes} stays local, and this backend is not"
        elif regions and backend.region not in regions:
            where = backend.region or "no named region"
            refused[name] = f"the data may go to {', '.join(sorted(regions))}, and this backend is in {where}"
        elif needs and not needs <= backend.capabilities:
            lacking = ", ".join(sorted(needs - backend.capabilities))
            refused[name] = f"the request needs {lacking}, which this backend does not have"
        elif patterns is not None and not _serves_allowed(backend, patterns):
            refused[name] = f"team {facts.principal.team} may not use the model {backend.model} that it serves"
        elif backend.missing or not backend.base_url:
            refused[name] = backend.missing or "nothing is known of where it answers"
        else:
            allowed[name] = Permit(backend, _MAKER)
    return Permits(allowed, refused)


def _patterns_of(config: RoutingConfig, facts: RequestFacts) -> tuple[str, ...] | None:
    """Return what a request's model has to fit; None where no team is limited."""
    by_team = config.auth.models_of_team
    return by_team.get(facts.principal.team, ()) if by_team else None


def _serves_allowed(backend: Backend, patterns: tuple[str, ...]) -> bool:
    """Return whether a team may use what a backend answers with, by the name that clients have for it or by its own.

    A rule may send any model's name anywhere: without this, a team that may use `phi-*` alone would reach another model
    by a header that some rule asks for. A backend that is asked for what the client names was judged by that.
    """
    return not backend.model or matches_any(patterns, backend.model) or matches_any(patterns, backend.model_id)
