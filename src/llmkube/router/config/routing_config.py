"""The config of one router, with every name resolved and every default filled in.

The controller compiles it from a ModelRouter and writes it to a ConfigMap; `llmkube up` compiles it in its own process;
`llmkube router -f` reads it, or a ModelRouter, from a file.

* Times are in seconds, prices in US dollars per million tokens.
* Data classes, capabilities, regions and header names are lower case.
* The config holds no secrets, only the paths of key files.
* In patterns of model names `*` matches any text, including slashes, and `?` one character.
* A URL is local if its host can only be in this network, whatever the ModelRouter says.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Final
from urllib.parse import urlsplit

import attrs

_FORBIDDEN: Final = re.compile(r"[\[\]{}\\\s]")


def matches_any(patterns: tuple[str, ...], model: str) -> bool:
    """Return whether a model's name matches one of the patterns."""
    return _matcher(patterns)(model)


def pattern_problem(pattern: str) -> str:
    """Return why a pattern is invalid; "" if it is valid."""
    if not pattern:
        return "an empty pattern matches no model; write * for every model"
    found = _FORBIDDEN.search(pattern)
    if found:
        return f"{found[0]!r} is not allowed in a pattern; use * for any text and ? for one character"
    return ""


def covers(pattern: str, other: str) -> bool:
    """Return True if every name that matches `other` certainly matches `pattern`; False is inconclusive."""
    return pattern in {"*", other} or ("*" not in other and "?" not in other and matches_any((pattern,), other))


@lru_cache(maxsize=1024)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    compiled = re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns) or r"(?!)", re.DOTALL)
    return lambda model: compiled.fullmatch(model) is not None


def _regex(pattern: str) -> str:
    # Atomic groups: a part between two `*` is searched for once, from the left, so no name can cause backtracking.
    first, *rest = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last


VERSION: Final = 1
"""Version of the JSON format. A router rejects a version that it does not know, and retains its current config."""

UNWRITTEN: Final = {"unwritten": True}
"""Metadata of attributes that are not part of the JSON: they are known only while a program runs."""

FIRST_BYTE_SECONDS: Final = 120.0
CIRCUIT_SECONDS: Final = 15.0


@attrs.frozen(kw_only=True)
class Prices:
    """Prices of a million tokens.

    Attributes:
        prompt_usd: Price of prompt tokens.
        completion_usd: Price of answer tokens.
        cache_read_usd: Price of prompt tokens read from the backend's cache; None applies `prompt_usd`.
        cache_write5m_usd: Price of prompt tokens written to it for 5 minutes; None applies `prompt_usd`.
        cache_write1h_usd: Price of prompt tokens written to it for 1 hour; None applies that for 5 minutes.
    """

    prompt_usd: Decimal
    completion_usd: Decimal
    cache_read_usd: Decimal | None = None
    cache_write5m_usd: Decimal | None = None
    cache_write1h_usd: Decimal | None = None

    @cached_property
    def rates(self) -> tuple[Decimal, Decimal, Decimal, Decimal, Decimal]:
        """Prices of prompt, answer, cache reads, and cache writes for 5 minutes and for 1 hour, with their defaults."""
        read, short, long = self.cache_read_usd, self.cache_write5m_usd, self.cache_write1h_usd
        short = self.prompt_usd if short is None else short
        read = self.prompt_usd if read is None else read
        return self.prompt_usd, self.completion_usd, read, short, short if long is None else long

    @cached_property
    def integers(self) -> tuple[tuple[int, ...], int]:
        """Integer prices of a token of each kind, and the divisor that makes them billionths of a dollar."""
        rates = [Fraction(each) * 1000 for each in self.rates]
        parts = math.lcm(*(each.denominator for each in rates))
        return tuple(int(each * parts) for each in rates), parts


_ANTHROPIC_WRITES: Final = {"cache_write5m_usd": Decimal("1.25"), "cache_write1h_usd": Decimal(2)}
"""Anthropic's prices of cache writes, as factors of the prompt's.

From https://platform.claude.com/docs/en/about-claude/pricing.
"""


def _anthropic_prices(prices: Prices) -> Prices:
    unset = {name: each for name, each in _ANTHROPIC_WRITES.items() if getattr(prices, name) is None}
    return attrs.evolve(prices, **{name: prices.prompt_usd * factor for name, factor in unset.items()})


@attrs.frozen(kw_only=True)
class Probe:
    """A health check of a backend; the path starts at the root of the backend's host."""

    path: str
    interval_seconds: int
    timeout_seconds: int


@attrs.frozen
class Adapter:
    """A LoRA adapter of an engine.

    Attributes:
        name: "" for one that applies to every request.
        scale: Factor of its effect.
    """

    name: str
    scale: float


@attrs.frozen(kw_only=True)
class Preset:
    """Settings of the requests under one model id of a service; None and "" leave them to clients and the engine.

    Attributes:
        name: Model id; "" for the service's own name and its aliases.
        temperature: Sampling temperature.
        top_p: Sum of the probabilities of the tokens to sample from.
        top_k: Number of tokens to sample from.
        min_p: Least probability of a token, relative to the likeliest.
        max_tokens: Maximum tokens of one answer.
        thinking: Whether the model reasons before it answers.
        system: System text of chats that have none.
        adapters: Adapters with a name that apply.
    """

    name: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    thinking: bool | None = None
    system: str = ""
    adapters: tuple[Adapter, ...] = ()


def preset_in(presets: tuple[Preset, ...], model: str) -> Preset | None:
    """Return the settings of requests under a model id; None if there are none."""
    by_name = {each.name: each for each in presets}
    return by_name.get(model, by_name.get(""))


@attrs.frozen(kw_only=True)
class ResolvedService:
    """Address and engine of an InferenceService or a provider.

    Attributes:
        base_url: The URL up to `/chat/completions` (`https://…/v1`); "" while it is unknown: the backend then gets no
            requests.
        model: The model id sent to the backend; "" passes on the client's.
        key_file: File with the key, read again when it changes; "" sends no key.
        missing: Why the backend cannot be used, for people; "" if it can.
        model_digest: Digest of a llama.cpp engine's weights and of the settings that change its answers: backends with
            equal digests can continue each other's answers. "" if unknown.
        slots: Requests that the engine serves at the same time; further ones wait in a fair queue. 0 if unknown: then
            there is no queue.
        splits_cache: True if each slot has its own part of the KV cache, False if all share it, None if unknown.
        max_answer_tokens: Longest answer that a request may ask for; 0 if the engine itself bounds it.
        is_replicated: Whether several engines, or an autoscaled number of them, share the address.
        presets: Settings of requests, by their model id.
        adapters: Adapters that its engine has, in order.
    """

    base_url: str = ""
    model: str = ""
    key_file: str = ""
    missing: str = ""
    model_digest: str = ""
    slots: int = 0
    splits_cache: bool | None = None
    max_answer_tokens: int = 0
    is_replicated: bool = False
    presets: tuple[Preset, ...] = ()
    adapters: tuple[Adapter, ...] = ()


@attrs.frozen(kw_only=True)
class Backend(ResolvedService):
    """A destination of requests.

    Attributes:
        name: The name that rules use.
        model_id: The model name that clients use.
        dialect: `openai` or `anthropic`.
        provider: Kind of the provider; "" for an InferenceService.
        engine: Its name in a directory of engines, if that is not `model`.
        local: Whether requests stay in this network. Only a local backend ever gets a sensitive class.
        region: Region in which the data is processed; "" if not stated.
        capabilities: Tags that rules and requests require.
        weight: Share under strategy weighted.
        first_byte_seconds: Longest wait for the first byte of an answer; None applies the rule's or the router's.
        prices: None if not set: a USD budget then refuses the backend.
        probe: None disables health checks.
    """

    name: str
    model_id: str
    base_url: str
    local: bool
    dialect: str = "openai"
    provider: str = ""
    engine: str = attrs.field(default="", metadata=UNWRITTEN)
    region: str = ""
    capabilities: frozenset[str] = frozenset()
    weight: int = 1
    first_byte_seconds: float | None = None
    prices: Prices | None = None
    probe: Probe | None = None

    @property
    def directory_id(self) -> str:
        """Its name in a directory of engines."""
        return self.engine or self.model

    @property
    def is_llama_cpp(self) -> bool:
        """Whether it is certainly llama.cpp's server: only its slots and settings are known."""
        return bool(self.slots or self.model_digest)

    @cached_property
    def charged_prices(self) -> Prices | None:
        """Prices, with the provider's own for cache writes if they are not set."""
        return self.prices if self.prices is None or self.dialect != "anthropic" else _anthropic_prices(self.prices)


@attrs.frozen(kw_only=True)
class Match:
    """Conditions of a rule: a request must meet all of them, and an empty one is always met.

    Attributes:
        classes: Data classes; the request has one of them.
        models: Patterns; the request's model matches one of them.
        headers: Header names in lower case, and their values.
        capabilities: Tags; the chosen backend has all of them.
        complexity: The complexity that the request declares.
        latency_seconds: Backends whose measured time to the first byte exceeds this are not chosen.
    """

    classes: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    capabilities: frozenset[str] = frozenset()
    complexity: str = ""
    latency_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Rule:
    """A routing rule; the first rule that matches a request applies.

    Attributes:
        name: The name in logs and metrics.
        match: Its conditions.
        backends: Names, best first.
        strategy: `primary-fallback`, `weighted`, `shadow` or `least-loaded`.
        fail_closed: Whether requests are refused with 503 if none of the rule's backends can answer.
        first_byte_seconds: Longest wait for the first byte of an answer; overrides the backend's.
    """

    name: str
    match: Match
    backends: tuple[str, ...]
    strategy: str = "primary-fallback"
    fail_closed: bool = False
    first_byte_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Budget:
    """A limit on tokens or dollars in a rolling window.

    Attributes:
        name: Name of the budget.
        scope: `router`, `rule` or `team`.
        rule: Name of the rule under scope rule.
        team_header: Header with the team under scope team, for requests whose key or token does not determine it.
        max_tokens: None means no limit.
        max_usd: None means no limit.
        window_seconds: Length of the window.
    """

    name: str
    scope: str
    window_seconds: int
    rule: str = ""
    team_header: str = "x-llmkube-team"
    max_tokens: int | None = None
    max_usd: Decimal | None = None


@attrs.frozen(kw_only=True)
class RedisStore:
    """A Redis or Valkey server that stores the budgets of all processes of a router.

    Attributes:
        host: Name or address.
        port: TCP port.
        tls: Whether to connect over TLS.
        database: Number of the database.
        username: "" means the server's default user.
        password_file: "" sends no password.
    """

    host: str
    port: int
    tls: bool = False
    database: int = 0
    username: str = ""
    password_file: str = ""


@attrs.frozen(kw_only=True)
class Classes:
    """The determination of a request's data classes.

    Attributes:
        header: Header with one class, or several separated by commas.
        default: Class of a request that names none; "" leaves it without a class.
        sensitive: Classes whose requests stay local or are refused.
    """

    header: str = "x-llmkube-classification"
    default: str = ""
    sensitive: frozenset[str] = frozenset({"pii", "phi"})


@attrs.frozen(kw_only=True)
class Tokens:
    """Requirements for clients' JSON Web Tokens.

    Attributes:
        provider: The issuer's name, for people.
        issuer: Required value of `iss`.
        team_claim: Claim with the team.
        audiences: Accepted audiences; a token must name one of them.
        jwks_uri: Address of the issuer's keys; "" if they are in a file.
        jwks_file: File with the keys, read again when it changes; "" if they are fetched.
        team_header: Header in which rules find the team; overwrites what the client sent in it.
    """

    provider: str
    issuer: str
    team_claim: str
    audiences: tuple[str, ...] = ()
    jwks_uri: str = ""
    jwks_file: str = ""
    team_header: str = "x-llmkube-team"


@attrs.frozen(kw_only=True)
class Auth:
    """Authentication and authorization of clients.

    Attributes:
        keys_folder: Folder with a file for each team; each line is a key. "" accepts no keys.
        tokens: None accepts no tokens.
        models_of_team: Patterns of the models that each team may use; an empty list allows no model. Unless the whole
            mapping is empty, a team without an entry may use no model.
        shares_caches: Whether engines may reuse the prompts of one tenant for another.
    """

    keys_folder: str = ""
    tokens: Tokens | None = None
    models_of_team: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    shares_caches: bool = False


@attrs.frozen(kw_only=True)
class Audit:
    """The audit log of routing decisions.

    Attributes:
        sink: `stdout` or `file`.
        path: The log file, if `sink` is `file`.
        bodies: Whether to log whole request bodies.
    """

    sink: str = "stdout"
    path: str = ""
    bodies: bool = False


@attrs.frozen(kw_only=True)
class RoutingConfig:
    """The config of one router.

    Attributes:
        name: `NAMESPACE/NAME` of the ModelRouter.
        backends: By name, in the order of the ModelRouter.
        rules: The first rule that matches a request applies.
        default_backend: Backend of requests that no rule matches; "" refuses them.
        by_model: Whether a request that no rule matches goes to the backend whose `model_id` it names, in preference to
            the default backend.
        classes: Determination of data classes.
        budgets: Limits on tokens and dollars.
        budget_store: Server that stores the budgets of several processes; None if each process has its own.
        auth: Authentication and authorization.
        audit: The audit log.
        first_byte_seconds: Longest wait for the first byte of an answer if neither rule nor backend sets one.
        first_byte_extends: Whether the router waits longer than that for engines of InferenceServices while they show
            progress.
        circuit_seconds: Time without requests after a backend's first failure; it doubles with each further one.
        engines: For a backend that several engines serve, the backends that are one engine each and get its requests.
        ids: Backends of requests that no rule matches, by model id; None if only rules and the default backend route.
        ambiguous: Model ids that several services have, and the ids to use instead.
        hosts: Model ids by the names of the Services whose endpoints the router is, without a domain.
        capabilities: Tags that at least one backend has.
    """

    name: str
    backends: Mapping[str, Backend]
    rules: tuple[Rule, ...] = ()
    default_backend: str = ""
    by_model: bool = False
    classes: Classes = Classes()
    budgets: tuple[Budget, ...] = ()
    budget_store: RedisStore | None = None
    auth: Auth = Auth()
    audit: Audit = Audit()
    first_byte_seconds: float = FIRST_BYTE_SECONDS
    first_byte_extends: bool = False
    circuit_seconds: float = CIRCUIT_SECONDS
    engines: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, metadata=UNWRITTEN)
    ids: Mapping[str, str] | None = attrs.field(default=None, metadata=UNWRITTEN)
    ambiguous: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, metadata=UNWRITTEN)
    hosts: Mapping[str, str] = attrs.field(factory=dict, metadata=UNWRITTEN)
    capabilities: frozenset[str] = attrs.field(init=False, eq=False, repr=False)

    def candidates(self, model: str) -> Iterable[Backend]:
        """Return the backends that a request for a model may reach: with `ids` there may be many others."""
        if self.ids is None:
            return self.backends.values()
        names = {self.backend_named(model): None, self.default_backend: None, **self._in_rules}
        parts = (part for name in names for part in (name, *self.engines.get(name, ())))
        return [self.backends[part] for part in parts if part]

    def backend_named(self, model: str) -> str:
        """Return the backend to which a model's name leads without a rule; "" for none."""
        if self.ids is not None and model in self.ids:
            return self.ids[model]
        if not (model and self.by_model):
            return ""
        preset = (one.name for one in self.backends.values() if any(each.name == model for each in one.presets))
        return next((one.name for one in self.backends.values() if one.model_id == model), next(preset, ""))

    def model_at(self, host: str) -> str:
        """Return the model of a Service by a `Host` header; "" if the router is not the endpoints of that Service."""
        service, *domain = host.partition(":")[0].lower().split(".", 2)
        is_in_cluster = not domain[1:] or domain[1].split(".")[0] == "svc"
        return self.hosts.get(".".join((service, *domain[:1])), "") if is_in_cluster else ""

    @cached_property
    def _in_rules(self) -> Mapping[str, None]:
        return {name: None for rule in self.rules for name in rule.backends}

    @cached_property
    def ids_of(self) -> Mapping[str, tuple[str, ...]]:
        """Model ids of each backend in `ids`, and of its engines."""
        found: dict[str, tuple[str, ...]] = {}
        for model_id, name in (self.ids or {}).items():
            found[name] = (*found.get(name, ()), model_id)
        return found | {part: found.get(name, ()) for name, parts in self.engines.items() for part in parts}

    @capabilities.default
    def _tags_of_backends(self) -> frozenset[str]:
        return frozenset().union(*(backend.capabilities for backend in self.backends.values()))


_LOCAL_SUFFIXES: Final = (".svc", ".cluster.local", ".local", ".internal", ".home.arpa", ".localhost")
"""Suffixes that do not exist in public DNS: the cluster's, those of mDNS, and those reserved for private networks."""

_LABEL: Final = re.compile(r"[a-z][a-z0-9-]*")
"""Starts with a letter: a resolver takes `0x08080808` as an address, not as a name."""


def is_local_url(url: str) -> bool:
    """Return whether the host is a private address, or a name that only a local name server can resolve."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A resolver first tries a name without a dot in the cluster's search domains
        return _LABEL.fullmatch(host) is not None or host.endswith(_LOCAL_SUFFIXES)
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in _PRIVATE)


_PRIVATE: Final = tuple(
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1/128", "fc00::/7")
)
"""RFC 1918, the carrier-grade NAT range that tailnets use, loopback, and unique local addresses."""
