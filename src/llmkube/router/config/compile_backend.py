"""Compile a backend of a ModelRouter into one of a RoutingConfig. An unresolved backend is kept, but gets no requests.

A digest identifies everything that affects an engine's answers: llama.cpp engines with equal digests can continue each
other's answers.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import attrs

from llmkube.base import json_text
from llmkube.base.errors import UserError
from llmkube.base.units import parse_duration
from llmkube.k8s.crd import modelrouter as crd
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import wire_fields
from llmkube.k8s.wire.conditions import UP_TO_DATE, find_condition
from llmkube.router.config.routing_config import Adapter, Backend, Preset, Prices, Probe, ResolvedService, is_local_url
from llmkube.runtimes.arguments import flag_values, flags_in
from llmkube.runtimes.llama_fields import request_limit

_RUNTIMES: Final = frozenset({"llamacpp", "llama-server"})
_NO_PREFILL_FLAG: Final = "--no-prefill-assistant"

_ANSWER_FIELDS: Final = (
    *("rope_scaling", "cache_type_k", "cache_type_v", "cache_type_custom_k", "cache_type_custom_v"),
    *("metadata_overrides", "jinja", "reasoning_budget", "reasoning_budget_message"),
    *("presets", "adapters"),
)
"""Fields of a service that change its answers. Speed, memory and the size of the context do not."""

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
"""Flags of llama-server for placement, performance and observation; every other flag is part of the digest."""


def model_digest(spec: InferenceServiceSpec, model: Model | None) -> str:
    """Return a digest of the weights and of the settings that change answers; "" if unknown or not llama.cpp.

    Weights are identified by their SHA-256, or else by their Model: its uid, source, files and ETag.

    Args:
        spec: Spec of the service.
        model: The Model that it serves; None if it does not exist.
    """
    if model is None or spec.runtime not in _RUNTIMES or spec.command or spec.hosts is not None:
        return ""
    if _NO_PREFILL_FLAG in flag_values(spec.extra_args):
        return ""  # such an engine cannot continue a partial answer
    facts = [_weights(model), list(_settings(spec))]
    return f"sha256:{hashlib.sha256(json_text.dumps(facts)).hexdigest()}"


def _weights(model: Model) -> list[Any]:
    spec, status = model.spec, model.status
    sha256 = (status.sha256 or spec.sha256 or "").lower()
    if sha256:
        return [sha256, spec.mmproj]
    return [model.metadata.uid, spec.source, list(spec.files), spec.mmproj, status.source_etag]


def _settings(spec: InferenceServiceSpec) -> Iterator[list[str]]:
    for name in _ANSWER_FIELDS:
        if (value := getattr(spec, name)) not in (None, ()):
            yield [name, str(value)]
    for flag, text in sorted(flag_values(spec.extra_args).items()):
        if flag not in _PLACEMENT:
            yield [flag, text]
    for each in spec.env:
        if each.name.startswith("LLAMA_"):
            yield [each.name, str(each)]


_DECIMALS: Final = ("temperature", "top_p", "min_p")


def presets_of(service: InferenceService) -> tuple[Preset, ...]:
    """Return the settings of requests to a service, by their model id."""
    scales = {each.name: float(each.scale) for each in service.spec.adapters if each.name}
    found = [
        Preset(
            name="" if each.name == service.key.name else each.name,
            **{name: float(text) for name in _DECIMALS if (text := getattr(each, name)) is not None},
            top_k=each.top_k,
            max_tokens=each.max_tokens,
            thinking=each.thinking,
            system=each.system or "",
            adapters=tuple(Adapter(one.name, float(one.scale or scales.get(one.name, 1))) for one in each.adapters),
        )
        for each in service.spec.presets
    ]
    rest = sorted(scales.keys() - {each.name for each in service.spec.presets})
    return (*found, *(Preset(name=name, adapters=(Adapter(name, scales[name]),)) for name in rest))


def _loaded_adapters(service: InferenceService) -> tuple[Adapter, ...]:
    """Return the adapters of an engine; () while it may be one of another spec, whose adapters have other numbers."""
    newest = find_condition(service.status.conditions, UP_TO_DATE)
    if newest is None or newest.status != "True" or newest.observed_generation != service.metadata.generation:
        return ()
    return tuple(Adapter(each.name or "", float(each.scale)) for each in service.spec.adapters)


_SLOT_FLAGS: Final = frozenset({"-np", "--parallel"})
_SHARED_CACHE_FLAGS: Final = frozenset({"-kvu", "--kv-unified"})
_UNCLEAR_CACHE_FLAGS: Final = frozenset({"-no-kvu", "--no-kv-unified", "--kv-unified-per-slot"})


def is_replicated(spec: InferenceServiceSpec) -> bool:
    """Whether a service may have several engines behind its address: replicas, an autoscaler or a list of hosts."""
    return spec.replicas != 1 or spec.autoscaling is not None or spec.hosts is not None


def slots_of(spec: InferenceServiceSpec) -> int:
    """Return the slots of all replicas; 0 if unknown: another engine, a varying replica count, or a custom command."""
    if spec.runtime not in _RUNTIMES or spec.autoscaling is not None or spec.hosts is not None:
        return 0
    if spec.command or flags_in(spec.extra_args) & _SLOT_FLAGS:
        return 0
    return spec.parallel_slots * spec.replicas


def splits_cache(spec: InferenceServiceSpec) -> bool | None:
    """Return True if each slot has its own part of the KV cache, False if all share it, None if slots are unknown.

    llama.cpp's server divides the cache among its `--parallel` slots unless a flag makes them share it.
    """
    flags = flags_in(spec.extra_args)
    if not slots_of(spec) or flags & _UNCLEAR_CACHE_FLAGS:
        return None
    return not flags & _SHARED_CACHE_FLAGS


DEFAULT_URLS: Final[Mapping[str, str]] = {
    "anthropic": "https://api.anthropic.com/v1",
    "openai": "https://api.openai.com/v1",
}
"""Base URLs of the providers that need no `url`."""

SECRET_KEYS: Final[Mapping[str, str]] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "litellm": "LITELLM_MASTER_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "vertex_ai": "GOOGLE_OAUTH_ACCESS_TOKEN",
}
"""Key of the Secret entry that holds a provider's API key."""

_ENDPOINTS: Final = re.compile(r"/(chat/completions|completions|messages|responses|embeddings)$")
_BASE: Final = re.compile(r"(https?)://[^\s/?#@]+(/[^\s?#]*)?", re.IGNORECASE)
_SHORTEST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 1800.0
_PROBE_PATH: Final = "/health"


def resolved_service(
    service: InferenceService, weights: Model | None, *, base_url: str, model: str = "", key_file: str = ""
) -> ResolvedService:
    """Resolve a service from its spec; `weights` is the Model that it serves, None if it does not exist."""
    return ResolvedService(
        base_url=base_url,
        model=model,
        key_file=key_file,
        slots=slots_of(service.spec),
        splits_cache=splits_cache(service.spec),
        max_answer_tokens=0 if weights is None or service.spec.command else request_limit(service, weights),
        is_replicated=is_replicated(service.spec),
        presets=presets_of(service),
        adapters=_loaded_adapters(service),
        model_digest=model_digest(service.spec, weights),
    )


@attrs.frozen(kw_only=True)
class KeyFile:
    """A file in which the router expects one entry of a Secret.

    Attributes:
        path: The file, or the folder if `key` is "".
        secret: Name of the Secret, in the router's namespace.
        key: The entry; "" means all entries, with one file for each in the folder.
    """

    path: str
    secret: str
    key: str


def compile_backend(
    backend: crd.Backend, resolve: Callable[[str], ResolvedService | None], folder: str, problems: list[str]
) -> tuple[Backend, KeyFile | None]:
    """Return a compiled backend and the file of its key; None if it needs no key.

    Args:
        backend: The backend in the ModelRouter.
        resolve: Returns an InferenceService by name; None if it does not exist.
        folder: Folder of keys, with a file for each backend, so that backends of one provider can have different keys.
        problems: Problems are appended here, each with field, value and fix.
    """
    at = f"spec.backends[{backend.name}]"
    service = _resolve_provider(backend, at, problems) if backend.external else _resolve_service(backend, resolve)
    key = _key_file(backend, folder)
    cost = backend.cost_per_million_tokens
    has_prices = cost is not None and cost.prompt_usd is not None and cost.completion_usd is not None
    compiled = Backend(
        name=backend.name,
        model_id=backend.display_name or backend.name,
        local=backend.effective_tier == crd.LOCAL,
        dialect="anthropic" if backend.external and backend.external.provider == "anthropic" else "openai",
        provider=backend.external.provider if backend.external else "",
        region=(backend.region or "").strip().lower(),
        capabilities=frozenset(each.strip().lower() for each in backend.capabilities),
        weight=1 if backend.weight is None else backend.weight,
        first_byte_seconds=parse_seconds(backend.timeout, f"{at}.timeout", problems),
        prices=_prices(cost, f"{at}.costPerMillionTokens", problems) if has_prices and cost else None,
        probe=_probe(backend),
        **attrs.asdict(service if key is None else attrs.evolve(service, key_file=key.path), recurse=False),
    )
    return compiled, key


def parse_seconds(text: str | None, at: str, problems: list[str], *, longest: float = _LONGEST_WAIT) -> float | None:
    """Return a duration in seconds; None if it is unset or invalid."""
    if text is None:
        return None
    try:
        seconds = parse_duration(text, field=at)
    except UserError as exc:
        problems.append(str(exc))
        return None
    if not _SHORTEST_WAIT <= seconds <= longest:
        problems.append(f"{at}: {text!r} is out of range; write 100ms to {longest / 60:g}m")
        return None
    return seconds


def parse_decimal(text: str, at: str, problems: list[str]) -> Decimal:
    """Return an amount; if it is invalid, append a problem and return 0."""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text, re.ASCII):
        problems.append(f"{at}: {text!r} is not an amount; write a decimal number such as 2.50")
        return Decimal(0)
    return Decimal(text)


def _resolve_service(backend: crd.Backend, resolve: Callable[[str], ResolvedService | None]) -> ResolvedService:
    name = backend.inference_service_ref.name if backend.inference_service_ref else ""
    found = resolve(name) if name else None
    if found is None:
        return ResolvedService(
            missing=f"there is no InferenceService {name}" if name else "no InferenceService is named"
        )
    if not found.base_url and not found.missing:
        return attrs.evolve(found, missing=f"InferenceService {name} has no address yet")
    return found


def _resolve_provider(backend: crd.Backend, at: str, problems: list[str]) -> ResolvedService:
    external = backend.external
    assert external is not None
    url = external.url if external.url is not None else DEFAULT_URLS.get(external.provider, "")
    if not url:
        return ResolvedService(
            model=external.model, missing=f"provider {external.provider} has no default address, and url is not set"
        )
    base = url.rstrip("/")
    match = _BASE.fullmatch(base)
    if match is None:
        problems.append(
            f"{at}.external.url: {_redact_user(url)!r} is not a base URL; write http or https, host and path, without"
            " user, query and fragment"
        )
        return ResolvedService(model=external.model)
    if endpoint := _ENDPOINTS.search(base):
        problems.append(f"{at}.external.url: {url!r} is an endpoint, not a base URL; remove {endpoint[0]}")
    is_local = is_local_url(base)
    if backend.effective_tier == crd.LOCAL and not is_local:
        problems.append(
            f"{at}.tier: 'local', but {url} may be outside this network; write cloud, or give a private address or a"
            " cluster-internal name"
        )
    if match[1].lower() == "http" and not is_local:
        problems.append(f"{at}.external.url: {url!r} would send requests and the key unencrypted; write https")
    # /v1 is added only to a URL without a path, so that it is never doubled
    return ResolvedService(base_url=base if match[2] else f"{base}/v1", model=external.model)


def _redact_user(url: str) -> str:
    """Return a URL without user and password, so that no message repeats a password."""
    return re.sub(r"//[^/@\s]*@", "//…@", url)


def _key_file(backend: crd.Backend, folder: str) -> KeyFile | None:
    external = backend.external
    if external is None or external.credentials_secret_ref is None:
        return None
    path = f"{folder}/backends/{backend.name}"
    return KeyFile(path=path, secret=external.credentials_secret_ref.name, key=SECRET_KEYS.get(external.provider, ""))


def _prices(cost: crd.Cost, at: str, problems: list[str]) -> Prices:
    prices = ((slot.attribute, slot.key, getattr(cost, slot.attribute)) for slot in wire_fields(crd.Cost))
    return Prices(
        **{name: parse_decimal(text, f"{at}.{key}", problems) for name, key, text in prices if text is not None}
    )


def _probe(backend: crd.Backend) -> Probe | None:
    check = backend.health_check
    if check is None:
        return None
    return Probe(
        path=check.path or _PROBE_PATH, interval_seconds=check.interval_seconds, timeout_seconds=check.timeout_seconds
    )
