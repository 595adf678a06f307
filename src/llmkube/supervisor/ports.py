"""Everything the supervisor needs of the outside world, as values that a simulation can replace."""

import datetime
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import attrs

from llmkube.base.http import HttpClient
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.plan import EngineInfo
from llmkube.supervisor.lifecycle import Exit
from llmkube.weights.fetch import Progress, WeightsFile
from llmkube.weights.gguf import GGUFFacts


@attrs.frozen
class Command:
    """A process to start: what to run, what to add to its environment, where, and which file takes its output."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    work_dir: Path
    log_path: Path


class Child(Protocol):
    """A running process that belongs to us."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def wait(self) -> Exit:
        """Return how it ended, as soon as it has; an event, not a poll."""
        ...

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines that this incarnation wrote, oldest first."""
        ...


class Engines(Protocol):
    """Start engines on this host."""

    async def info(self) -> EngineInfo:
        """What the engine program is and which flags it knows.

        Raises:
            WorldError: The program is missing or does not answer `--help`.
        """
        ...

    def free_port(self) -> int:
        """A TCP port on the bind address that nobody listens on at this moment."""
        ...

    def open_child(self, command: Command) -> AbstractAsyncContextManager[Child]:
        """Run a process; leaving the context ends it: TERM, grace, KILL, reaped, whatever the reason to leave.

        Raises:
            WorldError: The program could not be started.
        """
        ...


class Weights(Protocol):
    """Model files on this host."""

    async def fetch(self, model: Model, progress: Callable[[Progress], None]) -> tuple[WeightsFile, GGUFFacts]:
        """Make a Model's file present and read its header.

        Raises:
            UserError: The source, the digest or the file is wrong.
            WorldError: It did not work this time.
        """
        ...


@attrs.frozen
class Ports:
    """The outside world of one agent."""

    engines: Engines
    weights: Weights
    http: HttpClient
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
