"""Compile a ModelRouter into a RoutingConfig, or report every error in it.

A backend that cannot be resolved affects only itself: it is in the config with the reason why it gets no requests.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from llmkube.base.package_data import read_table
from llmkube.k8s.crd import modelrouter as crd
from llmkube.k8s.crd import router_policy
from llmkube.router.config.compile_backend import (
    KeyFile,
    compile_backend,
    parse_decimal,
    parse_seconds,
)
from llmkube.router.config.config_checks import config_problems, config_warnings
from llmkube.router.config.config_json import field_problems
from llmkube.router.config.data_classes import normalized_class
from llmkube.router.config.routing_config import (
    CIRCUIT_SECONDS,
    FIRST_BYTE_SECONDS,
    Audit,
    Auth,
    Backend,
    Budget,
    Classes,
    Match,
    RedisStore,
    ResolvedService,
    RoutingConfig,
    Rule,
    Tokens,
)

__all__ = ["CompiledRouter", "KeyFile", "ResolvedService", "compile_router"]

JWKS_FILE: Final = "jwks.json"
_DAY: Final = 86400.0
_TEAM_HEADER: Final = "x-llmkube-team"

STORE_KEY: Final = "budget-store/password"
"""File with the password of the budget store, relative to the folder of keys."""


@attrs.frozen(kw_only=True)
class CompiledRouter:
    """The result of compiling a ModelRouter.

    Attributes:
        config: None if there are errors.
        errors: Every error, each with field, value and fix.
        warnings: Valid settings that may be unintended.
        not_honoured: Fields that are set and have no effect.
        key_files: The Secret entries that the router reads, and their paths.
    """

    config: RoutingConfig | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    not_honoured: tuple[str, ...] = ()
    key_files: tuple[KeyFile, ...] = ()


def compile_router(
    router: crd.ModelRouter,
    resolve: Callable[[str], ResolvedService | None],
    *,
    keys_folder: str,
    needs_backends: bool = True,
) -> CompiledRouter:
    """Compile a ModelRouter.

    Args:
        router: The ModelRouter.
        resolve: Returns an InferenceService in the router's namespace by name; None if it does not exist.
        keys_folder: Folder of the router's keys: `backends/NAME`, `teams/TEAM`, `tokens/jwks.json` and `STORE_KEY`.
        needs_backends: Whether it is an error to have none.
    """
    spec = router.spec
    policy = spec.policy or router_policy.RouterPolicy()
    problems = [*_unsupported(spec, policy), *_repeated_names("spec.backends", [each.name for each in spec.backends])]
    backends: dict[str, Backend] = {}
    key_files: list[KeyFile] = []
    for each in spec.backends:
        backend, key_file = compile_backend(each, resolve, keys_folder, problems)
        backends[backend.name] = backend
        key_files += [key_file] if key_file else []
    store = _store(policy.budget_store, f"{keys_folder}/{STORE_KEY}")
    if store is not None and policy.budget_store and (secret := policy.budget_store.password_secret_ref):
        key_files.append(KeyFile(path=store.password_file, secret=secret.name, key=secret.key))
    auth = _auth(policy.auth or router_policy.Auth(), keys_folder, problems)
    if policy.auth and policy.auth.keys_secret_ref:
        key_files.append(KeyFile(path=auth.keys_folder, secret=policy.auth.keys_secret_ref.name, key=""))
    if auth.tokens and auth.tokens.jwks_file and policy.auth and policy.auth.jwt and policy.auth.jwt.jwks_secret_ref:
        entry = policy.auth.jwt.jwks_secret_ref
        key_files.append(KeyFile(path=auth.tokens.jwks_file, secret=entry.name, key=entry.key))
    proxy = spec.proxy or crd.ProxySpec()
    header_timeout = parse_seconds(proxy.response_header_timeout, "spec.proxy.responseHeaderTimeout", problems)
    quarantine = parse_seconds(proxy.quarantine_duration, "spec.proxy.quarantineDuration", problems, longest=_DAY)
    config = RoutingConfig(
        name=f"{router.metadata.namespace}/{router.metadata.name}",
        backends=backends,
        rules=tuple(_rule(rule, index, problems) for index, rule in enumerate(spec.rules)),
        default_backend=spec.default_route or "",
        by_model=spec.default_route_strategy == "BackendNameMatch",
        classes=_classes(policy.classification or router_policy.Classification()),
        budgets=tuple(_budget(budget, problems) for budget in policy.budgets),
        budget_store=store,
        auth=auth,
        audit=_audit(policy.audit_log or router_policy.AuditLog()),
        first_byte_seconds=FIRST_BYTE_SECONDS if header_timeout is None else header_timeout,
        first_byte_extends=header_timeout is None,
        circuit_seconds=CIRCUIT_SECONDS if quarantine is None else quarantine,
    )
    found = (_in_router_terms(problem) for problem in config_problems(config, needs_backends=needs_backends))
    errors = _first_source_per_field(field_problems(spec, "spec"), problems, found)
    return CompiledRouter(
        config=None if errors else config,
        errors=errors,
        warnings=() if errors else (*_backend_warnings(spec), *map(_in_router_terms, config_warnings(config))),
        not_honoured=tuple(_fields_without_effect(spec)),
        key_files=tuple(key_files),
    )


# -- parts ------------------------------------------------------------------------------------------------------------


def _rule(rule: crd.RouterRule, index: int, problems: list[str]) -> Rule:
    match, at = rule.match, f"spec.rules[{index}]"
    names = [name.lower() for name in match.headers]
    problems += _repeated_names(f"{at}.match.headers", names)
    return Rule(
        name=rule.name,
        match=Match(
            classes=frozenset(map(normalized_class, match.data_classification)),
            models=match.models,
            headers=dict(zip(names, match.headers.values(), strict=True)),
            capabilities=frozenset(each.strip().lower() for each in match.required_capabilities),
            complexity=match.task_complexity or "",
            latency_seconds=None if match.latency_slo_ms is None else match.latency_slo_ms / 1000,
        ),
        backends=rule.route.backends,
        strategy=rule.route.strategy,
        fail_closed=bool(rule.fail_closed),
        first_byte_seconds=parse_seconds(rule.timeout, f"{at}.timeout", problems),
    )


def _classes(given: router_policy.Classification) -> Classes:
    header = (given.header_key or "x-llmkube-classification").lower()
    sensitive = frozenset(map(normalized_class, given.sensitive_classifications or crd.SENSITIVE))
    return Classes(header=header, default=normalized_class(given.default_classification or ""), sensitive=sensitive)


def _budget(budget: router_policy.Budget, problems: list[str]) -> Budget:
    at = f"spec.policy.budgets[{budget.name}].maxUSD"
    return Budget(
        name=budget.name,
        scope=budget.scope,
        rule=budget.rule_name or "",
        team_header=(budget.header_key or _TEAM_HEADER).lower(),
        max_tokens=budget.max_tokens,
        max_usd=None if budget.max_usd is None else parse_decimal(budget.max_usd, at, problems),
        window_seconds=budget.window_seconds,
    )


def _store(given: router_policy.BudgetStore | None, password_file: str) -> RedisStore | None:
    if given is None:
        return None
    host, _, port = given.address.rpartition(":")
    return RedisStore(
        host=host.removeprefix("[").removesuffix("]"),
        port=int(port) if port.isdecimal() else 0,
        tls=given.tls,
        database=given.database,
        username=given.username,
        password_file=password_file if given.password_secret_ref else "",
    )


def _auth(given: router_policy.Auth, keys_folder: str, problems: list[str]) -> Auth:
    problems += _repeated_names("spec.policy.auth.allowlists", [each.team for each in given.allowlists])
    return Auth(
        keys_folder=f"{keys_folder}/teams" if given.keys_secret_ref else "",
        tokens=None if given.jwt is None else _tokens(given.jwt, f"{keys_folder}/tokens/{JWKS_FILE}"),
        models_of_team={each.team: each.models or ("*",) for each in given.allowlists},
        shares_caches=given.prompt_caches == "shared",
    )


def _tokens(jwt: router_policy.JWT, file: str) -> Tokens:
    return Tokens(
        provider=jwt.provider,
        issuer=jwt.issuer,
        audiences=jwt.audiences,
        jwks_uri=jwt.jwks_uri or "",
        jwks_file=file if jwt.jwks_secret_ref else "",
        team_claim=jwt.team_claim,
        team_header=(jwt.header_key or _TEAM_HEADER).lower(),
    )


def _audit(given: router_policy.AuditLog) -> Audit:
    path = (given.file_path or "") if given.sink == "file" else ""
    return Audit(sink=given.sink, path=path, bodies=bool(given.include_request_body))


def _first_source_per_field(*sources: Iterable[str]) -> tuple[str, ...]:
    """Return all problems, except those of fields for which an earlier source has already reported one."""
    by_field: dict[str, list[str]] = {}
    for source in sources:
        fields: dict[str, list[str]] = {}
        for problem in source:
            fields.setdefault(problem.partition(": ")[0], []).append(problem)
        by_field = {**by_field, **{field: found for field, found in fields.items() if field not in by_field}}
    return tuple(problem for problems in by_field.values() for problem in problems)


# -- unsupported fields, fields without effect ------------------------------------------------------------------------


def _unsupported(spec: crd.ModelRouterSpec, policy: router_policy.RouterPolicy) -> Iterator[str]:
    if spec.data_plane != "Proxy":
        yield f"spec.dataPlane: {spec.data_plane!r} is not supported; write Proxy"
    mode = policy.classification.mode if policy.classification else "header-only"
    if mode != "header-only":
        yield (
            f"spec.policy.classification.mode: {mode!r} is not supported, so requests would have no class;"
            " write header-only, and set defaultClassification for requests that name none"
        )
    if policy.audit_log and policy.audit_log.sink == "otlp":
        yield "spec.policy.auditLog.sink: 'otlp' is not supported; write stdout or file"
    for backend in spec.backends:
        if (backend.inference_service_ref is None) == (backend.external is None):
            yield f"spec.backends[{backend.name}]: set either inferenceServiceRef or external"
        if backend.inference_service_ref and backend.tier == crd.CLOUD:
            yield f"spec.backends[{backend.name}].tier: 'cloud', but an InferenceService is local; write local"


def _repeated_names(at: str, names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"{at}: {name!r} is repeated; give each name once"
        seen.add(name)


def _fields_without_effect(spec: crd.ModelRouterSpec) -> Iterator[str]:
    if spec.mcp_server is not None:
        yield "spec.mcpServer"
    if spec.gateway_ref is not None:
        yield "spec.gatewayRef"
    if spec.endpoint.gateway is not None:
        yield "spec.endpoint.gateway"
    policy = spec.policy or router_policy.RouterPolicy()
    yield from _optional_secrets(policy)
    if policy.audit_log and policy.audit_log.file_path and policy.audit_log.sink != "file":
        yield "spec.policy.auditLog.filePath"
    is_open = policy.auth is None or (policy.auth.keys_secret_ref is None and policy.auth.jwt is None)
    for budget in policy.budgets:
        if budget.header_key and budget.scope != "team":
            yield f"spec.policy.budgets[{budget.name}].headerKey"
        if budget.scope == "team" and is_open:
            note = f"any client can name another team in {budget.header_key or _TEAM_HEADER}; set spec.policy.auth"
            yield f"spec.policy.budgets[{budget.name}].scope ({note})"


def _optional_secrets(policy: router_policy.RouterPolicy) -> Iterator[str]:
    # `optional` has no effect: without the Secret, requests that need it are refused, and `/readyz` reports why.
    if policy.budget_store and (ref := policy.budget_store.password_secret_ref) and ref.optional:
        yield "spec.policy.budgetStore.passwordSecretRef.optional"
    if policy.auth and policy.auth.jwt and (ref := policy.auth.jwt.jwks_secret_ref) and ref.optional:
        yield "spec.policy.auth.jwt.jwksSecretRef.optional"


def _backend_warnings(spec: crd.ModelRouterSpec) -> Iterator[str]:
    for backend in spec.backends:
        at, external = f"spec.backends[{backend.name}]", backend.external
        if external is None:
            continue
        if backend.tier == crd.LOCAL and external.url is None:
            yield f"{at}.tier: 'local' is ignored: a provider without a url is always cloud"
        if external.credentials_secret_ref is None and external.url is None:
            yield f"{at}.external: without credentialsSecretRef no key is sent, but {external.provider} requires one"
        cost = backend.cost_per_million_tokens
        if cost is not None and (cost.prompt_usd is None or cost.completion_usd is None):
            yield f"{at}.costPerMillionTokens: ignored, as one price is missing; write 0 for what costs nothing"


_NAMES: Final[Mapping[str, str]] = read_table(__package__, "spec_names")["names"]
"""Patterns of config paths, and the ModelRouter's names for them."""


def _in_router_terms(problem: str) -> str:
    """Return a problem of a config in terms of the ModelRouter from which it was compiled."""
    path, colon, text = problem.partition(": ")
    for pattern, replacement in _NAMES.items():
        path = re.sub(pattern, replacement, path)
    for pattern, replacement in (("jwksUri", "jwksURI"), ("jwksFile", "jwksSecretRef")):
        text = text.replace(pattern, replacement)
    return f"spec.{path}{colon}{text}"
