"""Ollama in a pod: its server begins empty, and is given the model once it runs.

Facts: the variables of `ollama serve --help` and the Modelfile's reference, 0.24.
"""

from typing import Final

from llmkube.runtimes.container import ContainerPlan, Probe, Probes, Variable
from llmkube.runtimes.draft import ANY_ADDRESS, Draft, Runtime
from llmkube.runtimes.plan import PlanError, Slot
from llmkube.runtimes.sources import SOURCE
from llmkube.weights.source import DEFAULT_REVISION

PORT: Final = 11434
MAX_NAME: Final = 80
"""Of each part of a model's name (`types/model` of Ollama)."""

_WAIT: Final = "until ollama list >/dev/null 2>&1; do sleep 1; done"
_CREATE: Final = (
    f'{_WAIT}; file="$HOME/$0.Modelfile"; printf "FROM %s\\n" "$1" >"$file"; exec ollama create "$0" -f "$file"'
)
_PULL: Final = f'{_WAIT}; ollama pull "$1"; exec ollama cp "$1" "$0"'
_CACHE_TYPES: Final = frozenset({"f16", "q8_0", "q4_0"})


def plan(draft: Draft) -> ContainerPlan:
    """Return the container; it has started when the model is there under the service's name."""
    if len(draft.name) > MAX_NAME:
        raise PlanError(f"Ollama takes names of {MAX_NAME} characters at most: give the service a shorter one",
                        field="metadata.name")  # fmt: skip
    port = draft.port(PORT)
    address = draft.spec.bind_address or ANY_ADDRESS
    draft.honour("spec.bindAddress")
    draft.env += [
        Variable("HOME", Slot.CACHE),
        Variable("OLLAMA_MODELS", Slot.CACHE),
        Variable("OLLAMA_HOST", f"[{address}]:{port}" if ":" in address else f"{address}:{port}"),
        Variable("OLLAMA_KEEP_ALIVE", "-1"),  # who shares no pod need not make room
        Variable("OLLAMA_NUM_PARALLEL", str(draft.spec.parallel_slots)),
    ]
    draft.honour("spec.parallelSlots")
    _add_settings(draft)
    post_start = _load(draft)
    ask = Probes.http("/")
    loaded = Probe(command=("ollama", "show", draft.name), failure_threshold=180)
    return draft.finish(
        container_name="ollama",
        port=port,
        command=("ollama", "serve"),
        extra_args=False,  # `ollama serve` takes none
        probes=Probes(loaded, ask.liveness, ask.readiness),
        post_start=post_start,
        metrics_port_name="",
        model_id=draft.name,
    )


def _add_settings(draft: Draft) -> None:
    spec = draft.spec
    if spec.context_size is not None:
        draft.env.append(Variable("OLLAMA_CONTEXT_LENGTH", str(spec.context_size)))
        draft.honour("spec.contextSize")
    if spec.flash_attention is not None:
        draft.env.append(Variable("OLLAMA_FLASH_ATTENTION", "1" if spec.flash_attention else "0"))
        draft.honour("spec.flashAttention")
    if spec.cache_type_k in _CACHE_TYPES and spec.cache_type_k == spec.cache_type_v:  # it has one type for both
        draft.env.append(Variable("OLLAMA_KV_CACHE_TYPE", spec.cache_type_k or ""))
        draft.honour("spec.cacheTypeK", "spec.cacheTypeV")


def _load(draft: Draft) -> tuple[str, ...]:
    """Return what brings the model in; names are words of their own, never parts of the script."""
    repository = draft.repository("")  # it keeps what it pulls among its own models
    if repository is None:
        return ("/bin/sh", "-ec", _CREATE, draft.name, draft.weights())
    if repository.revision != DEFAULT_REVISION:
        raise PlanError(f"Ollama pulls {DEFAULT_REVISION} only, not {repository.revision}: leave spec.skipModelInit "
                        "out, and LLMKube fetches it", field=SOURCE)  # fmt: skip
    return ("/bin/sh", "-ec", _PULL, draft.name, f"hf.co/{repository.name}")


RUNTIME: Final = Runtime(name="ollama", plan=plan)
