"""Looks at an Ollama on this machine: asks its server what is loaded, and the kernel which processes have it.

Its server is one witness, and the kernel the other. They differ where a model's process has outlived its server, or
is there although the server says that the model is unloaded (ollama issue 17792). `llmkube doctor` starts and ends
none of them.

Facts: `server/routes.go` and `envconfig/config.go` of https://github.com/ollama/ollama, 0.17.4. `GET /api/ps` lists
what is loaded; a model is still listed while its last request runs, also after an unload that was answered.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.message import NO_HEADERS
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned
from llmkube.programs.daemon_engine.ollama_program import daemon_url
from llmkube.programs.daemon_engine.processes import Runners, runners_in
from llmkube.programs.daemon_engine.server import DaemonError, DaemonHttp, ProcessTable

NAME: Final = "Ollama"
AGAIN_SECONDS: Final = 2.0
"""Before what differs is believed: a process may be about to end, or to be listed."""


@attrs.frozen(kw_only=True)
class Ollama:
    """An Ollama on this machine; without a version, a server or a process there is none.

    Attributes:
        url: Where its server was asked.
        version: What it says that it is; "" when nothing answers as Ollama does.
        listed: The models that it lists as loaded.
        runners: The processes that have models, as the kernel shows them to this user.
        held: What each of them holds, in bytes by its number.
    """

    url: str
    version: str = ""
    listed: tuple[str, ...] = ()
    runners: Runners = Runners()
    held: dict[int, int] = attrs.field(factory=dict)


async def look() -> tuple[Finding, ...]:
    """Look at this machine's."""
    async with open_http_client() as http:
        return tuple(judge_ollama(await look_at(http, daemon_url(os.environ), ProcessTable())))


async def look_at(http: HttpClient, url: str, table: ProcessTable) -> Ollama:
    """Look once; and where server and kernel differ, once more."""
    found = await _look_once(http, url, table)
    if found.runners.orphans or len(found.runners.served) > len(found.listed):
        await trio.sleep(AGAIN_SECONDS)
        found = await _look_once(http, url, table)
    pids = (*found.runners.served, *found.runners.orphans)
    return attrs.evolve(found, held=dict(await table.footprints(pids))) if pids else found


def judge_ollama(fact: Ollama) -> Iterator[Finding]:
    """What it holds is no other program's to take, and what no server knows of is not given back. Pure."""
    runners = fact.runners
    if runners.orphans:
        yield _orphans(fact)
    if not fact.version:
        if runners.servers:
            yield warned(
                f"it runs, and does not answer at {fact.url}",
                why="it may listen elsewhere, or hang: what it has loaded is not known",
                fix="name its address: `OLLAMA_HOST=127.0.0.1:PORT llmkube doctor`, or start it again",
            )
        return
    here = f"{fact.version} at {fact.url}"
    if len(runners.served) > len(fact.listed):
        yield warned(
            f"{here} lists {_models(len(fact.listed))}, and {_hold(fact, runners.served, 'of it')}",
            why="a model that is said to be unloaded keeps its memory, and ours get no memory that is taken",
            fix="quit Ollama and start it again; `ollama ps` shows what it lists",
        )
        return
    names = f": {', '.join(fact.listed)}" if fact.listed else ""
    size = f", {_held(fact, runners.served)}" if runners.served else ""
    yield passed(f"{here}; {_models(len(fact.listed))} loaded{size}{names}")


def _orphans(fact: Ollama) -> Finding:
    pids = fact.runners.orphans
    return warned(
        f"a server of it has ended, and {_hold(fact, pids, 'of it still')}",
        why="no server will end it or send it a request, and ours get no memory that is taken",
        fix=f"`kill {' '.join(map(str, pids))}`",
    )


def _models(count: int) -> str:
    return "1 model" if count == 1 else f"{count} models"


def _hold(fact: Ollama, pids: tuple[int, ...], whose: str) -> str:
    verb = f"process {whose} holds" if len(pids) == 1 else f"processes {whose} hold"
    return f"{len(pids)} {verb} {_held(fact, pids)} (pid {', '.join(map(str, pids))})"


def _held(fact: Ollama, pids: tuple[int, ...]) -> str:
    return format_bytes(sum(fact.held.get(pid, 0) for pid in pids))


async def _look_once(http: HttpClient, url: str, table: ProcessTable) -> Ollama:
    way, version, models = DaemonHttp(http, url, NAME, NO_HEADERS), None, None
    with contextlib.suppress(DaemonError):  # nothing answers, or something else
        version = (await way.ask("/api/version")).get("version")
        models = (await way.ask("/api/ps")).get("models") if isinstance(version, str) else None
    names = [str(each.get("name")) for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    return Ollama(
        url=url,
        version=str(version) if isinstance(models, list) else "",
        listed=tuple(names),
        runners=runners_in(await table.read()),
    )
