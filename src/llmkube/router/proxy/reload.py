"""Another config counts: what every part of a router keeps of the one before, and what it forgets."""

import attrs

from llmkube.router.budget_store.router_budgets import RouterBudgets
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.health.engine_watch import EngineWatch
from llmkube.router.health.probes import Probes
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes
from llmkube.router.proxy.audit_log import AuditLog, Write, writer_of
from llmkube.router.proxy.shared import Shared, terms_of
from llmkube.router.queue.turns import engines_of


@attrs.frozen(eq=False, kw_only=True)
class Reload:
    """Has the parts of a router go by another config; what they know of backends that are the same stays.

    Attributes:
        parts: Queues and circuits.
        prefixes: Which prompts are warm.
        watch: Asks engines that requests wait for.
        probes: Asks backends how they do.
        accounts: Budgets.
        audit: The log.
        write: Writes it whatever a config says; None has the config say where it goes.
    """

    parts: Shared
    prefixes: WarmPrefixes
    watch: EngineWatch
    probes: Probes
    accounts: RouterBudgets
    audit: AuditLog
    write: Write | None

    async def __call__(self, before: RoutingConfig, now: RoutingConfig) -> None:
        """Go from one config to another."""
        same = frozenset(each for each in now.backends if now.backends[each] == before.backends.get(each))
        self.parts.circuits.terms = terms_of(now)
        self.parts.circuits.keep_only(same)
        self.prefixes.keep_only(same)
        self.watch.keep_only(same)
        self.probes.reload_nowait(now, same)
        self.parts.turns.keep_only(engines_of(now.backends.values()))
        if self.write is None and now.audit != before.audit:
            self.audit.write = writer_of(now.audit, self.parts.audit_lock)
        await self.audit.reload(now)
        await self.accounts.reload(now)
