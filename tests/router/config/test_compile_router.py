"""A ModelRouter is compiled with all its fields, or all its problems are reported at once.

Model name patterns match like a character-wise implementation, in linear time for any name.
"""

import random
import time
from decimal import Decimal

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.router.config.compile_backend import KeyFile
from llmkube.router.config.compile_router import STORE_KEY, ResolvedService, compile_router
from llmkube.router.config.routing_config import (
    Audit,
    Auth,
    Budget,
    Classes,
    Match,
    RedisStore,
    RoutingConfig,
    Rule,
    Tokens,
    covers,
    matches_any,
    pattern_problem,
)
from router.policy import oracle
from router.written_routers import BACKENDS, compiled, errors, running

FULL = """
rules:
- name: private
  match:
    dataClassification: [PII]
    models: ["gpt-*"]
    headers: { X-App: A }
    requiredCapabilities: [Chat]
    taskComplexity: complex
    latencySLOMs: 1500
  route: { backends: [mac], strategy: least-loaded }
  failClosed: true
  timeout: 20s
defaultRoute: mac
defaultRouteStrategy: BackendNameMatch
policy:
  classification: { headerKey: X-Class, defaultClassification: Public, sensitiveClassifications: [PII, Secret] }
  budgets:
  - { name: day, scope: team, headerKey: X-Team, maxTokens: 10, windowSeconds: 60 }
  - { name: month, scope: rule, ruleName: private, maxUSD: "1.5" }
  auth:
    keysSecretRef: { name: team-keys }
    allowlists: [{ team: red, models: ["phi-*"] }, { team: blue }]
  auditLog: { sink: file, filePath: /var/log/audit, includeRequestBody: true }
proxy: { responseHeaderTimeout: 90s, quarantineDuration: 5s }
"""
PRICED = BACKENDS.replace(
    "  capabilities: [chat]\n",
    '  costPerMillionTokens: { promptUSD: "0", completionUSD: "0" }\n  capabilities: [chat]\n',
)


def test_each_field_of_a_router_is_compiled():
    """Names are in lower case, times in seconds, and defaults are set."""
    found = compiled(PRICED + FULL)
    assert found.errors == ()
    config = found.config
    assert config == RoutingConfig(
        name="ml/front",
        backends=config.backends,
        rules=(
            Rule(
                name="private",
                match=Match(
                    classes=frozenset({"pii"}),
                    models=("gpt-*",),
                    headers={"x-app": "A"},
                    capabilities=frozenset({"chat"}),
                    complexity="complex",
                    latency_seconds=1.5,
                ),
                backends=("mac",),
                strategy="least-loaded",
                fail_closed=True,
                first_byte_seconds=20.0,
            ),
        ),
        default_backend="mac",
        by_model=True,
        classes=Classes(header="x-class", default="public", sensitive=frozenset({"pii", "secret"})),
        budgets=(
            Budget(name="day", scope="team", team_header="x-team", max_tokens=10, window_seconds=60),
            Budget(name="month", scope="rule", rule="private", max_usd=Decimal("1.5"), window_seconds=3600),
        ),
        auth=Auth(keys_folder="/keys/teams", models_of_team={"red": ("phi-*",), "blue": ("*",)}),
        audit=Audit(sink="file", path="/var/log/audit", bodies=True),
        first_byte_seconds=90.0,
        circuit_seconds=5.0,
    )
    assert KeyFile(path="/keys/teams", secret="team-keys", key="") in found.key_files
    assert found.not_honoured == ()


JWT = "provider: corp, issuer: i, teamClaim: team"


def with_jwt(fields):
    return compiled(BACKENDS + f"policy: {{ auth: {{ jwt: {{ {JWT}, {fields} }} }} }}")


def test_tokens_are_checked_by_keys_of_a_url_or_of_a_secret():
    """The Secret's entry has a file of its own, next to the keys of teams."""
    by_url = with_jwt('audiences: [llm], jwksURI: "https://i/k", headerKey: X-Team')
    assert by_url.config.auth.tokens == Tokens(
        provider="corp", issuer="i", audiences=("llm",), jwks_uri="https://i/k", team_claim="team", team_header="x-team"
    )
    assert not [each for each in by_url.key_files if "tokens" in each.path]
    by_secret = with_jwt("audiences: [llm], jwksSecretRef: { name: idp, key: keys }")
    assert by_secret.config.auth.tokens == Tokens(
        provider="corp", issuer="i", audiences=("llm",), jwks_file="/keys/tokens/jwks.json", team_claim="team"
    )
    assert KeyFile(path="/keys/tokens/jwks.json", secret="idp", key="keys") in by_secret.key_files


def test_all_problems_of_tokens_are_reported_at_once():
    """Each problem has its field in the ModelRouter and the fix."""
    assert [each.partition(": ")[0] for each in with_jwt('jwksURI: "http://i.example/k", headerKey: a b').errors] == [
        f"spec.policy.auth.jwt.{each}" for each in ("audiences", "jwksURI", "headerKey")
    ]
    [problem] = with_jwt("audiences: [llm]").errors
    assert problem == (
        "spec.policy.auth.jwt: the issuer's keys need exactly one source; set either jwksURI or jwksSecretRef"
    )
    assert with_jwt('audiences: [llm], jwksURI: "https://i/k", jwksSecretRef: { name: a, key: b }').errors == (problem,)


STORE = "policy: { budgets: [{ name: b, scope: router, maxTokens: 1 }], budgetStore: { address: %s } }"


def test_a_store_of_budgets_is_compiled_with_its_password():
    """Host and port are separate; the password is in a file, and not in the config."""
    more = '"redis.cache.svc:6379", tls: true, database: 2, username: u, passwordSecretRef: { name: s, key: k }'
    found = compiled(BACKENDS + STORE % more)
    assert found.config.budget_store == RedisStore(
        host="redis.cache.svc", port=6379, tls=True, database=2, username="u", password_file=f"/keys/{STORE_KEY}"
    )
    assert KeyFile(path=f"/keys/{STORE_KEY}", secret="s", key="k") in found.key_files
    assert compiled(BACKENDS + STORE % '"[fd00::1]:6380"').config.budget_store == RedisStore(host="fd00::1", port=6380)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("'-:6379'", "spec.policy.budgetStore.address: '-' is not a host"),
        ("redis:99999", "spec.policy.budgetStore.address: 99999 is not a port"),
    ],
)
def test_a_store_without_an_address_is_refused(address, expected):
    """The error has the field and the cause."""
    [problem] = compiled(BACKENDS + STORE % address).errors
    assert problem.startswith(expected)


def test_a_store_without_budgets_is_refused():
    """The store would never be used, so the spec is probably a mistake."""
    [problem] = compiled(BACKENDS + "policy: { budgetStore: { address: 'redis:6379' } }").errors
    assert problem == "spec.policy.budgetStore: there is no budget to store; add one, or remove the store"


def test_a_health_check_has_a_path_that_can_be_asked():
    """A path that would break out of its request is refused with field and fix."""
    found = compiled(BACKENDS.replace("name: cloud\n", "name: cloud\n  healthCheck: { path: /ok }\n"))
    assert (found.errors, found.not_honoured) == ((), ())
    assert found.config.backends["cloud"].probe.path == "/ok"
    for path in ("ok", "/a b", '"/a\\r\\nHost: x"'):
        [problem] = compiled(
            BACKENDS.replace("name: cloud\n", f"name: cloud\n  healthCheck: {{ path: {path} }}\n")
        ).errors
        assert problem.startswith("spec.backends[cloud].healthCheck.path: ")
        assert "/health" in problem


def test_what_is_not_given_has_its_default():
    """A router with only one backend runs."""
    config = running(BACKENDS)
    assert config == RoutingConfig(name="ml/front", backends=config.backends, first_byte_extends=True)


def test_all_problems_are_reported_at_once():
    """Each problem is reported once, with the ModelRouter's field, its value and the fix; there is no config then."""
    text = (
        BACKENDS.replace("name: cloud", "name: mac")
        + """
rules:
- { name: a, match: { models: ["[x]"], headers: { X-A: "1", x-a: "2" } }, timeout: soon, route: { backends: [mac, w] } }
- { name: a, match: { dataClassification: [pii] }, route: { backends: [mac], strategy: fastest } }
defaultRoute: win
dataPlane: Gateway
policy:
  classification: { mode: hybrid }
  auditLog: { sink: otlp }
  budgets: [{ name: b, scope: rule, ruleName: nobody, maxTokens: 1 }]
  auth: { allowlists: [{ team: red }, { team: red }] }
"""
    )
    found = compiled(text)
    assert found.config is None
    problems = list(found.errors)
    for part in (
        "spec.backends: 'mac' is repeated",
        "spec.rules[0].match.models: '[x]'",
        "spec.rules[0].match.headers: 'x-a' is repeated",
        "spec.rules[0].route.backends[1]: 'w' is not a backend",
        "spec.rules[0].timeout: ",
        "spec.rules[1].name: 'a' is already the name of another rule",
        "spec.rules[1].failClosed: false, but the rule is for pii",
        'spec.rules[1].route.strategy: "fastest" is unknown; write one of primary-fallback',
        "spec.defaultRoute: 'win' is not a backend",
        "spec.dataPlane: 'Gateway' is not supported; write Proxy",
        "spec.policy.classification.mode: 'hybrid' is not supported",
        "spec.policy.auditLog.sink: 'otlp' is not supported",
        "spec.policy.budgets[b].ruleName: 'nobody' does not fit scope 'rule'",
        "spec.policy.auth.allowlists: 'red' is repeated",
    ):
        assert sum(part in each for each in problems) == 1, (part, problems)


def test_a_time_out_of_range_is_refused():
    """The CRD has the bounds in a validation rule; a file that no API server has validated is checked, too."""
    for written in ("0s", "50ms", "31m"):
        message = errors(BACKENDS + f"rules: [{{ name: r, timeout: {written}, route: {{ backends: [mac] }} }}]\n")
        assert message == f"spec.rules[0].timeout: '{written}' is out of range; write 100ms to 30m"


def test_what_has_no_effect_is_named():
    """The CRD has these fields, but they do nothing here."""
    text = (
        BACKENDS + "mcpServer: { enabled: true }\ngatewayRef: { name: g }\nendpoint: { gateway: { enabled: false } }\n"
    )
    text += (
        "policy: { auditLog: { filePath: /x }, budgets: [{ name: b, scope: router, headerKey: h, maxTokens: 1 }] }\n"
    )
    assert set(compiled(text).not_honoured) == {
        "spec.mcpServer",
        "spec.gatewayRef",
        "spec.endpoint.gateway",
        "spec.policy.auditLog.filePath",
        "spec.policy.budgets[b].headerKey",
    }


@pytest.mark.parametrize(
    ("auth", "named"),
    [
        ("", True),
        ("auth: {}, ", True),
        ("auth: { allowlists: [{ team: red }] }, ", True),
        ("auth: { keysSecretRef: { name: k } }, ", False),
        (f"auth: {{ jwt: {{ {JWT}, jwksURI: https://i/k }} }}, ", False),
    ],
)
def test_a_team_budget_that_believes_the_client_is_named(auth, named):
    """Without keys a client chooses its team for each request, so its budget limits nothing."""
    budgets = "{ name: a, scope: team, maxTokens: 1 }, { name: b, scope: team, headerKey: X-T, maxTokens: 1 }"
    found = compiled(
        BACKENDS + f"policy: {{ {auth}budgets: [{budgets}, {{ name: c, scope: router, maxTokens: 1 }}] }}\n"
    )
    texts = {
        "spec.policy.budgets[a].scope (any client can name another team in x-llmkube-team; set spec.policy.auth)",
        "spec.policy.budgets[b].scope (any client can name another team in X-T; set spec.policy.auth)",
    }
    assert set(found.not_honoured) == (texts if named else set())


def test_a_service_without_an_address_is_kept_and_closed():
    """The reason states that the service has no address yet."""
    body = {
        "metadata": {"name": "front", "namespace": "ml"},
        "spec": {"backends": [{"name": "mac", "inferenceServiceRef": {"name": "phi"}}]},
    }
    router = decode(ModelRouter, body)
    for resolved, why in (
        (None, "there is no InferenceService phi"),
        (ResolvedService(), "InferenceService phi has no address yet"),
        (ResolvedService(missing="it is suspended"), "it is suspended"),
    ):
        config = compile_router(router, lambda _, found=resolved: found, keys_folder="/keys").config
        assert config.backends["mac"].missing == why
    served = ResolvedService(base_url="http://10.0.0.7:8080/v1", model="phi", key_file="/keys/phi")
    mac = compile_router(router, lambda _: served, keys_folder="/keys").config.backends["mac"]
    assert (mac.base_url, mac.model, mac.key_file, mac.missing) == ("http://10.0.0.7:8080/v1", "phi", "/keys/phi", "")


def test_both_kinds_or_none_is_no_backend():
    """A backend has exactly one kind; a service cannot be labelled cloud."""
    both = "backends: [{ name: x, inferenceServiceRef: { name: a }, external: { provider: openai, model: m } }]\n"
    assert "spec.backends[x]: set either inferenceServiceRef or external" in errors(both)
    assert "spec.backends[x]: set either inferenceServiceRef or external" in errors("backends: [{ name: x }]\n")
    cloud = "backends: [{ name: x, tier: cloud, inferenceServiceRef: { name: a } }]\n"
    assert "spec.backends[x].tier: 'cloud', but an InferenceService is local" in errors(cloud)


def test_patterns_fit_as_a_plain_reading_does():
    """Random patterns and names of few letters, slashes and stars are compared with a character-wise implementation."""
    dice = random.Random(4)
    seen = set()
    for _ in range(20_000):
        pattern = "".join(dice.choice("ab/*?") for _ in range(dice.randint(0, 6)))
        name = "".join(dice.choice("ab/") for _ in range(dice.randint(0, 7)))
        fits = oracle.fits(pattern, name)
        assert matches_any((pattern,), name) == fits, (pattern, name)
        seen.add(fits)
    assert seen == {True, False}


@pytest.mark.parametrize("name", ["a.b", "a+b", "a(b", "a\nb", "ä"])
def test_all_else_is_itself(name):
    """Characters that are special in regular expressions are literal."""
    assert matches_any((name,), name)
    assert not matches_any((name,), "axb")
    assert matches_any(("*",), name)


def test_no_pattern_fits_nothing():
    """An empty list admits no model, not even one without a name."""
    assert not matches_any((), "")
    assert not matches_any((), "gpt-5")


def test_a_hostile_name_costs_no_more_than_its_length():
    """Many stars against a long name without a matching end: the search never backtracks."""
    begin = time.process_time()
    assert not matches_any(("*a" * 30 + "b",), "a" * 100_000)
    assert time.process_time() - begin < 20  # backtracking would take years


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("", "an empty pattern"), ("gpt-[45]", "'['"), ("a{b", "'{'"), ("a b", "' '"), ("a\\*", "'\\\\'")],
)
def test_an_invalid_pattern_is_reported(pattern, expected):
    """Wildcards of other languages are refused: they would silently match nothing."""
    assert expected in pattern_problem(pattern)


def test_a_pattern_covers_another():
    """Only certain coverage is reported."""
    assert covers("*", "gpt-*")
    assert covers("gpt-*", "gpt-*")
    assert covers("gpt-*", "gpt-5")
    assert not covers("gpt-*", "*")
    assert not covers("gpt-*", "phi")
