"""What one router runs by, with every name resolved and every default filled in: the type that both sides share.

The controller compiles a ModelRouter to it and writes it to a ConfigMap; `llmkube up` compiles it in its own process;
`llmkube router -f` reads it, or a ModelRouter, from a file. Times are seconds, prices are US dollars per million
tokens. Data classes, capabilities, regions and header names are lower case. It holds no secret: a key is named by the
file in which it lies. In patterns of model names `*` is any text, also over slashes, `?` one character, all else
itself. A URL is local that can only name something in this network, whatever a ModelRouter says.
"""

import functools
import ipaddress
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final
from urllib.parse import urlsplit

import attrs

_FORBIDDEN: Final = re.compile(r"[\[\]{}\\\s]")


def matches_any(patterns: tuple[str, ...], model: str) -> bool:
    """Return whether a model's name fits one of the patterns."""
    return _matcher(patterns)(model)


def pattern_problem(pattern: str) -> str:
    """Return why a text is no pattern, or "" if it is one."""
    if not pattern:
        return "it is empty and fits no model; write * for every model"
    found = _FORBIDDEN.search(pattern)
    if found:
        return f"{found[0]!r} is no wildcard here; * stands for any text and ? for one character"
    return ""


def covers(pattern: str, other: str) -> bool:
    """Return whether each name that fits `other` fits `pattern` for certain; False says nothing."""
    return pattern in {"*", other} or ("*" not in other and "?" not in other and matches_any((pattern,), other))


@functools.lru_cache(maxsize=1024)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    compiled = re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns) or r"(?!)", re.DOTALL)
    return lambda model: compiled.fullmatch(model) is not None


def _regex(pattern: str) -> str:
    """A text between two `*` is looked for once, from the left, and never again: no name makes the search long."""
    first, *rest = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last


VERSION: Final = 1
"""Of the written form. A router refuses one that it does not know, and goes on with what it has."""


FIRST_BYTE_SECONDS: Final = 120.0
CIRCUIT_SECONDS: Final = 15.0


@attrs.frozen(kw_only=True, cache_hash=True)
class Prices:
    """What a million tokens cost.

    Attributes:
        prompt_usd: Of the prompt.
        completion_usd: Of the answer.
    """

    prompt_usd: Decimal
    completion_usd: Decimal


@attrs.frozen(kw_only=True)
class Probe:
    """How a backend's health is asked for.

    Attributes:
        path: What is asked, from the root of the backend's host.
        interval_seconds: Between two.
        timeout_seconds: Longest wait for an answer.
    """

    path: str
    interval_seconds: int
    timeout_seconds: int


@attrs.frozen(kw_only=True)
class Backend:
    """One destination of requests.

    Attributes:
        name: What rules call it.
        model_id: What clients call it.
        base_url: Where it answers, with the path that stands before `/chat/completions` (`https://…/v1`); "" while
            nothing is known of it, then nothing is sent.
        dialect: `openai` or `anthropic`: what it speaks.
        provider: Kind of the provider; "" of an InferenceService.
        model: The model id that it is asked for; "" passes on what the client asked for.
        local: Whether what is sent stays here. Only such a backend ever gets a sensitive class.
        region: Where the data goes; "" where that is not said.
        capabilities: Tags that rules and requests ask for.
        weight: Share under strategy weighted.
        model_digest: Stands for the weights of an engine of llama.cpp and for what changes its answers: backends with
            the same go on with each other's answers. "" is not known.
        slots: Requests that its engine serves at the same time; more wait in a fair queue. 0 is not known: no queue.
        splits_cache: Whether each slot of its engine has a part of the KV cache of its own, else all share it; None is
            not known.
        is_replicated: Whether several engines answer at its address, or as many as an autoscaler wants.
        first_byte_seconds: Longest wait for the first byte of an answer; None leaves it to rule and router.
        prices: None where none are given: a USD budget refuses the backend then.
        probe: None asks for no health.
        key_file: File with the key, read again when it changes; "" sends none.
        missing: Why it cannot be used, for people; "" when it can.
    """

    name: str
    model_id: str
    base_url: str
    local: bool
    dialect: str = "openai"
    provider: str = ""
    model: str = ""
    region: str = ""
    capabilities: frozenset[str] = frozenset()
    weight: int = 1
    model_digest: str = ""
    slots: int = 0
    splits_cache: bool | None = None
    is_replicated: bool = False
    first_byte_seconds: float | None = None
    prices: Prices | None = None
    probe: Probe | None = None
    key_file: str = ""
    missing: str = ""


@attrs.frozen(kw_only=True)
class Match:
    """Conditions that a request meets all of; an empty one is met.

    Attributes:
        classes: Data classes, of which the request has one.
        models: Patterns (`*`, also over slashes, and `?`), of which the request's model fits one.
        headers: Header names in lower case, and their values.
        capabilities: Tags that the chosen backend has, all of them.
        complexity: What the request declares.
        latency_seconds: A backend whose measured time to the first byte is above it is not chosen.
    """

    classes: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    capabilities: frozenset[str] = frozenset()
    complexity: str = ""
    latency_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Rule:
    """One rule; the first that matches decides.

    Attributes:
        name: What logs and metrics call it.
        match: Its conditions.
        backends: Names, best first.
        strategy: `primary-fallback`, `weighted`, `shadow` or `least-loaded`.
        fail_closed: Refuses with 503 when no backend of it can answer.
        first_byte_seconds: Longest wait for the first byte of an answer; wins over the backend's.
    """

    name: str
    match: Match
    backends: tuple[str, ...]
    strategy: str = "primary-fallback"
    fail_closed: bool = False
    first_byte_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Budget:
    """Most tokens or dollars in a rolling window.

    Attributes:
        name: Of the budget.
        scope: `router`, `rule` or `team`.
        rule: Of scope rule.
        team_header: Of scope team, where the request's team is not known by its key.
        max_tokens: None limits none.
        max_usd: None limits none.
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
    """A Redis or Valkey server that keeps the budgets of all processes of a router.

    Attributes:
        host: Its name or address.
        port: Its port.
        tls: Whether it is reached over TLS.
        database: Number of its database.
        username: "" is the server's default user.
        password_file: "" sends none.
    """

    host: str
    port: int
    tls: bool = False
    database: int = 0
    username: str = ""
    password_file: str = ""


@attrs.frozen(kw_only=True)
class Classes:
    """How the data class of a request is found.

    Attributes:
        header: Header with the class, or several with commas between.
        default: The class of a request that names none; "" leaves it without.
        sensitive: Those that stay local or are refused.
    """

    header: str = "x-llmkube-classification"
    default: str = ""
    sensitive: frozenset[str] = frozenset({"pii", "phi"})


@attrs.frozen(kw_only=True)
class Tokens:
    """How JSON web tokens of clients are checked.

    Attributes:
        provider: The issuer's name, for people.
        issuer: Whom they must name.
        team_claim: Claim with the team.
        audiences: Of these, they must name one.
        jwks_uri: Where the issuer's keys are fetched; "" if they are in a file.
        jwks_file: File with them, read again when it changes; "" if they are fetched.
        team_header: Header in which rules find the team, whatever a client has sent in it.
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
    """Who may ask, and for what.

    Attributes:
        keys_folder: Folder of files: the name of each is a team, each line a key; "" asks for no key.
        tokens: None takes no tokens.
        models_of_team: Patterns of the models that a team may use; none admits none. With one entry in it, a team
            without may use none.
    """

    keys_folder: str = ""
    tokens: Tokens | None = None
    models_of_team: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Audit:
    """Where decisions are written down.

    Attributes:
        sink: `stdout` or `file`.
        path: Of sink file.
        bodies: Whether requests are written down as a whole.
    """

    sink: str = "stdout"
    path: str = ""
    bodies: bool = False


@attrs.frozen(kw_only=True)
class RoutingConfig:
    """What one router runs by.

    Attributes:
        name: `NAMESPACE/NAME` of the ModelRouter.
        backends: By name, in the order of the ModelRouter.
        rules: The first that matches decides.
        default_backend: For requests that no rule matches; "" refuses them.
        by_model: Whether a request that no rule matches goes to the backend whose `model_id` it names, before
            `default_backend` is asked.
        classes: How data classes are found.
        budgets: Limits.
        budget_store: Keeps them for several processes; None where each process counts by itself.
        auth: Who may ask.
        audit: Where decisions are written down.
        first_byte_seconds: Where neither rule nor backend says.
        first_byte_extends: Whether engines of ours are waited for longer than that while they show that they compute.
        circuit_seconds: How long a backend that failed is left alone at first; the time doubles.
        capabilities: Tags that some backend has.
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
    capabilities: frozenset[str] = attrs.field(init=False, eq=False, repr=False)

    @capabilities.default
    def _tags_of_backends(self) -> frozenset[str]:
        return frozenset().union(*(backend.capabilities for backend in self.backends.values()))


_LOCAL_SUFFIXES: Final = (".svc", ".cluster.local", ".local", ".internal", ".home.arpa", ".localhost")
"""Names that no server of the Internet answers for: the cluster's, mDNS's, those that are set aside for networks."""

_LABEL: Final = re.compile(r"[a-z][a-z0-9-]*")
"""Begins with a letter: `0x08080808` is an address to a resolver, and no name."""


def is_local_url(url: str) -> bool:
    """Return whether the host is a private address, or a name that only a local name server knows."""
    host = (urlsplit(url).hostname or "").rstrip(".").lower()
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A name without a dot is completed with the cluster's own domains first
        return _LABEL.fullmatch(host) is not None or host.endswith(_LOCAL_SUFFIXES)
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in _PRIVATE)


_PRIVATE: Final = tuple(
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1/128", "fc00::/7")
)
"""RFC 1918, the range of carriers that tailnets use, loopback, and unique local addresses."""
