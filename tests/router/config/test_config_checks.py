"""An invalid config is reported with the field, the value and the fix.

A valid config that may be a mistake is warned about; no other config is.
"""

from decimal import Decimal

import attrs
import pytest

from llmkube.router.config.config_checks import config_problems
from llmkube.router.config.routing_config import (
    Audit,
    Auth,
    Backend,
    Budget,
    Classes,
    Match,
    Prices,
    Probe,
    RedisStore,
    RoutingConfig,
    Rule,
    Tokens,
)
from router.written_routers import BACKENDS, compiled

MAC = Backend(name="mac", model_id="mac", base_url="http://mac.svc/v1", local=True)
CLOUD = Backend(name="cloud", model_id="cloud", base_url="https://a.example/v1", local=False, provider="openai")
RULE = Rule(name="r", match=Match(), backends=("mac",))
SOUND = RoutingConfig(name="ml/front", backends={"mac": MAC, "cloud": CLOUD}, rules=(RULE,), default_backend="mac")
PIT = Budget(name="b", scope="router", window_seconds=60, max_tokens=1)


def with_mac(**fields):
    return {"backends": {**SOUND.backends, "mac": attrs.evolve(MAC, **fields)}}


def with_cloud(**fields):
    return {"backends": {**SOUND.backends, "cloud": attrs.evolve(CLOUD, **fields)}}


def with_rule(**fields):
    return {"rules": (attrs.evolve(RULE, **fields),)}


def with_match(**fields):
    return with_rule(match=Match(**fields))


def with_budget(**fields):
    return {"budgets": (attrs.evolve(PIT, **fields),)}


STORE = RedisStore(host="redis", port=6379)


def with_store(**fields):
    return {"budgets": (PIT,), "budget_store": attrs.evolve(STORE, **fields)}


def with_tokens(uri="https://idp.example/keys", **fields):
    given = {"provider": "p", "issuer": "i", "jwks_uri": uri, "team_claim": "t", "audiences": ("a",)}
    return {"auth": Auth(tokens=Tokens(**given | fields))}


def test_a_sound_config_is_not_complained_about():
    """No check reports anything."""
    assert config_problems(SOUND) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"backends": {}, "rules": (), "default_backend": ""}, "backends: empty; add one"),
        (with_mac(name="Mac"), "backends[mac].name: 'Mac' must equal its key"),
        (with_mac(model_id=""), "backends[mac].modelId: empty"),
        (with_mac(dialect="ollama"), "backends[mac].dialect: 'ollama' is unknown; write one of openai, anthropic"),
        (with_mac(base_url=""), "backends[mac].baseUrl: empty; set it, or state in backends[mac].missing"),
        (with_mac(base_url="ftp://x"), "backends[mac].baseUrl: not a base URL"),
        (with_mac(base_url="http://u:p@x/"), "backends[mac].baseUrl: not a base URL"),
        (with_mac(base_url="http://x/v1?k=1"), "backends[mac].baseUrl: not a base URL"),
        (with_cloud(local=True), "backends[cloud].local: true, but https://a.example/v1 may be outside"),
        (with_mac(weight=-1), "backends[mac].weight: -1 is negative"),
        (with_mac(slots=-1), "backends[mac].slots: -1 is negative"),
        (with_mac(first_byte_seconds=0.0), "backends[mac].firstByteSeconds: 0.0 is not a positive number of seconds"),
        (with_mac(first_byte_seconds=float("inf")), "backends[mac].firstByteSeconds: inf is not a positive"),
        (with_mac(capabilities=frozenset({"Vision"})), "'Vision' can never match; write 'vision'"),
        (with_mac(region="EU"), "backends[mac].region: 'EU' can never match; write 'eu'"),
        (with_mac(prices=Prices(prompt_usd=Decimal(-1), completion_usd=Decimal(0))), "a price is negative"),
        (with_mac(probe=Probe(path="/", interval_seconds=0, timeout_seconds=1)), "interval or timeout is below 1"),
        (with_rule(name="R r"), "rules[0].name: 'R r' must consist of lower-case letters"),
        ({"rules": (RULE, RULE)}, "rules[1].name: 'r' is already the name of another rule"),
        (with_rule(strategy="random"), "rules[0].strategy: 'random' is unknown"),
        (with_rule(strategy="shadow"), "rules[0].strategy: 'shadow' needs a backend to try out"),
        (
            {"backends": {"mac": attrs.evolve(MAC, weight=0)}, **with_rule(strategy="weighted")},
            "rules[0].strategy: 'weighted', but no backend has a weight above 0",
        ),
        (with_rule(backends=()), "rules[0].backends: empty; name one of mac, cloud"),
        (with_rule(backends=("mac", "win")), "rules[0].backends[1]: 'win' is not a backend; name one of mac, cloud"),
        (with_rule(backends=("mac", "mac")), "rules[0].backends[1]: 'mac' is repeated"),
        (with_rule(first_byte_seconds=-1.0), "rules[0].firstByteSeconds: -1.0 is not a positive"),
        (with_match(classes=frozenset({"pii"})), "rules[0].failClosed: false, but the rule is for pii; write true"),
        (
            with_rule(match=Match(classes=frozenset({"phi"})), backends=("mac", "cloud"), fail_closed=True),
            "rules[0].backends: cloud not local, but the rule is for phi",
        ),
        (with_match(models=("gpt-[45]",)), "rules[0].match.models: 'gpt-[45]': '[' is not allowed in a pattern"),
        (with_match(headers={"X-App": "a"}), "rules[0].match.headers: 'X-App' is not a header name in lower case"),
        (with_match(headers={"x app": "a"}), "rules[0].match.headers: 'x app' is not a header name in lower case"),
        (with_match(complexity="Complex"), "rules[0].match.complexity: 'Complex' can never match"),
        (with_match(latency_seconds=0.0), "rules[0].match.latencySeconds: 0.0 is not a positive"),
        ({"default_backend": "win"}, "defaultBackend: 'win' is not a backend; name one of mac, cloud"),
        (
            {"default_backend": "cloud", "classes": Classes(default="pii")},
            "defaultBackend: 'cloud' is not local, but requests that name no class are of class pii",
        ),
        (
            {"by_model": True, **with_cloud(model_id="mac")},
            "backends[cloud].modelId: 'mac' is already the model id of mac",
        ),
        (
            {"default_backend": "cloud", "classes": Classes(default="public, phi, pii")},
            "defaultBackend: 'cloud' is not local, but requests that name no class are of class phi, pii",
        ),
        ({"classes": Classes(header="")}, "classes.header: '' is not a header name in lower case"),
        ({"classes": Classes(header="X-Class")}, "classes.header: 'X-Class' is not a header name in lower case"),
        ({"classes": Classes(header="x-class:")}, "classes.header: 'x-class:' is not a header name in lower case"),
        ({"classes": Classes(sensitive=frozenset())}, "classes.sensitive: empty"),
        ({"classes": Classes(sensitive=frozenset({"PII"}))}, "classes.sensitive: 'PII' can never match; write 'pii'"),
        ({"classes": Classes(sensitive=frozenset({"pii, phi"}))}, "classes.sensitive: 'pii, phi' can never match"),
        ({"classes": Classes(sensitive=frozenset({'"pii"'}))}, "classes.sensitive: '\"pii\"' can never match"),
        ({"classes": Classes(sensitive=frozenset({"top  secret"}))}, "write 'top secret'"),
        (with_match(classes=frozenset({"a,b"})), "rules[0].match.classes: 'a,b' can never match"),
        ({"audit": Audit(sink="otlp")}, "audit.sink: 'otlp' is unknown; write one of stdout, file"),
        ({"audit": Audit(sink="file")}, "audit.path: '' does not fit sink 'file'"),
        ({"first_byte_seconds": 0.0}, "firstByteSeconds: 0.0 is not a positive"),
        ({"circuit_seconds": float("nan")}, "circuitSeconds: nan is not a positive"),
        (
            {"auth": Auth(models_of_team={"red": ("*",)})},
            "auth.modelsOfTeam: the team of a request cannot be determined",
        ),
        (
            {"auth": Auth(keys_folder="/k", models_of_team={"red": ("a b",)})},
            "auth.modelsOfTeam[red]: 'a b': ' ' is not allowed in a pattern",
        ),
        (with_tokens("http://idp.example/keys"), "auth.tokens.jwksUri: 'http://idp.example/keys' would let others"),
        (with_tokens("ftp://localhost/keys"), "auth.tokens.jwksUri: 'ftp://localhost/keys' is not a URL"),
        (with_tokens("https://me@idp.example/keys"), "auth.tokens.jwksUri: 'https://me@idp.example/keys' is not a URL"),
        (with_tokens("https://idp.example:99999/k"), "auth.tokens.jwksUri: 'https://idp.example:99999/k' is not a URL"),
        (with_tokens("https://127.1/keys"), "auth.tokens.jwksUri: 'https://127.1/keys' is not a URL"),
        (with_tokens("https://idp.example/a b"), "auth.tokens.jwksUri: 'https://idp.example/a b' is not a URL"),
        (with_tokens(""), "auth.tokens: the issuer's keys need exactly one source; set either jwksUri or jwksFile"),
        (with_tokens(jwks_file="/k"), "auth.tokens: the issuer's keys need exactly one source"),
        (with_tokens(audiences=()), "auth.tokens.audiences: empty, so tokens for other programs would be accepted"),
        (with_tokens(audiences=("a", "")), "auth.tokens.audiences: empty"),
        (with_tokens(issuer=""), "auth.tokens.issuer: empty"),
        (with_tokens(team_claim=""), "auth.tokens.teamClaim: empty"),
        (with_tokens(team_header="X-Team"), "auth.tokens.teamHeader: 'X-Team' cannot carry the team"),
        (with_tokens(team_header="authorization"), "auth.tokens.teamHeader: 'authorization' cannot carry the team"),
        (
            with_tokens(team_header="x-llmkube-classification"),
            "auth.tokens.teamHeader: 'x-llmkube-classification' cannot carry the team",
        ),
        (with_store(host="a b"), "budgetStore.host: 'a b' is not a host"),
        (with_store(port=0), "budgetStore.port: 0 is not a port"),
        (with_store(database=-1), "budgetStore.database: -1 is negative"),
        ({"budget_store": STORE}, "budgetStore: there is no budget to store"),
        (
            {**with_budget(max_tokens=2**53 + 1), "budget_store": STORE},
            "budgets[b].maxTokens: 9007199254740993 is more than a budgetStore can count",
        ),
        ({"budgets": (PIT, PIT)}, "budgets[b].name: 'b' is already the name of another budget"),
        (with_budget(scope="all"), "budgets[b].scope: 'all' is unknown"),
        (with_budget(scope="rule"), "budgets[b].rule: '' does not fit scope 'rule'"),
        (with_budget(scope="rule", rule="x"), "budgets[b].rule: 'x' does not fit scope 'rule'"),
        (with_budget(rule="r"), "budgets[b].rule: 'r' does not fit scope 'router'"),
        (with_budget(max_tokens=None), "budgets[b]: no limit is set"),
        (with_budget(max_tokens=0), "budgets[b]: a limit is too low"),
        (with_budget(window_seconds=0), "budgets[b].windowSeconds: 0 is too short"),
        (with_budget(max_usd=Decimal(1)), "budgets[b].maxUsd: 1 cannot be enforced without prices of mac, cloud"),
        (
            with_budget(max_usd=Decimal(1), scope="rule", rule="r"),
            "budgets[b].maxUsd: 1 cannot be enforced without prices of mac;",
        ),
        (with_budget(team_header="X-Team"), "budgets[b].teamHeader: 'X-Team' is not a header name"),
    ],
)
def test_an_invalid_config_is_reported(fields, expected):
    """There is one problem, and no other."""
    found = config_problems(attrs.evolve(SOUND, **fields))
    assert any(expected in each for each in found), found
    assert len(found) == 1


@pytest.mark.parametrize(
    "fields",
    [
        with_mac(base_url="", missing="there is no such service"),
        with_cloud(local=True, base_url="http://litellm.ml.svc:4000/v1"),
        with_tokens("http://dex.auth.svc/keys"),
        with_tokens("https://idp.example:8443/keys?p=b2c_1&v=2"),
        with_tokens("", jwks_file="/keys/tokens/jwks.json"),
        {
            "default_backend": "cloud",
            "classes": Classes(default="pii"),
            **with_rule(match=Match(classes=frozenset({"pii"})), fail_closed=True),
        },
    ],
)
def test_what_looks_alike_and_is_sound(fields):
    """A missing backend with its reason, a local provider and a default class that a rule matches are valid."""
    assert config_problems(attrs.evolve(SOUND, **fields)) == []


PRIVATE = "- { name: private, match: { dataClassification: [pii] }, failClosed: true, route: { backends: [mac] } }\n"
HEALTH = "- { name: health, match: { dataClassification: [phi] }, failClosed: true, route: { backends: [mac] } }\n"


def warned(text):
    found = compiled(BACKENDS + text)
    assert found.errors == ()
    return "\n".join(found.warnings)


def rules(*lines):
    return "rules:\n" + "".join(lines)


def rule(name, match="{}", closed="false", backends="mac"):
    return f"- {{ name: {name}, match: {match}, failClosed: {closed}, route: {{ backends: [{backends}] }} }}\n"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{}", "{}"),
        ("{}", "{ taskComplexity: simple }"),
        ("{ models: ['gpt-*'] }", "{ models: ['gpt-*', gpt-5] }"),
        ("{ models: ['*'] }", "{ models: ['phi?'] }"),
        ("{ headers: { a: b } }", "{ headers: { a: b, c: d } }"),
        ("{ dataClassification: [x, y] }", "{ dataClassification: [x] }"),
        ("{ requiredCapabilities: [chat] }", "{ requiredCapabilities: [chat, vision] }"),
        ("{ latencySLOMs: 200 }", "{ latencySLOMs: 100 }"),
    ],
)
def test_a_rule_that_another_covers_is_named(earlier, later):
    """Later rules apply only if the earlier one has no usable backend, and never if it fails closed."""
    closed = rules(rule("first", earlier, "true"), rule("second", later))
    assert "spec.rules[1]: second never applies: first above it matches every" in warned(closed)
    passed = rules(rule("first", earlier), rule("second", later))
    assert "spec.rules[1]: second applies only if no backend of first may be used" in warned(passed)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{ taskComplexity: simple }", "{}"),
        ("{ models: ['gpt-*'] }", "{ models: ['gpt-*', 'phi'] }"),
        ("{ models: ['gpt-*'] }", "{ models: ['*'] }"),
        ("{ headers: { a: b } }", "{ headers: { a: c } }"),
        ("{ dataClassification: [x] }", "{ dataClassification: [x, y] }"),
        ("{ requiredCapabilities: [chat] }", "{}"),
        ("{ latencySLOMs: 100 }", "{ latencySLOMs: 200 }"),
    ],
)
def test_a_rule_that_can_be_reached_is_not(earlier, later):
    """It gets the requests that the earlier rule does not match."""
    assert "is reached" not in warned(rules(rule("first", earlier, "true"), rule("second", later)))


def test_a_rule_that_refuses_what_a_later_one_would_serve_is_named():
    """The rule for pii comes later; the earlier one fails closed with cloud backends alone."""
    hasty = rule("hasty", "{ taskComplexity: complex }", "true", "cloud")
    assert "spec.rules[0]: hasty fails closed and has no local backend" in warned(rules(hasty, PRIVATE))
    assert "hasty" not in warned(rules(PRIVATE, hasty))
    mixed = rule("hasty", "{ taskComplexity: complex }", "true", "cloud, mac")
    assert "hasty" not in warned(rules(mixed, PRIVATE))


def test_a_default_route_that_refuses_sensitive_classes_is_named():
    """The warning has the classes that no rule matches."""
    assert "defaultRoute: cloud is not local: a request of class phi, pii" in warned("defaultRoute: cloud\n")
    assert "request of class phi that" in warned(rules(PRIVATE) + "defaultRoute: cloud\n")
    assert "defaultRoute" not in warned(rules(PRIVATE, HEALTH) + "defaultRoute: cloud\n")
    assert "defaultRoute" not in warned("defaultRoute: mac\n")


def test_two_backends_of_one_public_name_are_named():
    """Clients see one model; under BackendNameMatch it is an error."""
    text = BACKENDS.replace("name: cloud\n", "name: cloud\n  displayName: mac\n")
    assert any(
        "spec.backends[cloud].displayName: 'mac' is already the model id of mac" in each
        for each in compiled(text).warnings
    )
