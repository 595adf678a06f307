"""Looks at an Ollama on this machine: asks its server what is loaded, and the kernel which processes have it.

Facts: `server/routes.go` and `envconfig/config.go` of https://github.com/ollama/ollama, 0.17.4. `GET /api/ps` lists
what is loaded; a model is still listed while its last request runs, also after an unload that was answered.
"""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.cli.commands.doctor.ollama import Ollama
from llmkube.programs.daemon_engine.ollama_program import daemon_url
from llmkube.programs.daemon_engine.process_table import processes_here
from llmkube.programs.daemon_engine.processes import Runners, runners_in
from llmkube.supervisor.host.this_machine import footprints_here

AGAIN_SECONDS: Final = 2.0
"""Before what differs is believed: a process may be about to end, or to be listed."""

_ASK_SECONDS: Final = 2.0
_MOST_BYTES: Final = 1 << 20


async def look() -> Ollama:
    """Look at this machine's."""
    async with open_http_client() as http:
        return await look_at(http, daemon_url(os.environ), _find_runners, _measure)


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
