"""The supervisor's external dependencies, as values that a simulation can replace."""

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
from llmkube.weights.formats.shape import GGUFFacts, ModelHeader, Projector
from llmkube.weights.store.blobs import WeightsFile


@attrs.frozen
class Command:
    """A process to start.

    Attributes:
        argv: Program and arguments.
        env: Variables to add to its environment.
        work_dir: Its working directory.
        log_path: File for its output.
        cookie: Value in its environment by which it and its descendants are found again.
        keys_path: File with the keys that it accepts; it exists as long as the process.
        api_keys: These keys.
        proxy: Configuration of its proxy; None if clients connect to the engine itself.
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
    """Mode of the agent's shutdown; with `keep`, engines, endpoints and Lease stay for the next agent on this host."""

    keep: bool = False


@attrs.frozen
class Grace:
    """Grace of an engine between TERM and KILL.

    Attributes:
        seconds: Grace while there is enough memory, from TERM.
        urgent_seconds: Grace once `urgent` has returned, also from TERM.
        urgent: Returns when memory is critically short.
    """

    seconds: float
    urgent_seconds: float
    urgent: Callable[[], Awaitable[None]] = trio.sleep_forever

    async def wait_expired(self) -> None:
        """Return when a grace that starts now has expired."""
        least = trio.current_time() + self.urgent_seconds
        with trio.move_on_after(self.seconds):
            await self.urgent()
            await trio.sleep_until(least)


class Child(Protocol):
    """A running process of this agent."""

    pid: int
    """Its process id."""

    wait: Callable[[], Awaitable[Exit]]
    """Function that returns its exit as soon as it exits; it waits for an event and does not poll."""

    started: str
    """Start of the process, which tells it from another one with the same pid."""

    log_offset: int
    """Offset of its own output in the log file, in bytes."""

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the last log lines of this attempt, oldest first."""

    async def first_lines(self) -> tuple[str, ...]:
        """Return the first log lines of this attempt: those of its load; none if its log has been truncated since."""

    async def rename_log(self, path: Path) -> None:
        """Rename its log file; it continues to write to it."""

    async def listens(self, port: int) -> bool:
        """Whether it or a descendant accepts connections on this TCP port."""

    async def read_stats(self, host: str, port: int, *, loading: bool) -> EngineStats | None:
        """Return the kernel's figures, and whether a process listens there; None if they cannot be read now.

        With `loading`, also the bytes read from files.
        """

    def read_stats_nowait(self, host: str, port: int) -> EngineStats | None:
        """Return the same of an engine that serves, without waiting; None also if `read_stats` would have to wait."""

    def record_activity(self) -> None:
        """Record that it has just loaded or computed, so that this machine does not fall asleep."""

    def memory_kills(self) -> int:
        """Return how many processes the kernel has OOM-killed where the engine runs, since it started to run."""


class Engines(Protocol):
    """Start engines on this machine."""

    async def info(self, runtime: str = DEFAULT_RUNTIME) -> EngineInfo:
        """Return the program of a runtime, with its version and its flags.

        Raises:
            ExternalError: The program is missing or does not answer.
        """

    def free_port(self, host: str) -> int:
        """Return a TCP port on one of this host's addresses that has no listener at this moment.

        Raises:
            ExternalError: This host does not have the address.
        """

    def open_child(self, command: Command, shutdown: Shutdown, grace: Grace) -> AbstractAsyncContextManager[Child]:
        """Run a process; leaving the context for any reason ends it: TERM, grace, KILL, reap.

        Only a shutdown that keeps engines leaves it running.

        Raises:
            ExternalError: The program could not be started.
        """

    def adopt_child(
        self, record: EngineRecord, log_path: Path, shutdown: Shutdown, grace: Grace
    ) -> AbstractAsyncContextManager[Child]:
        """Adopt a process that an earlier agent started; leaving the context ends it as in `open_child`.

        Raises:
            ExternalError: The process is gone.
        """


class Door(Protocol):
    """The process that accepts the requests of services that are loaded on request."""

    @property
    def is_left(self) -> bool:
        """Whether an earlier agent has left one."""

    def running(self, shutdown: Shutdown) -> AbstractAsyncContextManager[None]:
        """Keep it running during the block, and stop it afterwards, unless the next agent takes it over."""

    async def connect(self) -> trio.abc.Stream:
        """Return a connection to it.

        Raises:
            OSError: It does not accept any, or not yet.
        """


class Weights(Protocol):
    """Model files on this host."""

    async def fetch(self, model: Model, progress: Callable[[Progress], None]) -> tuple[WeightsFile, ModelHeader]:
        """Fetch a Model's file if it is not here, and read its header.

        Raises:
            UserError: The source, the digest or the file is invalid.
            ExternalError: The fetch failed; a retry could help.
        """

    async def fetch_projector(
        self, model: Model, weights: WeightsFile, facts: GGUFFacts, progress: Callable[[Progress], None]
    ) -> Projector | None:
        """Fetch the projector of a Model whose file was fetched; None if it has none.

        Raises:
            UserError: The name or the file is invalid.
            ExternalError: The fetch failed; a retry could help.
        """

    async def compare_vocabularies(self, model: WeightsFile, draft: WeightsFile) -> str:
        """Return why an engine would not use a draft model's file for a model's; "" if it would.

        Raises:
            UserError: A file is invalid.
            ExternalError: A file cannot be read now.
        """

    async def preview(self, model: Model) -> ModelHeader | None:
        """Return the header of a Model's file that is not here yet; None if it is here, or its source does not show it.

        Raises:
            UserError: As `fetch`.
            ExternalError: As `fetch`.
        """

    async def has(self, model: Model) -> bool:
        """Whether a Model's file is here, by a quick check; never raises."""

    async def keeps(self, file: WeightsFile) -> bool:
        """Whether a file that was here is still here; never raises."""


@attrs.frozen
class HostFacts:
    """Total and available memory of a host in bytes; 0 if not known."""

    total_bytes: int = 0
    free_bytes: int = 0


async def _no_secrets(service: InferenceService) -> tuple[str, ...]:  # noqa: ASYNC124 - replaces a function that waits
    raise ExternalError(f"{service.key}: no Secret can be read here")


async def _admit_none(admitted: AdmittedNetworks) -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen
class Ports:
    """External dependencies of one agent.

    `earlier` has the journal entries that an earlier agent left on this host; `engine` of each is a process that runs
    and is verified to be LLMKube's, or None.
    """

    engines: Engines
    weights: Weights
    journal: FileJournal
    http: HttpClient
    utcnow: Callable[[], datetime.datetime]
    rng: random.Random
    earlier: Mapping[Key, Entry] = attrs.field(factory=dict)
    downloads: Callable[[], Mapping[str, Progress]] = dict  # progress of each, by its source without secrets
    facts: Callable[[], HostFacts] = HostFacts
    machine: str = ""  # name and number that identify this machine; "" if not known
    # Returns the current address of this host, or None while it cannot be read; without it, the settings apply.
    address: Callable[[], Awaitable[HostAddress | None]] | None = None
    memory: HostMemory | None = None  # without it memory is not watched, and every engine is admitted
    learned: LearnedFigures = attrs.field(factory=LearnedFigures)
    client_keys: Callable[[InferenceService], Awaitable[tuple[str, ...]]] = _no_secrets  # in the service's Secret
    admit: Callable[[AdmittedNetworks], Awaitable[None]] = _admit_none  # publishes to the proxies; raises OSError
    cordon: Callable[[], Cordon | None] = lambda: None  # reads the cordon; raises OSError or ValueError
    door: Door | None = None  # without it, requests from outside this host wait for no service
