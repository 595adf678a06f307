"""Policy defects of the Go implementation and other gateways, each by its number in the list.

The numbers are those of the issue's two lists. Each router is compiled from a ModelRouter as a user writes it.
"""

import attrs
import pytest

from router.written_routers import BACKENDS, ask, compiled, errors, order, running

# -- the original's ----------------------------------------------------------------------------------------------------


def test_an_external_backend_is_not_local_by_default():
    """A provider without a tier is cloud: it gets no sensitive request, and no rule for one may name it."""
    config = running(BACKENDS + "defaultRoute: cloud\n")
    assert not config.backends["cloud"].local
    assert order(config, {"x-llmkube-classification": "pii"}) == []
    rule = "rules: [{name: p, match: {dataClassification: [pii]}, failClosed: true, route: {backends: [cloud]}}]"
    assert "spec.rules[0].route.backends: cloud not local, but the rule is for pii" in errors(BACKENDS + rule)


@pytest.mark.parametrize("url", ["https://api.openai.com/v1", "https://8.8.8.8/v1", "https://10.0.0.1.example.com"])
def test_a_label_does_not_make_a_provider_local(url):
    """`tier: local`, the default in the original's schema, is refused for a URL that may be outside this network."""
    text = BACKENDS.replace("model: gpt-5,", f'model: gpt-5, url: "{url}",').replace("  cap", "  tier: local\n  cap")
    assert f"spec.backends[cloud].tier: 'local', but {url} may be outside this network; write cloud" in errors(text)


def test_a_label_on_a_provider_without_url_means_nothing():
    """Stored routers have it: they still work, as cloud, with a warning."""
    found = compiled(BACKENDS.replace("name: cloud\n", "name: cloud\n  tier: local\n"))
    assert found.errors == ()
    assert not found.config.backends["cloud"].local
    assert any("spec.backends[cloud].tier: 'local' is ignored" in each for each in found.warnings)


def test_the_order_of_rules_does_not_leak():
    """A complex request with pii stays here although the rule about complexity comes first."""
    config = running(
        BACKENDS
        + """
rules:
- { name: complex, match: { taskComplexity: complex }, route: { backends: [cloud] } }
- { name: private, match: { dataClassification: [pii] }, failClosed: true, route: { backends: [mac] } }
"""
    )
    both = {"x-llmkube-classification": "pii", "x-llmkube-task-complexity": "complex"}
    assert order(config, both) == ["mac"]
    assert order(config, {"x-llmkube-task-complexity": "complex"}) == ["cloud"]


@pytest.mark.parametrize("written", ["pii, phi", "PII,public", "public;pii", "public pii", '"pii"', " pii ", "pii,"])
def test_several_values_and_cases_are_read(written):
    """A sensitive class among others keeps the request here, in any spelling."""
    config = running(BACKENDS + "defaultRoute: cloud\n")
    decision = ask(config, {"x-llmkube-classification": written})
    assert (decision.order, decision.reason) == ((), "NotPermitted")


def test_a_rule_may_be_written_in_any_case():
    """`PII` in a rule and in the list of sensitive classes is pii."""
    config = running(
        BACKENDS
        + """
policy: { classification: { sensitiveClassifications: [PII] } }
rules: [{ name: p, match: { dataClassification: [PII] }, failClosed: true, route: { backends: [mac] } }]
defaultRoute: cloud
"""
    )
    assert order(config, {"x-llmkube-classification": "Pii"}) == ["mac"]


def test_what_names_no_class_has_the_default():
    """A request without a label has defaultClassification, and the default route is checked against it."""
    policy = "policy: { classification: { defaultClassification: PII } }\n"
    found = errors(BACKENDS + policy + "defaultRoute: cloud\n")
    assert "spec.defaultRoute: 'cloud' is not local, but requests that name no class are of class pii" in found
    config = running(BACKENDS + policy + "defaultRoute: mac\ndefaultRouteStrategy: BackendNameMatch\n")
    assert order(config, {}, {"model": "cloud"}) == ["mac"]
    assert order(config, {"x-llmkube-classification": "public"}, {"model": "cloud"}) == ["cloud"]


@pytest.mark.parametrize("mode", ["detector", "hybrid"])
def test_a_detector_that_is_not_built_is_refused(mode):
    """Users would rely on a detection that does not happen."""
    found = errors(BACKENDS + f"policy: {{ classification: {{ mode: {mode} }} }}\n")
    assert found.startswith(f"spec.policy.classification.mode: '{mode}' is not supported")


def test_each_field_has_its_effect():
    """Weights, shadows, latency and prices decide; a field without effect is refused or reported."""
    text = """
rules:
- name: split
  match: { models: ["split"] }
  route: { backends: [mac, cloud], strategy: weighted }
- name: try
  match: { models: ["try"] }
  route: { backends: [mac, cloud], strategy: shadow }
- name: fast
  match: { models: ["fast"], latencySLOMs: 500 }
  route: { backends: [mac, cloud] }
"""
    config = running(BACKENDS + text)
    drawn = {order(config, {}, {"model": "split"}, pick=pick)[0] for pick in (0.0, 0.4, 0.6, 0.99)}
    assert drawn == {"mac", "cloud"}
    assert [permit.backend.name for permit in ask(config, {}, {"model": "try"}).shadows] == ["cloud"]
    assert order(config, {}, {"model": "fast"}, measured={"mac": 0.7, "cloud": 0.2}) == ["cloud"]
    otlp = BACKENDS + "policy: { auditLog: { sink: otlp } }\n"
    assert "spec.policy.auditLog.sink: 'otlp' is not supported" in errors(otlp)
    found = compiled(BACKENDS + "mcpServer: { enabled: true }\n")
    assert found.not_honoured == ("spec.mcpServer",)


def test_a_request_with_an_image_reaches_what_sees():
    """Needs of the body, of the header and of the rule close the backends that lack them."""
    config = running(BACKENDS + "rules: [{ name: all, route: { backends: [mac, cloud] } }]\n")
    image = {"model": "x", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}
    assert order(config, {}, image) == ["cloud"]
    assert order(config, {"x-llmkube-capabilities": "Vision"}) == ["cloud"]
    assert order(config, {"x-llmkube-classification": "pii"}, image) == []
    asks = "rules: [{ name: v, match: { requiredCapabilities: [vision] }, route: { backends: [mac, cloud] } }]\n"
    assert order(running(BACKENDS + asks)) == ["cloud"]


def test_a_pattern_matches_slashes():
    """`*` fits openai/gpt-5."""
    rule = 'rules: [{{ name: m, match: {{ models: ["{}"] }}, route: {{ backends: [cloud] }} }}]\n'
    for pattern in ("*", "*gpt-5", "openai/*", "open*5"):
        assert order(running(BACKENDS + rule.format(pattern)), {}, {"model": "openai/gpt-5"}) == ["cloud"]
    assert order(running(BACKENDS + rule.format("gpt-*")), {}, {"model": "openai/gpt-5"}) == []


def test_one_missing_backend_degrades_itself():
    """The router uses the others; nothing is sent to the missing one, and the reason is reported."""
    text = BACKENDS + "rules: [{ name: all, route: { backends: [mac, cloud] } }]\n"
    config = running(text, missing={"phi-4-mini"})
    assert config.backends["mac"].missing == "there is no InferenceService phi-4-mini"
    assert order(config) == ["cloud"]
    no_url = text.replace("provider: openai", "provider: litellm")
    assert "url is not set" in running(no_url).backends["cloud"].missing
    assert order(running(no_url)) == ["mac"]


def test_each_id_that_clients_see_is_routable():
    """Under BackendNameMatch a request for the published id goes to its backend; duplicate ids are refused."""
    named = BACKENDS.replace("name: cloud\n", "name: cloud\n  displayName: gpt-5\n")
    strategy = "defaultRoute: mac\ndefaultRouteStrategy: BackendNameMatch\n"
    config = running(named + strategy)
    for name, backend in config.backends.items():
        for each in (config, attrs.evolve(config, ids={})):  # alone, and as the policy of a cluster's front door
            assert order(each, {}, {"model": backend.model_id}) == [name]
    twice = named.replace("name: mac\n", "name: mac\n  displayName: gpt-5\n")
    assert "spec.backends[cloud].displayName: 'gpt-5' is already the model id of mac" in errors(twice + strategy)


def test_two_keys_of_one_provider_have_two_files():
    """Each backend has a file, from its own Secret."""
    second = """
- name: other
  external: { provider: openai, model: gpt-5, credentialsSecretRef: { name: other-key } }
"""
    found = compiled(BACKENDS + second)
    assert {each.path: each.secret for each in found.key_files} == {
        "/keys/backends/cloud": "openai-key",
        "/keys/backends/other": "other-key",
    }
    files = [backend.key_file for backend in found.config.backends.values()]
    assert sorted(files) == ["", "/keys/backends/cloud", "/keys/backends/other"]


# -- other gateways' of 2026 -------------------------------------------------------------------------------------------


def test_a_fallback_stays_within_what_is_permitted():
    """`Any live provider` is not a fallback: the next backend has the same limits of region and class."""
    text = """
backends:
- { name: eu-a, inferenceServiceRef: { name: a }, region: eu }
- { name: us, external: { provider: openai, model: gpt-5 }, region: US }
- { name: eu-b, inferenceServiceRef: { name: b }, region: EU }
- { name: somewhere, inferenceServiceRef: { name: c } }
rules: [{ name: all, route: { backends: [eu-a, us, eu-b, somewhere] } }]
"""
    config = running(text)
    assert order(config, {"x-llmkube-region": "eu"}) == ["eu-a", "eu-b"]
    assert order(config, {"x-llmkube-region": "US"}) == ["us"]
    assert order(config, {"x-llmkube-region": "us", "x-llmkube-classification": "phi"}) == []


def test_nothing_is_accepted_and_inert():
    """An unknown field is refused, with its name and the known ones."""
    found = errors(BACKENDS + "rules: [{ name: r, match: { dataClasification: [pii] }, route: { backends: [mac] } }]\n")
    assert found.startswith('spec.rules[0].match.dataClasification: unknown field (value ["pii"])')
    assert "spec.policy.budget:" in errors(BACKENDS + "policy: { budget: 5 }\n")


def test_a_missing_price_is_not_0():
    """A budget in dollars is reported for each backend without prices; a free backend has a price of 0."""
    budget = "policy: { budgets: [{ name: month, scope: router, maxUSD: '50' }] }\n"
    assert "spec.policy.budgets[month].maxUSD: 50 cannot be enforced without prices of mac, cloud" in errors(
        BACKENDS + budget
    )
    free = 'costPerMillionTokens: { promptUSD: "0", completionUSD: "0" }'
    half = 'costPerMillionTokens: { promptUSD: "1.25" }'
    priced = BACKENDS.replace("  capabilities: [chat]\n", f"  {free}\n").replace(
        "  capabilities: [chat, v", f"  {half}\n  capabilities: [chat, v"
    )
    assert "without prices of cloud;" in errors(priced + budget)
    assert running(priced.replace(half, free) + budget).budgets[0].max_usd == 50
