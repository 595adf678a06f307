"""The program that an agent starts in front of a published engine; its settings are in a private file, not in argv.

python -m llmkube.programs.engine_proxy FILE

It exits with the engine: another user of the machine may listen on the engine's port next, and must get no requests.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, Never, TypeVar

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.base.waiting import wait_tick
from llmkube.programs.program import Stop, freeze_heap, open_service_nursery, raise_descriptor_limit, run_until_signal
from llmkube.router.engine_proxy import is_in, key_or_peer_filter, proxy_handler
from llmkube.supervisor.host import processes
from llmkube.supervisor.host.processes import interface_addresses
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks
from llmkube.supervisor.values.host_addresses import usable
from llmkube.supervisor.values.proxy_config import IN_FLIGHT_PATH, ProxyConfig
from llmkube.weights.address_policy import Network, parse_networks

log = structlog.get_logger()

T = TypeVar("T")

RELOAD_SECONDS: Final = 5.0
"""Interval between two reads of the admitted networks and of this host's addresses."""

_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_MAX_PEERS: Final = 1024


@attrs.define(eq=False)
class AdmittedPeers:
    """Admitted networks: those of the configuration, this host's own addresses, and those of the nodes."""

    config: ProxyConfig
    _nodes: tuple[str, ...] = ()
    _networks: tuple[Network, ...] = ()
    _is_admitted: Callable[[str], bool] = attrs.field(default=lambda _: False)

    def admits(self, peer: str) -> bool:
        """Return whether requests from an address need no key."""
        return self._is_admitted(peer)

    def reload(self) -> None:
        """Read the networks; blocks.

        If those of the nodes cannot be read, the previous ones remain; without this host's addresses, nothing changes.
        """
        own: tuple[str, ...] = ()
        if self.config.networks:
            with contextlib.suppress(OSError, ValueError):  # the agent has not listed the nodes yet
                self._nodes = AdmittedNetworks.load(Path(self.config.networks).read_text("utf-8")).nodes
            try:
                own = (*_LOOPBACK, self.config.listen[0], *usable(interface_addresses()))
            except OSError:  # out of file descriptors
                return
        networks = parse_networks((*self.config.allowed, *own, *self._nodes))
        if networks != self._networks:
            self._networks = networks
            self._is_admitted = lru_cache(_MAX_PEERS)(partial(is_in, networks=networks))  # there may be thousands

    async def run(self) -> Never:
        """Read the networks at every interval; never return."""
        while True:
            await wait_tick(RELOAD_SECONDS)
            await trio.to_thread.run_sync(self.reload)


async def serve(config: ProxyConfig, stop: Stop) -> None:
    """Proxy admitted requests until a stop or the engine's exit; then drain requests in flight."""
    admission = AdmittedPeers(config)
    await trio.to_thread.run_sync(admission.reload)
    listeners = await open_listeners(*config.listen)
    async with (
        open_sockets() as sockets,
        open_http_client(sockets.connect, max_idle_per_origin=256) as client,
        open_service_nursery() as servers,
    ):
        handler = proxy_handler(config.backend, config.api_key, client, count_path=IN_FLIGHT_PATH)
        judge = key_or_peer_filter(config.api_key, admission.admits, config.keys)
        with stop.scope():
            await servers.start(partial(run_server, handler, sockets.listen(listeners), judge=judge))
            if config.networks:
                servers.start_soon(admission.run)
            freeze_heap()
            await _wait_for_exit(*config.engine)


async def _wait_for_exit(pid: int, started: str) -> None:
    """Wait until the engine has exited."""
    try:
        async with processes.open_exit_watch(pid) as wait:
            if processes.start_of(pid) == started:
                await wait()
    except ProcessLookupError:
        pass
    log.warning("engine exited, stopping its proxy", pid=pid)


def run_companion(name: str, load: Callable[[str], T], serve: Callable[[T, Stop], Awaitable[None]]) -> None:
    """Run a program that an agent starts, with the settings in the file in argv; exit with 1 if it cannot listen."""
    configure_logging("warning")
    config = load(Path(sys.argv[1]).read_text("utf-8"))
    raise_descriptor_limit()
    try:
        trio.run(run_until_signal, partial(serve, config), log.info)
    except* (LLMKubeError, OSError) as group:
        # an expected error
        log.error("%s not started: it cannot listen", name, error=str(group.exceptions[0]))  # noqa: TRY400
        sys.exit(1)


def main() -> None:
    """Run the proxy that a file describes."""
    run_companion("proxy", ProxyConfig.load, serve)


if __name__ == "__main__":
    main()
