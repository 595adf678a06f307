"""The kind ModelRouter: rules that route requests to local and external backends; sensitive data stays local."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.inferenceservice import GatewayStatus
from llmkube.k8s.crd.meta import DECIMAL, DURATION, Condition, LocalObjectReference
from llmkube.k8s.crd.placement import EndpointSpec, GatewayReference
from llmkube.k8s.crd.router_policy import DATA_CLASS, MAX_CLASSES, NAME_CHARACTERS, ROUTER_NAME, RouterPolicy
from llmkube.k8s.fields import REQUIRED, Column, Rule, SchemaFacts, Wired, field
from llmkube.k8s.resource import Object, Resource, own_resource

ROUTER_PHASES: Final = ("Pending", "Provisioning", "Ready", "Degraded", "Failed")


@attrs.frozen(kw_only=True)
class BackendStatus(Wired):
    """Observed state of one backend."""

    name: str = field("Name of the backend.", REQUIRED)
    tier: str = field("Tier of the backend: local or cloud.", "")
    address: str = field("URL that requests are sent to.", "")
    healthy: bool | None = field("Whether the backend can be used.")
    message: str = field("Why the backend cannot be used.", "")
    last_probe_time: str | None = field("When the backend was last probed.", format="date-time")


@attrs.frozen(kw_only=True)
class BudgetStatus(Wired):
    """Usage of one budget."""

    name: str = field("Name of the budget.", REQUIRED)
    tokens_used: int | None = field("Tokens used in the current window.", format="int64")
    usd_used: str = field("US dollars used in the current window.", "")
    utilization: str = field("Share of the budget that is used, as a decimal number.", "")


@attrs.frozen(kw_only=True)
class ModelRouterStatus(Wired):
    """Observed state of a router."""

    phase: str = field("Current phase of the router.", "", enum=ROUTER_PHASES)
    conditions: tuple[Condition, ...] = field("Conditions of the router, one per type.", (), list_map_keys=("type",))
    endpoint: str = field("URL for clients.", "")
    active_rules: int | None = field("Number of active rules.")
    backends: tuple[BackendStatus, ...] = field("Observed state of each backend.", ())
    budget_utilization: tuple[BudgetStatus, ...] = field("Usage of each budget.", ())
    gateway: GatewayStatus | None = field("Exposure of the router through an AI gateway.")
    last_updated: str | None = field("When the status last changed.", format="date-time")


DATA_PLANES: Final = ("Proxy", "Gateway")
DEFAULT_ROUTES: Final = ("Static", "BackendNameMatch")
PROVIDERS: Final = ("anthropic", "openai", "bedrock", "vertex_ai", "litellm")
ROUTE_STRATEGIES: Final = ("primary-fallback", "weighted", "shadow", "least-loaded")
SENSITIVE: Final = ("pii", "phi")
"""Data classes that stay local when spec.policy.classification.sensitiveClassifications is unset."""
LOCAL: Final = "local"
CLOUD: Final = "cloud"
TIERS: Final = (LOCAL, CLOUD)

# The API server estimates the cost of a rule with the longest lists and strings that the schema admits
_MAX_BACKENDS: Final = 64
_MAX_RULES: Final = 64
_MAX_ROUTE_BACKENDS: Final = 16
_TIME_LIMITS: Final = (
    Rule(
        f"!self.matches('{DURATION}') || (duration(self) >= duration('100ms') && duration(self) <= duration('30m'))",
        "must be from 100ms to 30m",
    ),
)
_TIME: Final[Mapping[str, Any]] = {"pattern": DURATION, "max_length": 32, "rules": _TIME_LIMITS}

# -- backends ---------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ExternalBackend(Wired):
    """Provider outside the cluster."""

    RULES: ClassVar = (
        Rule("!(self.provider in ['bedrock', 'vertex_ai']) || has(self.url)", "this provider needs a url"),
    )
    provider: str = field("Provider, which determines protocol and credentials.", REQUIRED, enum=PROVIDERS)
    model: str = field("Model id at the provider.", REQUIRED, min_length=1)
    url: str | None = field("Base URL; defaults to the provider's.", pattern=r"^https?://[^\s]+$", max_length=2048)
    credentials_secret_ref: LocalObjectReference | None = field(
        "Secret with the provider's usual key, such as ANTHROPIC_API_KEY.", atomic=True
    )


@attrs.frozen(kw_only=True)
class HealthCheck(Wired):
    """Health check of a backend."""

    path: str | None = field("Path to probe, from the root of the backend's host; defaults to /health.")
    interval_seconds: int = field("Interval of probes in seconds.", 10, minimum=1)
    timeout_seconds: int = field("Timeout of a probe in seconds.", 2, minimum=1)


@attrs.frozen(kw_only=True)
class Cost(Wired):
    """Prices of a million tokens in US dollars, as decimal numbers."""

    prompt_usd: str | None = field("Price of a million prompt tokens.", pattern=DECIMAL, name="promptUSD")
    completion_usd: str | None = field("Price of a million completion tokens.", pattern=DECIMAL, name="completionUSD")
    cache_read_usd: str | None = field(
        "Price of a million prompt tokens that are read from the provider's cache; defaults to promptUSD.",
        pattern=DECIMAL,
        name="cacheReadUSD",
    )
    cache_write5m_usd: str | None = field(
        "Price of a million prompt tokens that are written to the provider's cache for 5 minutes, or for a time that "
        "it does not report; defaults to promptUSD, for provider anthropic to 1.25 times promptUSD.",
        pattern=DECIMAL,
        name="cacheWrite5mUSD",
    )
    cache_write1h_usd: str | None = field(
        "Price of a million prompt tokens that are written to the provider's cache for 1 hour; defaults to "
        "cacheWrite5mUSD, for provider anthropic to twice promptUSD.",
        pattern=DECIMAL,
        name="cacheWrite1hUSD",
    )


@attrs.frozen(kw_only=True)
class Backend(Wired):
    """Destination of requests: an InferenceService or an external provider."""

    RULES: ClassVar = (
        Rule(
            "has(self.inferenceServiceRef) != has(self.external)",
            "a backend has either an inferenceServiceRef or an external provider",
        ),
        Rule(
            "!has(self.inferenceServiceRef) || !has(self.tier) || self.tier == 'local'",
            "an InferenceService is local",
            ".tier",
        ),
    )
    name: str = field("Name that rules refer to.", REQUIRED, pattern=ROUTER_NAME, max_length=NAME_CHARACTERS)
    inference_service_ref: LocalObjectReference | None = field(
        "InferenceService in the router's namespace.", atomic=True
    )
    external: ExternalBackend | None = field("Provider outside the cluster.")
    tier: str | None = field(
        "Whether data stays local or leaves for the cloud. Defaults to local for an InferenceService and cloud for an "
        "external provider; a provider without a url is always cloud.",
        enum=TIERS,
    )
    region: str | None = field(
        "Region of the backend, such as eu; a request whose header x-llmkube-region names regions is sent only to "
        "backends in one of them.",
        min_length=1,
        max_length=NAME_CHARACTERS,
    )
    display_name: str | None = field("Model id for clients; defaults to name.", min_length=1)
    capabilities: tuple[str, ...] = field("Tags that rules can require.", (), max_items=32, items=DATA_CLASS)
    weight: int | None = field("Weight of the backend, for strategy weighted.", minimum=0)
    timeout: str | None = field("Timeout for the first byte of a response.", **_TIME)
    health_check: HealthCheck | None = field("Health check of the backend.")
    cost_per_million_tokens: Cost | None = field("Prices, for budgets.")

    @property
    def effective_tier(self) -> str:
        """The given tier, else the default of the kind of backend; a provider without a url is always cloud."""
        # The Go implementation's schema set `local` as the default of every backend: stored routers have it for OpenAI.
        if self.external is not None and self.external.url is None:
            return CLOUD
        return self.tier or (CLOUD if self.external else LOCAL)


# -- rules ------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Match(Wired):
    """Criteria that a request must all meet."""

    data_classification: tuple[str, ...] = field(
        "Data classes, of which the request must have one; not case-sensitive.",
        (),
        max_items=MAX_CLASSES,
        items=DATA_CLASS,
    )
    models: tuple[str, ...] = field(
        "Patterns (* and ?), of which one must match the model.", (), max_items=64, items=SchemaFacts(min_length=1)
    )
    headers: Mapping[str, str] = field("Headers and their required values.", dict)
    required_capabilities: tuple[str, ...] = field(
        "Tags that a backend of the route must all have.", (), max_items=32, items=DATA_CLASS
    )
    task_complexity: str | None = field("Complexity that the request declares.", enum=("simple", "moderate", "complex"))
    latency_slo_ms: int | None = field("Latency objective of the request in ms.", minimum=1, name="latencySLOMs")


@attrs.frozen(kw_only=True)
class Route(Wired):
    """Backends for the requests of a rule."""

    backends: tuple[str, ...] = field(
        "Names of backends in order of preference.",
        REQUIRED,
        min_items=1,
        max_items=_MAX_ROUTE_BACKENDS,
        items=SchemaFacts(min_length=1, max_length=NAME_CHARACTERS),
    )
    strategy: str = field("Strategy for choosing a backend.", "primary-fallback", enum=ROUTE_STRATEGIES)


@attrs.frozen(kw_only=True)
class RouterRule(Wired):
    """Routing rule; the first match applies."""

    name: str = field("Name in logs and metrics.", REQUIRED, pattern=ROUTER_NAME, max_length=NAME_CHARACTERS)
    match: Match = field("Criteria that a request must all meet; empty matches every request.", Match)
    route: Route = field("Backends for matching requests.", REQUIRED)
    fail_closed: bool | None = field("Whether to refuse a request if no backend of the route can serve it.")
    timeout: str | None = field("Timeout for the first byte of a response; overrides the backend's.", **_TIME)


# -- the data plane ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProxySpec(Wired):
    """Pods of the router."""

    image: str | None = field("Container image; defaults to the controller's.", min_length=1)
    image_pull_secrets: tuple[LocalObjectReference, ...] = field("Secrets for pulling the image.", ())
    replicas: int | None = field("Number of pods; defaults to 1.", minimum=1, maximum=10)
    resources: Mapping[str, Any] | None = field(
        "Requests and limits of the container, as in a pod.", pod_part="ResourceRequirements"
    )
    node_selector: Mapping[str, str] = field("Labels that a node must have.", dict)
    response_header_timeout: str | None = field(
        "Timeout for the first byte of a response, unless the rule or backend has one.", **_TIME
    )
    quarantine_duration: str | None = field("Quarantine of a failed backend.", pattern=DURATION, max_length=32)
    revision_history_limit: int | None = field("Number of old ReplicaSets to retain.", minimum=0)


@attrs.frozen(kw_only=True)
class MCPServer(Wired):
    """Reserved."""

    enabled: bool | None = field("Reserved; ignored.")


# -- the kind ---------------------------------------------------------------------------------------------------------

_SENSITIVE_CLASSES: Final = (
    "(has(self.policy) && has(self.policy.classification)"
    " && has(self.policy.classification.sensitiveClassifications)"
    f" ? self.policy.classification.sensitiveClassifications : {list(SENSITIVE)})"
)
_IS_SENSITIVE: Final = (
    "(has(r.match) && has(r.match.dataClassification) && r.match.dataClassification.exists(c,"
    f" {_SENSITIVE_CLASSES}.exists(s, s.lowerAscii() == c.lowerAscii())))"
)
_IS_LOCAL: Final = (
    "(has(b.inferenceServiceRef) || (has(b.tier) && b.tier == 'local' && has(b.external) && has(b.external.url)))"
)


@attrs.frozen(kw_only=True)
class ModelRouterSpec(Wired):
    """Desired state of a router: backends, rules and policy."""

    RULES: ClassVar = (
        Rule(
            "!has(self.defaultRoute) || self.backends.exists(b, b.name == self.defaultRoute)",
            "defaultRoute must be the name of a backend",
            ".defaultRoute",
        ),
        Rule(
            "!has(self.rules) || self.rules.all(r, r.route.backends.all(n, self.backends.exists(b, b.name == n)))",
            "a route may only name backends of this router",
            ".rules",
        ),
        Rule(
            "!has(self.rules) || self.rules.all(r, self.rules.exists_one(x, x.name == r.name))",
            "two rules must not have one name",
            ".rules",
        ),
        Rule(
            f"!has(self.rules) || self.rules.all(r, !{_IS_SENSITIVE} || (has(r.failClosed) && r.failClosed))",
            "a rule for a sensitive data class needs failClosed: true",
            ".rules",
        ),
        Rule(
            f"!has(self.rules) || self.rules.all(r, !{_IS_SENSITIVE}"
            f" || r.route.backends.all(n, self.backends.all(b, b.name != n || {_IS_LOCAL})))",
            "a rule for a sensitive data class may only name backends of tier local",
            ".rules",
        ),
        Rule(
            "!has(self.policy) || !has(self.policy.budgets) || self.policy.budgets.all(b,"
            " !has(b.ruleName) || (has(self.rules) && self.rules.exists(r, r.name == b.ruleName)))",
            "ruleName must be the name of a rule",
            ".policy.budgets",
        ),
        Rule("self.dataPlane != 'Gateway' || has(self.gatewayRef)", "dataPlane Gateway needs a gatewayRef"),
    )
    backends: tuple[Backend, ...] = field(
        "Destinations of requests.", REQUIRED, min_items=1, max_items=_MAX_BACKENDS, list_map_keys=("name",)
    )
    rules: tuple[RouterRule, ...] = field("Routing rules; the first match applies.", (), max_items=_MAX_RULES)
    default_route: str | None = field(
        "Backend for requests that match no rule; unset refuses them.", max_length=NAME_CHARACTERS
    )
    default_route_strategy: str = field(
        "Static uses defaultRoute; BackendNameMatch first looks up a backend by the request's model.",
        "Static",
        enum=DEFAULT_ROUTES,
    )
    policy: RouterPolicy | None = field("Policy for all rules.")
    endpoint: EndpointSpec = field("Endpoint for clients.", EndpointSpec)
    proxy: ProxySpec | None = field("Pods of the router.")
    data_plane: str = field("Data plane: pods of LLMKube, or an AI gateway.", "Proxy", enum=DATA_PLANES)
    gateway_ref: GatewayReference | None = field("Gateway to attach to, for dataPlane Gateway.")
    mcp_server: MCPServer | None = field("Reserved.")


@attrs.frozen(kw_only=True)
class ModelRouter(Object):
    """One endpoint for local and external models."""

    RESOURCE: ClassVar[Resource] = own_resource("ModelRouter", "mr")
    COLUMNS: ClassVar = (
        Column("Phase", ".status.phase"),
        Column("Endpoint", ".status.endpoint"),
        Column("Rules", ".status.activeRules", "integer"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )
    spec: ModelRouterSpec
    status: ModelRouterStatus = field("Observed state of the router.", ModelRouterStatus)
