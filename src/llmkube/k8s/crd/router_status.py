"""What the controller says of a ModelRouter: its phase, its backends, how much of each budget is used."""

from typing import Final

import attrs

from llmkube.k8s.crd.inferenceservice import GatewayStatus
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.fields import REQUIRED, Wired, field

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
