"""Looks at an oMLX on this machine: asks its server how much is loaded, and the kernel what its process holds.

Facts: `omlx/server.py` of https://github.com/jundot/omlx. `GET /health` tells both, and asks for no key.
"""

import os
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.message import NO_HEADERS
from llmkube.cli.commands.doctor.omlx import EMPTY_BYTES, NAME, Omlx
from llmkube.programs.daemon_engine.omlx_program import DEFAULT_PORT, PORT_VARIABLE
from llmkube.programs.daemon_engine.process_table import ProcessTable, ThisMachine
from llmkube.programs.daemon_engine.processes import omlx_servers_in
from llmkube.programs.daemon_engine.server import DaemonError, DaemonHttp

AGAIN_SECONDS: Final = 3.0
"""Before memory without a model is believed: an unload may be under way."""


async def look() -> Omlx:
    """Look at this machine's."""
    async with open_http_client() as http:
        return await look_at(http, port_of(os.environ), ThisMachine())


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
