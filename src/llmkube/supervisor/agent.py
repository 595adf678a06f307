"""The root of a host: which services run here, each in a nursery of its own. It wires, and never decides.

```
 run_agent
 └ shielded support      what a dying service still needs; a deadline begins when the stop does
   ├ applier, repeats, reflectors, nodes, host_lease, claims, events, pressure
   └ services nursery    cancelled first; the support closes after the last service has gone
     ├ run_service "chat"      life scope
     └ run_service "embed"     life scope
```
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.events import EventRecorder
from llmkube.k8s.leases.host_monitor import HostMonitor
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.supervisor.cluster.applier import Applier
from llmkube.supervisor.cluster.claim_manager import ClaimManager
from llmkube.supervisor.cluster.drift_repair import DriftRepair
from llmkube.supervisor.cluster.host_lease import HostLease, delete_host_lease
from llmkube.supervisor.cluster.node_monitor import NodeMonitor
from llmkube.supervisor.cluster.stale_endpoints import delete_stale_endpoints
from llmkube.supervisor.credential_monitor import CredentialMonitor
from llmkube.supervisor.engine.child import KILL_SECONDS
from llmkube.supervisor.host_cordon import HostCordon
from llmkube.supervisor.memory.book import Book
from llmkube.supervisor.memory.eviction_manager import EvictionManager
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.view import MemoryView
from llmkube.supervisor.nouns.host_addresses import Reach
from llmkube.supervisor.nouns.host_credential import CredentialState
from llmkube.supervisor.nouns.lifecycle import ServiceView
from llmkube.supervisor.nouns.ports import Ports, Shutdown
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.power.meter import EngineUse
from llmkube.supervisor.running_services import Running, RunningServices
from llmkube.supervisor.services import SETTLE_SECONDS, ServiceQueue, Services, conditions_of, wish_of

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""How long the first look at this host's addresses may take; after that its engines must not wait any longer."""

STOP_SLACK_SECONDS = 3.0
"""Added to the sum of a stop's own deadlines before the support is taken away from under it."""


@attrs.define(eq=False)
class AgentView:
    """What one may ask a running agent; reads are synchronous and never wait.

    `changed` is a mailbox whose version grows whenever an answer may have changed.
    """

    _running: Mapping[Key, Running]
    _waits_for: Callable[[], str]
    _shutdown: Shutdown
    _memory: Callable[[], MemoryView | None]
    credential: CredentialMonitor
    cordon: HostCordon
    changed: Mailbox[None]

    def services(self) -> dict[Key, ServiceView]:
        """A snapshot of every service that this host looks after."""
        return {key: running.status_manager.snapshot for key, running in sorted(self._running.items())}

    def engines(self) -> dict[Key, EngineUse]:
        """The engine of every service, and what it has said of its tokens."""
        managers = {key: running.status_manager for key, running in self._running.items()}
        return {key: EngineUse(each.view.pid, each.tokens) for key, each in managers.items()}

    def memory(self) -> MemoryView | None:
        """A snapshot of the host's memory; None while memory is not watched."""
        return self._memory()

    def keep_engines(self) -> None:
        """Let engines, endpoints and Lease stay when this agent ends: the next one on this host adopts them."""
        self._shutdown.keep = True

    def ready(self) -> tuple[bool, str]:
        """Whether the agent has seen the API server's objects once and is still let in, and why not."""
        credential = self.credential.value.value
        if credential.state is CredentialState.REFUSED:
            return False, credential.advice
        obstacle = self._waits_for()
        return (False, obstacle) if obstacle else (True, "ok")


async def run_agent(
    client: Client,
    settings: AgentSettings,
    ports: Ports,
    *,
    task_status: trio.TaskStatus[AgentView] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on this host until cancelled; then stop every service in order, in bounded time, before returning.

    Cancelling is the stop: endpoints are withdrawn, engines get TERM in parallel, one grace, KILL, and the last words
    reach the API server if it is there. `task_status.started` receives the `AgentView`.
    """
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_shielded, client, settings, ports, stop, task_status)
        try:
            await trio.sleep_forever()
        finally:
            stop.set()


def _new_services(client: Client, settings: AgentSettings, ports: Ports) -> Services:
    """Build what reconciles services, in an order in which each part has what it needs."""
    recorder = EventRecorder("llmkube-agent", settings.host_name, ports.utcnow, ports.rng)

    queue = ServiceQueue()
    hosts = HostMonitor(client, settings.lease_namespace, queue.add_all)
    reach = Mailbox(Reach(settings.advertise_address, settings.bind_address, seen=ports.look is None))
    running = RunningServices(Book(settings.memory_rules))
    cordon = HostCordon(ports.cordon, ports.utcnow, settings.accelerators, lambda: bool(running.by_key), queue.add_all)
    cordon.look()  # before anything is started
    services, models = Cache[InferenceService](), Cache[Model]()
    services.expect(ports.left)
    claims = ClaimManager(
        client,
        settings,
        hosts,
        ports.utcnow,
        ports.rng,
        has_file=ports.weights.has,
        desired=partial(wish_of, services=services, models=models, running=running, cordon=cordon),
        enqueue=queue.add,
    )
    ledger = Ledger(running.book, watched=ports.memory is not None, told=running.tell_evicted)
    applier = Applier(ports.rng, running.tell_refused)
    drift_repair = DriftRepair(applier, partial(conditions_of, services, models), ports.rng)
    return Services(
        settings=settings,
        ports=ports,
        queue=queue,
        services=services,
        models=models,
        claims=claims,
        running=running,
        applier=applier,
        recorder=recorder,
        drift_repair=drift_repair,
        reach=reach,
        ledger=ledger,
        cordon=cordon,
    )


async def _run_shielded(
    client: Client, settings: AgentSettings, ports: Ports, stop: trio.Event, task_status: trio.TaskStatus[AgentView]
) -> None:
    services = _new_services(client, settings, ports)
    claims, running, applier = services.claims, services.running, services.applier
    hosts = claims.hosts
    wakes = Mailbox(0.0)
    credential = CredentialMonitor(settings.token_file)
    nodes = NodeMonitor(client, settings, ports.admit, ports.rng)
    host_lease = HostLease(
        client,
        settings,
        ports,
        services.reach,
        services=lambda: len(running.by_key),
        memory=services.ledger.room,
        on_wake=wakes.put_nowait,
        on_renewed_again=applier.reapply_all_nowait,
        name_confirmed=claims.name_confirmed,
        renewed=claims.renewed,
        on_engine_upgrade=running.tell_engine,
        credential=lambda: credential.value.value.advice,
        on_accepted=credential.accept,
        on_refused=credential.refuse,
        closed=lambda: nodes.closed,
        cordon=lambda: services.cordon.end,
    )
    # Cancellation would reach the applier together with the services that still have to write through it. So the
    # support is shielded, the services are cancelled from in here, and from that moment the shield has a deadline.
    with trio.CancelScope(shield=True) as support:
        async with trio.open_nursery() as outer:
            reflect = partial(run_reflector, client, namespace=settings.namespace, rng=ports.rng)
            selected = partial(reflect, label_selector=settings.selector.text)
            with trio.move_on_after(LOOK_SECONDS):
                await host_lease.refresh_address()
            speak = partial(applier.run, client, field_manager=settings.field_manager)
            outer.start_soon(_run_once_named, claims.name_confirmed, speak)
            repeat = partial(applier.run_resync, client, namespace=settings.namespace)
            outer.start_soon(partial(repeat, every_seconds=settings.reassert_seconds))
            for follow in (
                partial(selected, InferenceService, services.services, services.on_service, brake=True),
                partial(reflect, Model, services.models, services.on_model),
                partial(hosts.run_reflector, ports.rng),
                claims.run_reflector,
            ):
                outer.start_soon(_run_afresh, follow, wakes)
            if settings.api_server:
                outer.start_soon(_run_afresh, nodes.run, wakes)
            outer.start_soon(hosts.run_expiry)
            outer.start_soon(claims.run)
            outer.start_soon(host_lease.run)
            outer.start_soon(services.run_address)
            outer.start_soon(services.cordon.run)
            outer.start_soon(services.drift_repair.run)
            outer.start_soon(_run_second_words, hosts, claims.host, applier)
            withdraw = partial(delete_stale_endpoints, client, settings, applier, running.by_key)
            outer.start_soon(_run_once_named, claims.name_confirmed, withdraw)
            outer.start_soon(services.recorder.run, client)
            outer.start_soon(ports.learned.run)
            if ports.memory is not None:
                outer.start_soon(EvictionManager(ports.memory, services.ledger, running.tell_memory).run)
            async with trio.open_nursery() as tasks:
                tasks.start_soon(services.run)
                view = AgentView(
                    running.by_key,
                    lambda: services.waits_for,
                    services.shutdown,
                    services.ledger.view,
                    credential,
                    services.cordon,
                    services.changed,
                )
                task_status.started(view)
                await stop.wait()
                log.info("stopping", services=len(running.by_key))
                support.deadline = trio.current_time() + stop_seconds(settings)
                tasks.cancel_scope.cancel(reason="the agent stops")
            with trio.move_on_after(settings.withdraw_seconds):
                await applier.wait_applied()
                await services.recorder.wait_written()
                if not services.shutdown.keep:
                    await delete_host_lease(client, settings)
            outer.cancel_scope.cancel(reason="every service has stopped")
    if support.cancelled_caught:
        log.error("the stop took longer than its deadlines allow")


async def _run_once_named(name_confirmed: trio.Event, run: Callable[[], Awaitable[None]]) -> None:
    """Say nothing in this host's name before it is certain that no other machine has it."""
    await name_confirmed.wait()
    await run()


async def _run_afresh(follow: Callable[[], Awaitable[None]], wakes: Mailbox[float]) -> None:
    """Never return: after a sleep begin again with a list; what was open then may be dead without having said so."""
    while True:
        version = wakes.version
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await wakes.wait_newer(version)
            nursery.cancel_scope.cancel(reason="the host has slept")


async def _run_second_words(hosts: HostMonitor, host: str, applier: Applier) -> None:
    """Never return: say what stands once more some time after other hosts have come or gone."""
    while True:
        version, before = hosts.news.version, _others(hosts, host)
        while _others(hosts, host) == before:
            await hosts.news.wait_newer(version)
            version = hosts.news.version
        await trio.sleep(SETTLE_SECONDS)
        applier.reapply_all_nowait()


def _others(hosts: HostMonitor, host: str) -> frozenset[str]:
    return frozenset(hosts.tracker.hosts.accelerators) - {host}


def stop_seconds(settings: AgentSettings) -> float:
    """The longest that a stop may take: endpoints, requests in flight, engines, the last words."""
    endings = settings.drain_seconds + settings.longest_grace_seconds + KILL_SECONDS
    return 2 * settings.withdraw_seconds + endings + STOP_SLACK_SECONDS
