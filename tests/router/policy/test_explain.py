"""An explanation says what `decide` did, of each rule and of each backend."""

import random

from llmkube.router.policy.decision import decide
from llmkube.router.policy.explain import explain
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import Principal, facts_of
from router.policy import oracle
from router.policy.drawn_routers import config_of, draw_request, draw_router


def test_each_rule_and_each_backend_is_accounted_for():
    """For generated routers: what is neither tried nor copied to has a reason, and one rule at most decides."""
    dice = random.Random(9)
    seen = set()
    for _ in range(1500):
        router = draw_router(dice)
        config, request = config_of(router), draw_request(dice, router)
        facts = facts_of(config, request["head"], request["body"], Principal(team=request["team"]))
        permits = permits_for(config, facts)
        measured = request["measured"]
        decision = decide(
            config, facts, permits, first_byte_seconds=measured, pick=request["pick"], load=request["load"]
        )
        told = explain(config, facts, permits, decision, measured)
        used = {permit.backend.name for permit in (*decision.order, *decision.shadows)}
        assert set(told.left_out) == set(config.backends) - used
        for name, why in told.left_out.items():
            assert why.startswith("may be reached") == (not oracle.forbidden(router, request, name)), (name, why)
        assert list(told.rules) == [rule.name for rule in config.rules]
        decides = [name for name, why in told.rules.items() if why.startswith("decides")]
        assert decides == ([decision.rule.name] if decision.rule else [])
        seen |= {why.partition(":")[0] for why in told.rules.values()}
    assert seen == {"decides", "decides, and refuses", "does not match", "was not asked", "matches, and is passed over"}
