"""Says in words what `decide` did and why each other backend was left out; it decides nothing itself."""

from collections.abc import Iterator, Mapping

import attrs

from llmkube.router.config.routing_config import RoutingConfig, Rule
from llmkube.router.policy.decision import Decision, lacks, unmet, usable
from llmkube.router.policy.permits import Permits
from llmkube.router.policy.request_facts import RequestFacts


@attrs.frozen(kw_only=True)
class Explanation:
    """Why a request goes where it goes.

    Attributes:
        facts: What the router knows of the request, a line for each.
        rules: Each rule, with what became of it.
        left_out: Each backend that is not tried and gets no copy, with the reason.
    """

    facts: tuple[str, ...]
    rules: Mapping[str, str]
    left_out: Mapping[str, str]


def explain(
    config: RoutingConfig,
    facts: RequestFacts,
    permits: Permits,
    decision: Decision,
    first_byte_seconds: Mapping[str, float],
) -> Explanation:
    """Explain a decision of `decide` from what it was made of."""
    rules = {rule.name: why for rule, why in _walk(config, facts, permits, decision, first_byte_seconds)}
    used = {permit.backend.name for permit in (*decision.order, *decision.shadows)}
    left_out = {
        name: permits.refused.get(name) or _unused(name, decision, permits, first_byte_seconds)
        for name in config.backends
        if name not in used
    }
    return Explanation(facts=tuple(_told(facts)), rules=rules, left_out=left_out)


def _told(facts: RequestFacts) -> Iterator[str]:
    yield f"model {facts.model or 'none'}"
    for label, values in (("class", facts.classes), ("region", facts.regions), ("needs", facts.capabilities)):
        yield f"{label} {', '.join(sorted(values)) or 'none'}"
    yield f"complexity {facts.complexity or 'none'}"
    yield f"team {facts.principal.team or 'none'}"


def _walk(
    config: RoutingConfig,
    facts: RequestFacts,
    permits: Permits,
    decision: Decision,
    first_byte_seconds: Mapping[str, float],
) -> Iterator[tuple[Rule, str]]:
    decided = not permits.model_allowed
    for rule in config.rules:
        if decided:
            yield rule, "was not asked"
            continue
        missed = unmet(rule.match, facts)
        if rule is decision.rule:
            decided = True
            yield rule, "decides" if decision.order else "decides, and refuses: it fails closed"
        elif missed:
            yield rule, f"does not match: {missed}"
        elif usable(rule, permits, first_byte_seconds):
            yield rule, "matches, and is passed over: what it only tries out never answers"
        else:
            yield rule, "matches, and is passed over: none of its backends may be used"


def _unused(name: str, decision: Decision, permits: Permits, first_byte_seconds: Mapping[str, float]) -> str:
    """Return why a backend that the request may reach is not tried."""
    rule = decision.rule
    if rule is None:
        return "may be reached, and nothing sends this request there"
    if name not in rule.backends:
        return f"may be reached, and rule {rule.name} does not name it"
    lacking = lacks(rule.match, permits.allowed[name], first_byte_seconds)
    if lacking:
        return f"may be reached, and does not have what rule {rule.name} asks of a backend: {lacking}"
    return f"may be reached, and is only tried out by rule {rule.name}"
