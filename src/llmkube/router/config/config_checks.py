"""Validate a RoutingConfig, compiled or handwritten: the router repeats the controller's checks.

A config comes from a ConfigMap that others may edit, or from a file that a user wrote. Valid settings that are
probably unintended are warnings; none of them can leak data.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Final

from llmkube.router.config.data_classes import classes_in, normalized_class
from llmkube.router.config.routing_config import (
    Backend,
    Classes,
    Match,
    Probe,
    RoutingConfig,
    Rule,
    Tokens,
    covers,
    is_local_url,
    pattern_problem,
)
from llmkube.weights.urls import parse_url

STRATEGIES: Final = ("primary-fallback", "weighted", "shadow", "least-loaded")
DIALECTS: Final = ("openai", "anthropic")
SINKS: Final = ("stdout", "file")
SCOPES: Final = ("router", "rule", "team")

_MAX_EXACT: Final = 2**53
"""Scripts of a Redis server compute in doubles, and dollars are counted in billionths."""

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]+")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, 5.1; request heads are read in lower case
_HEADER: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_CREDENTIAL_HEADERS: Final = ("authorization", "x-api-key")
_JWKS_URL: Final = re.compile(r"https?://[^\s/?#@\\]+(/[!-\"$-~]*)?", re.ASCII)
_PATH: Final = re.compile(r"/[!-~]*")
_URL: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


def config_problems(config: RoutingConfig, *, needs_backends: bool = True) -> list[str]:
    """Return the errors of a config, each with field, value and fix; none if it is valid."""
    return [*_check_backends(config, needs_backends), *_check_rules(config), *_check_policy(config)]


def _check_backends(config: RoutingConfig, needs_backends: bool) -> Iterator[str]:
    if not config.backends and needs_backends:
        yield "backends: empty; add one"
    for name, backend in config.backends.items():
        at = f"backends[{name}]"
        if name != backend.name or not _NAME.fullmatch(name):
            yield f"{at}.name: {backend.name!r} must equal its key, in lower-case letters, digits and hyphens"
        if not backend.model_id:
            yield f"{at}.modelId: empty; write the model name that clients use"
        if backend.dialect not in DIALECTS:
            yield f"{at}.dialect: {backend.dialect!r} is unknown; write one of {', '.join(DIALECTS)}"
        yield from _check_address(backend, at)
        if backend.weight < 0:
            yield f"{at}.weight: {backend.weight} is negative; write 0 for no share"
        if backend.slots < 0:
            yield f"{at}.slots: {backend.slots} is negative; write 0 for no queue"
        yield from _check_time(backend.first_byte_seconds, f"{at}.firstByteSeconds")
        yield from _check_lower_case(backend.capabilities, f"{at}.capabilities")
        yield from _check_lower_case((backend.region,), f"{at}.region")
        yield from _check_amounts(backend, at)
        if backend.probe is not None:
            yield from _check_probe(backend.probe, f"{at}.probe")


def _check_amounts(backend: Backend, at: str) -> Iterator[str]:
    if backend.max_answer_tokens < 0:
        yield f"{at}.maxAnswerTokens: {backend.max_answer_tokens} is negative; write 0 for no limit"
    if backend.prices is not None and min(backend.prices.rates) < 0:
        yield f"{at}.prices: a price is negative; write 0 if it costs nothing"


def _check_probe(probe: Probe, at: str) -> Iterator[str]:
    if probe.interval_seconds < 1 or probe.timeout_seconds < 1:
        yield f"{at}: interval or timeout is below 1 second; write at least 1"
    if not _PATH.fullmatch(probe.path):
        yield f"{at}.path: {probe.path!r} is not a path from the host's root; write one such as /health"


def _check_address(backend: Backend, at: str) -> Iterator[str]:
    url = backend.base_url
    if not url:
        if not backend.missing:
            yield f"{at}.baseUrl: empty; set it, or state in {at}.missing why there is none"
        return
    if not _URL.fullmatch(url):
        yield f"{at}.baseUrl: not a base URL; write http or https, host and path, without user, query and fragment"
    elif backend.local and backend.provider and not is_local_url(url):
        yield f"{at}.local: true, but {url} may be outside this network; write false"


def _check_rules(config: RoutingConfig) -> Iterator[str]:
    names: set[str] = set()
    for index, rule in enumerate(config.rules):
        at = f"rules[{index}]"
        if not _NAME.fullmatch(rule.name):
            yield f"{at}.name: {rule.name!r} must consist of lower-case letters, digits and hyphens"
        if rule.name in names:
            yield f"{at}.name: {rule.name!r} is already the name of another rule; give each its own"
        names.add(rule.name)
        yield from _check_route(config, rule, at)
        yield from _check_match(rule, at)
        yield from _check_time(rule.first_byte_seconds, f"{at}.firstByteSeconds")
    yield from _check_default_route(config)


def _check_default_route(config: RoutingConfig) -> Iterator[str]:
    if config.default_backend and config.default_backend not in config.backends:
        yield f"defaultBackend: {config.default_backend!r} is not a backend; name one of {', '.join(config.backends)}"
    default, unlabelled = config.backends.get(config.default_backend), classes_in(config.classes.default)
    is_sensitive, caught = unlabelled & config.classes.sensitive, unlabelled & caught_classes(config)
    if default and not default.local and is_sensitive and not caught:
        yield (
            f"defaultBackend: {default.name!r} is not local, but requests that name no class are of class"
            f" {', '.join(sorted(is_sensitive))},"
            " which must stay local; name a local backend, or add a rule for that class"
        )
    if config.by_model:
        yield from (f"{shared}; give each its own" for shared in _shared_model_ids(config))


def caught_classes(config: RoutingConfig) -> frozenset[str]:
    """Return the classes whose every request matches some rule."""
    met = (rule.match.classes for rule in config.rules if rule.match == Match(classes=rule.match.classes))
    return frozenset().union(*met)


def _check_route(config: RoutingConfig, rule: Rule, at: str) -> Iterator[str]:
    if rule.strategy not in STRATEGIES:
        yield f"{at}.strategy: {rule.strategy!r} is unknown; write one of {', '.join(STRATEGIES)}"
    if not rule.backends:
        yield f"{at}.backends: empty; name one of {', '.join(config.backends)}"
    if rule.strategy == "shadow" and len(rule.backends) < 2:
        yield f"{at}.strategy: 'shadow' needs a backend to try out; name a second one"
    weights = [config.backends[name].weight for name in rule.backends if name in config.backends]
    if rule.strategy == "weighted" and not any(weights):
        yield f"{at}.strategy: 'weighted', but no backend has a weight above 0; set one"
    yield from _check_sensitive(config, rule, at)
    for index, name in enumerate(rule.backends):
        if name not in config.backends:
            yield f"{at}.backends[{index}]: {name!r} is not a backend; name one of {', '.join(config.backends)}"
        elif name in rule.backends[:index]:
            yield f"{at}.backends[{index}]: {name!r} is repeated; name each once"


def _check_sensitive(config: RoutingConfig, rule: Rule, at: str) -> Iterator[str]:
    sensitive = ", ".join(sorted(rule.match.classes & config.classes.sensitive))
    if not sensitive:
        return
    if not rule.fail_closed:
        yield f"{at}.failClosed: false, but the rule is for {sensitive}; write true"
    cloud = [name for name in rule.backends if name in config.backends and not config.backends[name].local]
    if cloud:
        yield f"{at}.backends: {', '.join(cloud)} not local, but the rule is for {sensitive}; name only local backends"


def _check_match(rule: Rule, at: str) -> Iterator[str]:
    match = rule.match
    yield from _check_class_names(match.classes, f"{at}.match.classes")
    yield from _check_lower_case(match.capabilities, f"{at}.match.capabilities")
    for name in match.headers:
        yield from _check_header_name(name, f"{at}.match.headers")
    yield from _check_lower_case((match.complexity,), f"{at}.match.complexity")
    yield from _check_time(match.latency_seconds, f"{at}.match.latencySeconds")
    for pattern in match.models:
        if problem := pattern_problem(pattern):
            yield f"{at}.match.models: {pattern!r}: {problem}"


def _check_policy(config: RoutingConfig) -> Iterator[str]:
    classes = config.classes
    yield from _check_header_name(classes.header, "classes.header")
    yield from _check_lower_case((classes.default,), "classes.default")
    yield from _check_class_names(classes.sensitive, "classes.sensitive")
    if not classes.sensitive:
        yield "classes.sensitive: empty; name the classes that must stay local"
    if config.audit.sink not in SINKS:
        yield f"audit.sink: {config.audit.sink!r} is unknown; write one of {', '.join(SINKS)}"
    if (config.audit.sink == "file") != bool(config.audit.path):
        rule = "sink 'file' requires a path, other sinks have none"
        yield f"audit.path: {config.audit.path!r} does not fit sink {config.audit.sink!r}; {rule}"
    if config.auth.tokens is not None:
        yield from _check_tokens(config.auth.tokens, config.classes)
    yield from _check_time(config.first_byte_seconds, "firstByteSeconds")
    yield from _check_time(config.circuit_seconds, "circuitSeconds")
    if config.auth.models_of_team and not (config.auth.tokens or config.auth.keys_folder):
        yield "auth.modelsOfTeam: the team of a request cannot be determined; set tokens or keysFolder"
    for team, patterns in config.auth.models_of_team.items():
        for pattern in patterns:
            if problem := pattern_problem(pattern):
                yield f"auth.modelsOfTeam[{team}]: {pattern!r}: {problem}"
    yield from _check_budgets(config)
    yield from _check_store(config)


def _check_store(config: RoutingConfig) -> Iterator[str]:
    store = config.budget_store
    if store is None:
        return
    if not _HOST.fullmatch(store.host):
        yield f"budgetStore.host: {store.host!r} is not a host; write a name or an address, such as redis.cache.svc"
    if not 0 < store.port < 65536:
        yield f"budgetStore.port: {store.port} is not a port; write 1 to 65535, such as 6379"
    if store.database < 0:
        yield f"budgetStore.database: {store.database} is negative; write 0 or more"
    if not config.budgets:
        yield "budgetStore: there is no budget to store; add one, or remove the store"
    for budget in config.budgets:
        at = f"budgets[{budget.name}]"
        limits = (("maxTokens", budget.max_tokens, _MAX_EXACT), ("maxUsd", budget.max_usd, _MAX_EXACT // 10**9))
        for field, limit, maximum in limits:
            if limit is not None and limit > maximum:
                yield f"{at}.{field}: {limit} is more than a budgetStore can count; write at most {maximum}"


def _check_tokens(tokens: Tokens, classes: Classes) -> Iterator[str]:
    at = "auth.tokens"
    for name, value in (("issuer", tokens.issuer), ("teamClaim", tokens.team_claim)):
        if not value:
            yield f"{at}.{name}: empty, so no token can be verified; set it"
    if not tokens.audiences or not all(tokens.audiences):
        yield f"{at}.audiences: empty, so tokens for other programs would be accepted; name this router's audiences"
    if bool(tokens.jwks_uri) == bool(tokens.jwks_file):
        yield f"{at}: the issuer's keys need exactly one source; set either jwksUri or jwksFile"
    elif tokens.jwks_uri and not _is_url(tokens.jwks_uri):
        yield f"{at}.jwksUri: {tokens.jwks_uri!r} is not a URL; write https, host and path, without user and fragment"
    elif tokens.jwks_uri and not (tokens.jwks_uri.startswith("https://") or is_local_url(tokens.jwks_uri)):
        yield f"{at}.jwksUri: {tokens.jwks_uri!r} would let others replace the keys in transit; write https"
    if not _HEADER.fullmatch(tokens.team_header) or tokens.team_header in (classes.header, *_CREDENTIAL_HEADERS):
        yield f"{at}.teamHeader: {tokens.team_header!r} cannot carry the team; name another, such as x-llmkube-team"


def _is_url(text: str) -> bool:
    try:
        parse_url(text)  # as it is fetched
    except ValueError:
        return False
    return _JWKS_URL.fullmatch(text) is not None


def _check_budgets(config: RoutingConfig) -> Iterator[str]:
    rules = {rule.name: rule for rule in config.rules}
    names: set[str] = set()
    for budget in config.budgets:
        at = f"budgets[{budget.name}]"
        if budget.name in names:
            yield f"{at}.name: {budget.name!r} is already the name of another budget; give each its own"
        names.add(budget.name)
        if budget.scope not in SCOPES:
            yield f"{at}.scope: {budget.scope!r} is unknown; write one of {', '.join(SCOPES)}"
        if (budget.scope == "rule") != bool(budget.rule) or (budget.rule and budget.rule not in rules):
            yield f"{at}.rule: {budget.rule!r} does not fit scope {budget.scope!r}; scope rule requires a rule's name"
        if budget.max_tokens is None and budget.max_usd is None:
            yield f"{at}: no limit is set; set maxTokens or maxUsd"
        if (budget.max_tokens is not None and budget.max_tokens < 1) or (
            budget.max_usd is not None and budget.max_usd < 0
        ):
            yield f"{at}: a limit is too low; write at least 1 token, and no negative amount"
        if budget.window_seconds < 1:
            yield f"{at}.windowSeconds: {budget.window_seconds} is too short; write at least 1"
        if budget.max_usd is not None:
            rule = rules.get(budget.rule)
            reached = rule.backends if rule else tuple(config.backends)
            missing = [name for name in reached if name in config.backends and config.backends[name].prices is None]
            if missing:
                unpriced = ", ".join(missing)
                yield f"{at}.maxUsd: {budget.max_usd} cannot be enforced without prices of {unpriced}; set them, even 0"
        yield from _check_header_name(budget.team_header, f"{at}.teamHeader")


def _check_time(seconds: float | None, at: str) -> Iterator[str]:
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        yield f"{at}: {seconds} is not a positive number of seconds; write one above 0"


def _check_header_name(name: str, at: str) -> Iterator[str]:
    if not _HEADER_NAME.fullmatch(name):
        yield f"{at}: {name!r} is not a header name in lower case; write one such as x-team"


def _check_class_names(names: Iterable[str], at: str) -> Iterator[str]:
    # No request could ever have such a class, so the data that it should protect could go to any backend.
    for name in names:
        if name != normalized_class(name):
            yield f"{at}: {name!r} can never match; write {normalized_class(name)!r}"
        elif name not in classes_in(name):
            yield f"{at}: {name!r} can never match: it has commas or quotes; write each class as an unquoted entry"


def _check_lower_case(values: Iterable[str], at: str) -> Iterator[str]:
    for value in values:
        if value != value.lower().strip():
            yield f"{at}: {value!r} can never match; write {value.lower().strip()!r}"


def config_warnings(config: RoutingConfig) -> list[str]:
    """Return warnings about settings that are probably unintended, each with field, value and consequence."""
    shared = () if config.by_model else (f"{each}: clients see only one model" for each in _shared_model_ids(config))
    return [*_unreachable_rules(config), *_rules_before_sensitive(config), *_refused_by_default(config), *shared]


def _unreachable_rules(config: RoutingConfig) -> Iterator[str]:
    for index, rule in enumerate(config.rules):
        for earlier in config.rules[:index]:
            if _subsumes(earlier.match, rule.match):
                limited = f"applies only if no backend of {earlier.name} may be used"
                when = "never applies" if earlier.fail_closed else limited
                yield f"rules[{index}]: {rule.name} {when}: {earlier.name} above it matches every request that it does"
                break


def _subsumes(earlier: Match, later: Match) -> bool:
    """Return whether every request that matches `later` certainly matches `earlier`."""
    return (
        (not earlier.classes or (bool(later.classes) and later.classes <= earlier.classes))
        and (not earlier.complexity or earlier.complexity == later.complexity)
        and earlier.headers.items() <= later.headers.items()
        and (
            not earlier.models
            or (bool(later.models) and all(any(covers(one, each) for one in earlier.models) for each in later.models))
        )
        and earlier.capabilities <= later.capabilities
        and (
            earlier.latency_seconds is None
            or (later.latency_seconds is not None and later.latency_seconds <= earlier.latency_seconds)
        )
    )


def _rules_before_sensitive(config: RoutingConfig) -> Iterator[str]:
    sensitive = ", ".join(sorted(config.classes.sensitive))
    for index, rule in enumerate(config.rules):
        later = [each.name for each in config.rules[index + 1 :] if each.match.classes & config.classes.sensitive]
        if rule.fail_closed and later and not any(config.backends[name].local for name in rule.backends):
            yield (
                f"rules[{index}]: {rule.name} fails closed and has no local backend: a request of class {sensitive}"
                f" that matches it is refused and never reaches {', '.join(later)}; move it below"
            )


def _refused_by_default(config: RoutingConfig) -> Iterator[str]:
    default = config.backends.get(config.default_backend)
    if default is None or default.local:
        return
    uncaught = config.classes.sensitive - caught_classes(config)
    if uncaught:
        yield (
            f"defaultBackend: {default.name} is not local: a request of class {', '.join(sorted(uncaught))} that no"
            " rule matches is refused"
        )


def _shared_model_ids(config: RoutingConfig) -> Iterator[str]:
    """Yield a problem for each backend whose model id belongs to an earlier backend."""
    seen: dict[str, str] = {}
    for name, backend in config.backends.items():
        if (other := seen.setdefault(backend.model_id, name)) != name:
            yield f"backends[{name}].modelId: {backend.model_id!r} is already the model id of {other}"
