"""Looks at an Ollama on this machine: asks its server what is loaded, and the kernel which processes have it.

Its server is one witness, and the kernel the other. They differ where a model's process has outlived its server, or
is there although the server says that the model is unloaded (ollama issue 17792). `llmkube doctor` starts and ends
none of them.

Facts: `server/routes.go` and `envconfig/config.go` of https://github.com/ollama/ollama, 0.17.4. `GET /api/ps` lists
what is loaded; a model is still listed while its last request runs, also after an unload that was answered.
"""

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned
from llmkube.programs.daemon_engine.ollama_program import daemon_url
from llmkube.programs.daemon_engine.processes import Runners, runners_in
from llmkube.programs.daemon_engine.server import processes_here
from llmkube.supervisor.host.this_machine import footprints_here

NAME: Final = "Ollama"
AGAIN_SECONDS: Final = 2.0
"""Before what differs is believed: a process may be about to end, or to be listed."""

_ASK_SECONDS: Final = 2.0
_MOST_BYTES: Final = 1 << 20


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
        return tuple(judge_ollama(await look_at(http, daemon_url(os.environ), _find_runners, _measure)))


async def look_at(
    http: HttpClient,
    url: str,
    find_runners: Callable[[], Awaitable[Runners]],
    measure: Callable[[tuple[int, ...]], Awaitable[Mapping[int, int]]],
) -> Ollama:
    """Look once; and where server and kernel differ, once more.

    Args:
        http: The way to its server.
        url: Where that is.
        find_runners: Returns its processes.
        measure: Returns what processes hold, by their numbers.
    """
    found = await _look_once(http, url, find_runners)
    if found.runners.orphans or len(found.runners.served) > len(found.listed):
        await trio.sleep(AGAIN_SECONDS)
        found = await _look_once(http, url, find_runners)
    pids = (*found.runners.served, *found.runners.orphans)
    return attrs.evolve(found, held=dict(await measure(pids))) if pids else found


def judge_ollama(fact: Ollama) -> Iterator[Finding]:
    """What it holds is no other program's to take, and what no server knows of is not given back. Pure."""
    runners = fact.runners
    if runners.orphans:
        yield _orphans(fact)
    if not fact.version:
        if runners.servers:
            yield warned(
                NAME,
                f"it runs, and does not answer at {fact.url}",
                why="it may listen elsewhere, or hang: what it has loaded is not known",
                fix="name its address: `OLLAMA_HOST=127.0.0.1:PORT llmkube doctor`, or start it again",
            )
        return
    here = f"{fact.version} at {fact.url}"
    if len(runners.served) > len(fact.listed):
        yield warned(
            NAME,
            f"{here} lists {_models(len(fact.listed))}, and {_hold(fact, runners.served, 'of it')}",
            why="a model that is said to be unloaded keeps its memory, and ours get no memory that is taken",
            fix="quit Ollama and start it again; `ollama ps` shows what it lists",
        )
        return
    names = f": {', '.join(fact.listed)}" if fact.listed else ""
    size = f", {_held(fact, runners.served)}" if runners.served else ""
    yield passed(NAME, f"{here}; {_models(len(fact.listed))} loaded{size}{names}")


def _orphans(fact: Ollama) -> Finding:
    pids = fact.runners.orphans
    return warned(
        NAME,
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


async def _look_once(http: HttpClient, url: str, find_runners: Callable[[], Awaitable[Runners]]) -> Ollama:
    version = (await _ask(http, f"{url}/api/version")).get("version")
    models = (await _ask(http, f"{url}/api/ps")).get("models") if isinstance(version, str) else None
    names = [each.get("name") for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    runners = await find_runners()
    return Ollama(
        url=url,
        version=version if isinstance(version, str) and isinstance(models, list) else "",
        listed=tuple(str(name) for name in names),
        runners=runners,
    )


async def _ask(http: HttpClient, url: str) -> dict[str, Any]:
    """Return the object that is answered; an empty one where nothing answers, or something else."""
    with trio.move_on_after(_ASK_SECONDS):
        try:
            answer = await http.request("GET", url, max_body_bytes=_MOST_BYTES)
            said = json.loads(answer.body) if answer.status == 200 else {}
        except (HttpError, ValueError):
            return {}
        return said if isinstance(said, dict) else {}
    return {}


async def _find_runners() -> Runners:
    return await trio.to_thread.run_sync(lambda: runners_in(processes_here()), abandon_on_cancel=True)


async def _measure(pids: tuple[int, ...]) -> Mapping[int, int]:
    return await trio.to_thread.run_sync(footprints_here, pids, abandon_on_cancel=True)
