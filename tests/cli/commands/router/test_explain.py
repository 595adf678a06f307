"""Output of `llmkube router explain`.

An explanation covers what `decide` did with each rule and each backend.
"""

import json
import random

import pytest
from click.testing import CliRunner

from llmkube.cli.commands.router.command import explain, router
from llmkube.router.config.config_json import encode_config
from llmkube.router.policy.decision import decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import Principal, facts_of
from router.policy import oracle
from router.policy.drawn_routers import config_of, draw_request, draw_router
from router.written_routers import compiled

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: { name: hybrid-router }
spec:
  backends:
  - { name: local-mac, inferenceServiceRef: { name: phi-4-mini }, tier: local, capabilities: [chat] }
  - name: cloud-opus
    external: { provider: anthropic, model: claude-opus-4-7, credentialsSecretRef: { name: anthropic-key } }
    tier: cloud
  rules:
  - { name: complex, match: { taskComplexity: complex }, route: { backends: [cloud-opus, local-mac] } }
  - { name: pii-stays-on-mac, match: { dataClassification: [pii] }, route: { backends: [local-mac] }, failClosed: true }
  defaultRoute: cloud-opus
  mcpServer: { enabled: true }
"""
EXPLANATION = """\
Router default/hybrid-router
Request
  model gpt
  class pii
  region none
  needs none
  complexity complex
  team none
Rules
  1. complex: applies
  2. pii-stays-on-mac: not evaluated
Decided by rule complex
  1. local-mac (local): http://phi-4-mini.default.svc.cluster.local:8080/v1, 120 s for the first byte
Left out
  cloud-opus: data of class pii must stay local, and this backend is not
Warning: spec.defaultRoute: cloud-opus is not local: a request of class phi that no rule matches is refused
Without effect: spec.mcpServer
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "router.yaml"
    path.write_text(ROUTER)
    return str(path)


def run(*arguments, **more):
    result = CliRunner().invoke(router, ["explain", *arguments], **more)
    return result.exit_code, result.output


def test_decision_is_explained(file):
    """Facts, rules, backends in their order, and the reason for each excluded backend are printed."""
    code, text = run(
        "-f", file, "-H", "X-LLMKube-Classification: PII", "-H", "x-llmkube-task-complexity: complex", "--model", "gpt"
    )
    assert code == 0
    assert text == EXPLANATION


def test_a_refusal_is_reported_with_its_reason(file):
    """A refused request is an answer: the exit code is 0."""
    code, text = run("-f", file, "--header", "x-llmkube-classification: phi")
    assert code == 0
    assert "Refused (NotPermitted): no rule matches, and cloud-opus: data of class phi must stay local" in text
    assert "  1. complex: does not match: taskComplexity" in text
    assert "local-mac: permitted, but no rule and no default route selects it" in text


def test_explanation_can_be_json(file, tmp_path):
    """The body comes from a file, --model wins over it, and repeated headers are joined."""
    body = tmp_path / "body.json"
    body.write_text('{"model": "a", "messages": [{"content": [{"type": "image_url"}]}]}')
    arguments = ("-f", file, "--body", str(body), "--model", "b", "-o", "json")
    code, text = run(*arguments, "-H", "x-llmkube-capabilities: chat", "-H", "x-llmkube-capabilities: tools")
    explanation = json.loads(text)
    assert code == 0
    assert explanation["request"][:4] == ["model b", "class none", "region none", "needs chat, tools"]
    assert (explanation["order"], explanation["reason"], explanation["rule"]) == ([], "NotPermitted", None)
    assert set(explanation["leftOut"]) == {"local-mac", "cloud-opus"}


def test_a_compiled_config_is_explained_alike(tmp_path):
    """The config that a router's pod has mounted, also from standard input."""
    found = compiled("backends: [{ name: mac, inferenceServiceRef: { name: phi } }]\ndefaultRoute: mac\n")
    written = encode_config(found.config).decode()
    path = tmp_path / "config.json"
    path.write_text(written)
    code, text = run("-f", str(path))
    assert code == 0
    assert "Decided by the default route\n  1. mac (local)" in text
    assert run("-f", "-", input=written) == (code, text)


def test_a_router_on_standard_input(file):
    """YAML, as `kubectl get -o yaml` prints it."""
    assert run("-f", "-", input=ROUTER) == run("-f", file)


def test_measurements_and_pick_are_options(tmp_path):
    """Latency, load and the random pick of the data path are options here."""
    path = tmp_path / "router.yaml"
    path.write_text(
        ROUTER.replace("taskComplexity: complex", "latencySLOMs: 100").replace(
            "[cloud-opus, local-mac]", "[cloud-opus, local-mac], strategy: least-loaded"
        )
    )
    _, text = run("-f", str(path), "--load", "cloud-opus=3", "-o", "json")
    assert json.loads(text)["order"] == ["local-mac", "cloud-opus"]
    _, text = run("-f", str(path), "--measured", "local-mac=0.3")
    assert "local-mac: permitted, but does not meet a requirement of rule complex: latencySLOMs" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-H", "hunter2"), "--header: number 1 is not a header; write 'NAME: VALUE'"),
        (("--load", "nobody=1"), "--load: 'nobody' is not a backend; use one of local-mac, cloud-opus"),
        (("--measured", "local-mac=soon"), "--measured: 'local-mac=soon' has no number of 0 or more"),
        (("--measured", "local-mac=nan"), "--measured: 'local-mac=nan' has no number of 0 or more"),
        (("--body", "/nowhere"), "--body: /nowhere cannot be read"),
        (("--body", __file__), "is not JSON"),
        (("--pick", "1"), "is not in the range 0<=x<1"),
    ],
)
def test_invalid_options_are_refused(file, arguments, message):
    """The error names option, value and fix; a header without a colon may be a key and is not repeated."""
    code, text = run("-f", file, *arguments)
    assert code != 0
    assert message in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found 0 ModelRouters; use a file with exactly one"),
        (f"{ROUTER}---{ROUTER}", "found 2 ModelRouters; use a file with exactly one"),
        (ROUTER.replace("dataClassification", "dataClass"), "unknown field"),
        (
            ROUTER.replace("backends: [local-mac]", "backends: [mac]"),
            "spec.rules[1].route.backends[0]: 'mac' is not a backend",
        ),
        ('{"version": 9}', "version: 9 is not supported"),
        (": :", "router.yaml"),
    ],
)
def test_invalid_file_is_refused(tmp_path, text, message):
    """The error names file, field, value and fix."""
    path = tmp_path / "router.yaml"
    path.write_text(text)
    code, output = run("-f", str(path))
    assert code == 1
    assert message in output


def test_a_file_that_is_not_there_is_reported(tmp_path):
    code, text = run("-f", str(tmp_path / "none.yaml"))
    assert code == 1
    assert "cannot be read" in text


def test_each_rule_and_each_backend_is_accounted_for():
    """In generated routers each unused backend has a reason, and at most one rule decides."""
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
        explanation = explain(config, facts, permits, decision, measured)
        used = {permit.backend.name for permit in (*decision.order, *decision.shadows)}
        assert set(explanation.left_out) == set(config.backends) - used
        for name, why in explanation.left_out.items():
            assert why.startswith("permitted, but") == (not oracle.forbidden(router, request, name)), (name, why)
        assert list(explanation.rules) == [rule.name for rule in config.rules]
        decides = [name for name, why in explanation.rules.items() if why.startswith("applies")]
        assert decides == ([decision.rule.name] if decision.rule else [])
        seen |= {why.partition(":")[0] for why in explanation.rules.values()}
    refuses = "applies and refuses the request"
    assert seen == {"applies", refuses, "does not match", "not evaluated", "matches but is skipped"}
