"""Which processes of a daemon there are, and which of them hold weights, as their command lines tell. Pure.

Facts: `llm/server.go` of https://github.com/ollama/ollama, 0.17.4: `ollama serve` starts one process per loaded model,
with `--model <store>/blobs/sha256-<digest>`. After KILL of a server its processes stay, under init.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs


@attrs.frozen
class Process:
    """A process with its parent's number and its command line."""

    pid: int
    parent: int
    argv: tuple[str, ...]


_PROGRAM: Final = "ollama"
_BLOB: Final = re.compile(r"sha256-[0-9a-f]{64}")
_INITS: Final = frozenset({"systemd", "init", "launchd"})
"""Programs that adopt what others leave."""


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


@attrs.frozen
class Holders:
    """The processes that hold one file of weights.

    Attributes:
        served: Of the server that is asked.
        orphans: Of one that has ended.
        others: Processes of the server that is asked that hold other files.
    """

    served: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    others: tuple[int, ...] = ()


def runners_in(processes: Iterable[Process]) -> Runners:
    """Return Ollama's processes among these: `ollama runner` has a model, and `ollama serve` starts and ends it."""
    processes = tuple(processes)
    kinds = {each.pid: (kind_of(each.argv), each.parent) for each in processes}
    servers = {pid for pid, (kind, _) in kinds.items() if kind == "serve"}
    # Under another parent a runner may have its server: one whose command line is hidden, or a renamed one.
    reapers = reapers_in(processes)
    runners = sorted((pid, parent) for pid, (kind, parent) in kinds.items() if kind == "runner")
    return Runners(
        tuple(pid for pid, parent in runners if parent in servers),
        tuple(pid for pid, parent in runners if parent in reapers - servers),
        len(servers),
    )


def ollama_servers_in(processes: Iterable[Process]) -> tuple[int, ...]:
    """Return the processes that are `ollama serve`."""
    return tuple(sorted(each.pid for each in processes if kind_of(each.argv) == "serve"))


def holders_of(blob: str, processes: Iterable[Process], server: int | None) -> Holders:
    """Return the processes that were started for a file of weights.

    What a server has started is not looked at further: other releases start other programs for a model.

    Args:
        blob: The file's name in Ollama's store, `sha256-` and 64 digits.
        processes: All that are seen.
        server: The one that is asked; None where it is not seen.
    """
    processes = tuple(processes)
    reapers = reapers_in(processes) - {server}
    files = {each.pid: found[0] for each in processes if (found := _BLOB.search(" ".join(each.argv)))}
    parents = {each.pid: each.parent for each in processes}
    served = sorted(pid for pid in files if server is not None and parents[pid] == server)
    # An engine of ours whose agent has ended is under init too, and its file may be called the same.
    theirs = {each.pid for each in processes if each.argv and _PROGRAM in each.argv[0]}
    left = sorted(pid for pid, file in files.items() if file == blob and parents[pid] in reapers and pid in theirs)
    return Holders(
        served=tuple(pid for pid in served if files[pid] == blob),
        orphans=tuple(left),
        others=tuple(pid for pid in served if files[pid] != blob),
    )


def reapers_in(processes: Iterable[Process]) -> set[int]:
    """Return the processes that are the parents of those whose own has ended."""
    return {1} | {each.pid for each in processes if each.argv and each.argv[0].rpartition("/")[2] in _INITS}


def kind_of(argv: tuple[str, ...]) -> str:
    """Return `serve` or `runner` of a process of Ollama, and "" of any other one."""
    if len(argv) < 2 or argv[0].rpartition("/")[2] != _PROGRAM:
        return ""
    return argv[1] if argv[1] in ("serve", "runner") else ""


def omlx_servers_in(processes: Sequence[Process]) -> tuple[int, ...]:
    """Return the processes that may be a server of oMLX: by its program, its app, or its Python; none of ours.

    Who was started by another of them comes before it: what starts a server is not the server.
    """
    parents = {each.pid: each.parent for each in processes if _may_be_omlx(each.argv[:3])}

    def depth(pid: int) -> int:
        ancestors: list[int] = []
        while pid in parents and pid not in ancestors:  # a number that was given anew may close a ring
            ancestors.append(pid)
            pid = parents[pid]
        return len(ancestors)

    return tuple(sorted(parents, key=lambda pid: (-depth(pid), pid)))


def _may_be_omlx(argv: Sequence[str]) -> bool:
    return any("omlx" in word.lower() for word in argv) and not any("llmkube" in word for word in argv)
