"""Compare the loaded models that Ollama and oMLX report with the memory of their processes. Starts and ends nothing.

Ollama: the two differ if a model's process has outlived its server, or still runs after the server has reported the
model as unloaded (ollama issue 17792). Facts: `server/routes.go` and `envconfig/config.go` of
https://github.com/ollama/ollama, 0.17.4. `GET /api/ps` lists the loaded models, and keeps a model in the list while its
last request runs, even after an acknowledged unload.

oMLX: one process holds all models, and some releases have kept the memory of unloaded ones (oMLX issue 2116). Facts:
`omlx/server.py` of https://github.com/jundot/omlx. `GET /health` reports models and memory, and needs no key.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.message import NO_HEADERS
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned
from llmkube.programs.daemon_engine.ollama_api import OllamaApi, daemon_url
from llmkube.programs.daemon_engine.omlx_api import DEFAULT_PORT, PORT_VARIABLE
from llmkube.programs.daemon_engine.processes import Runners, omlx_servers_in, runners_in
from llmkube.programs.daemon_engine.server import DaemonError, DaemonHttp, ProcessTable

OLLAMA_RECHECK_SECONDS: Final = 2.0
"""Delay before a difference is checked again: a process may be ending, or not be listed yet."""


@attrs.frozen(kw_only=True)
class Ollama:
    """Ollama on this machine; empty if it is not there.

    Attributes:
        url: Address of its API.
        version: Version that it reports; "" if no Ollama answers.
        listed: Models that it reports as loaded.
        runners: Processes of models that this user can see.
        held: Memory of each process, in bytes by pid.
    """

    url: str
    version: str = ""
    listed: tuple[str, ...] = ()
    runners: Runners = Runners()
    held: dict[int, int] = attrs.field(factory=dict)


async def check_ollama() -> tuple[Finding, ...]:
    """Check this machine's Ollama."""
    async with open_http_client() as http:
        return tuple(assess_ollama(await inspect_ollama(http, daemon_url(os.environ), ProcessTable())))


async def inspect_ollama(http: HttpClient, url: str, table: ProcessTable) -> Ollama:
    """Read what Ollama reports and its processes, and read both again if they differ."""
    found = await _query_ollama(http, url, table)
    if found.runners.orphans or len(found.runners.served) > len(found.listed):
        await trio.sleep(OLLAMA_RECHECK_SECONDS)
        found = await _query_ollama(http, url, table)
    pids = (*found.runners.served, *found.runners.orphans)
    return attrs.evolve(found, held=dict(await table.footprints(pids))) if pids else found


def assess_ollama(fact: Ollama) -> Iterator[Finding]:
    """Yield a warning for memory that Ollama does not account for, else its version and models. Pure."""
    runners = fact.runners
    if runners.orphans:
        yield _orphans(fact)
    if not fact.version:
        if runners.servers:
            yield warned(
                f"it is running but does not answer at {fact.url}",
                why="it may listen elsewhere, or hang: its loaded models are unknown",
                fix="name its address: `OLLAMA_HOST=127.0.0.1:PORT llmkube doctor`, or restart it",
            )
        return
    here = f"{fact.version} at {fact.url}"
    if len(runners.served) > len(fact.listed):
        yield warned(
            f"{here} lists {_models(len(fact.listed))}, but {_processes_text(fact, runners.served)}",
            why="models that it reports as unloaded still hold memory, which LLMKube's models cannot use",
            fix="quit Ollama and start it again; `ollama ps` lists the loaded models",
        )
        return
    names = f": {', '.join(fact.listed)}" if fact.listed else ""
    size = f", {_memory_text(fact, runners.served)}" if runners.served else ""
    yield passed(f"{here}; {_models(len(fact.listed))} loaded{size}{names}")


def _orphans(fact: Ollama) -> Finding:
    pids = fact.runners.orphans
    return warned(
        f"a server of it has exited, but {_processes_text(fact, pids, 'still ')}",
        why="no server will stop it or send it a request, and LLMKube's models cannot use its memory",
        fix=f"`kill {' '.join(map(str, pids))}`",
    )


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _processes_text(fact: Ollama, pids: tuple[int, ...], still: str = "") -> str:
    verb = f"of its processes {still}{'holds' if len(pids) == 1 else 'hold'}"
    return f"{len(pids)} {verb} {_memory_text(fact, pids)} (pid {', '.join(map(str, pids))})"


def _memory_text(fact: Ollama, pids: tuple[int, ...]) -> str:
    return format_bytes(sum(fact.held.get(pid, 0) for pid in pids))


async def _query_ollama(http: HttpClient, url: str, table: ProcessTable) -> Ollama:
    api, found = OllamaApi(http, url), Ollama(url=url)
    with contextlib.suppress(DaemonError):  # nothing answers, or something else
        found = Ollama(url=url, version=await api.version(), listed=await api.loaded())
    return attrs.evolve(found, runners=runners_in(await table.read()))


EMPTY_BYTES: Final = 4 << 30
"""Upper bound for oMLX without a model: the program and its prompt cache."""

OMLX_RECHECK_SECONDS: Final = 3.0
"""Delay before memory without a loaded model is checked again: an unload may be in progress."""


@attrs.frozen(kw_only=True)
class Omlx:
    """oMLX on this machine.

    Attributes:
        url: Address of its API.
        loaded: Number of loaded models that it reports; None if no oMLX answers.
        reported_bytes: Memory that it reports for them.
        pid: Its process; None if this user cannot see it.
        held_bytes: Memory of the process.
    """

    url: str
    loaded: int | None = None
    reported_bytes: int = 0
    pid: int | None = None
    held_bytes: int = 0


async def check_omlx() -> tuple[Finding, ...]:
    """Check this machine's oMLX."""
    async with open_http_client() as http:
        return tuple(assess_omlx(await inspect_omlx(http, port_of(os.environ), ProcessTable())))


def port_of(environ: Mapping[str, str]) -> int:
    """Return the port from oMLX's environment variable, else its default."""
    stated = environ.get(PORT_VARIABLE, "").strip()
    return int(stated) if stated.isdecimal() else DEFAULT_PORT


async def inspect_omlx(http: HttpClient, port: int, table: ProcessTable) -> Omlx:
    """Read what oMLX reports and its process, and read both again if memory is held without a loaded model."""
    found = await _query_omlx(http, port, table)
    if found.loaded == 0 and found.held_bytes > EMPTY_BYTES:
        await trio.sleep(OMLX_RECHECK_SECONDS)
        found = await _query_omlx(http, port, table)
    return found


def assess_omlx(fact: Omlx) -> Iterator[Finding]:
    """Yield a warning for memory that is held without a loaded model, else the loaded models. Pure."""
    if fact.loaded is None:
        return
    if fact.loaded == 0 and fact.held_bytes > EMPTY_BYTES:
        yield warned(
            f"it reports at {fact.url} that no model is loaded, but its process holds {format_bytes(fact.held_bytes)} "
            f"(pid {fact.pid})",
            why="models that it reports as unloaded still hold memory, which LLMKube's models cannot use",
            fix="quit oMLX and start it again",
        )
        return
    stated = f" (it reports {format_bytes(fact.reported_bytes)})" if fact.reported_bytes else ""
    held = "" if fact.pid is None else f"; its process holds {format_bytes(fact.held_bytes)}"
    yield passed(f"running at {fact.url}; {_models(fact.loaded)} loaded{stated}{held}")


async def _query_omlx(http: HttpClient, port: int, table: ProcessTable) -> Omlx:
    found = Omlx(url=f"http://127.0.0.1:{port}")
    try:
        pool = (await DaemonHttp(http, found.url, "oMLX", NO_HEADERS).get_object("/health")).get("engine_pool")
    except DaemonError:
        return found
    loaded = pool.get("loaded_count") if isinstance(pool, dict) else None
    if not isinstance(pool, dict) or not isinstance(loaded, int):
        return found
    stated = pool.get("current_model_memory")
    pid = await table.listener(omlx_servers_in(await table.read()), port)
    held = (await table.footprints([pid])).get(pid, 0) if pid is not None else 0
    reported_bytes = stated if isinstance(stated, int) else 0
    return attrs.evolve(found, loaded=loaded, reported_bytes=reported_bytes, pid=pid, held_bytes=held)
