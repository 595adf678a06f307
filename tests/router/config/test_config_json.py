"""A config round-trips, and an invalid one is refused with each field, its value and the fix.

A router file that no API server has validated is checked against the CRD's field definitions.
"""

import json
import random
from decimal import Decimal

import attrs
import pytest

from llmkube.router.config.config_json import ConfigError, config_digest, decode_config, encode_config
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
from router.written_routers import BACKENDS, errors, running

FULL = RoutingConfig(
    name="ml/front",
    backends={
        "mac": Backend(
            name="mac",
            model_id="phi",
            base_url="http://phi.ml.svc:8080/v1",
            local=True,
            region="eu",
            capabilities=frozenset({"chat", "vision"}),
            weight=3,
            slots=8,
            is_replicated=True,
            first_byte_seconds=2.5,
            prices=Prices(prompt_usd=Decimal("0.10"), completion_usd=Decimal(0)),
            probe=Probe(path="/health", interval_seconds=10, timeout_seconds=2),
            key_file="/keys/backends/mac",
        ),
        "gone": Backend(name="gone", model_id="gone", base_url="", local=True, missing="there is no such service"),
    },
    rules=(
        Rule(
            name="private",
            match=Match(
                classes=frozenset({"pii"}),
                models=("gpt-*",),
                headers={"x-app": "A"},
                capabilities=frozenset({"chat"}),
                complexity="simple",
                latency_seconds=0.5,
            ),
            backends=("mac", "gone"),
            strategy="least-loaded",
            fail_closed=True,
            first_byte_seconds=30.0,
        ),
    ),
    default_backend="mac",
    by_model=True,
    classes=Classes(header="x-class", default="pii", sensitive=frozenset({"pii"})),
    budgets=(Budget(name="day", scope="rule", rule="private", max_tokens=5, window_seconds=60),),
    budget_store=RedisStore(
        host="redis", port=6380, tls=True, database=2, username="router", password_file="/keys/budget-store/password"
    ),
    auth=Auth(
        keys_folder="/keys/teams",
        tokens=Tokens(
            provider="corp",
            issuer="i",
            audiences=("llm",),
            jwks_uri="https://i/k",
            team_claim="team",
            team_header="x-team",
        ),
        models_of_team={"red": ("*",)},
    ),
    audit=Audit(sink="file", path="/var/log/audit", bodies=True),
    first_byte_seconds=60.0,
    first_byte_extends=True,
    circuit_seconds=5.0,
)


def changed(**fields):
    return json.dumps({**json.loads(encode_config(FULL)), **fields}).encode()


def without(value, key):
    return {each: value[each] for each in value if each != key}


def refusal(data):
    with pytest.raises(ConfigError) as caught:
        decode_config(data)
    return str(caught.value)


def test_a_config_reads_back_as_it_was_with_every_field():
    """Each attribute has a value other than its default, and none is lost."""
    assert decode_config(encode_config(FULL)) == FULL
    blank = RoutingConfig(name="", backends={})
    for field in attrs.fields(RoutingConfig):
        assert getattr(FULL, field.name) != getattr(blank, field.name) or field.name == "capabilities" or field.metadata
    assert decode_config(encode_config(FULL)).capabilities == {"chat", "vision"}


def test_the_same_config_has_the_same_bytes():
    """Sets are written in order: an unstable digest would replace pods."""
    again = attrs.evolve(FULL, backends={**FULL.backends})
    assert encode_config(again) == encode_config(FULL)
    assert config_digest(again) == config_digest(FULL)
    assert config_digest(attrs.evolve(FULL, by_model=False)) != config_digest(FULL)


def test_what_is_compiled_passes_its_own_checks():
    """The router accepts each config that the controller writes."""
    config = running(BACKENDS + "defaultRoute: mac\n")
    assert decode_config(encode_config(config)) == config


@pytest.mark.parametrize("version", [None, 2, "1", True, 0])
def test_another_version_is_refused(version):
    """The error has the version that this release reads."""
    message = refusal(changed(version=version))
    assert message.startswith("version: ")
    assert "this release reads 1; compile the ModelRouter again" in message


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(data):
    assert "one" in refusal(data)


def test_all_problems_are_reported_at_once():
    """Unknown keys, wrong types and missing fields each have their path, value and fix."""
    value = json.loads(encode_config(FULL))
    value["extra"] = 1
    value["byModel"] = "yes"
    value["rules"][0]["match"]["classes"] = "pii"
    value["rules"][0]["failClose"] = True
    value["backends"]["mac"] = {**without(value["backends"]["mac"], "local"), "weight": 1.5}
    value["backends"]["mac"]["prices"]["promptUsd"] = 0.1
    lines = refusal(json.dumps(value).encode()).splitlines()
    assert len(lines) == 7
    for part in (
        "extra: unknown key (value 1); known keys are audit",
        'byModel: "yes" is not true or false; write true or false',
        'rules[0].match.classes: "pii" is not a list; write a list',
        "rules[0].failClose: unknown key (value true)",
        "backends[mac].local: required, but missing; add it",
        "backends[mac].weight: 1.5 is not a whole number",
        "backends[mac].prices.promptUsd: 0.1 is not a decimal number as a string",
    ):
        assert any(line.startswith(part) for line in lines), part


def test_a_sensitive_class_over_a_cloud_is_refused_by_the_router_as_well():
    """The check also covers a ConfigMap that was edited by hand."""
    value = json.loads(encode_config(FULL))
    value["backends"]["mac"]["local"] = False
    message = refusal(json.dumps(value).encode())
    assert "rules[0].backends: mac not local, but the rule is for pii" in message
    value["backends"]["mac"].update(local=True, provider="openai", baseUrl="https://api.openai.com/v1")
    message = refusal(json.dumps(value).encode())
    assert "backends[mac].local: true, but https://api.openai.com/v1 may be outside" in message


@pytest.mark.ci
def test_damage_is_refused_or_means_the_same():
    """A config with random values in random fields is refused with a message, without other exceptions."""
    dice = random.Random(5)
    values = [None, True, -1, 0, 1.5, "", "x", [], {}, [1], {"a": 1}, "pii", "1e999", float(2**60)]
    refused = 0
    for _ in range(1500):
        value = json.loads(encode_config(FULL))
        place = value
        while True:
            key = dice.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if isinstance(place[key], dict | list) and place[key] and dice.random() < 0.8:
                place = place[key]
                continue
            place[key] = dice.choice(values)
            break
        message = ""
        try:
            config = decode_config(json.dumps(value).encode())
        except ConfigError as exc:
            refused += 1
            message = str(exc)
        else:
            assert decode_config(encode_config(config)) == config
        assert all(": " in line for line in message.splitlines())
    assert refused > 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("backends: []\n", "spec.backends: 0 entries are too few; give at least 1"),
        (BACKENDS.replace("name: mac", "name: Mac!"), 'spec.backends[Mac!].name: "Mac!" does not match the pattern ^'),
        (
            BACKENDS.replace("openai,", "openia,"),
            '.external.provider: "openia" is unknown; write one of anthropic, openai',
        ),
        (BACKENDS.replace("- name: mac", "- name: mac\n  tier: here"), 'spec.backends[mac].tier: "here" is unknown'),
        (BACKENDS.replace("- name: mac", "- name: mac\n  weight: -1"), "spec.backends[mac].weight: -1 is too small"),
        (BACKENDS.replace("- name: mac", "- name: mac\n  displayName: ''"), 'displayName: "" is too short'),
        (BACKENDS + "endpoint: { port: 70000 }\n", "spec.endpoint.port: 70000 is too large; write at most 65535"),
        (BACKENDS + f"defaultRoute: {'x' * 64}\n", "is too long; write at most 63 characters"),
        (BACKENDS + "proxy: { replicas: 11 }\n", "spec.proxy.replicas: 11 is too large; write at most 10"),
        (BACKENDS + "polcy: { }\n", "spec.polcy: unknown field (value {}); known fields are backends, rules"),
    ],
)
def test_a_field_is_held_to_its_definition(text, expected):
    """The error has path, value, and fix."""
    assert expected in errors(text)


def test_a_long_value_is_cut():
    """The message stays one sentence."""
    message = next(line for line in errors(BACKENDS + f"surprise: {'x' * 5000}\n").splitlines() if "surprise" in line)
    assert len(message) < 400
