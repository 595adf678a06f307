"""Recognize a daemon's processes, and those that hold weights, by their command lines. Pure.

Source: `llm/server.go` of https://github.com/ollama/ollama, 0.17.4. `ollama serve` starts one process per loaded model,
with `--model <store>/blobs/sha256-<digest>`. After SIGKILL of a server its processes keep running, with init as parent.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs


@attrs.frozen
class Process:
    """A process with its parent and its command line."""

    pid: int
    parent: int
    argv: tuple[str, ...]


_PROGRAM: Final = "ollama"
_BLOB: Final = re.compile(r"sha256-[0-9a-f]{64}")
_INITS: Final = frozenset({"systemd", "init", "launchd"})
"""Programs that adopt orphaned processes."""


@attrs.frozen
class Runners:
    """The processes in which Ollama has loaded models.

    Attributes:
        served: Processes of running servers.
        orphans: Processes whose server has exited, and whose parent is init or the like.
        servers: Number of running servers.
    """

    served: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    servers: int = 0


@attrs.frozen
class Holders:
    """The processes that hold one weights file.

    Attributes:
        served: Processes of our server.
        orphans: Processes of a server that has exited.
        others: Processes of our server that hold other files.
    """

    served: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    others: tuple[int, ...] = ()


def runners_in(processes: Iterable[Process]) -> Runners:
    """Return Ollama's processes: `ollama runner` holds a model, and `ollama serve` starts and stops it."""
    processes = tuple(processes)
    kinds = {each.pid: (kind_of(each.argv), each.parent) for each in processes}
    servers = {pid for pid, (kind, _) in kinds.items() if kind == "serve"}
    # Another parent may still be its server: a renamed one, or one whose command line is hidden.
    reapers = reapers_in(processes)
    runners = sorted((pid, parent) for pid, (kind, parent) in kinds.items() if kind == "runner")
    return Runners(
        tuple(pid for pid, parent in runners if parent in servers),
        tuple(pid for pid, parent in runners if parent in reapers - servers),
        len(servers),
    )


def holders_of(blob: str, processes: Iterable[Process], server: int | None) -> Holders:
    """Return the processes that were started for a weights file.

    Every program that the server has started for the file is included, since releases start different ones.

    Args:
        blob: Name of the file in Ollama's store, `sha256-` and 64 digits.
        processes: All visible processes.
        server: Process of our server; None if it is not visible.
    """
    processes = tuple(processes)
    reapers = reapers_in(processes) - {server}
    files = {each.pid: found[0] for each in processes if (found := _BLOB.search(" ".join(each.argv)))}
    parents = {each.pid: each.parent for each in processes}
    served = sorted(pid for pid in files if server is not None and parents[pid] == server)
    # One of our engines may be a child of init as well if its agent has exited, with a file of the same name.
    theirs = {each.pid for each in processes if each.argv and _PROGRAM in each.argv[0]}
    left = sorted(pid for pid, file in files.items() if file == blob and parents[pid] in reapers and pid in theirs)
    return Holders(
        served=tuple(pid for pid in served if files[pid] == blob),
        orphans=tuple(left),
        others=tuple(pid for pid in served if files[pid] != blob),
    )


def reapers_in(processes: Iterable[Process]) -> set[int]:
    """Return the processes that adopt orphans."""
    return {1} | {each.pid for each in processes if each.argv and each.argv[0].rpartition("/")[2] in _INITS}


def kind_of(argv: tuple[str, ...]) -> str:
    """Return `serve` or `runner` for a process of Ollama, and an empty string for any other."""
    if len(argv) < 2 or argv[0].rpartition("/")[2] != _PROGRAM:
        return ""
    return argv[1] if argv[1] in ("serve", "runner") else ""


def omlx_servers_in(processes: Sequence[Process]) -> tuple[int, ...]:
    """Return the processes that may be an oMLX server, run as a program, an app or with Python; LLMKube's are left out.

    A process comes before its parent, because a process that starts the server is not the server.
    """
    parents = {each.pid: each.parent for each in processes if _may_be_omlx(each.argv[:3])}

    def depth(pid: int) -> int:
        ancestors: list[int] = []
        while pid in parents and pid not in ancestors:  # a reused pid may form a cycle
            ancestors.append(pid)
            pid = parents[pid]
        return len(ancestors)

    return tuple(sorted(parents, key=lambda pid: (-depth(pid), pid)))


def _may_be_omlx(argv: Sequence[str]) -> bool:
    return any("omlx" in word.lower() for word in argv) and not any("llmkube" in word for word in argv)
