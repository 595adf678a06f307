"""`llmkube agent`, also installed as `llmkube-metal-agent`: run the host agent."""

import os
import random
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import attrs
import click
import structlog
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.probes import run_probes
from llmkube.cli.commands.programs.background.lan_access import lan_peers, read_neighbors, record_lan_access
from llmkube.cli.commands.programs.background.log_file import GUIDE_LINK, maintain_log
from llmkube.cli.commands.programs.background.start_limit import (
    compare_interpreters,
    counted_start,
    own_interpreter,
    read_failed_starts,
    recorded_interpreter,
    reset_once_stable,
)
from llmkube.cli.lazy_group import Entry, LazyGroup
from llmkube.cli.target_cluster import find_config
from llmkube.k8s.auth.config import ClusterConfig, TokenFile
from llmkube.k8s.client import open_client
from llmkube.k8s.label_selectors import Selector, parse_selector
from llmkube.programs.config import AgentConfig, load
from llmkube.programs.host_name import check_own_address, persistent_host_name, source_address_for
from llmkube.programs.host_settings import detect_devices, find_llama_server, host_settings
from llmkube.programs.ollama_library import local_ollama
from llmkube.programs.options import HELP, guarded, settings_options
from llmkube.programs.program import (
    LOOPBACK,
    Stop,
    freeze_heap,
    open_optional_port,
    open_service_nursery,
    raise_descriptor_limit,
    run_until_signal,
    trim_heap,
    use_one_heap,
)
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import check_state_dir, local_state_dir
from llmkube.runtimes.devices import NO_DEVICES, Devices
from llmkube.supervisor.agent import run_agent
from llmkube.supervisor.credential_monitor import run_problem_file, run_token_renewal
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.local import open_local_ports
from llmkube.supervisor.metrics import agent_registry
from llmkube.supervisor.power.meter import PowerMeter
from llmkube.supervisor.power.sources import PowerSource, power_source
from llmkube.supervisor.values.host_credential import problem_path
from llmkube.supervisor.values.join_record import record_path, token_paths
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger()

COMMANDS: Mapping[str, Entry] = {
    "join": Entry("join:join", "Create a cluster identity for a host."),
    "join-token": Entry("join:join_token", "Print a token with which a host can join a cluster."),
    "install": Entry("background.agent_commands:install", "Install the agent as a launchd job and start it."),
    "uninstall": Entry("background.agent_commands:uninstall", "Stop the agent and its engines, and remove the job."),
    "start": Entry("background.agent_commands:start", "Start the installed agent."),
    "restart": Entry("background.agent_commands:restart", "Restart the installed agent; engines keep running."),
    "stop": Entry("background.agent_commands:stop_agent", "Stop the agent on this host and its engines."),
    "status": Entry("background.agent_status:status", "Show whether the agent is running and what it cannot reach."),
    "logs": Entry("background.agent_commands:logs", "Print the log of the installed agent."),
    "cordon": Entry("background.agent_status:cordon", "Stop serving on this host, so that other hosts serve."),
    "uncordon": Entry("background.agent_status:uncordon", "Resume serving on this host."),
    "sudoers": Entry("background.agent_commands:print_sudoers", "Print the line that --apple-power-enabled needs."),
}
"""Subcommands; the agent itself imports none of them."""


SETTLED_SECONDS = 5.0
"""Time after the start in which the agent adopts engines, which must not wait for the garbage collector."""

TRIM_SECONDS = 300.0


@click.group(
    "agent", cls=LazyGroup, package=__package__, entries=COMMANDS, context_settings=HELP, invoke_without_command=True
)
@click.version_option(__version__, "--version", "-V", message=f"llmkube {__version__}")
@click.option(
    "--start-limit",
    type=click.IntRange(min=0),
    default=0,
    help="Consecutive failed starts after which the agent exits with 0, so that a service manager stops restarting it; "
    "0 for no limit.",
)
@settings_options(AgentConfig)
@click.pass_context
@guarded
def agent(context: click.Context, /, start_limit: int, **flags: Any) -> None:
    """Serve a cluster's models on this host."""
    if context.invoked_subcommand is not None:
        return
    if not start_limit:
        _run(flags)
        return
    folder, boot = local_state_dir(flags), start_of(1)
    check_state_dir(folder, to_create=True)  # holds the count of failed starts
    failed = read_failed_starts(folder, boot)
    installed = recorded_interpreter(folder)
    if installed is not None and (difference := compare_interpreters(installed, own_interpreter())):
        configure_logging()
        log.warning("interpreter changed", change=difference)
    if failed.count >= start_limit:
        configure_logging()
        log.error("start limit reached", failedStarts=failed.count, problem=failed.problem, next="llmkube agent start")
        return
    with counted_start(folder, boot):
        _run(flags)


def _run(flags: Mapping[str, Any]) -> None:
    config = load("agent", AgentConfig, flags)
    configure_logging(config.log_level)
    cluster, _ = find_config(config.kubeconfig, config.context, config.state_dir)
    llama_server = find_llama_server(config.llama_server)
    devices = detect_devices(config, llama_server)
    if config.apple_power_enabled and sys.platform != "darwin":
        raise UserError("--apple-power-enabled: only macOS can measure it; leave the flag out on this host")
    if config.keep_awake and sys.platform != "darwin":
        raise UserError("--keep-awake: only macOS has caffeinate; leave the flag out on this host")
    source: PowerSource | None = None
    if config.apple_power_enabled or config.power_enabled:
        source = power_source(sys.platform, os.getuid(), random.Random())  # noqa: S311 - jitter, not a secret
    raise_descriptor_limit()
    use_one_heap()
    with hold_state_dir(config.state_dir):
        # may write the host's name into the directory
        settings = agent_settings(config, cluster.server, llama_server, devices)
        settings = attrs.evolve(settings, token_file=own_token(cluster, config.state_dir))
        trio.run(run_until_signal, partial(serve, config, settings, cluster, source), log.info)


def agent_settings(
    config: AgentConfig, server_url: str, llama_server: Path, devices: Devices = NO_DEVICES
) -> AgentSettings:
    """Return the agent's settings, with defaults for the host's name and its advertised address.

    Without --host-ip, the address is initially the source address of connections to the API server. The agent
    determines it again later, by other methods if the API server is on this machine.
    """
    url = urlsplit(server_url)
    if config.host_ip is not None:
        address: str | None = check_own_address(config.host_ip)
    else:
        address = source_address_for(url.hostname or "", url.port or 443)
    return AgentSettings(
        host_name=config.host_name or persistent_host_name(config.state_dir),
        state_dir=config.state_dir,
        store_dir=config.model_store or config.state_dir / "store",
        llama_server=str(llama_server),
        advertise_address=address,
        bind_address=address or LOOPBACK,
        api_server=server_url,
        host_ip=address if config.host_ip is not None else None,
        namespace=config.namespace,
        selector=selector_of(config.selector),
        endpoints_api=cast("Literal['endpointslices', 'endpoints']", config.endpoints_api),
        lease_namespace=config.lease_namespace,
        keep_awake=config.keep_awake,
        **host_settings(config, devices=devices),
    )


def selector_of(text: str) -> Selector:
    """Parse --selector.

    Raises:
        UserError: The selector is invalid; the message names the flag.
    """
    try:
        return parse_selector(text)
    except UserError as exc:
        raise UserError(f"--selector: {exc}") from exc


def own_token(cluster: ClusterConfig, state_dir: Path) -> Path | None:
    """Return the token file that `llmkube agent join` wrote for this cluster; delete older ones of other joins."""
    known = token_paths(state_dir)
    if not isinstance(cluster.identity, TokenFile) or cluster.identity.path not in known:
        return None
    own = cluster.identity.path
    written = own.stat().st_mtime_ns
    for other in known - {own}:
        if other.stat().st_mtime_ns < written:  # a newer one belongs to a join that has not written its kubeconfig yet
            for file in (other, record_path(other)):
                file.unlink(missing_ok=True)
    return own


async def serve(
    config: AgentConfig, settings: AgentSettings, cluster: ClusterConfig, power: PowerSource | None, stop: Stop
) -> None:
    """Run the agent and its probes until it is stopped; the probes keep answering until the agent has stopped."""
    async with (
        open_loop_watchdog() as loop_watchdog,
        open_optional_port(config.port, "--port") as probes,
        open_client(cluster) as client,
        open_local_ports(settings, client, partial(local_ollama, allowed=settings.ollama_sources)) as ports,
        open_service_nursery() as support,
        open_service_nursery() as agents,
    ):
        with stop.scope():
            view = await agents.start(run_agent, client, settings, ports)
            if probes is not None:
                meter: PowerMeter | None = None
                if power is not None:
                    meter = PowerMeter(power.name, power.domains, view.engines)
                    agents.start_soon(power.run, meter.take, meter.failed)
                registry = agent_registry(
                    view.services,
                    ports.downloads,
                    view.memory,
                    meter.view if meter else None,
                    lambda: view.credential.value.value,
                    cordon=lambda: view.cordon.current,
                )
                registry.register(loop_watchdog)
                await support.start(run_probes, view.ready, registry, probes.listeners)
            if settings.token_file is not None:
                support.start_soon(run_token_renewal, client, settings.token_file, view.credential, ports.utcnow)
            support.start_soon(run_problem_file, view.credential.value, problem_path(settings.state_dir))
            support.start_soon(_keep_heap_small)
            support.start_soon(reset_once_stable, settings.state_dir)
            if config.log_file is not None:
                support.start_soon(maintain_log, config.log_file, GUIDE_LINK)
                support.start_soon(_record_lan_access, settings.state_dir, cluster.server)
            log.info(
                "agent started",
                host=settings.host_name,
                hostIP=settings.advertise_address or "",
                apiServer=cluster.server,
                accelerators=sorted(settings.accelerators),
                llamaServer=settings.llama_server,
            )
            if settings.insecure_lan:
                log.warning("published engines accept requests from any address without a key", reason="--insecure-lan")
            await trio.sleep_forever()
        if stop.reason == "SIGTERM" and config.on_exit == "keep":
            log.info("engines kept for the next agent", services=len(view.services()))
            view.keep_engines()


async def _record_lan_access(state_dir: Path, server: str) -> None:
    url = urlsplit(server)
    address = (url.hostname, url.port or 443) if url.hostname else None
    await record_lan_access(state_dir, lan_peers(address, *await read_neighbors()))


async def _keep_heap_small() -> None:
    await trio.sleep(SETTLED_SECONDS)
    freeze_heap()
    while True:
        await trio.sleep(TRIM_SECONDS)
        trim_heap()
