"""Each field of a ModelRouter changes its config or its pods, or is named as without effect."""

import copy
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pytest
import yaml

from controller.podobjects import SETTINGS
from llmkube.controller.render.router_objects import KEYS_FOLDER, render_router
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter, ModelRouterSpec
from llmkube.k8s.fields import wire_fields
from llmkube.router.config.compile_router import ResolvedService, compile_router
from llmkube.router.config.config_json import encode_config

FULL: Final = """
dataPlane: Proxy
backends:
- name: mac
  displayName: shown
  inferenceServiceRef: {name: phi}
  region: eu
  capabilities: [chat]
  weight: 2
  timeout: 20s
  healthCheck: {path: /up, intervalSeconds: 9, timeoutSeconds: 3}
  costPerMillionTokens:
    {promptUSD: "1", completionUSD: "2", cacheReadUSD: "0.1", cacheWrite5mUSD: "3", cacheWrite1hUSD: "4"}
- name: cloud
  tier: cloud
  external: {provider: openai, model: gpt-5, url: "https://api.example.com/v1", credentialsSecretRef: {name: key}}
  costPerMillionTokens: {promptUSD: "1", completionUSD: "2"}
rules:
- name: first
  match:
    dataClassification: [pii]
    models: ["a*"]
    headers: {x-a: b}
    requiredCapabilities: [chat]
    taskComplexity: complex
    latencySLOMs: 900
  route: {backends: [mac], strategy: weighted}
  failClosed: true
  timeout: 10s
- name: second
  route: {backends: [cloud]}
defaultRoute: mac
defaultRouteStrategy: BackendNameMatch
policy:
  classification:
    mode: header-only
    headerKey: x-class
    defaultClassification: internal
    sensitiveClassifications: [pii]
  budgets:
  - {name: b, scope: rule, ruleName: first, maxTokens: 10, maxUSD: "5", windowSeconds: 60}
  - {name: t, scope: team, headerKey: x-team, maxTokens: 10}
  budgetStore:
    address: redis.cache.svc:6379
    tls: true
    database: 1
    username: u
    passwordSecretRef: {name: redis, key: password, optional: false}
  auth:
    jwt:
      provider: corp
      issuer: https://id.example.com
      audiences: [llmkube]
      jwksSecretRef: {name: idp, key: jwks.json, optional: false}
      teamClaim: team
      headerKey: x-team
    keysSecretRef: {name: keys}
    allowlists: [{team: red, models: ["a*"]}]
  auditLog: {sink: file, filePath: /var/log/audit, includeRequestBody: false}
endpoint: {port: 8081, type: NodePort, nodePort: 30001, path: /v1/x}
proxy:
  image: one
  imagePullSecrets: [{name: pull}]
  replicas: 2
  resources: {limits: {cpu: "1"}}
  nodeSelector: {a: b}
  responseHeaderTimeout: 60s
  quarantineDuration: 5s
"""

ADDED: Final[dict[str, Any]] = {
    "policy.auth.promptCaches": "shared",
    "policy.auth.jwt.jwksURI": "https://id.example.com/keys",
    "mcpServer": {"enabled": True},
    "gatewayRef": {"name": "front", "namespace": "ml"},
    "endpoint.gateway": {"enabled": True, "gatewayRef": {"name": "front", "namespace": "ml"}, "modelName": "phi"},
    "proxy.revisionHistoryLimit": 3,
}
"""Fields that exclude the others, or never have an effect."""

OTHERS: Final[dict[str, Any]] = {
    "dataPlane": "Gateway",
    "backends.cloud.tier": "local",
    "backends.cloud.external.provider": "anthropic",
    "backends.mac.timeout": "21s",
    "rules.first.match.taskComplexity": "simple",
    "rules.first.route.strategy": "shadow",
    "rules.first.timeout": "11s",
    "defaultRouteStrategy": "Static",
    "policy.classification.mode": "hybrid",
    "policy.auditLog.sink": "stdout",
    "endpoint.type": "LoadBalancer",
    "proxy.responseHeaderTimeout": "61s",
    "proxy.quarantineDuration": "6s",
}
"""Another valid value of a field, if one more letter makes it invalid."""

PEOPLE: Final = {"policy.auth.jwt.provider"}
"""Fields that the schema describes as documentation only."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf field, entries of lists by their names, with its value."""
    if isinstance(value, dict) and path.rpartition(".")[2] not in ("resources", "headers", "nodeSelector"):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from leaves(each, f"{path}.{each.get('name') or each['team']}")
    else:
        yield path, value


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [*value, "other"]
    if isinstance(value, dict):
        return {name: changed(each) for name, each in value.items()}
    return f"{value}1"


def with_value(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a spec in which a field has another value."""
    spec = copy.deepcopy(spec)
    at, *below = [spec, *path.split(".")]
    for name in below[:-1]:
        if isinstance(at, list):
            at = next(each for each in at if name in (each.get("name"), each.get("team")))
        else:
            at = at.setdefault(name, {})
    at[below[-1]] = value
    return spec


def effects(spec: dict[str, Any]) -> tuple[Any, ...]:
    """Return all results of a spec."""
    router = decode(ModelRouter, {"metadata": {"name": "front", "namespace": "ml", "uid": "r-1"}, "spec": spec})

    def resolve(name: str) -> ResolvedService:
        return ResolvedService(base_url=f"http://{name}.ml.svc:8080/v1")

    found = compile_router(router, resolve, keys_folder=KEYS_FOLDER)
    config = encode_config(found.config) if found.config is not None else b""
    made = render_router(router, config, SETTINGS, keys=found.key_files, destinations=())
    return found.errors, found.not_honoured, attrs.asdict(made), router.spec.endpoint.path


SPEC: Final = yaml.safe_load(FULL)
FIELDS: Final = {path: OTHERS.get(path, changed(value)) for path, value in leaves(SPEC)} | ADDED


def test_the_spec_that_has_all_fields_is_taken():
    """Otherwise each change would be refused, and show nothing."""
    assert effects(SPEC)[0] == ()


@pytest.mark.parametrize("path", sorted(FIELDS.keys() - PEOPLE))
def test_no_field_is_accepted_and_ignored(path):
    """Another value is another config, another object, an error, or a name in `SpecHonoured`."""
    assert effects(with_value(SPEC, path, FIELDS[path])) != effects(SPEC)


def schema(cls: type, path: str = "") -> Iterator[str]:
    for slot in wire_fields(cls):
        at = f"{path}.{slot.key}" if path else slot.key
        inner = next((each for each in (slot.type, *getattr(slot.type, "__args__", ())) if attrs.has(each)), None)
        yield from schema(inner, at) if inner is not None else (at,)


def test_each_field_of_the_definition_is_changed():
    """A new field cannot be forgotten here."""
    named = ("mac", "cloud", "first", "second", "b", "t", "red", "pull")
    paths = [path for at, value in FIELDS.items() for path, _ in leaves(value, at)]
    known = {".".join(part for part in path.split(".") if part not in named) for path in paths}
    assert set(schema(ModelRouterSpec)) <= known
