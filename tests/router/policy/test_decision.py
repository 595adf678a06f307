"""The first matching rule decides among permitted backends; strategies, and reasons of refusals.

Among several permitted backends, the warm one is first unless it is overloaded; else the least loaded.
"""

import random

import pytest

from llmkube.router.config.routing_config import Backend, Match, RoutingConfig, Rule
from llmkube.router.policy.decision import MAX_AHEAD, Warmth, decide, least_loaded
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from router.policy.drawn_routers import config_of, draw_request, draw_router
from router.policy.test_leaks import decided
from router.written_routers import BACKENDS, ask, order, running

THREE = """
backends:
- { name: a, inferenceServiceRef: { name: a }, weight: 1, timeout: 5s }
- { name: b, inferenceServiceRef: { name: b }, weight: 3 }
- { name: c, inferenceServiceRef: { name: c }, weight: 0 }
"""


def with_rule(strategy, more=""):
    return running(THREE + f"rules: [{{ name: r, route: {{ backends: [a, b, c], strategy: {strategy} }} {more} }}]\n")


def test_primary_fallback_keeps_the_order_of_the_rule():
    """Load and random draws do not matter."""
    assert order(with_rule("primary-fallback"), pick=0.9, load={"a": 9}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("pick", "found"),
    [
        (0.0, ["a", "b", "c"]),
        (0.24, ["a", "b", "c"]),
        (0.25, ["b", "a", "c"]),
        (0.99, ["b", "a", "c"]),
        (1 - 2**-53, ["b", "a", "c"]),
    ],
)
def test_weighted_draws_the_first_by_its_share(pick, found):
    """They are chosen 1:3; a backend without a share is only a fallback."""
    assert order(with_rule("weighted"), pick=pick) == found


def test_weights_apply_to_permitted_backends():
    """The share of a closed backend goes to the others; if none has a share, the rule's order applies."""
    config = running(
        THREE.replace("name: b, inf", "name: b, region: eu, inf").replace("name: c, inf", "name: c, region: eu, inf")
        + "rules: [{ name: r, route: { backends: [a, b, c], strategy: weighted } }]\n"
    )
    assert order(config, {"x-llmkube-region": "eu"}, pick=0.0) == ["b", "c"]
    assert order(config, {"x-llmkube-region": "eu"}, pick=0.999) == ["b", "c"]


def test_least_loaded_sorts_by_what_is_in_flight():
    """Ties keep the rule's order; a backend without a count has nothing in flight."""
    config = with_rule("least-loaded")
    assert order(config, load={"a": 2, "b": 1, "c": 1}) == ["b", "c", "a"]
    assert order(config, load={"a": 1}) == ["b", "c", "a"]
    assert order(config) == ["a", "b", "c"]


def test_shadows_get_copies_and_never_answer():
    """If the backend that answers is closed, the rule is skipped."""
    text = THREE.replace("name: a, inf", "name: a, region: us, inf").replace("name: b, inf", "name: b, region: eu, inf")
    config = running(text + "rules: [{ name: r, route: { backends: [a, b, c], strategy: shadow } }]\ndefaultRoute: b\n")
    decision = ask(config)
    assert [permit.backend.name for permit in decision.order] == ["a"]
    assert [permit.backend.name for permit in decision.shadows] == ["b", "c"]
    closed = ask(config, {"x-llmkube-region": "eu"})
    assert (closed.rule, [permit.backend.name for permit in closed.order], closed.shadows) == (None, ["b"], ())


def test_waits_are_the_rules_then_the_backends_then_the_routers():
    """Each backend has the longest wait for the first byte."""
    assert ask(with_rule("primary-fallback")).first_byte_seconds == {"a": 5.0, "b": 120.0, "c": 120.0}
    assert ask(with_rule("primary-fallback", ", timeout: 9s")).first_byte_seconds == {"a": 9.0, "b": 9.0, "c": 9.0}


def test_each_condition_of_a_rule_applies():
    """A rule matches if all its conditions are met; header names are case-insensitive."""
    config = running(
        BACKENDS
        + """
rules:
- name: narrow
  match: { models: ["gpt-*"], headers: { X-App: Front }, taskComplexity: complex, dataClassification: [public] }
  route: { backends: [cloud] }
defaultRoute: mac
"""
    )
    head = {"x-app": "Front", "x-llmkube-task-complexity": "COMPLEX", "x-llmkube-classification": "Public"}
    assert order(config, head, {"model": "gpt-5"}) == ["cloud"]
    assert order(config, head, {"model": "phi"}) == ["mac"]
    for name in head:
        assert order(config, {**head, name: "other"}, {"model": "gpt-5"}) == ["mac"]
        assert order(config, {each: head[each] for each in head if each != name}, {"model": "gpt-5"}) == ["mac"]


def test_a_rule_of_which_nothing_may_be_used_is_passed_over_unless_it_fails_closed():
    """The backend may be excluded by class, capability, latency or absence."""
    text = "rules: [{{ name: r, match: {}, failClosed: {}, route: {{ backends: [cloud] }} }}]\ndefaultRoute: mac\n"
    pii = {"x-llmkube-classification": "pii"}
    for match, head, measured in (
        ("{}", pii, {}),
        ("{ requiredCapabilities: [audio] }", {}, {}),
        ("{ latencySLOMs: 100 }", {}, {"cloud": 0.2}),
    ):
        passed = running(BACKENDS + text.format(match, "false"))
        assert order(passed, head, measured=measured) == ["mac"]
        closed = ask(running(BACKENDS + text.format(match, "true")), head, measured=measured)
        assert (closed.order, closed.reason, closed.rule.name) == ((), "FailClosed", "r")
        assert "fails closed" in closed.why


def test_a_backend_that_was_never_measured_may_be_fast():
    """An unknown latency excludes no backend, nor does one that equals the limit."""
    config = running(
        BACKENDS + "rules: [{ name: r, match: { latencySLOMs: 100 }, route: { backends: [cloud, mac] } }]\n"
    )
    assert order(config) == ["cloud", "mac"]
    assert order(config, measured={"cloud": 0.1, "mac": 0.11}) == ["cloud"]


def test_the_models_name_leads_to_its_backend_where_it_is_permitted():
    """Otherwise the default route applies, or the request is refused with the reason."""
    by_name = "defaultRouteStrategy: BackendNameMatch\n"
    config = running(BACKENDS + by_name + "defaultRoute: mac\n")
    pii = {"x-llmkube-classification": "pii"}
    assert order(config, {}, {"model": "cloud"}) == ["cloud"]
    assert order(config, pii, {"model": "cloud"}) == ["mac"]
    assert order(config, {}, {"model": "unheard"}) == ["mac"]
    alone = running(BACKENDS + by_name)
    refused = ask(alone, pii, {"model": "cloud"})
    assert refused.reason == "NotPermitted"
    assert refused.why == "no rule matches, and cloud: data of class pii must stay local, and this backend is not"
    assert ask(alone, {}, {"model": "unheard"}).reason == "NoRoute"


def test_a_team_without_the_model_is_refused_before_any_rule():
    """The refusal differs from the policy's: the client may use another model."""
    auth = "policy: { auth: { keysSecretRef: { name: k }, allowlists: [{ team: red, models: ['phi*'] }] } }\n"
    config = running(BACKENDS + auth + "defaultRoute: mac\n")
    assert order(config, {}, {"model": "phi-4"}, team="red") == ["mac"]
    assert ask(config, {}, {"model": "gpt-5"}, team="red").reason == "ModelNotAllowed"
    assert ask(config, {}, {"model": "phi-4"}, team="blue").reason == "ModelNotAllowed"


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
    """With two slots each, it is skipped if only another one has a free slot, or if its queue is a round longer."""
    chosen = permits(a=2, b=2, c=2)
    assert names(least_loaded(chosen, load, {name: Warmth(size) for name, size in warm.items()})) == order


@pytest.mark.parametrize(("ahead", "order"), [(MAX_AHEAD - 1, "ba"), (MAX_AHEAD, "ab")])
def test_without_known_slots_a_few_requests_more_are_an_overload(ahead, order):
    """Such a backend has no known queue, only a number of requests more than the other."""
    assert names(least_loaded(permits(a=0, b=0), {"a": 1, "b": 1 + ahead}, {"b": Warmth(512)})) == order


def test_a_cold_prompt_goes_where_nothing_is_given_up_for_it():
    """With equal load, a backend with room is chosen; else the one whose oldest prompt was used longest ago."""
    chosen = permits(a=2, b=2, c=2)
    assert names(least_loaded(chosen, {}, {"a": Warmth(0, 7), "b": Warmth(0, 5), "c": Warmth(0, 6)})) == "bca"
    assert names(least_loaded(chosen, {}, {"a": Warmth(0, 7), "b": Warmth(0, 5), "c": Warmth(0, 0)})) == "cba"
    assert names(least_loaded(chosen, {"b": 1}, {"a": Warmth(0, 7), "b": Warmth(0, 0), "c": Warmth(0, 6)})) == "cab"


def drawn_warmth(dice, router):
    """Draw warm prompts, including closed backends and one that the router does not have."""
    named = [name for name in (*router["backends"], "elsewhere") if dice.random() < 0.7]
    return {name: Warmth(dice.choice([0, 256, 4096]), dice.randrange(9)) for name in named}


@pytest.mark.ci
def test_warmth_only_reorders_what_is_permitted():
    """Backends, rule, shadows and limits of drawn requests are unchanged; some orders change."""
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
    """Strategy weighted uses its weights alone, even if a backend is warm."""
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
