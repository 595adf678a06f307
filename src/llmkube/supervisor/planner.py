"""From the newest wish to what should run: fetch, read, plan. Half of a service's nursery; `service` is the other.

It never touches a process. A wish that makes no plan leaves the last target standing, so a bad edit costs nothing.
"""

import attrs
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import LLMKubeError, UserError, WorldError
from llmkube.base.mailbox import Mailbox
from llmkube.base.units import format_bytes
from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.registry import check, plan_for
from llmkube.supervisor.desired import Desired
from llmkube.supervisor.lifecycle import Reason
from llmkube.supervisor.ports import Ports
from llmkube.supervisor.reporter import Reporter
from llmkube.supervisor.settings import AgentSettings
from llmkube.weights.fetch import Progress, WeightsFile


@attrs.frozen
class Idle:
    """Nothing should run, and why."""

    reason: str
    message: str = ""


@attrs.frozen
class Launch:
    """This plan should run, with these weights."""

    plan: LaunchPlan
    weights: WeightsFile


Target = Idle | Launch


async def run_planner(
    desired: Mailbox[Desired], target: Mailbox[Target], reporter: Reporter, ports: Ports, settings: AgentSettings
) -> None:
    """Never return: keep the target in line with the newest wish; a newer wish interrupts work on an older one."""
    backoff = Backoff(cap_seconds=settings.retry_cap_seconds)
    while True:
        version, wish, failures = desired.version, desired.value, 0
        reporter.follow(wish)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_interrupt, desired, version, nursery.cancel_scope)
            while not await _plan(wish, target, reporter, ports):
                failures += 1
                await trio.sleep(backoff.delay(failures, ports.rng))
            await trio.sleep_forever()


async def _interrupt(desired: Mailbox[Desired], version: int, scope: trio.CancelScope) -> None:
    await desired.wait_newer(version)
    scope.cancel(reason="a newer wish arrived")


async def _plan(wish: Desired, target: Mailbox[Target], reporter: Reporter, ports: Ports) -> bool:
    """Do it once; return False when trying again later could help."""
    if not wish.running:
        word = "suspended" if wish.service.spec.suspend else "replicas=0"
        target.put_nowait(Idle(Reason.SCALED_TO_ZERO, word))
        return True
    try:
        check(wish.service, wish.model)
    except UserError as error:
        reporter.refused(error)
        _idle_unless_running(target, Reason.INVALID, str(error))
        return True
    try:
        weights, facts = await ports.weights.fetch(wish.model, _ProgressLine(target, reporter))
    except LLMKubeError as error:
        reporter.not_fetched(error)
        _idle_unless_running(target, getattr(error, "reason", Reason.FETCH_FAILED), str(error))
        return False  # also after a user's error: the file may appear or be mended without an edit of the object
    reporter.fetched(weights, facts)
    try:
        engine = await ports.engines.info()
        plan = plan_for(wish.service, wish.model, weights, facts, engine, alias=wish.key.name)
    except UserError as error:
        reporter.refused(error)
        _idle_unless_running(target, Reason.INVALID, str(error))
        return True
    except WorldError as error:
        _idle_unless_running(target, getattr(error, "reason", Reason.ENGINE_NOT_FOUND), str(error))
        return False
    reporter.accepted(plan.not_honoured)
    target.put_nowait(Launch(plan, weights))
    return True


def _idle_unless_running(target: Mailbox[Target], reason: str, message: str) -> None:
    """Say why nothing can run, but never take the word from an engine that does."""
    if isinstance(target.value, Idle):
        target.put_nowait(Idle(reason, message))


@attrs.define(eq=False)
class _ProgressLine:
    """Turn a fetch's progress into a line, once per whole per cent."""

    target: Mailbox[Target]
    reporter: Reporter
    _last: str = ""

    def __call__(self, progress: Progress) -> None:
        percent = 100 * progress.done_bytes // max(progress.total_bytes, 1)
        line = f"{progress.stage.lower()}: {percent} % of {format_bytes(progress.total_bytes)}"
        if line != self._last:
            self._last = line
            self.reporter.fetching(line)
            _idle_unless_running(self.target, Reason.FETCHING, line)
