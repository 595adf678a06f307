"""Each deliberate bug of the policy breaks the property of test_leaks.py: else the property would prove nothing."""

import attrs
import pytest

from llmkube.router.config import routing_config
from llmkube.router.config.data_classes import _values_and_pieces, classes_in
from llmkube.router.policy import decision, permits, request_facts
from router.policy.test_leaks import play

FACTS, PERMITS, DECIDE = request_facts.facts_of, permits.permits_for, decision.decide
FITS_ANY = routing_config.matches_any


def of_facts(change):
    """Return a mutant with other facts of a request: `change(facts, config, head, body)`."""

    def mutate(patch):
        def facts_of(config, head, body, principal):
            return change(FACTS(config, head, body, principal), config, head, body)

        patch.setattr(request_facts, "facts_of", facts_of)

    return mutate


def of_permits(change):
    """Return a mutant that evaluates another config or request: `change(config, facts)` returns both."""
    return lambda patch: patch.setattr(permits, "permits_for", lambda config, facts: PERMITS(*change(config, facts)))


def of_rules(change):
    """Return a mutant with other rules: `change(rule)`."""

    def mutate(patch):
        def decide(config, facts, allowed, **given):
            return DECIDE(attrs.evolve(config, rules=tuple(map(change, config.rules))), facts, allowed, **given)

        patch.setattr(decision, "decide", decide)

    return mutate


def of_match(**fields):
    """Return a mutant that skips a condition of a rule."""
    return of_rules(lambda rule: attrs.evolve(rule, match=attrs.evolve(rule.match, **fields)))


def of_config(change):
    """Return a mutant that decides by another config, with the permits of the right one."""
    return lambda patch: patch.setattr(
        decision, "decide", lambda config, facts, allowed, **given: DECIDE(change(config), facts, allowed, **given)
    )


def of_decision(change):
    """Return a mutant that changes the decision: `change(decision, config, facts, given)`."""

    def mutate(patch):
        def decide(config, facts, allowed, **given):
            return change(DECIDE(config, facts, allowed, **given), config, facts, given)

        patch.setattr(decision, "decide", decide)

    return mutate


def of_given(change):
    """Return a mutant with other circumstances: `change(given)` returns those that differ."""
    return lambda patch: patch.setattr(
        decision,
        "decide",
        lambda config, facts, allowed, **given: DECIDE(config, facts, allowed, **{**given, **change(given)}),
    )


def every_backend(config, **fields):
    return attrs.evolve(config, backends={name: attrs.evolve(each, **fields) for name, each in config.backends.items()})


def unrestricted(config):
    """Return the permits of a request without facts in an unrestricted config."""
    open_config = every_backend(config, missing="", local=True)
    return PERMITS(attrs.evolve(open_config, auth=attrs.evolve(config.auth, models_of_team={})), OPEN_FACTS).allowed


OPEN_FACTS = request_facts.RequestFacts(model="")


def words(line, *separators):
    for each in separators:
        line = line.replace(each, ",")
    return frozenset(part.strip() for part in line.split(",") if part.strip())


def or_default(classes, config):
    return classes or classes_in(config.classes.default)


def classes_from(read):
    return of_facts(
        lambda facts, config, head, body: attrs.evolve(
            facts, classes=or_default(read(head.get(config.classes.header, "")), config)
        )
    )


def widened(found, config, facts, given):
    """Fall back to every existing backend."""
    names = [permit.backend.name for permit in found.order]
    rest = [permit for name, permit in unrestricted(config).items() if name not in names]
    return attrs.evolve(found, order=(*found.order, *rest)) if found.order else found


def to_the_default(found, config, facts, given):
    """Send a refused request to the default route."""
    default = unrestricted(config).get(config.default_backend)
    return attrs.evolve(found, order=(default,), reason="") if not found.order and default else found


def shadows_of_all(found, config, facts, given):
    """Send copies to each backend of the rule."""
    if not found.shadows or found.rule is None:
        return found
    everything = unrestricted(config)
    return attrs.evolve(found, shadows=tuple(everything[name] for name in found.rule.backends[1:]))


def without_permits(patch):
    """Let rules choose from all backends."""

    def decide(config, facts, allowed, **given):
        return DECIDE(config, facts, attrs.evolve(allowed, allowed=unrestricted(config)), **given)

    patch.setattr(decision, "decide", decide)


def of_patterns(matches_any):
    """Return a mutant that matches patterns differently: `matches_any(patterns, model)`."""

    def mutate(patch):
        for module in (decision, permits):
            patch.setattr(module, "matches_any", matches_any)

    return mutate


MUTANTS = {
    "the first class counts": of_facts(
        lambda facts, config, head, body: attrs.evolve(facts, classes=frozenset(sorted(facts.classes)[:1]))
    ),
    "no default class": of_facts(
        lambda facts, config, head, body: (
            facts if head.get(config.classes.header) else attrs.evolve(facts, classes=frozenset())
        )
    ),
    "no region": of_facts(lambda facts, config, head, body: attrs.evolve(facts, regions=frozenset())),
    "needs of the header are not read": of_facts(
        lambda facts, config, head, body: FACTS(config, {**head, "x-llmkube-capabilities": ""}, body, facts.principal)
    ),
    "needs of the body are not read": of_facts(
        lambda facts, config, head, body: FACTS(config, head, {"model": facts.model}, facts.principal)
    ),
    "content within content is not read": of_facts(
        lambda facts, config, head, body: FACTS(
            config,
            head,
            {
                key: [
                    {**turn, "content": [p for p in turn["content"] if p["type"] != "tool_result"]}
                    for turn in value[1:]
                ]
                if key in ("messages", "input")
                else value
                for key, value in body.items()
            },
            facts.principal,
        )
    ),
    "what the body implies is always needed": of_facts(
        lambda facts, config, head, body: attrs.evolve(
            facts, capabilities=facts.capabilities | ({"tools"} if body.get("tools") else set())
        )
    ),
    "complexity keeps its case": of_facts(
        lambda facts, config, head, body: attrs.evolve(facts, complexity=head.get("x-llmkube-task-complexity", ""))
    ),
    "only pii is sensitive": of_permits(
        lambda config, facts: (
            attrs.evolve(config, classes=attrs.evolve(config.classes, sensitive=frozenset({"pii"}))),
            facts,
        )
    ),
    "nothing is sensitive next to another class": of_permits(
        lambda config, facts: (
            config,
            facts if facts.classes <= config.classes.sensitive else attrs.evolve(facts, classes=frozenset()),
        )
    ),
    "one of the needs is enough": of_permits(
        lambda config, facts: (config, attrs.evolve(facts, capabilities=frozenset(sorted(facts.capabilities)[:1])))
    ),
    "needs that no backend has are dropped": of_permits(
        lambda config, facts: (config, attrs.evolve(facts, capabilities=facts.capabilities & config.capabilities))
    ),
    "no lists of teams": of_permits(
        lambda config, facts: (attrs.evolve(config, auth=attrs.evolve(config.auth, models_of_team={})), facts)
    ),
    "an empty list admits all": of_permits(
        lambda config, facts: (
            attrs.evolve(
                config,
                auth=attrs.evolve(
                    config.auth,
                    models_of_team={team: each or ("*",) for team, each in config.auth.models_of_team.items()},
                ),
            ),
            facts,
        )
    ),
    # facts of a request
    "classes keep their case": classes_from(lambda line: words(line.replace('"', ""), ";", " ", "|")),
    "a header is one class": classes_from(lambda line: frozenset({line.lower().strip()} - {""})),
    "classes end at commas alone": classes_from(lambda line: words(line.lower().replace('"', ""))),
    "a label is Latin-1 alone": classes_from(_values_and_pieces),
    "a default is one class": of_facts(
        lambda facts, config, head, body: (
            facts
            if head.get(config.classes.header)
            else attrs.evolve(facts, classes=frozenset({config.classes.default} - {""}))
        )
    ),
    "the default class is always added": of_facts(
        lambda facts, config, head, body: attrs.evolve(facts, classes=facts.classes | ({config.classes.default} - {""}))
    ),
    "regions keep their case": of_facts(
        lambda facts, config, head, body: attrs.evolve(facts, regions=words(head.get("x-llmkube-region", "")))
    ),
    # permitted backends
    "every backend is local": of_permits(lambda config, facts: (every_backend(config, local=True), facts)),
    "no named region is any region": of_permits(
        lambda config, facts: (
            attrs.evolve(
                config,
                backends={
                    name: each if each.region else attrs.evolve(each, region=next(iter(facts.regions), ""))
                    for name, each in config.backends.items()
                },
            ),
            facts,
        )
    ),
    "a team without a list may use all": of_permits(
        lambda config, facts: (
            config
            if facts.principal.team in config.auth.models_of_team
            else attrs.evolve(config, auth=attrs.evolve(config.auth, models_of_team={})),
            facts,
        )
    ),
    "what a backend serves is not judged": of_permits(lambda config, facts: (every_backend(config, model=""), facts)),
    "what cannot be used may be reached": of_permits(lambda config, facts: (every_backend(config, missing=""), facts)),
    # the rule that decides
    "rules choose from all backends": without_permits,
    "the last rule wins": of_config(lambda config: attrs.evolve(config, rules=config.rules[::-1])),
    "the first rule alone is asked": of_config(lambda config: attrs.evolve(config, rules=config.rules[:1])),
    "nothing fails closed": of_rules(lambda rule: attrs.evolve(rule, fail_closed=False)),
    "everything fails closed": of_rules(lambda rule: attrs.evolve(rule, fail_closed=True)),
    "classes of rules are not asked for": of_match(classes=frozenset()),
    "models of rules are not asked for": of_match(models=()),
    "headers of rules are not asked for": of_match(headers={}),
    "complexity of rules is not asked for": of_match(complexity=""),
    "capabilities of rules are not asked for": of_match(capabilities=frozenset()),
    "latency is not asked for": of_match(latency_seconds=None),
    "* stops at a slash": of_patterns(
        lambda patterns, model: any(
            each.count("/") == model.count("/") and FITS_ANY((each,), model) for each in patterns
        )
    ),
    "a pattern fits a beginning": of_patterns(
        lambda patterns, model: FITS_ANY(tuple(f"{each}*" for each in patterns), model)
    ),
    "? fits nothing": of_patterns(
        lambda patterns, model: FITS_ANY((*patterns, *(each.replace("?", "") for each in patterns)), model)
    ),
    # attempted backends
    "a fallback is any backend": of_decision(widened),
    "a refusal goes to the default": of_decision(to_the_default),
    "copies go to all of a rule": of_decision(shadows_of_all),
    "no copies": of_decision(lambda found, config, facts, given: attrs.evolve(found, shadows=())),
    "copies answer": of_decision(
        lambda found, config, facts, given: attrs.evolve(found, order=(*found.order, *found.shadows), shadows=())
    ),
    "no draw": of_given(lambda given: {"pick": 0}),
    "no load": of_given(lambda given: {"load": {}}),
    "the most loaded": of_given(lambda given: {"load": {name: -count for name, count in given["load"].items()}}),
    "no weights": of_rules(
        lambda rule: attrs.evolve(rule, strategy="primary-fallback") if rule.strategy == "weighted" else rule
    ),
    "the model's name routes nothing": of_config(lambda config: attrs.evolve(config, by_model=False)),
    "the model's name always routes": of_config(lambda config: attrs.evolve(config, by_model=True)),
    "no default route": of_config(lambda config: attrs.evolve(config, default_backend="")),
    "waits of rules do not count": of_rules(lambda rule: attrs.evolve(rule, first_byte_seconds=None)),
}


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=[name.replace(" ", "-") for name in MUTANTS])
def test_each_deliberate_bug_of_the_policy_is_caught(mutant, monkeypatch):
    """The property fails for each slightly wrong policy."""
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        play(1500, seed=7)


@pytest.mark.soak
def test_there_are_mutants_of_each_step():
    """There are at least 25, of facts, permits, rules and attempts."""
    assert len(MUTANTS) >= 25
