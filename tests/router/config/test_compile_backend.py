"""Each backend of a ModelRouter becomes what the data path needs of it, and its key is named by a file of its own.

Engines have one digest where they answer alike, and another wherever something changes an answer.

Slots are known where the spec alone tells them.

What may be outside this network is not local.
"""

from decimal import Decimal

import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import Autoscaling, HostReplicas, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import EnvVar
from llmkube.router.config.compile_backend import (
    SECRET_KEYS,
    KeyFile,
    is_replicated,
    model_digest,
    slots_of,
    splits_cache,
)
from llmkube.router.config.routing_config import Prices, Probe, is_local_url
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
        ("https://llm.example/v1/chat/completions", "is an endpoint, not a base URL; remove /chat/completions"),
        ("https://llm.example/v1?key=abc", "is not a base URL"),
        ("http://llm.example/v1", "would send requests and the key unencrypted; write https"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url, said):
    """With the field and the way out."""
    assert f"spec.backends[away].external.url: '{url}' {said}" in errors(external(url=f'"{url}"'))


def test_a_password_in_a_url_is_not_repeated():
    """An error goes to a status and to logs."""
    said = errors(external(url='"https://me:hunter2@llm.example/v1"'))
    assert "is not a base URL" in said
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
    """An answer is not begun by one template and ended by another."""
    assert of(**OTHER[name]) not in ("", of())


@pytest.mark.parametrize("name", NONE)
def test_an_unknown_model_has_no_digest(name):
    """It goes on with no other engine's answers."""
    assert of(**NONE[name]) == ""


def test_weights_are_the_same_by_their_digest_or_by_their_object():
    """Two Models of one file are one; one Model whose source has changed is another."""
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
    """0 wherever something else has a say."""
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
    """Also where their number changes."""
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
    """What is not clear is not known, and no figure is made of it."""
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
    """Private addresses, names of the cluster, and names that no server of the Internet has."""
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
    """A public address, a public name, a number that some resolvers read as an address."""
    assert not is_local_url(url)
