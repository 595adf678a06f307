"""Everything the supervisor needs of the outside world, as values that a simulation can replace."""

import datetime
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import attrs
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.http.client import HttpClient
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import EngineInfo
from llmkube.supervisor.host.sample import HostMemory
from llmkube.supervisor.memory.learned import LearnedFigures
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks
from llmkube.supervisor.values.cordon import Cordon
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.journal import EngineRecord, Entry, FileJournal
from llmkube.supervisor.values.lifecycle import Exit
from llmkube.supervisor.values.liveness import EngineStats
from llmkube.supervisor.values.proxy_config import ProxyConfig
from llmkube.weights.download.progress import Progress
from llmkube.weights.formats.shape import ModelHeader
from llmkube.weights.store.blobs import WeightsFile


@attrs.frozen
class Command:
    """A process to start.

    Attributes:
        argv: What to run.
        env: What to add to its environment.
        work_dir: Where it runs.
        log_path: Which file takes its output.
        cookie: The mark by which it and all that it starts are found again.
        keys_path: The file in which it finds the keys that it asks for; it is there as long as the process.
        api_keys: These keys.
        proxy: What lets others in on its behalf; None when clients reach the engine itself.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    work_dir: Path
    log_path: Path
    cookie: str = ""
    keys_path: Path | None = None
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    proxy: ProxyConfig | None = None


@attrs.define(eq=False)
class Shutdown:
    """How the agent shuts down: with `keep` its engines, endpoints and Lease stay for the next agent on this host."""

    keep: bool = False


@attrs.frozen
class Grace:
    """How long an engine gets between TERM and KILL, as it is when it ends.

    Attributes:
        seconds: Unless it has to be quick.
        urgent_seconds: Counted from TERM too, once `urgent` has returned.
        urgent: Returns when the host is about to run out of memory.
    """

    seconds: float
    urgent_seconds: float
    urgent: Callable[[], Awaitable[None]] = trio.sleep_forever

    async def wait_expired(self) -> None:
        """Return when it is over, if it begins now."""
        least = trio.current_time() + self.urgent_seconds
        with trio.move_on_after(self.seconds):
            await self.urgent()
            await trio.sleep_until(least)


class Child(Protocol):
    """A running process that belongs to us."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def wait(self) -> Callable[[], Awaitable[Exit]]:
        """Returns how it ended, as soon as it has; an event, not a poll."""
        ...

    @property
    def started(self) -> str:
        """What tells it from another process with the same pid."""
        ...

    @property
    def log_offset(self) -> int:
        """Where its own output begins in the log file, in bytes."""
        ...

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines that this attempt wrote, oldest first."""
        ...

    async def rename_log(self, path: Path) -> None:
        """Have its log file called otherwise; it goes on writing into it."""
        ...

    async def listens(self, port: int) -> bool:
        """Whether it, or a process below it, accepts connections on this TCP port."""
        ...

    async def read_stats(self, host: str, port: int, *, loading: bool) -> EngineStats | None:
        """What the kernel says of it, and whether a process listens there; None when nothing can be said now.

        Of one that loads also what it has read from files.
        """
        ...

    def read_stats_nowait(self, host: str, port: int) -> EngineStats | None:
        """The same of one that serves, without waiting; None also when `read_stats` has more to do than that."""
        ...

    def worked(self) -> None:
        """It was seen to load or to compute just now: this machine is not to fall asleep."""
        ...

    def memory_kills(self) -> int:
        """How often the kernel has killed for want of memory around here since it is watched."""
        ...


class Engines(Protocol):
    """Start engines on this host."""

    async def info(self, runtime: str = DEFAULT_RUNTIME) -> EngineInfo:
        """What the program of a runtime is and which flags it knows.

        Raises:
            ExternalError: The program is missing or does not answer.
        """
        ...

    def free_port(self, host: str) -> int:
        """A TCP port on one of this host's addresses without a listener at this moment.

        Raises:
            ExternalError: This host does not have the address.
        """
        ...

    def open_child(self, command: Command, shutdown: Shutdown, grace: Grace) -> AbstractAsyncContextManager[Child]:
        """Run a process; leaving the context ends it: TERM, grace, KILL, reaped, whatever the reason to leave.

        Only a shutdown that keeps engines leaves it alone.

        Raises:
            ExternalError: The program could not be started.
        """
        ...

    def adopt_child(
        self, record: EngineRecord, log_path: Path, shutdown: Shutdown, grace: Grace
    ) -> AbstractAsyncContextManager[Child]:
        """Take over a process that an earlier agent has started; leaving the context ends it as if it were our own.

        Raises:
            ExternalError: It has ended.
        """
        ...


class Weights(Protocol):
    """Model files on this host."""

    async def fetch(self, model: Model, progress: Callable[[Progress], None]) -> tuple[WeightsFile, ModelHeader]:
        """Make a Model's file present and read its header.

        Raises:
            UserError: The source, the digest or the file is wrong.
            ExternalError: It did not work this time.
        """
        ...

    async def preview(self, model: Model) -> ModelHeader | None:
        """What the header of a Model's file says that is not here yet; None when it is, or its place does not tell.

        Raises:
            UserError: As `fetch`.
            ExternalError: As `fetch`.
        """
        ...

    async def has(self, model: Model) -> bool:
        """Whether a Model's file is here, as far as a quick look can tell; never an error."""
        ...

    async def keeps(self, file: WeightsFile) -> bool:
        """Whether a file that was here once still is; never an error."""
        ...


@attrs.frozen
class HostFacts:
    """How much memory a host has, and how much programs could still get, in bytes; 0 when not known."""

    total_bytes: int = 0
    free_bytes: int = 0


async def _no_secrets(service: InferenceService) -> tuple[str, ...]:  # noqa: ASYNC124 - it stands in for one that waits
    raise ExternalError(f"{service.key}: no Secret can be read here")


async def _admit_none(admitted: AdmittedNetworks) -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen
class Ports:
    """The outside world of one agent.

    `earlier` is what an earlier agent has left on this host: entries of the journal, whose `engine` is a process that
    runs and is known to be ours, or None.
    """

    engines: Engines
    weights: Weights
    journal: FileJournal
    http: HttpClient
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    earlier: Mapping[Key, Entry] = attrs.field(factory=dict)
    downloads: Callable[[], Mapping[str, Progress]] = dict  # how far each has come, by its source without secrets
    facts: Callable[[], HostFacts] = HostFacts
    machine: str = ""  # which machine this is, for people and for telling it from others; "" when not known
    # How this host is reached now, or None while it cannot look; without it, the settings say so.
    look: Callable[[], Awaitable[HostAddress | None]] | None = None
    memory: HostMemory | None = None  # without it memory is not watched, and every engine is admitted
    learned: LearnedFigures = attrs.field(factory=LearnedFigures)
    client_keys: Callable[[InferenceService], Awaitable[tuple[str, ...]]] = _no_secrets  # those that a service names
    admit: Callable[[AdmittedNetworks], Awaitable[None]] = _admit_none  # has proxies let these in; raises OSError
    cordon: Callable[[], Cordon | None] = lambda: None  # what the host's owner has said; raises OSError or ValueError
