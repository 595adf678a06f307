"""The program that an agent starts in front of a published engine; its settings are in a private file, not in argv.

python -m llmkube.cli.commands.programs.engine_proxy FILE

It ends with the engine. Where that listened, another user of the machine may listen next; he is asked nothing.
"""

import sys
from functools import partial
from pathlib import Path

import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.cli.program import Stop, open_service_nursery, raise_descriptor_limit, run_until_signal, settle_heap
from llmkube.router.engine_proxy import proxy_handler, proxy_judge
from llmkube.supervisor.host import processes
from llmkube.supervisor.nouns.proxy_config import IN_FLIGHT_PATH, ProxyConfig
from llmkube.weights.address_policy import parse_networks

log = structlog.get_logger()


async def serve(config: ProxyConfig, stop: Stop) -> None:
    """Let requests in until the stop or the engine's end; answers that are under way then get their time."""
    listeners = await open_listeners(*config.listen)
    async with (
        open_sockets() as sockets,
        open_http_client(sockets.connect, max_idle_per_origin=256) as client,
        open_service_nursery() as servers,
    ):
        handler = proxy_handler(config.backend, config.api_key, client, count_path=IN_FLIGHT_PATH)
        judge = proxy_judge(config.api_key, parse_networks(config.allowed), config.keys)
        with stop.here():
            await servers.start(partial(run_server, handler, sockets.listen(listeners), judge=judge))
            settle_heap()
            await _wait_end(*config.engine)


async def _wait_end(pid: int, started: str) -> None:
    """Return when the engine has ended."""
    try:
        async with processes.open_exit_watch(pid) as wait:
            if processes.start_of(pid) == started:
                await wait()
    except ProcessLookupError:
        pass
    log.warning("the engine has ended, and its proxy ends with it", pid=pid)


def main() -> None:
    """Run the proxy that a file describes; exit with 1 when it cannot listen."""
    configure_logging("warning")
    config = ProxyConfig.load(Path(sys.argv[1]).read_text("utf-8"))
    raise_descriptor_limit()
    try:
        trio.run(run_until_signal, partial(serve, config), log.info)
    except* LLMKubeError as group:
        log.error("the proxy cannot listen", error=str(group.exceptions[0]))  # noqa: TRY400 - a sentence, not a bug
        sys.exit(1)


if __name__ == "__main__":
    main()
