"""Ollama in a pod: its server starts without a model, which is added once it runs.

Facts: the variables of `ollama serve --help` and the Modelfile's reference, 0.24; `types/model/name.go` and
`envconfig/config_test.go` of https://github.com/ollama/ollama.
"""

import re
from typing import Final

from llmkube.runtimes.container.builder import KEYS_FIELD, LOOPBACK, SOURCE, ContainerBuilder, Runtime
from llmkube.runtimes.container.container_plan import LOAD_SECONDS, ContainerPlan, Probe, Probes, Variable
from llmkube.runtimes.plan import Placeholder, PlanError
from llmkube.weights.source import DEFAULT_REVISION

PORT: Final = 11434
_HOST: Final = "OLLAMA_HOST"

_PART: Final = r"\w[\w.-]{0,79}"
_NAME: Final = re.compile(rf"(?:(?:\w[\w.:-]{{0,349}}/)?\w[\w-]{{0,79}}/)?{_PART}(?::{_PART})?", re.ASCII)
"""HOST/NAMESPACE/MODEL:TAG, of which only the model is required."""

_WAIT: Final = "until ollama list >/dev/null 2>&1; do sleep 1; done"
_NAMES: Final = 'shift; for name; do ollama cp "$0" "$name"; done'
_CREATE: Final = (
    f'{_WAIT}; file="$HOME/$0.Modelfile"; printf "FROM %s\\n" "$1" >"$file"; ollama create "$0" -f "$file"; {_NAMES}'
)
_PULL: Final = f'{_WAIT}; ollama pull "$1"; ollama cp "$1" "$0"; {_NAMES}'
_CACHE_TYPES: Final = frozenset({"f16", "q8_0", "q4_0"})


def plan(builder: ContainerBuilder) -> ContainerPlan:
    """Return the container; its startup is complete when the model has all of its names."""
    names = builder.names()
    _check_names(names)
    port = builder.port(PORT)
    builder.env += [
        Variable("HOME", Placeholder.CACHE),
        Variable("OLLAMA_MODELS", Placeholder.CACHE),
        Variable(_HOST, _listener(builder, port)),
        Variable("OLLAMA_KEEP_ALIVE", "-1"),  # one model per pod: it need not be unloaded for another
        Variable("OLLAMA_NUM_PARALLEL", str(builder.spec.parallel_slots)),
    ]
    builder.honour("spec.parallelSlots")
    _add_settings(builder)
    post_start = _load_command(builder, names)
    probes = Probes.http("/")
    loaded = Probe(command=("ollama", "show", names[-1]), patience_seconds=LOAD_SECONDS)
    return builder.finish(
        container_name="ollama",
        port=port,
        command=("ollama", "serve"),
        extra_args=False,  # `ollama serve` takes none
        probes=Probes(loaded, probes.liveness, probes.readiness),
        post_start=post_start,
        metrics_port_name="",
        model_id=builder.name,
    )


def _listener(builder: ContainerBuilder, port: int) -> str:
    loopback_port = builder.behind_keys(port)
    if loopback_port is not None:
        if any(each.name == _HOST for each in builder.spec.env):
            raise PlanError(f"{_HOST} is controlled by {KEYS_FIELD}; remove one of the two", field="spec.env")
        return f"{LOOPBACK}:{loopback_port}"
    # without an address it listens on all addresses, IPv4 and IPv6, and its own client connects to one of them
    address = builder.spec.bind_address or ""
    builder.honour("spec.bindAddress")
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _check_names(names: tuple[str, ...]) -> None:
    """Reject invalid names for a model; Ollama answers 404 to any name that it does not have."""
    for name, field in zip(names, ("metadata.name", "spec.endpoint.gateway.modelName"), strict=False):
        if not _NAME.fullmatch(name):
            advice = "write [[HOST/]NAMESPACE/]MODEL[:TAG], each of at most 80 characters"
            raise PlanError(f'"{name[:100]}" is not a model name of Ollama; {advice}', field=field)


def _add_settings(builder: ContainerBuilder) -> None:
    spec = builder.spec
    if spec.context_size is not None:
        builder.env.append(Variable("OLLAMA_CONTEXT_LENGTH", str(spec.context_size)))
        builder.honour("spec.contextSize")
    if spec.flash_attention is not None:
        builder.env.append(Variable("OLLAMA_FLASH_ATTENTION", "1" if spec.flash_attention else "0"))
        builder.honour("spec.flashAttention")
    if spec.cache_type_k in _CACHE_TYPES and spec.cache_type_k == spec.cache_type_v:  # it has one type for both
        builder.env.append(Variable("OLLAMA_KV_CACHE_TYPE", spec.cache_type_k or ""))
        builder.honour("spec.cacheTypeK", "spec.cacheTypeV")


def _load_command(builder: ContainerBuilder, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that adds the model; names are separate arguments, never parts of the script."""
    first, *more = names
    repository = builder.repository("")  # no variable for the cache: Ollama pulls into its own folder
    if repository is None:
        return ("/bin/sh", "-ec", _CREATE, first, builder.weights(), *more)
    if repository.revision != DEFAULT_REVISION:
        advice = "remove spec.skipModelInit to let LLMKube fetch it"
        raise PlanError(f"Ollama pulls only {DEFAULT_REVISION}, not {repository.revision}; {advice}", field=SOURCE)
    return ("/bin/sh", "-ec", _PULL, first, f"hf.co/{repository.name}", *more)


_IMAGE: Final = "ollama/ollama:0.24.0"
RUNTIME: Final = Runtime(name="ollama", plan=plan, images={"": _IMAGE, "cuda": _IMAGE, "rocm": f"{_IMAGE}-rocm"})
