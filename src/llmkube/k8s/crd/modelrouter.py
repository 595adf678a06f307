"""A ModelRouter sends requests to local and external backends by rules; what is sensitive stays local or is refused."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from llmkube.k8s.crd.inferenceservice import GatewayStatus
from llmkube.k8s.crd.meta import DECIMAL, DURATION, GROUP, VERSION, Condition, LocalObjectReference
from llmkube.k8s.crd.placement import EndpointSpec, GatewayReference
from llmkube.k8s.crd.router_policy import DATA_CLASS, MAX_CLASSES, NAME_CHARACTERS, ROUTER_NAME, RouterPolicy
from llmkube.k8s.fields import REQUIRED, Column, Rule, SchemaFacts, Wired, field
from llmkube.k8s.resource import Object, Resource

ROUTER_PHASES: Final = ("Pending", "Provisioning", "Ready", "Degraded", "Failed")


@attrs.frozen(kw_only=True)
class BackendStatus(Wired):
    """What is known of one backend."""

    name: str = field("Name of the backend.", REQUIRED)
    tier: str = field("Where the data goes.", "")
    address: str = field("URL that requests are sent to.", "")
    healthy: bool | None = field("The backend can be used.")
    message: str = field("Why it cannot.", "")
    last_probe_time: str | None = field("When it was last looked at.", format="date-time")


@attrs.frozen(kw_only=True)
class BudgetStatus(Wired):
    """How much of one budget is used."""

    name: str = field("Name of the budget.", REQUIRED)
    tokens_used: int | None = field("Tokens in the current window.", format="int64")
    usd_used: str = field("Dollars in the current window.", "")
    utilization: str = field("Share that is used, as a decimal number.", "")


@attrs.frozen(kw_only=True)
class ModelRouterStatus(Wired):
    """How routing goes."""

    phase: str = field("Where the router stands.", "", enum=ROUTER_PHASES)
    conditions: tuple[Condition, ...] = field("Statements about the router, one per type.", (), list_map_keys=("type",))
    endpoint: str = field("URL that clients use.", "")
    active_rules: int | None = field("Rules that are in force.")
    backends: tuple[BackendStatus, ...] = field("What is known of each backend.", ())
    budget_utilization: tuple[BudgetStatus, ...] = field("How much of each budget is used.", ())
    gateway: GatewayStatus | None = field("How an AI gateway exposes the router.")
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

# The cost of a rule is reckoned with the longest lists and texts that the schema admits
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
    """A provider outside the cluster."""

    RULES: ClassVar = (
        Rule("!(self.provider in ['bedrock', 'vertex_ai']) || has(self.url)", "this provider needs a url"),
    )
    provider: str = field("Kind of the provider: decides protocol and credentials.", REQUIRED, enum=PROVIDERS)
    model: str = field("Model id at the provider.", REQUIRED, min_length=1)
    url: str | None = field("Base URL; unset means the provider's own.", pattern=r"^https?://[^\s]+$", max_length=2048)
    credentials_secret_ref: LocalObjectReference | None = field(
        "Secret with the provider's usual key, such as ANTHROPIC_API_KEY.", atomic=True
    )


@attrs.frozen(kw_only=True)
class HealthCheck(Wired):
    """How a backend is probed."""

    path: str | None = field("Path to ask, from the root of the backend's host; unset means /health.")
    interval_seconds: int = field("Seconds between two probes.", 10, minimum=1)
    timeout_seconds: int = field("Seconds to wait for an answer.", 2, minimum=1)


@attrs.frozen(kw_only=True)
class Cost(Wired):
    """What a million tokens cost, in US dollars, as decimal numbers."""

    prompt_usd: str | None = field("Price of a million prompt tokens.", pattern=DECIMAL, name="promptUSD")
    completion_usd: str | None = field("Price of a million completion tokens.", pattern=DECIMAL, name="completionUSD")


@attrs.frozen(kw_only=True)
class Backend(Wired):
    """One destination of requests: an InferenceService, or an external provider."""

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
        "Where the data goes. Unset means local for an InferenceService and cloud for an external provider; a provider "
        "without a url is cloud whatever this says.",
        enum=TIERS,
    )
    region: str | None = field(
        "Where the data goes, such as eu; a request whose header x-llmkube-region names regions reaches no backend "
        "without one of them.",
        min_length=1,
        max_length=NAME_CHARACTERS,
    )
    display_name: str | None = field("Model id that clients see; unset means name.", min_length=1)
    capabilities: tuple[str, ...] = field("Tags that rules can ask for.", (), max_items=32, items=DATA_CLASS)
    weight: int | None = field("Share of the requests under strategy weighted.", minimum=0)
    timeout: str | None = field("Longest wait for the first byte of an answer.", **_TIME)
    health_check: HealthCheck | None = field("How the backend is probed.")
    cost_per_million_tokens: Cost | None = field("Prices, for budgets.")

    @property
    def effective_tier(self) -> str:
        """The tier as given, else what the kind of backend implies: what leaves the cluster is cloud.

        The Go implementation's schema filled in `local` for every backend: a stored router says it of OpenAI as well.
        """
        if self.external is not None and self.external.url is None:
            return CLOUD
        return self.tier or (CLOUD if self.external else LOCAL)


# -- rules ------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Match(Wired):
    """Conditions that a request meets all of."""

    data_classification: tuple[str, ...] = field(
        "Data classes, of which the request has one; upper and lower case are the same.",
        (),
        max_items=MAX_CLASSES,
        items=DATA_CLASS,
    )
    models: tuple[str, ...] = field(
        "Patterns (* and ?) of which the request's model fits one.", (), max_items=64, items=SchemaFacts(min_length=1)
    )
    headers: Mapping[str, str] = field("Headers with these values.", dict)
    required_capabilities: tuple[str, ...] = field(
        "Tags that a backend of the route must have, all of them.", (), max_items=32, items=DATA_CLASS
    )
    task_complexity: str | None = field("Complexity that the request declares.", enum=("simple", "moderate", "complex"))
    latency_slo_ms: int | None = field("Latency that the request may take, in ms.", minimum=1, name="latencySLOMs")


@attrs.frozen(kw_only=True)
class Route(Wired):
    """Where a request goes."""

    backends: tuple[str, ...] = field(
        "Names of backends, best first.",
        REQUIRED,
        min_items=1,
        max_items=_MAX_ROUTE_BACKENDS,
        items=SchemaFacts(min_length=1, max_length=NAME_CHARACTERS),
    )
    strategy: str = field("How a backend is chosen.", "primary-fallback", enum=ROUTE_STRATEGIES)


@attrs.frozen(kw_only=True)
class RouterRule(Wired):
    """One rule; the first that matches decides."""

    name: str = field("Name in logs and metrics.", REQUIRED, pattern=ROUTER_NAME, max_length=NAME_CHARACTERS)
    match: Match = field("Conditions that the request meets all of; none means every request.", Match)
    route: Route = field("Where the request goes.", REQUIRED)
    fail_closed: bool | None = field("Refuses when no backend of the route can answer, and never falls through.")
    timeout: str | None = field("Longest wait for the first byte of an answer; wins over the backend's.", **_TIME)


# -- what routes -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProxySpec(Wired):
    """The pods that route."""

    image: str | None = field("Container image; unset means the controller's own.", min_length=1)
    image_pull_secrets: tuple[LocalObjectReference, ...] = field("Secrets for pulling the image.", ())
    replicas: int | None = field("How many pods; unset means 1.", minimum=1, maximum=10)
    resources: Mapping[str, Any] | None = field(
        "Requests and limits of the container, as in a pod.", pod_part="ResourceRequirements"
    )
    node_selector: Mapping[str, str] = field("Labels that a node must have.", dict)
    response_header_timeout: str | None = field(
        "Longest wait for the first byte of an answer, where neither rule nor backend says.", **_TIME
    )
    quarantine_duration: str | None = field(
        "How long a backend that failed is left alone.", pattern=DURATION, max_length=32
    )
    revision_history_limit: int | None = field("Old ReplicaSets to keep.", minimum=0)


@attrs.frozen(kw_only=True)
class MCPServer(Wired):
    """Reserved."""

    enabled: bool | None = field("Reserved; nothing reads it.")


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
    """Which backends there are, and which requests go where."""

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
    rules: tuple[RouterRule, ...] = field("Rules; the first that matches decides.", (), max_items=_MAX_RULES)
    default_route: str | None = field(
        "Backend for requests that no rule matches; unset refuses them.", max_length=NAME_CHARACTERS
    )
    default_route_strategy: str = field(
        "Static takes defaultRoute; BackendNameMatch first looks for a backend by the request's model.",
        "Static",
        enum=DEFAULT_ROUTES,
    )
    policy: RouterPolicy | None = field("What holds for all rules.")
    endpoint: EndpointSpec = field("How clients reach the router.", EndpointSpec)
    proxy: ProxySpec | None = field("The pods that route.")
    data_plane: str = field("Who routes: pods of ours, or an AI gateway.", "Proxy", enum=DATA_PLANES)
    gateway_ref: GatewayReference | None = field("Gateway to attach to, for dataPlane Gateway.")
    mcp_server: MCPServer | None = field("Reserved.")


@attrs.frozen(kw_only=True)
class ModelRouter(Object):
    """One endpoint in front of local and external models."""

    RESOURCE: ClassVar[Resource] = Resource(
        GROUP,
        VERSION,
        "ModelRouter",
        "modelrouters",
        short_names=("mr",),
        subresources=("status",),
        categories=("llmkube",),
    )
    COLUMNS: ClassVar = (
        Column("Phase", ".status.phase"),
        Column("Endpoint", ".status.endpoint"),
        Column("Rules", ".status.activeRules", "integer"),
        Column("Age", ".metadata.creationTimestamp", "date"),
    )
    spec: ModelRouterSpec
    status: ModelRouterStatus = field("How routing goes.", ModelRouterStatus)
