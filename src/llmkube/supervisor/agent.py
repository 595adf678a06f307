"""The root of the agent's task tree, in which each service has a nursery. It wires parts together and decides nothing.

```
 run_agent
 └ shielded support      needed by services until they have stopped; its deadline starts with the stop
   ├ applier, resync, reflectors, nodes, host_lease, claims, events, memory
   └ services nursery    cancelled first; the support ends after the last service
     ├ run_service "chat"      its own cancel scope
     └ run_service "embed"     its own cancel scope
```
"""

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.reflector import run_reflector
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.applier import delete_stale_endpoints
from llmkube.supervisor.cluster.host_lease import HostLease, delete_host_lease
from llmkube.supervisor.cluster.node_monitor import NodeMonitor
from llmkube.supervisor.credential_monitor import CredentialMonitor
from llmkube.supervisor.engine.child import KILL_SECONDS
from llmkube.supervisor.host_cordon import HostCordon
from llmkube.supervisor.memory.capacity import MemoryView
from llmkube.supervisor.memory.eviction_manager import EvictionManager
from llmkube.supervisor.power.meter import EngineUse
from llmkube.supervisor.service.gate import ServiceActivator
from llmkube.supervisor.services import SETTLE_SECONDS, Services
from llmkube.supervisor.values.host_credential import CredentialState
from llmkube.supervisor.values.lifecycle import ServiceView
from llmkube.supervisor.values.ports import Ports
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger(__name__)

Task = Callable[[], Awaitable[None]]

ADDRESS_LOOKUP_SECONDS = 1.0
"""Time limit of the first lookup of this host's addresses, so that engines do not wait longer."""

STOP_SLACK_SECONDS = 3.0
"""Added to the sum of a stop's own deadlines before the support is cancelled."""


@attrs.define(eq=False)
class AgentView:
    """Queries and controls of a running agent; all are synchronous and never wait."""

    _services: Services
    credential: CredentialMonitor

    @property
    def cordon(self) -> HostCordon:
        """Cordon of this host."""
        return self._services.cordon

    @property
    def activator(self) -> ServiceActivator:
        """Loads and unloads services on request."""
        return self._services.activator

    @property
    def changed(self) -> Mailbox[None]:
        """Mailbox whose version grows whenever the result of a query may have changed."""
        return self._services.changed

    def services(self) -> dict[Key, ServiceView]:
        """Return a snapshot of every service that runs on this host."""
        return {key: running.snapshot for key, running in sorted(self._services.running.by_key.items())}

    def service(self, key: Key) -> ServiceView | None:
        """Return a snapshot of a service; None if it does not run on this host."""
        running = self._services.running.by_key.get(key)
        return running.snapshot if running is not None else None

    def engines(self) -> dict[Key, EngineUse]:
        """Return the engine of every service, with its token count."""
        managers = {key: running.status_manager for key, running in self._services.running.by_key.items()}
        return {key: EngineUse(each.view.pid, each.tokens) for key, each in managers.items()}

    def record_error(self, key: Key) -> None:
        """Record that a client got status 500 or higher from the engine of a service, if it runs here."""
        if (running := self._services.running.by_key.get(key)) is not None:
            running.status_manager.errors += 1

    def memory(self) -> MemoryView | None:
        """Return a snapshot of the host's memory; None while it is not watched."""
        return self._services.ledger.view()

    def keep_engines(self) -> None:
        """Keep engines, endpoints and Lease when this agent exits; the next agent on this host adopts them."""
        self._services.shutdown.keep = True

    def ready(self) -> tuple[bool, str]:
        """Return whether the agent has listed the API server's objects and its credential is accepted, or why not."""
        credential = self.credential.value.value
        if credential.state is CredentialState.REFUSED:
            return False, credential.advice
        obstacle = self._services.not_ready_reason
        return (False, obstacle) if obstacle else (True, "ok")


async def run_agent(
    client: Client,
    settings: AgentSettings,
    ports: Ports,
    *,
    task_status: trio.TaskStatus[AgentView] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on this host until cancelled; then stop every service, in bounded time, before returning.

    After the cancellation endpoints are withdrawn, all engines get TERM in parallel and KILL after the grace, and the
    last writes are sent if the API server is reachable. `task_status.started` receives the `AgentView`.
    """
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_shielded, client, settings, ports, stop, task_status)
        try:
            await trio.sleep_forever()
        finally:
            stop.set()


async def _run_shielded(
    client: Client, settings: AgentSettings, ports: Ports, stop: trio.Event, task_status: trio.TaskStatus[AgentView]
) -> None:
    services, credential = Services(client, settings, ports), CredentialMonitor(settings.token_file)
    # A cancellation would stop the applier at once, although services still write through it while they stop. So the
    # supporting tasks are shielded; the services are cancelled here, and from then on the shield has a deadline.
    with trio.CancelScope(shield=True) as support:
        async with trio.open_nursery() as outer:
            await _start_support(outer, services, credential)
            async with trio.open_nursery() as tasks:
                tasks.start_soon(services.run)
                task_status.started(AgentView(services, credential))
                await stop.wait()
                log.info("stopping", services=len(services.running.by_key))
                support.deadline = trio.current_time() + stop_seconds(settings)
                tasks.cancel_scope.cancel(reason="the agent stops")
            with trio.move_on_after(settings.withdraw_seconds):
                await services.applier.wait_applied()
                await services.recorder.wait_written()
                if not services.shutdown.keep:
                    await delete_host_lease(client, settings)
            outer.cancel_scope.cancel(reason="every service has stopped")
    if support.cancelled_caught:
        log.error("stop timed out")


async def _start_support(nursery: trio.Nursery, services: Services, credential: CredentialMonitor) -> None:
    """Look up this host's address, and start the tasks that services need until the last of them has stopped."""
    client, settings, ports = services.client, services.settings, services.ports
    claims, applier, running, hosts = services.claims, services.applier, services.running, services.hosts
    wakes = Mailbox(0.0)
    nodes = NodeMonitor(client, settings, ports.admit, ports.rng)
    host_lease = HostLease(
        client,
        settings,
        ports,
        services.host_address,
        credential,
        services=lambda: len(running.by_key),
        memory=services.ledger.capacity_summary,
        on_wake=wakes.put_nowait,
        on_renewed_again=applier.reapply_all_nowait,
        name_confirmed=claims.name_confirmed,
        renewed=claims.renewed,
        on_engine_upgrade=running.notify_engine_upgraded,
        closed=lambda: nodes.closed,
        cordon=lambda: services.cordon.end,
    )
    with trio.move_on_after(ADDRESS_LOOKUP_SECONDS):
        await host_lease.refresh_address()

    reflect = partial(run_reflector, client, namespace=settings.namespace, rng=ports.rng)
    watch_services = partial(
        reflect,
        InferenceService,
        services.services,
        services.on_service,
        label_selector=settings.selector.text,
        cautious=True,
        keep_unserved=True,
    )
    watch_models = partial(reflect, Model, services.models, services.on_model)
    watch_pools = partial(services.pools.run, client, services.on_pool, namespace=settings.namespace, rng=ports.rng)
    watch_hosts = partial(hosts.run_reflector, ports.rng)
    watches: list[Task] = [watch_services, watch_models, watch_pools, watch_hosts, claims.run_reflector]
    if settings.api_server:
        watches.append(nodes.run)
    for watch in watches:
        nursery.start_soon(_restart_after_sleep, watch, wakes)

    write = partial(applier.run, client, field_manager=settings.field_manager)
    withdraw = partial(delete_stale_endpoints, client, settings, applier, running.by_key)
    for write_task in (write, withdraw):
        nursery.start_soon(_run_after_name_confirmed, claims.name_confirmed, write_task)

    resync = partial(applier.run_resync, client, every_seconds=settings.reassert_seconds, namespace=settings.namespace)
    tasks: list[Task] = [host_lease.run, hosts.run_expiry, services.run_address, services.cordon.run, ports.learned.run]
    tasks += [claims.run, resync, services.drift_repair.run, partial(services.recorder.run, client)]
    tasks.append(partial(_reapply_after_membership_changes, services))
    if services.door is not None:
        tasks.append(services.door.run)
    if ports.memory is not None:
        tasks.append(EvictionManager(ports.memory, services.ledger, running.notify_memory).run)
    for task in tasks:
        nursery.start_soon(task)


async def _run_after_name_confirmed(name_confirmed: trio.Event, run: Task) -> None:
    """Write nothing in this host's name before it is certain that no other machine uses it."""
    await name_confirmed.wait()
    await run()


async def _restart_after_sleep(watch: Task, wakes: Mailbox[float]) -> None:
    """Run a watch, and restart it with a new list after a sleep; never return."""
    while True:  # connections that were open before a sleep may be dead without an error
        version = wakes.version
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await wakes.wait_newer(version)
            nursery.cancel_scope.cancel(reason="the machine has slept")


async def _reapply_after_membership_changes(services: Services) -> None:
    """Apply everything again some time after other hosts have joined or left; never return."""
    hosts, host = services.hosts, services.claims.host
    while True:
        version, before = hosts.updates.version, _others(hosts, host)
        while _others(hosts, host) == before:
            await hosts.updates.wait_newer(version)
            version = hosts.updates.version
        await trio.sleep(SETTLE_SECONDS)
        services.applier.reapply_all_nowait()


def _others(hosts: HostMonitor, host: str) -> frozenset[str]:
    return frozenset(hosts.tracker.hosts.accelerators) - {host}


def stop_seconds(settings: AgentSettings) -> float:
    """Return the longest time that a stop may take: endpoints, requests in flight, engines, last writes."""
    return settings.stop_seconds + KILL_SECONDS + settings.withdraw_seconds + STOP_SLACK_SECONDS
