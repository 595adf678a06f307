"""Looks at an oMLX on this machine: asks its server how much is loaded, and the kernel what its process holds.

One process of it holds all of its models. What it says of them is one witness, and what the kernel shows of the process
the other: releases of it have kept memory of models that were unloaded (oMLX issue 2116).

Facts: `omlx/server.py` of https://github.com/jundot/omlx. `GET /health` tells both, and asks for no key.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.message import NO_HEADERS
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned
from llmkube.programs.daemon_engine.omlx_program import DEFAULT_PORT, PORT_VARIABLE
from llmkube.programs.daemon_engine.processes import omlx_servers_in
from llmkube.programs.daemon_engine.server import DaemonError, DaemonHttp, ProcessTable

NAME: Final = "oMLX"

EMPTY_BYTES: Final = 4 << 30
"""The most that one without a model takes: its program, and a cache of prompts in memory."""

AGAIN_SECONDS: Final = 3.0
"""Before memory without a model is believed: an unload may be under way."""


@attrs.frozen(kw_only=True)
class Omlx:
    """An oMLX on this machine.

    Attributes:
        url: Where it was asked.
        loaded: How many models it says are loaded; None when nothing answers there as oMLX does.
        said_bytes: What it says that they take.
        pid: Its process; None where that is not seen.
        held_bytes: What the process holds.
    """

    url: str
    loaded: int | None = None
    said_bytes: int = 0
    pid: int | None = None
    held_bytes: int = 0


async def look() -> tuple[Finding, ...]:
    """Look at this machine's."""
    async with open_http_client() as http:
        return tuple(judge_omlx(await look_at(http, port_of(os.environ), ProcessTable())))


def port_of(environ: Mapping[str, str]) -> int:
    """Return where it listens: at the port of its own variable, else at its usual one."""
    said = environ.get(PORT_VARIABLE, "").strip()
    return int(said) if said.isdecimal() else DEFAULT_PORT


async def look_at(http: HttpClient, port: int, table: ProcessTable) -> Omlx:
    """Look once; and where it holds what it does not tell of, once more."""
    found = await _look_once(http, port, table)
    if found.loaded == 0 and found.held_bytes > EMPTY_BYTES:
        await trio.sleep(AGAIN_SECONDS)
        found = await _look_once(http, port, table)
    return found


def judge_omlx(fact: Omlx) -> Iterator[Finding]:
    """What it holds is no other program's to take; without a model it has to hold next to nothing. Pure."""
    if fact.loaded is None:
        return
    models = "1 model" if fact.loaded == 1 else f"{fact.loaded} models"
    if fact.loaded == 0 and fact.held_bytes > EMPTY_BYTES:
        yield warned(
            f"it says at {fact.url} that no model is loaded, and its process holds {format_bytes(fact.held_bytes)} "
            f"(pid {fact.pid})",
            why="memory of models that are said to be unloaded is not back, and ours get no memory that is taken",
            fix="quit oMLX and start it again",
        )
        return
    said = f", {format_bytes(fact.said_bytes)} by its own word" if fact.said_bytes else ""
    held = "" if fact.pid is None else f"; its process holds {format_bytes(fact.held_bytes)}"
    yield passed(f"it runs at {fact.url}; {models} loaded{said}{held}")


async def _look_once(http: HttpClient, port: int, table: ProcessTable) -> Omlx:
    found = Omlx(url=f"http://127.0.0.1:{port}")
    try:
        pool = (await DaemonHttp(http, found.url, NAME, NO_HEADERS).ask("/health")).get("engine_pool")
    except DaemonError:
        return found
    loaded = pool.get("loaded_count") if isinstance(pool, dict) else None
    if not isinstance(pool, dict) or not isinstance(loaded, int):
        return found
    said = pool.get("current_model_memory")
    pid = await table.listener(omlx_servers_in(await table.read()), port)
    held = (await table.footprints([pid])).get(pid, 0) if pid is not None else 0
    said_bytes = said if isinstance(said, int) else 0
    return attrs.evolve(found, loaded=loaded, said_bytes=said_bytes, pid=pid, held_bytes=held)
