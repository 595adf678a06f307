"""Each backend of a ModelRouter is compiled for the data path; its key is in a file of its own.

Engines that answer alike have the same digest; anything that changes an answer changes the digest.
Slots are known if the spec alone determines them.
A backend that may be outside this network is not local.
"""

from decimal import Decimal

import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import Autoscaling, HostReplicas, InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import EnvVar
from llmkube.router.config.compile_backend import (
    SECRET_KEYS,
    KeyFile,
    is_replicated,
    model_digest,
    resolved_service,
    slots_of,
    splits_cache,
)
from llmkube.router.config.routing_config import Adapter, Prices, Probe, is_local_url
from router.written_routers import compiled, errors, running


def external(**fields):
    given = {"provider": "openai", "model": "gpt-5", **fields}
    written = ", ".join(f"{key}: {value}" for key, value in given.items())
    return f"backends: [{{ name: away, external: {{ {written} }} }}]\n"


def test_each_field_of_a_backend_is_compiled():
    """Names are in lower case, times in seconds, prices in dollars: the data path parses nothing again."""
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
    """A URL with a path is used as it is; without, it is the provider's host: /v1 is never doubled."""
    assert running(external(url=f'"{url}"')).backends["away"].base_url == base


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://llm.example/v1/chat/completions", "is an endpoint, not a base URL; remove /chat/completions"),
        ("https://llm.example/v1?key=abc", "is not a base URL"),
        ("http://llm.example/v1", "would send requests and the key unencrypted; write https"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url, expected):
    """The error has the field and the fix."""
    assert f"spec.backends[away].external.url: '{url}' {expected}" in errors(external(url=f'"{url}"'))


def test_a_password_in_a_url_is_not_repeated():
    """Errors are written to status and logs."""
    message = errors(external(url='"https://me:hunter2@llm.example/v1"'))
    assert "is not a base URL" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("provider", ["anthropic", "openai", "litellm", "bedrock", "vertex_ai"])
def test_the_key_is_an_entry_of_the_secret(provider):
    """The entry has the provider's usual name; the whole Secret is never mounted."""
    text = external(provider=provider, url='"https://llm.example/v1"', credentialsSecretRef="{ name: key }")
    assert compiled(text).key_files == (KeyFile(path="/keys/backends/away", secret="key", key=SECRET_KEYS[provider]),)


def test_no_reference_means_no_key():
    """If the provider always requires a key, there is a warning."""
    found = compiled(external())
    assert found.key_files == ()
    assert found.config.backends["away"].key_file == ""
    assert any("without credentialsSecretRef no key is sent" in each for each in found.warnings)


def test_prices_of_caches_are_compiled_and_checked():
    """Each has its own field; what is no amount is named with the fix."""
    cost = 'costPerMillionTokens: { promptUSD: "1", completionUSD: "2", cacheReadUSD: "0.1", cacheWrite1hUSD: "%s" }'
    text = external()[:-3].rstrip("}] ") + " } , " + cost + " }]\n"
    prices = compiled(text % "4").config.backends["away"].prices
    assert (prices.cache_read_usd, prices.cache_write5m_usd, prices.cache_write1h_usd) == (Decimal("0.1"), None, 4)
    assert 'cacheWrite1hUSD: "-4" does not match' in str(errors(text % "-4"))


def test_half_a_price_is_none():
    """A missing price is not 0: the warning states that the backend has no prices."""
    found = compiled(external()[:-3].rstrip("}] ") + ' } , costPerMillionTokens: { promptUSD: "1" } }]\n')
    assert found.config.backends["away"].prices is None
    assert any("ignored, as one price is missing" in each for each in found.warnings)


MODEL = decode(Model, {"metadata": {"name": "m", "namespace": "ml", "uid": "u1"}, "spec": {"source": "org/repo"}})
SPEC = InferenceServiceSpec(model_ref="m")
DIGEST = "ab" * 32


def of(spec=None, model=MODEL, **changes):
    return model_digest(attrs.evolve(SPEC if spec is None else spec, **changes), model)


def with_(part, **changes):
    return attrs.evolve(MODEL, **{part: attrs.evolve(getattr(MODEL, part), **changes)})


ALIKE = {
    "more slots and replicas": {"parallel_slots": 4, "replicas": 2, "context_size": 4096},
    "a Mac": {"runtime": "llama-server"},
    "another name of the Model": {"model_ref": "n"},
    "where it runs": {"extra_args": ("-ngl", "99", "--threads=4", "--mlock"), "moe_cpu_layers": 3},
    "what is not llama.cpp's": {"env": (EnvVar(name="CUDA_VISIBLE_DEVICES", value="1"),)},
}
OTHER = {
    "another template": {"extra_args": ("--chat-template", "chatml")},
    "another adapter": {"extra_args": ("--lora", "x.gguf")},
    "no template": {"jinja": False},
    "a smaller cache": {"cache_type_k": "q8_0"},
    "no thoughts": {"reasoning_budget": 0},
    "other metadata": {"metadata_overrides": ("a=int:1",)},
    "a variable": {"env": (EnvVar(name="LLAMA_ARG_CHAT_TEMPLATE", value="chatml"),)},
}
NONE = {
    "another engine": {"runtime": "vllm"},
    "several models": {"runtime": "llamacpp-router"},
    "another program": {"command": ("./serve",)},
    "hosts with a model of their own": {"hosts": HostReplicas(model_ref="m")},
    "no beginnings": {"extra_args": ("--no-prefill-assistant",)},
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_changes_no_answer_changes_no_digest(name):
    """One name over a CUDA service and a Mac is one model."""
    assert of(**ALIKE[name]) == of() != ""


@pytest.mark.parametrize("name", OTHER)
def test_what_changes_an_answer_changes_the_digest(name):
    """One answer never mixes two templates."""
    assert of(**OTHER[name]) not in ("", of())


@pytest.mark.parametrize("name", NONE)
def test_an_unknown_model_has_no_digest(name):
    """Its answers are never continued by another engine."""
    assert of(**NONE[name]) == ""


def test_weights_are_the_same_by_their_digest_or_by_their_object():
    """Two Models of one file are the same; a Model whose source has changed is not."""
    assert of(model=None) == ""
    computed = with_("status", sha256=DIGEST)
    asked = attrs.evolve(with_("spec", sha256=DIGEST.upper()), metadata=attrs.evolve(MODEL.metadata, uid="u2"))
    assert of(model=computed) == of(model=asked) != of()
    assert of(model=with_("metadata", uid="u2")) != of()
    assert of(model=with_("spec", source="org/other")) != of()
    assert of(model=with_("status", source_etag="2")) != of()
    assert of(model=with_("spec", mmproj="p.gguf")) != of()


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({}, 1),
        ({"parallel_slots": 4}, 4),
        ({"parallel_slots": 4, "replicas": 3}, 12),
        ({"parallel_slots": 4, "runtime": "llama-server"}, 4),
        ({"parallel_slots": 4, "extra_args": ("--mlock",)}, 4),
        ({"parallel_slots": 4, "replicas": 0}, 0),
        ({"parallel_slots": 4, "runtime": "vllm"}, 0),
        ({"parallel_slots": 4, "runtime": "llamacpp-router"}, 0),
        ({"parallel_slots": 4, "autoscaling": Autoscaling(max_replicas=4)}, 0),
        ({"parallel_slots": 4, "hosts": HostReplicas(model_ref="m")}, 0),
        ({"parallel_slots": 4, "command": ("./serve",)}, 0),
        ({"extra_args": ("--parallel", "8")}, 0),
        ({"extra_args": ("--parallel=8",)}, 0),
        ({"extra_args": ("-np", "8")}, 0),
    ],
)
def test_slots_of_a_service(changes, slots):
    """The number is 0 if anything but the spec determines it."""
    assert slots_of(InferenceServiceSpec(model_ref="m", **changes)) == slots


@pytest.mark.parametrize(
    ("changes", "several"),
    [
        ({}, False),
        ({"parallel_slots": 4}, False),
        ({"replicas": 3}, True),
        ({"replicas": 0}, True),
        ({"autoscaling": Autoscaling(max_replicas=4)}, True),
        ({"hosts": HostReplicas(model_ref="m")}, True),
    ],
)
def test_several_engines_answer_at_one_address(changes, several):
    """A service with a changing number of replicas is included."""
    assert is_replicated(InferenceServiceSpec(model_ref="m", **changes)) == several


@pytest.mark.parametrize(
    ("changes", "splits"),
    [
        ({}, True),
        ({"parallel_slots": 4}, True),
        ({"parallel_slots": 4, "extra_args": ("--kv-unified",)}, False),
        ({"parallel_slots": 4, "extra_args": ("-kvu",)}, False),
        ({"parallel_slots": 4, "extra_args": ("--kv-unified", "--no-kv-unified")}, None),
        ({"parallel_slots": 4, "extra_args": ("--kv-unified-per-slot",)}, None),
        ({"parallel_slots": 4, "runtime": "vllm"}, None),
        ({"extra_args": ("--parallel", "8")}, None),
    ],
)
def test_each_slot_has_a_part_of_the_cache_or_all_share_it(changes, splits):
    """If the split is not known, the gauge is absent."""
    assert splits_cache(InferenceServiceSpec(model_ref="m", **changes)) is splits


@pytest.mark.parametrize(
    "url",
    [
        "http://10.1.2.3:8080/v1",
        "https://192.168.1.9",
        "http://172.31.0.1/",
        "http://127.0.0.1:1",
        "http://[::1]:8080/v1",
        "http://[fd00::1]/v1",
        "http://[::ffff:10.0.0.1]/",
        "http://100.100.1.1/",
        "http://litellm:4000",
        "http://notlocal",
        "http://litellm.ml.svc:4000",
        "http://litellm.ml.svc.cluster.local:4000/v1",
        "http://studio.local:8080",
        "http://localhost:8080",
        "http://gateway.internal/",
        "http://LiteLLM.ML.SVC.",
    ],
)
def test_what_only_this_network_answers_for(url):
    """Private addresses, cluster names, and names that are not in public DNS are local."""
    assert is_local_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://8.8.8.8",
        "https://172.32.0.1",
        "https://10.0.0.1.example.com",
        "https://svc.example.com",
        "http://0x08080808/",
        "https://api.openai.com/?x=.svc",
        "https://user@api.openai.com",
        "https://127.0.0.1@api.openai.com/",
        "https://[2001:db8::1]/",
        "https://[::ffff:8.8.8.8]/",
        "https://169.254.169.254/",
        "https://0.0.0.0/",
        "https://167772161/",
        "https://0x7f000001.example",
        "",
    ],
)
def test_what_may_be_anywhere(url):
    """Public addresses and names are not local, nor is a number that some resolvers read as an address."""
    assert not is_local_url(url)


@pytest.mark.parametrize(
    ("status", "generation", "known"),
    [("True", 2, True), ("True", 1, False), ("False", 2, False), ("Unknown", 2, False), (None, 2, False)],
)
def test_adapters_are_known_while_the_engine_has_the_newest_spec(status, generation, known):
    """Their numbers are places in a list, which an earlier engine may have in another order; and pods have none."""
    condition = {"type": "UpToDate", "status": status, "reason": "x", "message": "", "observedGeneration": generation}
    spec = {
        "modelRef": "m",
        "adapters": [{"modelRef": "a", "scale": "0.5"}, {"modelRef": "b", "name": "poet"}],
        "presets": [{"name": "both", "adapters": [{"name": "poet", "scale": "2"}]}, {"name": "s", "maxTokens": 9}],
    }
    body = {"metadata": {"name": "s", "generation": 2}, "spec": spec}
    body |= {"status": {"conditions": [condition]}} if status else {}
    found = resolved_service(decode(InferenceService, body), None, base_url="http://s/v1")
    assert found.adapters == ((Adapter("", 0.5), Adapter("poet", 1.0)) if known else ())
    assert {each.name: (each.max_tokens, each.adapters) for each in found.presets} == {
        "both": (None, (Adapter("poet", 2.0),)),
        "": (9, ()),
        "poet": (None, (Adapter("poet", 1.0),)),
    }
