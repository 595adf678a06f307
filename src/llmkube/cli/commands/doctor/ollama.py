"""What an Ollama beside our engines has in memory, and what that means. Pure.

Its server is one witness, and the kernel the other. They differ where a model's process has outlived its server, or
is there although the server says that the model is unloaded (ollama issue 17792). LLMKube starts and ends none of them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, passed, warned

NAME: Final = "Ollama"
_PROGRAM: Final = "ollama"
_INITS: Final = frozenset({"systemd", "init", "launchd"})
"""Programs that adopt what others leave."""


@attrs.frozen
class Process:
    """A process with its parent's number and its command line."""

    pid: int
    parent: int
    argv: tuple[str, ...]


@attrs.frozen
class Runners:
    """The processes in which Ollama has models.

    Attributes:
        served: Of a server that runs.
        orphans: Of a server that has ended without them: init, or the like, is their parent now.
        servers: How many servers run.
    """

    served: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    servers: int = 0


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


def runners_in(processes: Iterable[Process]) -> Runners:
    """Return Ollama's processes among these: `ollama runner` has a model, and `ollama serve` starts and ends it."""
    processes = tuple(processes)
    kinds = {each.pid: (kind_of(each.argv), each.parent) for each in processes}
    servers = {pid for pid, (kind, _) in kinds.items() if kind == "serve"}
    # Under another parent a runner may have its server: one whose command line is hidden, or a renamed one.
    adopters = {1} | {each.pid for each in processes if each.argv and each.argv[0].rpartition("/")[2] in _INITS}
    runners = sorted((pid, parent) for pid, (kind, parent) in kinds.items() if kind == "runner")
    return Runners(
        tuple(pid for pid, parent in runners if parent in servers),
        tuple(pid for pid, parent in runners if parent in adopters - servers),
        len(servers),
    )


def kind_of(argv: tuple[str, ...]) -> str:
    """Return `serve` or `runner` of a process of Ollama, and "" of any other one."""
    if len(argv) < 2 or argv[0].rpartition("/")[2] != _PROGRAM:
        return ""
    return argv[1] if argv[1] in ("serve", "runner") else ""


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
