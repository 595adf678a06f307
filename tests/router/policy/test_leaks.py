"""No drawn router sends a request to a backend that its class, region, team or needs forbid."""

import random

from lengths import LEAKS
from llmkube.router.policy import decision, permits, request_facts
from llmkube.router.policy.decision import Refusal
from llmkube.router.policy.request_facts import Principal
from router.policy import oracle
from router.policy.drawn_routers import config_of, draw_request, draw_router


def decided(config, request, **more):
    """Return the decision of the code under test, called through its modules so that mutants apply."""
    facts = request_facts.facts_of(config, request["head"], request["body"], Principal(team=request["team"]))
    allowed = permits.permits_for(config, facts)
    return decision.decide(
        config,
        facts,
        allowed,
        first_byte_seconds=request["measured"],
        pick=request["pick"],
        load=request["load"],
        **more,
    )


def judge(router, request, found):
    """Check a decision against the promises, and then against the oracle's decision."""
    order = [permit.backend.name for permit in found.order]
    shadows = [permit.backend.name for permit in found.shadows]
    for name in (*order, *shadows):
        assert oracle.forbidden(router, request, name) == "", (name, router, request)
    if found.rule is not None:
        routed = next(rule["backends"] for rule in router["rules"] if rule["name"] == found.rule.name)
        assert set(order) | set(shadows) <= set(routed)
    assert len({*order, *shadows}) == len(order) + len(shadows)
    seen = {
        "rule": found.rule.name if found.rule else "",
        "order": order,
        "shadows": shadows,
        "reason": found.reason,
        "waits": dict(found.first_byte_seconds),
    }
    assert seen == oracle.expected(router, request), (router, request)


def play(count, seed):
    """Draw routers, and check two requests of each."""
    dice = random.Random(seed)
    for _ in range(count):
        router = draw_router(dice)
        config = config_of(router)
        for _ in range(2):
            request = draw_request(dice, router)
            judge(router, request, decided(config, request))


def test_no_generated_router_leaks():
    """For all rules, strategies, loads and draws, order and shadows contain no closed backend."""
    play(LEAKS, seed=22)


def test_the_dice_reach_each_outcome():
    """A property over cases that never occur proves nothing: each strategy and each reason is drawn."""
    dice = random.Random(1)
    outcomes, closed, strategies, shadowed = set(), set(), set(), 0
    for _ in range(2000):
        router = draw_router(dice)
        request = draw_request(dice, router)
        wanted = oracle.expected(router, request)
        outcomes.add(wanted["reason"])
        shadowed += bool(wanted["shadows"])
        closed |= {oracle.forbidden(router, request, name) for name in router["backends"]}
        strategies |= {rule["strategy"] for rule in router["rules"] if rule["name"] == wanted["rule"]}
    assert outcomes == {"", *Refusal} - {Refusal.NO_MODEL, Refusal.AMBIGUOUS}  # without rules by id
    assert closed == {"", "class", "region", "capability", "team", "missing"}
    assert strategies == {"primary-fallback", "weighted", "shadow", "least-loaded"}
    assert shadowed > 10
