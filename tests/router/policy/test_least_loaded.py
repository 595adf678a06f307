"""Which of several permitted backends is asked first: the warm one, unless it is overloaded; else the least loaded."""

import random

import pytest

from llmkube.router.config.routing_config import Backend, Match, RoutingConfig, Rule
from llmkube.router.policy.decision import decide
from llmkube.router.policy.least_loaded import MOST_AHEAD, Warmth, least_loaded
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from router.policy.drawn_routers import config_of, draw_request, draw_router
from router.policy.test_leaks import decided


def permits(**slots):
    backends = {
        name: Backend(name=name, model_id=name, base_url=f"http://{name}/v1", local=True, slots=count)
        for name, count in slots.items()
    }
    return list(
        permits_for(RoutingConfig(name="ml/front", backends=backends), RequestFacts(model="m")).allowed.values()
    )


def names(order):
    return "".join(permit.backend.name for permit in order)


@pytest.mark.parametrize(
    ("load", "warm", "order"),
    [
        ({}, {"c": 512}, "cab"),
        ({}, {"b": 512, "c": 1024}, "cab"),
        ({"c": 1}, {"c": 512}, "cab"),
        ({"b": 1}, {"b": 512, "c": 512}, "cab"),
        ({"c": 2}, {"c": 512}, "abc"),
        ({"a": 2, "b": 2, "c": 3}, {"c": 512}, "cab"),
        ({"a": 2, "b": 2, "c": 4}, {"c": 512}, "abc"),
        ({"c": 2}, {"b": 256, "c": 512}, "bac"),
        ({}, {}, "abc"),
        ({"a": 1}, {"a": 0}, "bca"),
    ],
)
def test_the_warm_backend_is_first_unless_it_is_overloaded(load, warm, order):
    """With two slots each: it is left where it has none free and another has, or where its queue is a round longer."""
    chosen = permits(a=2, b=2, c=2)
    assert names(least_loaded(chosen, load, {name: Warmth(size) for name, size in warm.items()})) == order


@pytest.mark.parametrize(("ahead", "order"), [(MOST_AHEAD - 1, "ba"), (MOST_AHEAD, "ab")])
def test_without_known_slots_a_few_requests_more_are_an_overload(ahead, order):
    """No queue is known of such a backend, only how many requests it has more than the other."""
    assert names(least_loaded(permits(a=0, b=0), {"a": 1, "b": 1 + ahead}, {"b": Warmth(512)})) == order


def test_a_cold_prompt_goes_where_nothing_is_given_up_for_it():
    """Of those with the same load; else where what is given up was used longest ago."""
    chosen = permits(a=2, b=2, c=2)
    assert names(least_loaded(chosen, {}, {"a": Warmth(0, 7), "b": Warmth(0, 5), "c": Warmth(0, 6)})) == "bca"
    assert names(least_loaded(chosen, {}, {"a": Warmth(0, 7), "b": Warmth(0, 5), "c": Warmth(0, 0)})) == "cba"
    assert names(least_loaded(chosen, {"b": 1}, {"a": Warmth(0, 7), "b": Warmth(0, 0), "c": Warmth(0, 6)})) == "cab"


def drawn_warmth(dice, router):
    """Also of backends that are closed to the request, and of one that the router does not have."""
    named = [name for name in (*router["backends"], "elsewhere") if dice.random() < 0.7]
    return {name: Warmth(dice.choice([0, 256, 4096]), dice.randrange(9)) for name in named}


def test_warmth_only_reorders_what_is_permitted():
    """For drawn routers and requests: the same backends, rule, shadows and limits as without; some orders do change."""
    dice, changed = random.Random(22), 0
    for _ in range(5000):
        router = draw_router(dice)
        config, request = config_of(router), draw_request(dice, router)
        warmth = drawn_warmth(dice, router)
        plain, warm = decided(config, request), decided(config, request, warmth=warmth)
        strategy = plain.rule.strategy if plain.rule is not None else ""
        if strategy != "least-loaded":
            assert names(warm.order) == names(plain.order)
        assert {permit.backend.name for permit in warm.order} == {permit.backend.name for permit in plain.order}
        assert len(warm.order) == len(plain.order)
        assert (warm.rule, warm.reason, warm.first_byte_seconds) == (plain.rule, plain.reason, plain.first_byte_seconds)
        assert names(warm.shadows) == names(plain.shadows)
        changed += names(warm.order) != names(plain.order)
    assert changed > 5


def test_a_share_that_the_spec_asks_for_is_kept():
    """Strategy weighted draws by its weights alone, whatever is warm."""
    backends = {
        name: Backend(name=name, model_id=name, base_url=f"http://{name}/v1", local=True, weight=1) for name in "ab"
    }
    rule = Rule(name="r", match=Match(), backends=("a", "b"), strategy="weighted")
    config = RoutingConfig(name="ml/front", backends=backends, rules=(rule,))
    facts = RequestFacts(model="m")
    for pick, first in ((0.1, "a"), (0.9, "b")):
        found = decide(
            config,
            facts,
            permits_for(config, facts),
            first_byte_seconds={},
            pick=pick,
            load={},
            warmth={"a": Warmth(4096), "b": Warmth(0, 9)},
        )
        assert found.order[0].backend.name == first
