"""How many requests the engines of an InferenceService serve at the same time, where its spec alone tells that."""

from typing import Final

from llmkube.k8s.crd.inferenceservice import InferenceServiceSpec
from llmkube.runtimes.arguments import flags_in

_RUNTIMES: Final = frozenset({"llamacpp", "llama-server"})
_FLAGS: Final = frozenset({"-np", "--parallel"})
_UNIFIED: Final = frozenset({"-kvu", "--kv-unified"})
_NOT_CLEAR: Final = frozenset({"-no-kvu", "--no-kv-unified", "--kv-unified-per-slot"})


def is_replicated(spec: InferenceServiceSpec) -> bool:
    """Whether several engines answer at a service's address, or as many as an autoscaler or a list of hosts wants."""
    return spec.replicas != 1 or spec.autoscaling is not None or spec.hosts is not None


def slots_of(spec: InferenceServiceSpec) -> int:
    """Return the slots of all replicas; 0 where they are not known: other engines, numbers that change, arguments."""
    if spec.runtime not in _RUNTIMES or spec.autoscaling is not None or spec.hosts is not None:
        return 0
    if spec.command or flags_in(spec.extra_args) & _FLAGS:
        return 0
    return spec.parallel_slots * spec.replicas


def splits_cache(spec: InferenceServiceSpec) -> bool | None:
    """Return whether each slot has its own part of the KV cache, else all share it; None where slots are not known.

    llama.cpp's server divides the cache among as many slots as `--parallel` says, unless it is told to share it.
    """
    flags = flags_in(spec.extra_args)
    if not slots_of(spec) or flags & _NOT_CLEAR:
        return None
    return not flags & _UNIFIED
