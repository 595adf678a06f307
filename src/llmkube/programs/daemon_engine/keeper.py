"""Looks at one model, decides, acts; and unloads it at the end. `decisions` and `unloading` decide, and say why."""

import abc
from collections.abc import Sequence
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
from llmkube.programs.daemon_engine.server import DaemonError, ProcessTable


class Adapter(abc.ABC):
    """One model of one daemon. All methods but `sample`, `cpu_seconds` and `end` raise `DaemonError`.

    Attributes:
        texts: What is said of this daemon.
        name: What the model is called in requests to the daemon.
        table: The processes.
    """

    __slots__ = ()
    texts: ClassVar[DaemonTexts]
    name: str
    table: ProcessTable

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where the daemon answers."""

    @property
    def headers(self) -> Headers:
        """What requests to the daemon have to carry, such as its key."""
        return NO_HEADERS

    @property
    @abc.abstractmethod
    def lock_key(self) -> str:
        """What tells the model from all others of this machine, for other fronts on it; "" of a server that is ours."""

    @abc.abstractmethod
    async def sample(self) -> DaemonSample:
        """Ask the daemon, and look at the processes."""

    @abc.abstractmethod
    async def prepare(self) -> None:
        """Have the model among those of the daemon.

        Raises:
            OSError: The weights cannot be read.
        """

    @abc.abstractmethod
    async def load(self) -> None:
        """Have it loaded; it takes as long as that takes."""

    async def renew(self) -> None:
        """Prolong its stay, where a daemon ends that by itself."""
        await trio.lowlevel.checkpoint()

    @abc.abstractmethod
    async def unload(self) -> None:
        """Have it unloaded; the answer may come before that is done."""

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        return await self.table.cpu_seconds(pids)

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        await self.table.end(pids)


PROGRESS_SECONDS: Final = 5.0
"""Between two lines while a load moves: the agent gives up a load of which nothing moves for two minutes."""

UNLOAD_LIMIT_SECONDS: Final = decisions.UNLOAD_SECONDS + 2.0
"""For all that an unload may take, whatever hangs."""

log = structlog.get_logger()


class GivenUpError(ExternalError):
    """The model cannot be kept loaded; says why, and what helps."""


@attrs.define(eq=False)
class Counters:
    """The counts of one engine since it was started: what the agent reads of it, under llama.cpp's names.

    A daemon counts for all of its clients, or for none. Requests are counted as they pass, tokens as answers name them
    (`usage`), and pieces of a stream as decodes. The processor time of the process that computes stands among the
    slots: through a long prompt nothing else moves.

    Attributes:
        processing: Requests that are with the daemon.
        prompt_tokens: Tokens of prompts.
        predicted_tokens: Tokens of answers.
        decodes: Pieces of answers that have come.
        runner_cpu_seconds: What the process that holds the model has used.
    """

    processing: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    decodes: int = 0
    runner_cpu_seconds: float = 0.0

    def metrics(self) -> bytes:
        """Return them in Prometheus' format, under llama.cpp's names."""
        return (
            f"# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total {self.prompt_tokens}\n"
            f"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total {self.predicted_tokens}\n"
            f"# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {self.decodes}\n"
            f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {self.processing}\n"
            "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n"
        ).encode()

    def slots(self) -> bytes:
        """Return one slot per request, and no word of what it asks."""
        slot = {"is_processing": True, "runner_cpu_seconds": round(self.runner_cpu_seconds, 2)}
        return orjson.dumps([{"id": number, **slot} for number in range(self.processing)])


@attrs.define(eq=False)
class Keeper:
    """Keeps one model loaded.

    Attributes:
        adapter: The model in its daemon.
        counters: Told what the process that holds it has used.
        lock: Who else uses the model.
        state: What is remembered between looks.
        sample: The last look.
    """

    adapter: Adapter
    counters: Counters
    lock: ModelLock = attrs.field(factory=ModelLock)
    state: KeeperState = attrs.field(factory=KeeperState)
    sample: DaemonSample = attrs.field(factory=DaemonSample)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    @property
    def ready(self) -> bool:
        """Whether requests may go to the server."""
        return self.state.ready

    @property
    def build(self) -> str:
        """The release of the server that has answered last; "" while it is not known."""
        return "" if self.state.version == UNKNOWN_RELEASE else self.state.version

    def sample_soon(self) -> None:
        """A request has failed: look now, and not in some seconds."""
        self._wake.set()

    async def run(self) -> None:
        """Keep it loaded until cancelled.

        Raises:
            GivenUpError: It cannot be kept.
            ModelLockError: It cannot be told who else uses it.
        """
        await self.lock.share()
        while True:
            self.sample = await self.adapter.sample()
            self.counters.runner_cpu_seconds = await self.adapter.cpu_seconds(self.sample.holders)
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
            await trio.sleep(min(seconds, 0.2))  # many requests fail at once, and are one reason to look
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
            # What it refuses with 4xx it would refuse again; but a model that is not there is made again.
            missing = error.status == 404 and act is not Act.PREPARE
            return Outcome(error=str(error), missing=missing, final=400 <= error.status < 500 and not missing)
        except OSError as error:
            return Outcome(error=f"the weights cannot be read: {error.strerror or error}", final=True)
        return Outcome()

    async def _load(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_load_progress)
            error = await self._load_error()
            nursery.cancel_scope.cancel(reason="the load has ended")
        if error is not None:  # raised in there it would come as a group
            raise error

    async def _load_error(self) -> DaemonError | None:
        try:
            await self.adapter.load()
        except DaemonError as error:
            return error
        return None

    async def _log_load_progress(self) -> None:
        """Write a line whenever the process that loads has moved."""
        before = -1.0
        while True:
            await trio.sleep(PROGRESS_SECONDS)
            self.sample = await self.adapter.sample()
            used = await self.adapter.cpu_seconds(self.sample.holders)
            if self.sample.holders and used != before:
                message = f"{self.adapter.texts.name} loads the model"
                log.info(message, pid=self.sample.holders[0], cpu_seconds=round(used, 2))
            before = used

    async def _end_runners(self) -> None:
        sample = await self.adapter.sample()  # a number may be another process' by now
        pids = (*sample.holders, *sample.orphans)
        message = f"ending the processes of our own {self.adapter.texts.name} that hold the model"
        log.warning(message, pids=pids)
        await self.adapter.end(pids)

    # -- the end --------------------------------------------------------------------------------------------------

    async def unload(self) -> bool:
        """Have it unloaded, and return whether its memory is back; bounded, and it shields itself.

        What others use stays, and counts as given back: the last of them has it unloaded.

        Raises:
            ModelLockError: It cannot be told who else uses it.
        """
        with trio.move_on_after(UNLOAD_LIMIT_SECONDS, shield=True):
            if not await self.lock.exclusive():
                log.info("another engine of this host uses the model, which stays loaded")
                return True
            released = await self._unload()
            if released:
                await self.lock.clear()
            return released
        message = f"{self.adapter.texts.name} has not unloaded the model in time"
        log.error(message, seconds=UNLOAD_LIMIT_SECONDS)
        return False

    async def unload_left(self) -> bool:
        """Have unloaded what an engine that was killed has left; return whether none of that is loaded any more.

        Raises:
            ModelLockError: It cannot be told whether there is any.
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
                    if error.status != 404:  # a model that it does not know is not loaded
                        message = f"{sample.texts.name} did not take the unload; it is repeated"
                        log.warning(message, error=str(error))
            elif step.act is Act.END_RUNNERS:
                await self._end_runners()
            await trio.sleep(step.wait_seconds)
