"""What one engine reports: its service's status while it leads, and nothing before and after that.

While an engine is replaced there are two, and a service has one status.

```
 old engine   ── leads ──────────────────────────┐ (drains, ends)
 its successor        ── loads, says nothing ────┴─ leads ──▶
                                         endpoint and conditions change hands here, in one write each
```

Where another program holds the model of an engine, that program may take the model away, and may be upgraded by its
owner while the engine runs. What such an engine says of its work says nothing of that: it answers for its requests, and
503 where it says that it is ready. So this is asked by itself, and often: an endpoint must not stay published whose
requests are all refused.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import attrs
import structlog
import trio

from llmkube.base.http.errors import HttpError
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.exits import ExitCause, Rule, classify
from llmkube.supervisor.engine.health import Engine
from llmkube.supervisor.memory.ledger import Allocation
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.lifecycle import Exit, Failure, ServiceView
from llmkube.supervisor.values.ports import Shutdown

log = structlog.get_logger(__name__)

LAST_LINES: Final = 20
"""How much of an engine's own words goes into a condition."""


ANSWER_SECONDS: Final = 5.0
"""What is late says nothing, as what is not answered at all: other looks judge that."""

ModelState = Literal["loaded", "lost", "nothing"]


@attrs.define(eq=False)
class Outcome:
    """How far an engine has come, and how it has ended; filled in as it happens.

    Attributes:
        published: It is, or may be, known to the API server as one that serves.
        ready_at: When it first answered, on Trio's clock.
        exit: How its process ended by itself.
        failure: Why it had to be ended.
    """

    published: bool = False
    ready_at: float | None = None
    exit: Exit | None = None
    failure: Failure | None = None


def failure_of(
    outcome: Outcome,
    lines: Sequence[str],
    *,
    rules: Sequence[Rule],
    now: float,
    memory_kills: int,
    memory_short: bool,
) -> Failure:
    """Say why an engine has ended.

    Args:
        outcome: How far it came, and what ended it.
        lines: Its last lines, oldest first.
        rules: What lines of its runtime mean.
        now: The time on Trio's clock.
        memory_kills: How many processes the kernel has killed for lack of memory where the engine ran.
        memory_short: Whether the host was short of memory at the last look.
    """
    text = "\n" + "\n".join(lines) if lines else ""
    seconds = 0.0 if outcome.ready_at is None else now - outcome.ready_at
    if outcome.exit is None and outcome.failure is not None:
        return attrs.evolve(outcome.failure, message=outcome.failure.message + text, ready_seconds=seconds)
    code = outcome.exit.code if outcome.exit else None
    why = classify(
        code,
        lines,
        rules=rules,
        memory_kills=memory_kills,
        memory_short=memory_short,
        for_signature=outcome.exit is not None and outcome.exit.for_signature,
    )
    loading = outcome.ready_at is None
    reason = Reason.PORT_TAKEN if why.cause is ExitCause.PORT_TAKEN and loading else Reason.ENGINE_EXITED
    cause = f": {why}" if why.summary else ""
    when = "while loading" if loading else "while serving"
    return Failure(reason, f"the engine ended {when}: {outcome.exit}{cause}{text}", seconds)


async def watch_model(engine: Engine, report: Callable[[ModelState, str], None], tick_seconds: float) -> None:
    """Never return: ask at each tick, and tell what was said each time.

    Args:
        engine: Answers 200 with its model when it is asked whether it is ready, and 503 without.
        report: Told each time, of a loaded model with the build that has it, or "" where that is not said; what others
            say of the engine meanwhile may need to be corrected.
        tick_seconds: Between two questions.
    """
    while True:
        await trio.sleep(tick_seconds)
        state = await _query_model(engine)
        report(state, await engine.build() if state == "loaded" else "")


async def _query_model(engine: Engine) -> ModelState:
    status = 0
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            status = (await engine.http.request("GET", engine.ready_url)).status
        except HttpError:
            return "nothing"
    return "loaded" if status == 200 else "lost" if status == 503 else "nothing"


@attrs.define(eq=False)
class Leader:
    """The engine that is reported, of those that a service has."""

    engine: "EngineStatus | None" = None


@attrs.define(eq=False)
class EngineStatus:
    """One engine's way to its service's status.

    Attributes:
        manager: Of the service's status.
        leader: Of the service's engines.
        view: The engine's last state, reported or not.
        newest: Whether it is of the newest plan.
    """

    manager: StatusManager
    leader: Leader
    view: ServiceView = ServiceView("")
    newest: bool = True

    @property
    def leads(self) -> bool:
        """Whether this engine is the one that its service is served by, or will be as soon as it answers."""
        return self.leader.engine is self

    def lead(self) -> None:
        """Report for the service from now on; the engine that did so until now does not any more."""
        self.leader.engine = self
        if self.view.reason:
            self.manager.update(Facts.with_view, self.view)

    def set_view(self, view: ServiceView) -> None:
        """Replace what is known of this engine."""
        self.view = view
        if self.leads:
            self.manager.update(Facts.with_view, view)

    def set_reason(self, reason: str, message: str = "") -> None:
        """Change why it is in the state that it is in, and keep where it is."""
        self.set_view(attrs.evolve(self.view, reason=reason, message=message))

    def set_answering(self, yes: bool) -> None:
        """The running engine has stopped to answer, or answers again; the endpoint follows."""
        if yes:
            self.set_reason(Reason.LOADED, "the engine answers again")
        else:
            self.set_reason(Reason.NOT_ANSWERING, "the process runs, but nothing listens on its port")

    def set_model(self, state: ModelState, build: str = "") -> None:
        """What holds the engine's model has it, or has lost it; the endpoint follows. So does the build that has it."""
        if build and build != self.view.build:
            before = f", and was {self.view.build}" if self.view.build else ""
            text = f"the model is loaded; {self.view.engine} is {build} now{before}"
            self.view = attrs.evolve(self.view, build=build)
            if self.view.ready or self.view.reason == Reason.LOADING:
                self.set_reason(Reason.LOADED, text)
        elif state == "lost" and self.view.ready:
            self.set_reason(Reason.LOADING, "the engine answers; its model is not loaded any more, and is loaded again")
        elif state == "loaded" and self.view.reason == Reason.LOADING:
            self.set_reason(Reason.LOADED, "the model is loaded again")

    def serve(self, loaded: ServiceView) -> None:
        """Claim the endpoint; within `withdrawn`."""
        self.view = loaded
        self.manager.update(Facts.with_engine, loaded, newest=self.newest)

    @asynccontextmanager
    async def withdrawn(self, outcome: Outcome, allocation: Allocation, shutdown: Shutdown) -> AsyncIterator[None]:
        """On the way out of the body, withdraw the claim to the endpoint before anything stops, if there may be one.

        The wait for the API server is bounded: an engine must be stoppable while the cluster is away. A shutdown that
        keeps the engine keeps the claim, and an engine that has ended by itself is not waited for; nor is there a wait
        when memory is urgent. One whose successor has the endpoint has nothing to withdraw.
        """
        try:
            yield
        finally:
            if not outcome.published:
                pass
            elif outcome.exit is not None:
                self.set_reason(Reason.ENGINE_EXITED, f"the engine ended: {outcome.exit}")
            elif self.leads and not shutdown.keep:
                if self.view.ready or not self.view.reason:  # else it has been said that it is not, and why
                    self.set_reason(Reason.STOPPING, "the endpoint is withdrawn")
                if not allocation.urgent:
                    await self._wait_withdrawn()  # noqa: ASYNC102 - it shields itself, with a deadline

    async def _wait_withdrawn(self) -> None:
        manager = self.manager
        with trio.move_on_after(manager.settings.withdraw_seconds, shield=True) as bound:
            await manager.wait_endpoint_applied()
        if bound.cancelled_caught:
            manager.log.warning("stopping although the endpoint is not withdrawn yet")
