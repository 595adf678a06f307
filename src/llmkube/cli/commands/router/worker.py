"""A worker of a router: `python -m llmkube.cli.commands.router.worker LINK LIFE LOCK LISTENER…`, started by its parent.

The arguments are descriptors that it inherits; what it runs by comes over the link. Without its parent it has no
queue, no budgets and no circuits: it ends.
"""

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import structlog
import trio
from prometheus_client import CollectorRegistry

from llmkube.base.errors import LLMKubeError
from llmkube.base.http.hub import open_sockets
from llmkube.base.http.server import run_server
from llmkube.base.log import configure_logging
from llmkube.base.loop_watchdog import open_loop_watchdog
from llmkube.base.times import utcnow
from llmkube.cli.commands.router.run_by import source_of
from llmkube.programs.config.router_config import RouterConfig
from llmkube.programs.program import Stop, open_service_nursery, raise_descriptor_limit, run_until_signal, settle_heap
from llmkube.router.proxy.router import LIMITS, open_router
from llmkube.router.workers.link import Link, Message
from llmkube.router.workers.worker_link import WorkerLink

ORPHAN_SECONDS: Final = 2.0
"""How long a worker goes on without its parent: the next router may need its engines' slots."""

_PATHS: Final = ("state_dir", "keys_dir", "ca_file")

log = structlog.get_logger()


def hello(name: str, filename: str, settings: RouterConfig) -> Mapping[str, Any]:
    """Return what a parent tells a worker first, as JSON."""
    given = attrs.asdict(settings)
    paths = {each: None if given[each] is None else str(given[each]) for each in _PATHS}
    return {"worker": name, "filename": filename, "settings": {**given, **paths}}


def settings_from(said: Mapping[str, Any]) -> RouterConfig:
    """Return the settings that `hello` has written."""
    paths = {each: None if said[each] is None else Path(said[each]) for each in _PATHS}
    return RouterConfig(**{**said, **paths, "service": tuple(said["service"])})


def main(arguments: Sequence[str]) -> None:
    """Answer clients until the parent, or a signal, ends this process."""
    link, life, lock, *listeners = map(int, arguments)
    # A thread and not a task: it ends the process also where the event loop hangs, which no task could.
    threading.Thread(target=_end_with_parent, args=(life,), name="parent-watch", daemon=True).start()
    configure_logging()
    raise_descriptor_limit()

    async def run(stop: Stop) -> None:
        await _serve(Link(socket.socket(fileno=link)), lock, listeners, stop)

    try:
        trio.run(run_until_signal, run, log.debug)
    except* LLMKubeError as group:
        errors = [str(each) for each in group.exceptions]
        log.error("a worker cannot run", errors=errors)  # noqa: TRY400 - a user's mistake needs no traceback
        sys.exit(1)


def _end_with_parent(life: int) -> None:
    """End this process soon after its parent, also where its event loop hangs. For a thread."""
    os.read(life, 1)  # the parent writes nothing: the end is read when it is gone
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


async def _serve(link: Link, lock: int, listeners: Sequence[int], stop: Stop) -> None:
    rng = random.Random()  # noqa: S311 (weights, pauses and names of requests: no secret)
    registry = CollectorRegistry()
    ours, told, greeted = WorkerLink(link, registry, rng), list[Message](), trio.Event()

    def take(message: Message) -> None:
        if message["k"] == "hello":
            told.append(message)
            greeted.set()
        else:
            ours.take(message)

    async def run_link() -> None:
        await link.run(take)
        stop.request_nowait("the parent process is gone")

    async with (
        open_loop_watchdog() as loop_watchdog,
        open_sockets() as sockets,
        open_service_nursery() as tasks,
    ):
        tasks.start_soon(run_link)
        with stop.here():
            await greeted.wait()
        if not told:
            return
        settings = settings_from(told[0]["settings"])
        structlog.contextvars.bind_contextvars(worker=told[0]["worker"])
        configure_logging(settings.log_level)
        async with open_router(
            source_of(told[0]["filename"], settings, tells=False),
            registry=registry,
            utcnow=utcnow,
            rng=rng,
            connect=sockets.connect,
            ca_file=settings.ca_file,
            shared=ours.shared(lock),
        ) as router:
            registry.register(loop_watchdog)
            ours.router = router
            settle_heap()
            link.send_nowait("started")
            with stop.here():
                await run_server(
                    router.handler,
                    sockets.listen([_listener(each) for each in listeners]),
                    limits=LIMITS,
                    judge=router.judge,
                    stamp=router.stamp,
                    unread=router.unread,
                )


def _listener(descriptor: int) -> trio.SocketListener:
    return trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main(sys.argv[1:])
