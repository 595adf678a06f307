"""Status of one engine, which is its service's status while the engine leads and is not reported otherwise.

During a handover a service has two engines, but one status.

```
 old engine   ── leads ───────────────────┐ (drains, exits)
 its successor        ── loads ───────────┴─ leads ──▶
                                          endpoint and conditions switch here, in one write each
```

A daemon that holds the model of an engine may unload it, and its owner may upgrade the daemon while the engine runs.
The engine's metrics do not show that; its readiness URL does (503). It is therefore queried at each tick: an endpoint
must not stay published while every request is refused.
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
"""Lines of an engine's log that go into a condition."""


ANSWER_SECONDS: Final = 5.0
"""Deadline of a readiness query; a late or missing answer means nothing here, as the hang watch covers it."""

ModelState = Literal["loaded", "lost", "unknown"]


@attrs.define(eq=False)
class Outcome:
    """Progress of an engine and the cause of its end, filled in as they become known.

    Attributes:
        published: Whether its endpoint is, or may be, ready in the API server.
        ready_at: When it first answered, on Trio's clock.
        exit: The exit of its process, if it exited by itself.
        failure: Why it had to be stopped.
    """

    published: bool = False
    ready_at: float | None = None
    exit: Exit | None = None
    failure: Failure | None = None


def failure_of(
    outcome: Outcome, lines: Sequence[str], *, rules: Sequence[Rule], now: float, memory_kills: int, memory_short: bool
) -> Failure:
    """Return why an engine exited or had to be stopped.

    Args:
        outcome: Its progress and the cause of its end.
        lines: Its last log lines, oldest first.
        rules: Rules that interpret log lines of its runtime.
        now: The time on Trio's clock.
        memory_kills: Processes that the kernel has OOM-killed where the engine ran.
        memory_short: Whether the host was short of memory in the last sample.
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
    return Failure(reason, f"the engine exited {when}: {outcome.exit}{cause}{text}", seconds)


async def watch_model(engine: Engine, report: Callable[[ModelState, str], None], tick_seconds: float) -> None:
    """Query the state of an engine's model at each tick and report it; never return.

    Args:
        engine: Answers 200 on its readiness URL while its model is loaded, and 503 otherwise.
        report: Called at each tick, even without a change, since others report about the engine meanwhile. Its second
            argument is the build that holds a loaded model, "" if not known.
        tick_seconds: Pause between two queries.
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
            return "unknown"
    return "loaded" if status == 200 else "lost" if status == 503 else "unknown"


@attrs.define(eq=False)
class Leader:
    """The engine of a service whose status is reported."""

    engine: "EngineStatus | None" = None


@attrs.define(eq=False)
class EngineStatus:
    """Status of one engine.

    Attributes:
        manager: Status manager of the service.
        leader: Leader of the service's engines.
        view: The engine's last state, reported or not.
        newest: Whether the engine runs the newest plan.
    """

    manager: StatusManager
    leader: Leader
    view: ServiceView = ServiceView("")
    newest: bool = True

    @property
    def leads(self) -> bool:
        """Whether this engine serves its service, or will as soon as it answers."""
        return self.leader.engine is self

    def lead(self) -> None:
        """Make this engine the one that is reported."""
        self.leader.engine = self
        if self.view.reason:
            self.manager.update(Facts.with_view, self.view)

    def set_view(self, view: ServiceView) -> None:
        """Set this engine's state, and report it if the engine leads."""
        self.view = view
        if self.leads:
            self.manager.update(Facts.with_view, view)

    def set_reason(self, reason: str, message: str = "") -> None:
        """Change the reason and message of this engine's state."""
        self.set_view(attrs.evolve(self.view, reason=reason, message=message))

    def set_answering(self, yes: bool) -> None:
        """Report that the running engine has stopped answering, or answers again; its endpoint changes accordingly."""
        if yes:
            self.set_reason(Reason.LOADED, "the engine answers again")
        else:
            self.set_reason(Reason.NOT_ANSWERING, "the process runs, but nothing listens on its port")

    def set_model(self, state: ModelState, build: str = "") -> None:
        """Report whether the engine's model is loaded, and which build holds it; the endpoint changes accordingly."""
        if build and build != self.view.build:
            before = f" (was {self.view.build})" if self.view.build else ""
            text = f"the model is loaded; {self.view.engine} is now {build}{before}"
            self.view = attrs.evolve(self.view, build=build)
            if self.view.ready or self.view.reason == Reason.LOADING:
                self.set_reason(Reason.LOADED, text)
        elif state == "lost" and self.view.ready:
            self.set_reason(Reason.LOADING, "the engine answers; its model was unloaded and is being loaded again")
        elif state == "loaded" and self.view.reason == Reason.LOADING:
            self.set_reason(Reason.LOADED, "the model is loaded again")

    def serve(self, loaded: ServiceView) -> None:
        """Publish the endpoint as ready; only inside `withdrawn`."""
        self.view = loaded
        self.manager.update(Facts.with_engine, loaded, newest=self.newest)

    def withdraw(self) -> None:
        """Report this engine as stopping: requests that arrive from now on wait for the next one."""
        if self.view.ready or not self.view.reason:  # otherwise it is reported as not ready, with the reason
            self.set_reason(Reason.STOPPING, "the endpoint is being withdrawn")

    @asynccontextmanager
    async def withdrawn(self, outcome: Outcome, allocation: Allocation, shutdown: Shutdown) -> AsyncIterator[None]:
        """On exit from the body, withdraw the endpoint before the engine stops, if it may be published.

        The wait for the API server is bounded, so an engine can be stopped while the API server is unreachable. There
        is no wait when memory is critically short or the engine has exited by itself. A shutdown that keeps the engine
        keeps its endpoint, and an engine whose successor has the endpoint has nothing to withdraw.
        """
        try:
            yield
        finally:
            if not outcome.published:
                pass
            elif outcome.exit is not None:
                self.set_reason(Reason.ENGINE_EXITED, f"the engine exited: {outcome.exit}")
            elif self.leads and not shutdown.keep:
                self.withdraw()
                if not allocation.urgent:
                    await self._wait_withdrawn()  # noqa: ASYNC102 - it shields itself, with a deadline

    async def _wait_withdrawn(self) -> None:
        manager = self.manager
        with trio.move_on_after(manager.settings.withdraw_seconds, shield=True) as bound:
            await manager.wait_endpoint_applied()
        if bound.cancelled_caught:
            manager.log.warning("endpoint not withdrawn in time; stopping anyway")
