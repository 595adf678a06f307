"""The table that a class is: names, defaults, and what may not be left out."""

import typing
from typing import Any

import attrs
import pytest

from llmkube.k8s import builtins
from llmkube.k8s.codec import decode
from llmkube.k8s.crd import definitions
from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.model import ModelSpec, ModelStatus
from llmkube.k8s.crd.modelrouter import Cost, Match
from llmkube.k8s.crd.placement import GPUSharing
from llmkube.k8s.crd.router_policy import JWT, Budget
from llmkube.k8s.crd.serving import PersonaPlexConfig, SGLangSpeculative, VLLMConfig
from llmkube.k8s.fields import REQUIRED, changed_paths, field, wire_fields

KINDS: list[Any] = [
    *definitions.KINDS,
    *(kind for kind in vars(builtins).values() if isinstance(kind, type) and hasattr(kind, "RESOURCE")),
]


@pytest.mark.parametrize(
    ("cls", "attribute", "key"),
    [
        (InferenceServiceSpec, "context_size", "contextSize"),
        (InferenceServiceSpec, "u_batch_size", "uBatchSize"),
        (InferenceServiceSpec, "moe_cpu_layers", "moeCPULayers"),
        (InferenceServiceSpec, "moe_cpu_offload", "moeCPUOffload"),
        (InferenceServiceSpec, "no_kv_offload", "noKvOffload"),
        (InferenceServiceSpec, "paged_ssd_cache_dir", "pagedSSDCacheDir"),
        (InferenceServiceSpec, "persona_plex_config", "personaPlexConfig"),
        (VLLMConfig, "kv_cache_dtype", "kvCacheDtype"),
        (VLLMConfig, "cpu_offload_gb", "cpuOffloadGB"),
        (PersonaPlexConfig, "quantize_4bit", "quantize4Bit"),
        (GPUSharing, "memory_limit_gib", "memoryLimitGiB"),
        (SGLangSpeculative, "eagle_top_k", "eagleTopK"),
        (Match, "latency_slo_ms", "latencySLOMs"),
        (JWT, "jwks_uri", "jwksURI"),
        (Cost, "prompt_usd", "promptUSD"),
        (Budget, "max_usd", "maxUSD"),
        (PersonaPlexConfig, "hf_token_secret_ref", "hfTokenSecretRef"),
        (ModelStatus, "source_etag", "sourceETag"),
        (builtins.ServiceSpec, "cluster_ip", "clusterIP"),
    ],
)
def test_odd_spellings(cls: type, attribute: str, key: str) -> None:
    """Acronyms are spelled as the API spells them, not as the camelCase rule would."""
    assert {slot.attribute: slot.key for slot in wire_fields(cls)}[attribute] == key


def test_json_names_are_unique() -> None:
    """No two attributes of a class write the same JSON field."""
    todo, seen = list(KINDS), set()
    while todo:
        cls = todo.pop()
        seen.add(cls)
        keys = [slot.key for slot in wire_fields(cls)]
        assert len(keys) == len(set(keys)), cls
        inner = [kind for slot in wire_fields(cls) for kind in (slot.type, *typing.get_args(slot.type))]
        todo += [kind for kind in inner if attrs.has(kind) and kind not in seen]


def test_a_class_that_would_lose_fields_is_refused() -> None:
    """A class without a place for unknown fields cannot be decoded at all."""

    @attrs.frozen
    class Leaky:
        name: str = ""

    with pytest.raises(TypeError, match="Leaky must derive from Wired"):
        decode(Leaky, {})


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ({}, ["spec.modelRef"]),
        ({"replicas": 1, "resources": {"gpu": 0}, "future": 1}, ["spec.modelRef"]),
        ({"resources": {"gpu": 1, "cpu": "2"}}, ["spec.modelRef", "spec.resources.gpu", "spec.resources.cpu"]),
        ({"vllmConfig": {"dtype": "auto"}, "podLabels": {"a": "b"}},
         ["spec.modelRef", "spec.vllmConfig.dtype", "spec.podLabels"]),
    ],
)  # fmt: skip
def test_changed_paths(spec: dict[str, Any], paths: list[str]) -> None:
    """Only fields that ask for something other than the default are listed, by their JSON path."""
    assert list(changed_paths(decode(InferenceServiceSpec, {"modelRef": "m", **spec}), "spec")) == paths


def test_required_is_not_a_value() -> None:
    """A required field cannot be left out when an object is built in Python either."""
    assert next(slot for slot in wire_fields(ModelSpec) if slot.key == "source").default is REQUIRED
    with pytest.raises(TypeError, match="source"):
        ModelSpec()


def test_an_unknown_fact_is_a_bug() -> None:
    """A misspelled bound is refused when the class is made, not silently left out of the schema."""
    with pytest.raises(TypeError, match="minumum"):
        field("A number.", 1, minumum=0)


def test_a_plain_object_shares_one_memory() -> None:
    """Objects built in Python remember nothing that was received."""
    assert ModelSpec(source="/m").wire is ModelStatus().wire
