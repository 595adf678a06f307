"""Whether a router can answer, which of its backends it asks, and why not the others."""

from collections.abc import Mapping
from typing import Final

import attrs
import trio

from llmkube.router.auth.key_files import BackendKeys
from llmkube.router.auth.principals import lets_clients_in
from llmkube.router.backends import ModelDirectory, UnavailableModel, is_on_its_way
from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.dispatch.circuits import Circuits, State
from llmkube.router.proxy.audit_log import AuditLog
from llmkube.router.proxy.live_config import LiveConfig

LEFT_ALONE: Final = "it failed, and is left alone for now"


@attrs.frozen(eq=False)
class Standing:
    """How a router and its backends stand.

    Attributes:
        live: The config that counts.
        keys: Of backends.
        circuits: Which backends are left alone.
        directory: Knows the engines of ours, where their agent is in this process; None where only answers tell.
        audit: May fail to be written.
        accounts: May fail to be kept.
    """

    live: LiveConfig
    keys: BackendKeys
    circuits: Circuits
    directory: ModelDirectory | None
    audit: AuditLog
    accounts: RouterBudgets

    def why_not(self, name: str) -> str:
        """Return why a backend is not asked now, "" if it is."""
        backend = self.live.routing.config.backends[name]
        if backend.missing or not backend.base_url:
            return backend.missing or "its address is not known"
        if backend.key_file and not self.keys.key_of(backend.key_file):
            return f"no key can be read from {backend.key_file}"
        if self.directory is not None and not backend.provider and (why := _not_ready(self.directory, backend.model)):
            return why
        circuit = self.circuits.of(name)
        if circuit.unwell:
            return next(iter(circuit.unwell.values()))
        return LEFT_ALONE if circuit.state(trio.current_time()) is State.OPEN else ""

    def states(self) -> Mapping[str, str]:
        """Return why each backend is not asked now, by its name."""
        return {each: self.why_not(each) for each in self.live.routing.config.backends}

    def ready(self) -> tuple[bool, str]:
        """Return whether requests can be answered, and why not."""
        states = self.states()
        lets_in, token_problem = lets_clients_in(self.live.routing.clients)
        problems = (
            token_problem,
            self.accounts.problem,
            "the audit log cannot be written" if self.audit.is_failing else "",
            f"an older config counts, the file cannot be used: {self.live.problem}" if self.live.problem else "",
            *(f"{each}: {why}" for each, why in states.items() if why),
        )
        # One that is left alone for now is no reason to be left by clients: it tells them when to come again.
        passing = {"", LEFT_ALONE, *(why for each in states for why in self.circuits.of(each).unwell.values())}
        serves = any(why in passing for why in states.values())
        return serves and lets_in, "; ".join(filter(None, problems))


def _not_ready(directory: ModelDirectory, service: str) -> str:
    """Return why a service is not ready and does not load; "" otherwise."""
    found = directory.lookup(service)
    if found is None:
        return f"InferenceService {service} is not served here"
    if isinstance(found, UnavailableModel) and not is_on_its_way(found.reason):
        return f"InferenceService {service} is not ready ({found.reason})"
    return ""
