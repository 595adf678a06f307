"""`llmkube up`: the API server, the controller, the gateway and the agent in one process, nested in the order of need.

```
 run_until_signal             outlives everything: a second Ctrl-C is answered, and does not break the order
   └ ports, API server, client
     └ support nursery        controller, gateway, probes
       └ agent nursery        cancelled first: engines stop while the API server still takes their last writes
         └ Stop.here          what a signal cancels: the question, or the wait for Ctrl-C
```
"""

import contextlib
import random
import sys
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio
from rich.console import Console
from rich.text import Text

from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.server import run_server
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.probes import run_probes
from llmkube.cli.commands.programs.apiserver import open_server
from llmkube.cli.commands.programs.first_answer import Outcome, Place, Visit
from llmkube.cli.commands.tools.files import Manifest
from llmkube.cli.view import output
from llmkube.controller.operator import run_controller
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import Health
from llmkube.programs.config.up_config import UpConfig
from llmkube.programs.failures import ExitCode
from llmkube.programs.host.access_options import access_settings
from llmkube.programs.host.download_options import download_settings, own_folders
from llmkube.programs.host.engine_options import engine_allowances
from llmkube.programs.host.engine_program import engine_settings
from llmkube.programs.host.host_name import lasting_host_name
from llmkube.programs.host.memory_options import memory_settings
from llmkube.programs.informer import Followed, open_follow
from llmkube.programs.lan_gateway.lan_listener import LanGateway, open_lan_gateway, run_lan_listener
from llmkube.programs.lan_gateway.listen_options import Listen
from llmkube.programs.ollama_library import ollama_here
from llmkube.programs.one_machine.model_directory import AgentDirectory
from llmkube.programs.program import (
    LOOPBACK,
    Stop,
    open_port,
    open_service_nursery,
    process_age_seconds,
    run_until_signal,
    settle_heap,
)
from llmkube.programs.router_host.engine_health import engine_asker, readiness_of
from llmkube.programs.router_host.gateway_router import GatewayRouter
from llmkube.programs.router_host.hosted_router import HostedSettings
from llmkube.programs.router_host.router_host import RouterHost
from llmkube.programs.router_host.router_paths import routers_handler
from llmkube.programs.server_side_apply import Applied, Applier
from llmkube.router.dialects.inbound import unread_refusal
from llmkube.router.gateway import gateway_handler, refuse_foreign_pages
from llmkube.router.origin_policy import page_grant
from llmkube.supervisor.agent import run_agent
from llmkube.supervisor.local import open_local_ports
from llmkube.supervisor.metrics import agent_registry
from llmkube.supervisor.network import own_addresses
from llmkube.supervisor.nouns.settings import AgentSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.frozen
class UpPlan:
    """Everything that `llmkube up` was told, checked before anything starts."""

    config: UpConfig
    manifests: tuple[Manifest, ...]
    llama_server: Path
    state_dir: Path
    question: str | None
    timeout_seconds: float
    listen: Listen | None = None

    @property
    def agent_settings(self) -> AgentSettings:
        """What the agent is told; engines are on the loopback address unless the user gave one that others reach."""
        store = self.state_dir / "store"
        return AgentSettings(
            host_name=self.config.host_name or lasting_host_name(self.state_dir),
            state_dir=self.state_dir,
            store_dir=store,
            llama_server=str(self.llama_server),
            **engine_settings(self.config),
            advertise_address=self.config.host_ip,
            bind_address=self.config.host_ip or LOOPBACK,
            accelerators=frozenset(self.config.accelerator),
            drain_seconds=self.config.drain_seconds,
            **download_settings(self.config, own_folders(store)),
            allowances=engine_allowances(self.config),
            **memory_settings(self.config),
            **access_settings(self.config),
        )


async def run_up(plan: UpPlan, console: Console) -> Outcome:
    """Bring everything up, do what was asked, take everything down in order."""
    run = _Up(plan, console)
    outcome = await run_until_signal(run.serve, run.tell)
    if outcome is not None:
        return outcome
    return Outcome() if plan.question is None else Outcome(ExitCode.FAILED, "stopped before the answer")


@attrs.define(eq=False)
class _Up:
    plan: UpPlan
    console: Console
    rng: random.Random = attrs.field(factory=random.Random)
    began: float = attrs.field(factory=lambda: trio.current_time() - process_age_seconds())

    def tell(self, line: str) -> None:
        """Say something about the run, above a moving line if there is one; nowhere if the terminal is closed."""
        with contextlib.suppress(OSError):
            self.console.print(Text(output.printable(line)), soft_wrap=True)

    async def serve(self, stop: Stop) -> Outcome | None:
        """Open everything around everything that needs it, and visit what is inside."""
        config, settings = self.plan.config, self.plan.agent_settings
        outcome = None
        async with (
            open_loop_watchdog() as loop_watchdog,
            open_port(config.gateway_port, "--gateway-port") as gateway,
            open_port(config.probe_port, "--probe-port") as probes,
            open_lan_gateway(self.plan.listen, self.plan.state_dir) as lan,
            open_server(self.plan.state_dir, config.api_port, field="--api-port") as server,
            open_sockets() as sockets,
            open_http_client(sockets.connect, max_idle_per_origin=256, max_idle=512) as http,
            open_follow(server.client, self.rng) as followed,
            open_service_nursery() as support,
            open_local_ports(settings, server.client, partial(ollama_here, allowed=settings.ollama_sources)) as ports,
        ):
            place = Place(
                server.url,
                str(server.kubeconfig),
                gateway.url,
                probes.url,
                network_url=lan.port.url if lan is not None else "",
                key_file=str(lan.keys.path) if lan is not None and lan.keys is not None else "",
            )
            self.tell(place.lines)
            self._tell_access(lan)
            visit = Visit(place, followed, http, self.console, config.accelerator, ports.utcnow, self.began)
            applied = await Applier(server.client).apply_all(self.plan.manifests, self._tell_applied)
            target = await _asked(applied, followed) if self.plan.question is not None else None
            # Read now: whatever the objects say before the agent runs is about an earlier run.
            before = visit.health_of(target) if isinstance(target, Key) else None
            async with open_service_nursery() as agents:
                with stop.here():
                    view = await agents.start(run_agent, server.client, settings, ports)
                    registry = agent_registry(view, ports.downloads, view.memory, cordon=lambda: view.cordon.current)
                    registry.register(loop_watchdog)
                    control = partial(
                        run_controller,
                        server.client,
                        # All accelerators: what this host does not serve gets the reason NoHost, and not silence.
                        ControllerSettings(
                            host_accelerators=frozenset(ACCELERATORS), gateway_url=gateway.url, routers_elsewhere=True
                        ),
                        utcnow=ports.utcnow,
                        rng=self.rng,
                        registry=registry,
                    )
                    directory = AgentDirectory(view.services, lambda: view.changed.version)
                    await support.start(control)
                    shared = HostedSettings(
                        client=server.client,
                        gateway_url=gateway.url,
                        folder=self.plan.state_dir / "routers",
                        connect=sockets.connect,
                        utcnow=ports.utcnow,
                        rng=self.rng,
                        ask_engine=engine_asker(directory, http),
                        why_not_ready=readiness_of(directory),
                    )
                    routers = RouterHost(shared, followed.services.get, followed.model_of)
                    registry.register(routers)
                    await support.start(routers.run, self.rng)
                    translator = GatewayRouter(shared, directory, followed.services.values, followed.model_of)
                    await support.start(translator.run)
                    answer = gateway_handler(directory, http, ports.utcnow, translator.handle)
                    handler = routers_handler(routers.find, answer)
                    serve = partial(run_server, handler, stamp=page_grant, unread=unread_refusal)
                    own = partial(serve, sockets.listen(gateway.listeners), judge=refuse_foreign_pages)
                    await support.start(own)
                    if lan is not None:
                        support.start_soon(
                            run_lan_listener,
                            lan.port,
                            lambda listeners: serve(sockets.listen(listeners), judge=lan.judge),
                            own_addresses,
                        )
                    await support.start(run_probes, view.ready, registry, probes.listeners)
                    settle_heap()
                    outcome = await self._visit(visit, target, before)
        return outcome

    def _tell_access(self, lan: LanGateway | None) -> None:
        """Show a key that was just drawn to a person, and to no file into which the output goes."""
        if lan is None:
            return
        if lan.keys is not None and lan.keys.exposed:
            log.warning("every user of this machine may read the keys of other machines", file=str(lan.keys.path))
        if lan.keys is None:
            log.warning("every request is let in, from any address", address=lan.port.url, why="--insecure-lan")
        elif lan.keys.drawn and sys.stdout.isatty():
            output.say(f"The key for other machines, shown this once: {lan.keys.keys[0]}")

    async def _visit(self, visit: Visit, target: Key | Outcome | None, before: Health | None) -> Outcome:
        if isinstance(target, Outcome):
            return target
        if target is None or self.plan.question is None:
            await visit.stay()
            return Outcome()
        with trio.move_on_after(self.plan.timeout_seconds):
            return await visit.answer(target, self.plan.question, before=before)
        return Outcome(
            ExitCode.TIMED_OUT,
            f"no answer within {self.plan.timeout_seconds:g} s; see why without --ask, or give more with --timeout",
        )

    def _tell_applied(self, applied: Applied) -> None:
        manifest = applied.manifest
        if applied.error:
            self.tell(f"{manifest.where}: {manifest.title} was refused: {applied.error}")
        else:
            self.tell(f"{manifest.body['kind']} {applied.key} applied")


async def _asked(applied: tuple[Applied, ...], followed: Followed) -> Key | Outcome:
    """Return the service to ask: the first one that was given, else the first one that is there."""
    refused = [each for each in applied if each.error]
    if refused:
        words = "\n".join(f"{each.manifest.title}: {each.error}" for each in refused)
        return Outcome(ExitCode.FAILED, f"not everything could be applied, so nothing was asked\n{words}")
    kind = InferenceService.RESOURCE.kind
    given = [each.key for each in applied if each.manifest.body["kind"] == kind]
    there = sorted(service.key for service in followed.services.values())
    if not given and not there:
        return Outcome(ExitCode.FAILED, "there is no InferenceService to ask; give one with -f FILE, or use --demo")
    target = (given or there)[0]
    while target not in followed.services:  # what the API server has acknowledged is on its way to us
        version = followed.changed.version
        await followed.changed.wait_newer(version)
    return target
