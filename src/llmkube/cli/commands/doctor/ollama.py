"""What an Ollama beside our engines has in memory, and what that means. Pure.

Its server is one witness, and the kernel the other. They differ where a model's process has outlived its server, or
is there although the server says that the model is unloaded (ollama issue 17792). `llmkube doctor` starts and ends
none of them.
"""

from collections.abc import Iterator
from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned
from llmkube.programs.daemon_engine.processes import Runners

NAME: Final = "Ollama"


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


def ollama(fact: Ollama) -> Iterator[Finding]:
    """What it holds is no other program's to take, and what no server knows of is not given back."""
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
