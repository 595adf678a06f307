"""Choose the rule that applies, and order its permitted backends.

Strategy least-loaded prefers a backend that has the start of the prompt in its cache, else the least loaded one. The
engines of one backend are always chosen in this way, whatever the strategy of the rule.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs

from llmkube.router.config.routing_config import Match, RoutingConfig, Rule, matches_any
from llmkube.router.policy.permits import Permit, Permits
from llmkube.router.policy.request_facts import RequestFacts

MAX_AHEAD: Final = 4
"""Requests that a warm backend without known slots may have more than the least loaded one."""


@attrs.frozen
class Warmth:
    """The estimated part of a prompt in a backend's cache.

    Attributes:
        size: Bytes of the prompt, from its start.
        oldest: Last use of the prompt that would be evicted for this one, counted in answers; 0 if there is room.
        doubtful: Bytes of the prompt that it has computed, and may have evicted since.
    """

    size: int = 0
    oldest: int = 0
    doubtful: int = attrs.field(default=0, eq=False)

    @property
    def hoped(self) -> int:
        """Bytes that it may have: with nothing at stake but its own order, a doubtful prompt is worth an attempt."""
        return max(self.size, self.doubtful)


_COLD: Final = Warmth()


def least_loaded(chosen: Sequence[Permit], load: Mapping[str, int], warmth: Mapping[str, Warmth]) -> tuple[Permit, ...]:
    """Return the permits, best first.

    A prompt that no backend has cached goes to the least loaded one; among equals, to one with room in its cache, else
    to the one that would evict the least recently used prompt, else to the first in the order of the rule.

    Args:
        chosen: Usable backends in the order of the rule.
        load: Requests in flight, by the backend's name.
        warmth: By the backend's name; empty if nothing is known of the prompt.
    """
    if not warmth:
        return tuple(sorted(chosen, key=lambda permit: load.get(permit.backend.name, 0)))

    def cost(permit: Permit) -> tuple[int, int]:
        return load.get(permit.backend.name, 0), warmth.get(permit.backend.name, _COLD).oldest

    by_load = sorted(chosen, key=cost)
    ready = [permit for permit in by_load if not is_overloaded(permit, by_load[0], load)]
    warmest = max(ready, key=lambda permit: warmth.get(permit.backend.name, _COLD).hoped)
    if not warmth.get(warmest.backend.name, _COLD).hoped:
        return tuple(by_load)
    return (warmest, *(permit for permit in by_load if permit is not warmest))


def is_overloaded(permit: Permit, least: Permit, load: Mapping[str, int]) -> bool:
    """Whether a warm backend has such a long queue that the least loaded one, without a cache, is likely to be faster.

    With known slots: none is free here, and the other backend has a free slot, or a load that is lower by at least
    the number of slots.
    """
    own, other = load.get(permit.backend.name, 0), load.get(least.backend.name, 0)
    slots = permit.backend.slots
    if not slots:
        return own - other >= MAX_AHEAD
    if own < slots:
        return False
    has_room = other < (least.backend.slots or own)
    return has_room or own - other >= slots


class Refusal(enum.StrEnum):
    """Reason of a refusal."""

    NO_ROUTE = "NoRoute"
    FAIL_CLOSED = "FailClosed"
    NOT_PERMITTED = "NotPermitted"
    MODEL_NOT_ALLOWED = "ModelNotAllowed"
    NO_MODEL = "NoModel"
    AMBIGUOUS = "AmbiguousModel"


_NO_WARMTH: Final[Mapping[str, Warmth]] = {}


@attrs.frozen(kw_only=True)
class Decision:
    """The route of a request.

    Attributes:
        rule: The rule that applied; None for the default route and for a refusal without a rule.
        order: Backends to try, best first; empty refuses the request.
        shadows: Backends that get a copy whose answer is discarded.
        why: The cause of the decision, for people and the audit log.
        first_byte_seconds: Longest wait for the first byte, by the backend's name.
        extends: Backends for which the router waits longer while they show progress, because no spec sets their limit.
        reason: Reason of a refusal, one of `Refusal`; else "".
    """

    rule: Rule | None
    order: tuple[Permit, ...]
    why: str
    first_byte_seconds: Mapping[str, float]
    shadows: tuple[Permit, ...] = ()
    extends: frozenset[str] = frozenset()
    reason: str = ""


def decide(
    config: RoutingConfig,
    facts: RequestFacts,
    permits: Permits,
    *,
    first_byte_seconds: Mapping[str, float],
    pick: float,
    load: Mapping[str, int],
    warmth: Mapping[str, Warmth] = _NO_WARMTH,
) -> Decision:
    """Route a request to permitted backends: the first rule that matches and has a usable backend applies.

    A matching rule without usable backends is skipped, unless it fails closed.

    Args:
        config: The config.
        facts: Facts of the request.
        permits: Backends that the request may reach.
        first_byte_seconds: Measured time to the first byte, by the backend's name; without an entry it is unknown.
        pick: A random number in [0, 1), for strategy weighted.
        load: Requests in flight, by the backend's name.
        warmth: Estimates of what backends have cached of the prompt, by name, for strategy least-loaded.
    """
    if not permits.model_allowed:
        return _refusal(
            None, Refusal.MODEL_NOT_ALLOWED, next(iter(permits.refused.values()), "the team may not use the model")
        )
    headers = facts.headers.items()
    engines: Engines = partial(_engines_of, config, permits, load, warmth)
    for rule in config.rules:
        required = rule.match.headers
        if (required and not required.items() <= headers) or unmet_condition(rule.match, facts):
            continue
        chosen = [permits.allowed[name] for name in usable_backends(rule, permits, first_byte_seconds)]
        if chosen:
            order, shadows = _arrange(rule, chosen, pick, *_of_backends(config, rule, load, warmth))
            if order:
                return _with_limits(config, rule, order, shadows, f"rule {rule.name}", engines=engines)
        if rule.fail_closed:
            why = f"rule {rule.name} fails closed, and none of its backends may be used"
            return _refusal(rule, Refusal.FAIL_CLOSED, why)
    return _default_decision(config, facts, permits, engines)


Engines = Callable[[Permit], Sequence[Permit]]


def _engines_of(
    config: RoutingConfig, permits: Permits, load: Mapping[str, int], warmth: Mapping[str, Warmth], permit: Permit
) -> Sequence[Permit]:
    """Return the permitted engines of a backend, best first; the backend itself if it has none."""
    names = config.engines.get(permit.backend.name, ())
    engines = [permits.allowed[name] for name in names if name in permits.allowed]
    return least_loaded(engines, load, warmth) if engines else (permit,)


def _of_backends(
    config: RoutingConfig, rule: Rule, load: Mapping[str, int], warmth: Mapping[str, Warmth]
) -> tuple[Mapping[str, int], Mapping[str, Warmth]]:
    """Return load and warmth of the backends of a rule, those of their engines included."""
    parts = {name: config.engines[name] for name in rule.backends if config.engines.get(name)}
    if not parts:
        return load, warmth
    loads = {name: sum(load.get(each, 0) for each in (name, *engines)) for name, engines in parts.items()}
    warmest = {
        name: max((warmth.get(each, _COLD) for each in engines), key=lambda one: one.size)
        for name, engines in parts.items()
    }
    return {**load, **loads}, {**warmth, **warmest} if warmth else warmth


def unmet_condition(match: Match, facts: RequestFacts) -> str:
    """Return the field name of the first condition that a request does not meet; "" if it meets all."""
    if match.classes and match.classes.isdisjoint(facts.classes):
        return "dataClassification"
    if match.complexity and match.complexity != facts.complexity:
        return "taskComplexity"
    if match.models and not matches_any(match.models, facts.model):
        return "models"
    if match.headers:
        headers = facts.headers
        for name, value in match.headers.items():
            if headers.get(name) != value:
                return f"headers[{name}]"
    return ""


def usable_backends(rule: Rule, permits: Permits, first_byte_seconds: Mapping[str, float]) -> list[str]:
    """Return the backends of a rule that the request may reach and that meet the rule's requirements."""
    return [
        name
        for name in rule.backends
        if name in permits.allowed and not unmet_requirement(rule.match, permits.allowed[name], first_byte_seconds)
    ]


def unmet_requirement(match: Match, permit: Permit, first_byte_seconds: Mapping[str, float]) -> str:
    """Return the field name of the first requirement that a backend does not meet; "" if it meets all."""
    if match.capabilities and not match.capabilities <= permit.backend.capabilities:
        return "requiredCapabilities"
    limit = match.latency_seconds
    if limit is not None and first_byte_seconds.get(permit.backend.name, 0.0) > limit:
        return "latencySLOMs"
    return ""


def _default_decision(config: RoutingConfig, facts: RequestFacts, permits: Permits, engines: Engines) -> Decision:
    named = config.backend_named(facts.model)
    if (ids := config.ambiguous.get(facts.model)) and not named:
        return _refusal(None, Refusal.AMBIGUOUS, f"several services are named {facts.model!r}; use {' or '.join(ids)}")
    for name, why in ((named, "the model's name"), (config.default_backend, "the default route")):
        permit = permits.allowed.get(name)
        if permit is not None:
            return _with_limits(config, None, (permit,), (), why, engines=engines)
    refused = named or config.default_backend
    if refused:
        return _refusal(
            None, Refusal.NOT_PERMITTED, f"no rule matches, and {refused}: {permits.refused.get(refused, '')}"
        )
    if config.ids is not None:
        return _refusal(None, Refusal.NO_MODEL, f"there is no model {facts.model!r}; GET /v1/models lists the models")
    return _refusal(None, Refusal.NO_ROUTE, "no rule matches, and the router has no default route")


def _refusal(rule: Rule | None, reason: str, why: str) -> Decision:
    return Decision(rule=rule, order=(), why=why, first_byte_seconds={}, reason=reason)


def _with_limits(
    config: RoutingConfig,
    rule: Rule | None,
    order: tuple[Permit, ...],
    shadows: tuple[Permit, ...],
    why: str,
    *,
    engines: Engines,
) -> Decision:
    """Return a decision with the time limit of each backend: the rule's, else the backend's, else the router's default.

    Only the default is extended while the engine of an InferenceService shows progress; limits from a spec are not.
    """
    if config.engines:
        order = tuple(each for permit in order for each in engines(permit))
        shadows = tuple(engines(permit)[0] for permit in shadows)
    limits: dict[str, float] = {}
    extends = set()
    for backend in (permit.backend for permit in (*order, *shadows)):
        given = rule.first_byte_seconds if rule is not None else None
        given = backend.first_byte_seconds if given is None else given
        limits[backend.name] = config.first_byte_seconds if given is None else given
        if config.first_byte_extends and given is None and not backend.provider:
            extends.add(backend.name)
    return Decision(
        rule=rule, order=order, shadows=shadows, why=why, first_byte_seconds=limits, extends=frozenset(extends)
    )


# -- strategies -------------------------------------------------------------------------------------------------------

_Arrangement = tuple[tuple[Permit, ...], tuple[Permit, ...]]


def _arrange(
    rule: Rule, chosen: Sequence[Permit], pick: float, load: Mapping[str, int], warmth: Mapping[str, Warmth]
) -> _Arrangement:
    """Return the backends to try, best first, and those that get a copy."""
    if rule.strategy == "shadow":
        # A shadow never answers, not even if the primary backend cannot
        return tuple(permit for permit in chosen if permit.backend.name == rule.backends[0]), tuple(
            permit for permit in chosen if permit.backend.name != rule.backends[0]
        )
    if rule.strategy == "weighted":
        return _weighted(chosen, pick), ()
    if rule.strategy == "least-loaded":
        return least_loaded(chosen, load, warmth), ()
    return tuple(chosen), ()


def _weighted(chosen: Sequence[Permit], pick: float) -> tuple[Permit, ...]:
    """Return the drawn backend first, then the others in the order of the rule; weight 0 is only a fallback."""
    mark = pick * sum(permit.backend.weight for permit in chosen)
    drawn = 0
    for position, permit in enumerate(chosen):
        if permit.backend.weight:
            drawn = position  # the last one with a weight, if rounding leaves the mark at the very end
            mark -= permit.backend.weight
            if mark < 0:
                break
    return (chosen[drawn], *chosen[:drawn], *chosen[drawn + 1 :])
