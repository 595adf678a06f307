"""What an engine answers with, as one text: engines of llama.cpp with the same go on with each other's answers."""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

from llmkube.base import json_text
from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.arguments import texts_in

_RUNTIMES: Final = frozenset({"llamacpp", "llama-server"})
_NO_PREFILL: Final = "--no-prefill-assistant"

_FIELDS: Final = (
    *("rope_scaling", "cache_type_k", "cache_type_v", "cache_type_custom_k", "cache_type_custom_v"),
    *("metadata_overrides", "jinja", "reasoning_budget", "reasoning_budget_message"),
)
"""Of a service: what changes an answer. Speed, memory, and how much context there is do not."""

_PLACEMENT: Final = frozenset(
    {
        *("-t", "--threads", "-tb", "--threads-batch", "--threads-http", "--prio", "--numa", "-C", "--cpu-mask"),
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "-dev", "--device", "-sm", "--split-mode", "-ts", "--tensor-split"),
        *("-mg", "--main-gpu", "-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"),
        *("-b", "--batch-size", "-ub", "--ubatch-size", "-c", "--ctx-size", "-np", "--parallel", "--cache-ram"),
        *("--cache-reuse", "--mlock", "--mmap", "--no-mmap", "--direct-io", "--warmup", "--no-warmup", "-fa"),
        *("--flash-attn", "-nkvo", "--no-kv-offload", "--metrics", "--slots", "--no-slots", "--no-webui", "--no-ui"),
        *("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-file", "--log-disable"),
        *("-to", "--timeout"),
    }
)
"""Flags of llama-server that place and measure an engine; every other one counts."""


def model_digest(spec: InferenceServiceSpec, model: Model | None) -> str:
    """Return what stands for weights and for what changes the answers; "" where that is not known, or of other engines.

    Weights are the same by their digest, or by being of one Model: the same object, source and version of it.

    Args:
        spec: Of the service.
        model: What it serves; None while that is not there.
    """
    if model is None or spec.runtime not in _RUNTIMES or spec.command or spec.hosts is not None:
        return ""
    if _NO_PREFILL in texts_in(spec.extra_args):
        return ""  # a text is no beginning of an answer there
    facts = [_weights(model), list(_settings(spec))]
    return f"sha256:{hashlib.sha256(json_text.dumps(facts)).hexdigest()}"


def _weights(model: Model) -> list[Any]:
    spec, status = model.spec, model.status
    sha256 = (status.sha256 or spec.sha256 or "").lower()
    if sha256:
        return [sha256, spec.mmproj]
    return [model.metadata.uid, spec.source, list(spec.files), spec.mmproj, status.source_etag]


def _settings(spec: InferenceServiceSpec) -> Iterator[list[str]]:
    for name in _FIELDS:
        if (value := getattr(spec, name)) is not None:
            yield [name, str(value)]
    for flag, text in sorted(texts_in(spec.extra_args).items()):
        if flag not in _PLACEMENT:
            yield [flag, text]
    for each in spec.env:
        if each.name.startswith("LLAMA_"):
            yield [each.name, str(each)]
