"""Where a request goes, by the policy and by what this router has seen of its backends; what is said if nowhere.

The models that a client can ask for are those that lead somewhere.
"""

import random
from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.dispatch.observed import Observed
from llmkube.router.model_list import Listed
from llmkube.router.policy.decision import FAIL_CLOSED, MODEL_NOT_ALLOWED, NO_ROUTE, NOT_PERMITTED, Decision, decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import Principal, RequestFacts, facts_of
from llmkube.router.prefix_cache.warm_prefixes import Prompt, WarmPrefixes
from llmkube.router.refusals import RefusedError, refused

NEVER_AGAIN: Final[Mapping[str, str]] = {"X-Should-Retry": "false"}
"""For a client that would ask again by itself."""

_REFUSALS: Final = {
    NO_ROUTE: (404, "no_route"),
    FAIL_CLOSED: (503, "fail_closed"),
    NOT_PERMITTED: (503, "not_permitted"),
    MODEL_NOT_ALLOWED: (403, "model_not_allowed"),
}


@attrs.frozen(eq=False)
class Decisions:
    """Decides for one router.

    Attributes:
        observed: What requests have shown of backends.
        prefixes: What is believed of the engines' caches.
        rng: Draws for weights.
    """

    observed: Observed
    prefixes: WarmPrefixes
    rng: random.Random

    def of(self, config: RoutingConfig, facts: RequestFacts, prompt: Prompt | None = None) -> Decision:
        """Return where a request goes; with a prompt, first to where that is warm."""
        return decide(
            config,
            facts,
            permits_for(config, facts),
            first_byte_seconds=self.observed.first_byte_seconds,
            pick=self.rng.random(),
            load=self.observed.in_flight,
            warmth=self.prefixes.warmth(prompt, config.backends.values()) if prompt is not None else {},
        )

    def models(self, config: RoutingConfig, principal: Principal) -> list[Listed]:
        """Return each name that a client can ask for and that reaches a backend as it is: what that can is listed."""
        found = []
        for model_id, owner in _ids(config):
            decision = self.of(config, facts_of(config, {}, {"model": model_id}, principal))
            if decision.order:
                backend = decision.order[0].backend
                runs = not backend.provider and not backend.missing
                found.append(Listed(name=model_id, owner=owner, runs=runs, tags=backend.capabilities))
        return found


def nowhere(config: RoutingConfig, facts: RequestFacts, decision: Decision) -> RefusedError:
    """Return what is said where no backend may answer; what only stays away for its data is not "not found"."""
    status, code = _REFUSALS.get(decision.reason, (503, "no_route"))
    sensitive = sorted(facts.classes & config.classes.sensitive)
    why = decision.why
    if sensitive and status == 404:
        status, code = _REFUSALS[NOT_PERMITTED]
        why = f"data class {', '.join(sensitive)} stays local, and {why}"
    again = NEVER_AGAIN if status == 503 else {}
    return refused(status, f"no backend may answer this request: {why}", code, again)


def _ids(config: RoutingConfig) -> list[tuple[str, str]]:
    """Return each name that a client could ask for, with the owner of the first backend that it may mean."""
    found = {backend.model_id: backend.provider or "llmkube" for backend in config.backends.values()}
    for rule in config.rules:
        for pattern in rule.match.models:
            if not set(pattern) & set("*?["):
                found.setdefault(pattern, "llmkube")
    return list(found.items())
