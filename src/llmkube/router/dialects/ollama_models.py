"""Lists of models in Ollama's format. Pure.

Ollama's clients require a digest. A router does not know the digest of a model's file: it is that of the name, which
makes it stable. Facts: https://github.com/ollama/ollama, docs/api.md, `server/routes.go` and `api/types.go`, 0.17.4.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs

VERSION: Final = "0.17.4"
"""Version of the implemented API; clients compare it with the version that they need."""

LIST_PATHS: Final = ("/api/tags", "/api/ps", "/api/version", "/api/show", "/api/pull")
POST_PATHS: Final = ("/api/show", "/api/pull")
MODEL_NAME: Final = "name"
"""Older name of the field `model`, which Ollama's clients still write."""

_DEFAULT_TAG: Final = ":latest"
_NEVER: Final = "9999-12-31T23:59:59Z"
"""Time at which a model is unloaded for lack of requests."""

_UNKNOWN: Final = "unknown"
"""Architecture of a model whose file the router cannot read; clients read the context below this name."""

_OTHER_USES: Final = frozenset({"embedding", "embeddings", "rerank", "reranking"})
_CAPABILITIES: Final[Mapping[str, str]] = {
    "tools": "tools",
    "vision": "vision",
    "thinking": "thinking",
    "embedding": "embedding",
    "embeddings": "embedding",
}
_UNITS: Final = ((1e9, "{:.1f}B"), (1e6, "{:.2f}M"), (1e3, "{:.0f}K"))


@attrs.frozen(kw_only=True)
class ModelFacts:
    """Facts about one model; "" or 0 if unknown.

    Attributes:
        mode: `chat`, `embedding` or `rerank`.
        architecture: Model architecture, as in the file's header.
        context: Tokens available to one request.
        quantization: Quantization of most tensors.
        parameters: Number of weights.
        embedding: Width of the embedding.
        size: Bytes of the weights.
        template: The chat template.
        abilities: Of `tools`, `vision` and `thinking`, those that the engine reports.
    """

    mode: str = ""
    architecture: str = ""
    context: int = 0
    quantization: str = ""
    parameters: int = 0
    embedding: int = 0
    size: int = 0
    template: str = ""
    abilities: frozenset[str] = frozenset()

    def with_meta(self, meta: Mapping[str, Any]) -> "ModelFacts":
        """Return the facts with those that llama.cpp's server lists for its model (`meta` in `/v1/models`)."""
        numbers = {"context": "n_ctx", "parameters": "n_params", "embedding": "n_embd", "size": "size"}
        found: dict[str, Any] = {name: meta[key] for name, key in numbers.items() if _is_positive(meta.get(key))}
        if isinstance(meta.get("ftype"), str):
            found["quantization"] = self.quantization or meta["ftype"]
        return attrs.evolve(self, **found)

    def with_props(self, props: Mapping[str, Any]) -> "ModelFacts":
        """Return the facts with the properties that llama.cpp's server reports (`/props`)."""
        template = props.get("chat_template")
        template = template if isinstance(template, str) else ""
        caps, inputs, settings = (
            found if isinstance(found := props.get(name), dict) else {}
            for name in ("chat_template_caps", "modalities", "default_generation_settings")
        )
        thinks = caps.get("supports_preserve_reasoning") or caps.get("supports_reasoning_effort")
        reported = {
            "tools": caps.get("supports_tools")
            or caps.get("supports_tool_calls")
            or (not caps and "tools" in template),
            "vision": inputs.get("vision"),
            "thinking": thinks or "enable_thinking" in template,
        }
        context = settings.get("n_ctx")
        return attrs.evolve(
            self,
            template=template or self.template,
            context=context if isinstance(context, int) and _is_positive(context) else self.context,
            abilities=self.abilities | {name for name, each in reported.items() if each},
        )


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and value > 0


def known_name(name: str, is_known: Callable[[str], bool]) -> str:
    """Return a model's id without Ollama's default tag, unless there is a model with that id."""
    short = name.removesuffix(_DEFAULT_TAG)
    return short if short != name and not is_known(name) and is_known(short) else name


def listed(models: Sequence[tuple[str, ModelFacts]], created: int) -> Mapping[str, Any]:
    """Return all models, for `/api/tags`.

    Args:
        models: Ids and facts.
        created: Unix time for `modified_at`.
    """
    since = time_of(created)
    return {"models": [_model(name, facts) | {"modified_at": since} for name, facts in models]}


def running(models: Sequence[tuple[str, ModelFacts]]) -> Mapping[str, Any]:
    """Return the models with a running engine, for `/api/ps`."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {"models": [_model(name, facts) | more | {"context_length": facts.context} for name, facts in models]}


def shown(name: str, tags: Collection[str], facts: ModelFacts, created: int) -> Mapping[str, Any]:
    """Return one model, for `/api/show`.

    Args:
        name: Model id; clients show `general.basename` as its name.
        tags: Capabilities, as in `Backend.capabilities`.
        facts: Its facts.
        created: Unix time for `modified_at`.
    """
    architecture = facts.architecture or _UNKNOWN
    numbers = {
        "general.parameter_count": facts.parameters,
        f"{architecture}.context_length": facts.context,
        f"{architecture}.embedding_length": facts.embedding,
    }
    info = {"general.architecture": architecture, "general.basename": name}
    capabilities = {_CAPABILITIES[each] for each in tags if each in _CAPABILITIES}
    if _OTHER_USES.isdisjoint(tags):
        capabilities |= {"completion", *facts.abilities}
    return {
        **dict.fromkeys(("license", "modelfile", "parameters"), ""),
        "template": facts.template,
        "details": _details(facts),
        "model_info": info | {key: value for key, value in numbers.items() if value},
        "capabilities": sorted(capabilities),
        "modified_at": time_of(created),
    }


def _model(name: str, facts: ModelFacts) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "model": name, "size": facts.size, "digest": digest, "details": _details(facts)}


def _details(facts: ModelFacts) -> Mapping[str, Any]:
    size = next((form.format(facts.parameters / unit) for unit, form in _UNITS if facts.parameters >= unit), "")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture] if facts.architecture else [],
        "parameter_size": size,
        "quantization_level": facts.quantization,
    }


def time_of(seconds: int) -> str:
    """Return a Unix time in Ollama's format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
