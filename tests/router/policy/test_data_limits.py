"""A conversation is limited by all its requests, whatever later requests state or omit."""

import random

import attrs
import pytest

from lengths import LEAKS
from llmkube.router.policy import permits, request_facts
from llmkube.router.policy.request_facts import Principal, RequestFacts
from llmkube.router.refusals import RefusedError
from llmkube.router.responses import store
from llmkube.router.responses.store import DataLimits
from router.policy import oracle
from router.policy.drawn_routers import config_of, draw_request, draw_router

LIMITED, LIMITS_OF = store.apply_limits, store.limits_of


def facts(classes=(), regions=()):
    return RequestFacts(model="m", classes=frozenset(classes), regions=frozenset(regions))


@pytest.mark.parametrize(
    ("asked", "history", "classes", "regions"),
    [
        (facts(), DataLimits(), set(), set()),
        (facts(["public"]), DataLimits(classes=frozenset({"pii"})), {"public", "pii"}, set()),
        (facts(["pii"]), DataLimits(), {"pii"}, set()),
        (facts(regions=["eu"]), DataLimits(), set(), {"eu"}),
        (facts(), DataLimits(regions=frozenset({"eu"})), set(), {"eu"}),
        (facts(regions=["eu", "us"]), DataLimits(regions=frozenset({"eu", "ch"})), set(), {"eu"}),
    ],
)
def test_a_request_has_the_limits_of_its_history_as_well(asked, history, classes, regions):
    """Classes are the union, regions the intersection; no region at all means everywhere."""
    found = store.apply_limits(asked, history)
    assert (found.classes, found.regions) == (classes, regions)


@pytest.mark.parametrize("history", [frozenset({"eu"}), frozenset()])
def test_no_region_in_common_is_nowhere_and_not_everywhere(history):
    """An empty set of regions would admit every backend."""
    with pytest.raises(RefusedError) as refusal:
        store.apply_limits(facts(regions=["us"]), DataLimits(regions=history))
    assert "this request's to us" in refusal.value.error["message"]


def test_limits_are_those_of_the_facts():
    """A request without regions may be sent to any, and so may its answer."""
    assert store.limits_of(facts(["pii"], ["eu"])) == DataLimits(classes=frozenset({"pii"}), regions=frozenset({"eu"}))
    assert store.limits_of(facts()).regions is None


# -- the property ------------------------------------------------------------------------------------------------------


def closed(router, request, name):
    """Return whether the oracle closes a backend to the data of one request."""
    bare = request | {"needs": frozenset(), "parts": frozenset()}
    return oracle.forbidden(router | {"teams": {}}, bare, name) in ("class", "region")


def reached(config, request, history):
    """Return the permitted backends of a continuing request, and the limits of the stored data; None if refused."""
    asked = request_facts.facts_of(config, request["head"], request["body"], Principal(team=request["team"]))
    try:
        both = store.apply_limits(asked, history)
    except RefusedError:
        return None, history
    alone = permits.permits_for(config, asked).allowed
    assert permits.permits_for(config, both).allowed.keys() <= alone.keys()
    return set(permits.permits_for(config, both).allowed), store.limits_of(both)


def play(count, seed):
    """Draw routers, and conversations that branch; check the permitted backends of each request."""
    dice = random.Random(seed)
    refused = narrowed = 0
    for _ in range(count):
        router = draw_router(dice)
        config = config_of(router)
        kept = [((), DataLimits())]
        for _ in range(5):
            before, history = dice.choice(kept)
            request = draw_request(dice, router)
            found, limits = reached(config, request, history)
            conversation = (*before, request)
            own = {name for name in router["backends"] if oracle.forbidden(router, request, name) == ""}
            open_to_all = {name for name in own if not any(closed(router, each, name) for each in before)}
            if found is None:
                assert not open_to_all, (router, conversation)
                refused += 1
                continue
            assert found == open_to_all, (router, conversation)
            narrowed += found != own
            kept.append((conversation, limits))
    return refused, narrowed


def test_no_conversation_leaks():
    """A backend is closed exactly if one of its requests closes it."""
    refused, narrowed = play(LEAKS // 10, seed=31)
    assert refused > LEAKS // 500
    assert narrowed > LEAKS // 100


def of_limited(change):
    return "apply_limits", lambda asked, history: change(LIMITED, asked, history)


def of_regions(change):
    """Return a mutant that combines regions differently."""

    def joined(real, asked, history):
        both = real(attrs.evolve(asked, regions=frozenset()), attrs.evolve(history, regions=None))
        return attrs.evolve(both, regions=change(asked.regions, history.regions or frozenset()))

    return of_limited(joined)


def of_classes(change):
    return of_limited(
        lambda real, asked, history: attrs.evolve(real(asked, history), classes=change(asked.classes, history.classes))
    )


def of_limits(**without):
    return "limits_of", lambda both: attrs.evolve(LIMITS_OF(both), **without)


MUTANTS = {
    "a history is forgotten": of_limited(lambda real, asked, history: asked),
    "the request alone says its class": of_classes(lambda own, before: own),
    "the history alone says it": of_classes(lambda own, before: before),
    "a named class wins over that of the history": of_classes(lambda own, before: own or before),
    "what the history says wins": of_classes(lambda own, before: before or own),
    "only classes of both count": of_classes(lambda own, before: own & before),
    "one class is enough": of_classes(lambda own, before: frozenset(sorted(own | before)[:1])),
    "the request alone says its regions": of_regions(lambda own, before: own),
    "the history alone says them": of_regions(lambda own, before: before),
    "named regions win over those of the history": of_regions(lambda own, before: own or before),
    "regions are added up": of_regions(lambda own, before: own | before),
    "no region in common is everywhere": of_regions(
        lambda own, before: own & before if own and before else own | before
    ),
    "kept without classes": of_limits(classes=frozenset()),
    "kept without regions": of_limits(regions=None),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    """Each deliberate bug opens a closed backend, or closes an open one."""
    patched, mutant = MUTANTS[name]
    monkeypatch.setattr(store, patched, mutant)
    with pytest.raises(AssertionError):
        play(300, seed=31)
