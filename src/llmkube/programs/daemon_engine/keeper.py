"""Keep one model loaded: sample, decide, act; and unload it at the end. `decisions` decides."""

import abc
from typing import ClassVar, Final

import attrs
import orjson
import structlog
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.http.message import NO_HEADERS, Headers
from llmkube.programs.daemon_engine import decisions
from llmkube.programs.daemon_engine.decisions import (
    UNKNOWN_RELEASE,
    Act,
    DaemonSample,
    DaemonTexts,
    KeeperState,
    Outcome,
    Step,
)
from llmkube.programs.daemon_engine.model_lock import ModelLock
from llmkube.programs.daemon_engine.ollama_api import OllamaApi
from llmkube.programs.daemon_engine.omlx_api import OmlxApi
from llmkube.programs.daemon_engine.server import DaemonError, ProcessTable
from llmkube.programs.program import open_service_nursery


class Adapter(abc.ABC):
    """One model of one daemon. All methods except `sample` may raise `DaemonError`.

    Attributes:
        texts: Texts for messages about this daemon.
        name: Name of the model in requests to the daemon.
        table: The process table.
        api: The daemon's API.
    """

    __slots__ = ()
    texts: ClassVar[DaemonTexts]
    name: str
    table: ProcessTable
    api: OllamaApi | OmlxApi

    @property
    def url(self) -> str:
        """Base URL of the daemon."""
        return self.api.url

    @property
    def headers(self) -> Headers:
        """Headers for requests to the daemon, such as its key."""
        return NO_HEADERS

    @property
    @abc.abstractmethod
    def lock_key(self) -> str:
        """Key that identifies the model on this machine, shared by all of its fronts; empty for a server of our own."""

    @abc.abstractmethod
    async def sample(self) -> DaemonSample:
        """Query the daemon and its processes."""

    @abc.abstractmethod
    async def prepare(self) -> None:
        """Make the model available in the daemon.

        Raises:
            OSError: The weights cannot be read.
        """

    @abc.abstractmethod
    async def load(self) -> None:
        """Load the model, and wait until it is loaded."""

    async def renew(self) -> None:
        """Renew the keep-alive of the model, if the daemon has one."""
        await trio.lowlevel.checkpoint()

    @abc.abstractmethod
    async def unload(self) -> None:
        """Request to unload the model; this may return before it is unloaded."""


PROGRESS_SECONDS: Final = 5.0
"""Interval between log lines of a load that makes progress: without any for two minutes, the agent gives up."""

UNLOAD_LIMIT_SECONDS: Final = decisions.UNLOAD_SECONDS + 2.0
"""Limit for an unload, whatever hangs."""

log = structlog.get_logger()


class GivenUpError(ExternalError):
    """The model cannot be kept loaded; the message has the reason and a fix."""


@attrs.define(eq=False)
class Counters:
    """Counters of one engine since its start, which the agent reads under llama.cpp's names.

    A daemon's own counters are for all of its clients, or do not exist. Requests are counted as they pass, tokens from
    the `usage` of responses, and pieces of a stream as decodes. The CPU time of the process that computes is reported
    with the slots, because nothing else changes during a long prompt.

    Attributes:
        processing: Requests in flight to the daemon.
        prompt_tokens: Tokens of prompts.
        predicted_tokens: Tokens of responses.
        decodes: Pieces of responses received.
        runner_cpu_seconds: CPU time of the process that holds the model.
    """

    processing: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    decodes: int = 0
    runner_cpu_seconds: float = 0.0

    def metrics(self) -> bytes:
        """Return the counters in Prometheus' text format, under llama.cpp's names."""
        return (
            f"# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total {self.prompt_tokens}\n"
            f"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total {self.predicted_tokens}\n"
            f"# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {self.decodes}\n"
            f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {self.processing}\n"
            "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n"
        ).encode()

    def slots(self) -> bytes:
        """Return one slot per request, without its content."""
        slot = {"is_processing": True, "runner_cpu_seconds": round(self.runner_cpu_seconds, 2)}
        return orjson.dumps([{"id": number, **slot} for number in range(self.processing)])


@attrs.define(eq=False)
class Keeper:
    """Keep one model loaded.

    Attributes:
        adapter: The model in its daemon.
        counters: Updated with the CPU time of the process that holds the model.
        lock: Lock shared with the model's other users.
        state: State between samples.
        sample: The last sample.
    """

    adapter: Adapter
    counters: Counters
    lock: ModelLock = attrs.field(factory=ModelLock)
    state: KeeperState = attrs.field(factory=KeeperState)
    sample: DaemonSample = attrs.field(factory=DaemonSample)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    @property
    def ready(self) -> bool:
        """Whether requests may be forwarded to the server."""
        return self.state.ready

    @property
    def build(self) -> str:
        """The release of the server that answered last; empty while it is unknown."""
        return "" if self.state.version == UNKNOWN_RELEASE else self.state.version

    def sample_soon(self) -> None:
        """Sample now instead of at the next interval, since a request has failed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the model loaded until cancelled.

        Raises:
            GivenUpError: The model cannot be kept loaded.
            ModelLockError: The model's lock cannot be used.
        """
        await self.lock.share()
        while True:
            self.sample = await self.adapter.sample()
            self.counters.runner_cpu_seconds = await self.adapter.table.cpu_seconds(self.sample.holders)
            self.state, step = decisions.decide(self.state, self.sample, trio.current_time())
            if step.reason:
                log.info(step.reason, pid=self.sample.holders[0] if self.sample.holders else None)
            if step.act is Act.GIVE_UP:
                raise GivenUpError(step.reason)
            if step.act is not Act.NOTHING:
                await self._act(step)
            await self._wait(step.wait_seconds)

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._wake.wait()
            await trio.sleep(min(seconds, 0.2))  # many requests that fail at once cause one sample
        self._wake = trio.Event()

    async def _act(self, step: Step) -> None:
        outcome = await self._outcome(step.act)
        self.state, given_up = decisions.after_action(self.state, step.act, outcome, trio.current_time())
        if given_up:
            raise GivenUpError(given_up)
        if outcome.error:
            log.warning(outcome.error, act=step.act.value)

    async def _outcome(self, act: Act) -> Outcome:
        try:
            if act is Act.PREPARE:
                await self.adapter.prepare()
            elif act is Act.LOAD:
                await self._load()
            elif act is Act.RENEW:
                await self.adapter.renew()
            else:
                await self._end_runners()
        except DaemonError as error:
            # A retry would fail with the same 4xx, except that a missing model is prepared again.
            missing = error.status == 404 and act is not Act.PREPARE
            return Outcome(error=str(error), missing=missing, final=400 <= error.status < 500 and not missing)
        except OSError as error:
            return Outcome(error=f"the weights cannot be read: {error.strerror or error}", final=True)
        return Outcome()

    async def _load(self) -> None:
        failure: DaemonError | None = None
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._log_load_progress)
            try:
                await self.adapter.load()
            except DaemonError as error:
                failure = error
        if failure is not None:  # raised in the nursery, it would be wrapped in a group
            raise failure

    async def _log_load_progress(self) -> None:
        """Log a line whenever the process that loads has used CPU time."""
        before = -1.0
        while True:
            await trio.sleep(PROGRESS_SECONDS)
            self.sample = await self.adapter.sample()
            used = await self.adapter.table.cpu_seconds(self.sample.holders)
            if self.sample.holders and used != before:
                message = f"{self.adapter.texts.name} loads the model"
                log.info(message, pid=self.sample.holders[0], cpu_seconds=round(used, 2))
            before = used

    async def _end_runners(self) -> None:
        sample = await self.adapter.sample()  # a pid may be another process's by now
        pids = (*sample.holders, *sample.orphans)
        message = f"ending the processes of our own {self.adapter.texts.name} that hold the model"
        log.warning(message, pids=pids)
        await self.adapter.table.end(pids)

    # -- unloading ------------------------------------------------------------------------------------------------

    async def unload(self) -> bool:
        """Unload the model, and return whether its memory is free; bounded, and shielded from cancellation.

        If other engines use the model, it stays loaded, and True is returned: the last of them unloads it.

        Raises:
            ModelLockError: The model's lock cannot be used.
        """
        with trio.move_on_after(UNLOAD_LIMIT_SECONDS, shield=True):
            if not await self.lock.exclusive():
                log.info("model kept loaded: another engine on this machine uses it")
                return True
            released = await self._unload()
            if released:
                await self.lock.clear()
            return released
        message = f"{self.adapter.texts.name} has not unloaded the model in time"
        log.error(message, seconds=UNLOAD_LIMIT_SECONDS)
        return False

    async def unload_leftover(self) -> bool:
        """Unload the model if a killed engine has left it loaded; return whether it is no longer loaded.

        Raises:
            ModelLockError: The model's lock cannot be used.
        """
        return await self.unload() if await self.lock.has_leftover() else True

    async def _unload(self) -> bool:
        since, requested_at = trio.current_time(), None
        while True:
            sample = await self.adapter.sample()
            step = decisions.unload(sample, since, requested_at, trio.current_time())
            if step.act in (Act.DONE, Act.GIVE_UP):
                (log.info if step.act is Act.DONE else log.error)(step.reason)
                return step.act is Act.DONE
            if step.act is Act.UNLOAD:
                requested_at = trio.current_time()
                try:
                    await self.adapter.unload()
                except DaemonError as error:
                    if error.status != 404:  # an unknown model is not loaded
                        message = f"{sample.texts.name} did not accept the unload; it will be repeated"
                        log.warning(message, error=str(error))
            elif step.act is Act.END_RUNNERS:
                await self._end_runners()
            await trio.sleep(step.wait_seconds)
