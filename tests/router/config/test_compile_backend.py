"""Each backend of a ModelRouter becomes what the data path needs of it, and its key is named by a file of its own."""

from decimal import Decimal

import pytest

from llmkube.router.config.compile_backend import SECRET_KEYS, KeyFile
from llmkube.router.config.routing_config import Prices, Probe
from router.written_routers import compiled, errors, running


def external(**fields):
    given = {"provider": "openai", "model": "gpt-5", **fields}
    written = ", ".join(f"{key}: {value}" for key, value in given.items())
    return f"backends: [{{ name: away, external: {{ {written} }} }}]\n"


def test_each_field_of_a_backend_is_compiled():
    """Names in lower case, seconds, dollars: nothing that the data path would have to read again."""
    text = """
backends:
- name: away
  displayName: smart
  external: { provider: anthropic, model: opus, credentialsSecretRef: { name: key } }
  region: EU
  capabilities: [Vision, chat]
  weight: 0
  timeout: 1m30s
  healthCheck: { intervalSeconds: 5 }
  costPerMillionTokens: { promptUSD: "15", completionUSD: "75.50" }
"""
    away = running(text).backends["away"]
    assert (away.model_id, away.model, away.dialect, away.provider) == ("smart", "opus", "anthropic", "anthropic")
    assert (away.base_url, away.local, away.region) == ("https://api.anthropic.com/v1", False, "eu")
    assert (away.capabilities, away.weight, away.first_byte_seconds) == ({"vision", "chat"}, 0, 90.0)
    assert away.probe == Probe(path="/health", interval_seconds=5, timeout_seconds=2)
    assert away.prices == Prices(prompt_usd=Decimal(15), completion_usd=Decimal("75.5"))
    assert away.key_file == "/keys/backends/away"


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://llm.example", "https://llm.example/v1"),
        ("https://llm.example/", "https://llm.example/v1"),
        ("https://llm.example/v1", "https://llm.example/v1"),
        ("https://llm.example/v1/", "https://llm.example/v1"),
        ("https://bedrock.example/openai/v1", "https://bedrock.example/openai/v1"),
        ("http://litellm.ml.svc:4000", "http://litellm.ml.svc:4000/v1"),
    ],
)
def test_a_base_url_has_its_path_once(url, base):
    """With a path it is taken as it is; without, it is the host of the provider: /v1 is never doubled."""
    assert running(external(url=f'"{url}"')).backends["away"].base_url == base


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://llm.example/v1/chat/completions", "names an endpoint; leave /chat/completions away"),
        ("https://llm.example/v1?key=abc", "is no base URL"),
        ("http://llm.example/v1", "would show requests and key to each host on the way; write https"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url, said):
    """With the field and the way out."""
    assert f"spec.backends[away].external.url: '{url}' {said}" in errors(external(url=f'"{url}"'))


def test_a_password_in_a_url_is_not_repeated():
    """An error goes to a status and to logs."""
    said = errors(external(url='"https://me:hunter2@llm.example/v1"'))
    assert "is no base URL" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("provider", ["anthropic", "openai", "litellm", "bedrock", "vertex_ai"])
def test_the_key_is_an_entry_of_the_secret(provider):
    """By the name that is usual for the provider, and never the whole Secret."""
    text = external(provider=provider, url='"https://llm.example/v1"', credentialsSecretRef="{ name: key }")
    assert compiled(text).key_files == (KeyFile(path="/keys/backends/away", secret="key", key=SECRET_KEYS[provider]),)


def test_no_reference_means_no_key():
    """What asks for none gets none; of a provider that always asks, the warning says so."""
    found = compiled(external())
    assert found.key_files == ()
    assert found.config.backends["away"].key_file == ""
    assert any("without credentialsSecretRef no key is sent" in each for each in found.warnings)


def test_half_a_price_is_none():
    """A missing price is not 0: the warning says that the backend counts as without prices."""
    found = compiled(external()[:-3].rstrip("}] ") + ' } , costPerMillionTokens: { promptUSD: "1" } }]\n')
    assert found.config.backends["away"].prices is None
    assert any("a price is missing, which is not 0" in each for each in found.warnings)
