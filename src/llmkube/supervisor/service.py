"""One InferenceService's nursery: a planner that turns wishes into a target, a runner that keeps an engine in line.

```
 run_service                         lives until the agent cancels its life scope
 └ nursery
   ├ run_planner   Desired ─▶ Target        (fetch, read, plan; never touches a process)
   └ run_engine    Target ─▶ engine         one attempt after the other
     └ attempt scope                        ends by: exit, load time-out, a newer target
       └ child context                      on the way out: not ready, TERM, grace, KILL, reaped
```
"""

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import WorldError
from llmkube.base.mailbox import Mailbox
from llmkube.supervisor import health
from llmkube.supervisor.desired import Desired
from llmkube.supervisor.lifecycle import (
    Exit,
    Failure,
    Reason,
    RestartPolicy,
    RestartState,
    ServiceView,
    after_failure,
)
from llmkube.supervisor.planner import Idle, Launch, Target, run_planner
from llmkube.supervisor.ports import Child, Command, Ports
from llmkube.supervisor.reporter import Reporter
from llmkube.supervisor.settings import AgentSettings

log = structlog.get_logger(__name__)

LAST_LINES = 20
"""How much of an engine's own words goes into a condition."""


async def run_service(
    desired: Mailbox[Desired],
    reporter: Reporter,
    ports: Ports,
    settings: AgentSettings,
    policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
) -> None:
    """Look after one service until cancelled; a bug in here is reported and costs its siblings nothing."""
    backoff, failures = Backoff(), 0
    while True:
        target: Mailbox[Target] = Mailbox(Idle(Reason.PENDING))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_planner, desired, target, reporter, ports, settings)
                nursery.start_soon(run_engine, target, reporter, ports, settings, policy)
        except* Exception as bug:
            # One of the three broad catches: here an error stops at the service that it belongs to.
            log.exception("service task failed", name=reporter.key.name, namespace=reporter.key.namespace)
            reporter.say(ServiceView(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {_innermost(bug)!r}"))
        failures += 1
        await trio.sleep(backoff.delay(failures, ports.rng))


async def run_engine(
    target: Mailbox[Target], reporter: Reporter, ports: Ports, settings: AgentSettings, policy: RestartPolicy
) -> None:
    """Never return: run what the target says, again after every exit, later and later if it does not hold."""
    state = RestartState()
    while True:
        version, goal = target.version, target.value
        if isinstance(goal, Idle):
            reporter.say(ServiceView(goal.reason, goal.message))
            await target.wait_newer(version)
            state = RestartState()
            continue
        failure = await run_attempt(goal, target, reporter, ports, settings)
        if failure is None:  # superseded: the next target starts with a clean record
            state = RestartState()
            continue
        state, delay = after_failure(policy, state, failure, ports.rng)
        log.warning(
            "inference service failed",
            name=reporter.key.name,
            namespace=reporter.key.namespace,
            reason=str(failure.reason),
            failures=state.failures,
            retry_seconds=round(delay, 1),
            message=failure.message.partition("\n")[0],
        )
        reporter.failed(failure, state.failures, delay)
        version = target.version
        with trio.move_on_after(delay):
            await target.wait_newer(version)
            state = RestartState()


async def run_attempt(
    launch: Launch, target: Mailbox[Target], reporter: Reporter, ports: Ports, settings: AgentSettings
) -> Failure | None:
    """Run one incarnation to its end; None means that a newer target ended it and not the engine."""
    failure: Failure | None = None
    with trio.CancelScope() as attempt:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_when_superseded, launch, target, attempt, reporter)
                failure = await _incarnation(launch, reporter, ports, settings)
                nursery.cancel_scope.cancel(reason="the engine ended")
        except* WorldError as group:
            failure = Failure(Reason.ENGINE_NOT_FOUND, str(_innermost(group)))
        except* Exception as bug:
            log.exception("attempt failed", name=reporter.key.name, namespace=reporter.key.namespace)
            failure = Failure(Reason.INTERNAL_ERROR, f"a bug in LLMKube: {_innermost(bug)!r}")
    return None if attempt.cancelled_caught else failure


async def _end_when_superseded(
    launch: Launch, target: Mailbox[Target], attempt: trio.CancelScope, reporter: Reporter
) -> None:
    """Cancel the attempt when another plan, or none, should run; the same plan again changes nothing."""
    while True:
        version, goal = target.version, target.value
        if isinstance(goal, Idle):
            log.info(
                "replicas=0; stopping process" if goal.reason == Reason.SCALED_TO_ZERO else "stopping process",
                name=reporter.key.name,
                namespace=reporter.key.namespace,
                reason=goal.message,
            )
            attempt.cancel(reason=goal.message)
        elif goal.plan.digest != launch.plan.digest:
            log.info("plan changed; restarting", name=reporter.key.name, namespace=reporter.key.namespace)
            attempt.cancel(reason="the plan changed")
        await target.wait_newer(version)


async def _incarnation(launch: Launch, reporter: Reporter, ports: Ports, settings: AgentSettings) -> Failure:
    """Spawn, wait until it answers, serve until it exits; every way out leads through not-ready, TERM and reap."""
    key, plan, port = reporter.key, launch.plan, ports.engines.free_port()
    engine = await ports.engines.info()
    log.info("starting inference service", name=key.name, namespace=key.namespace, port=port)
    folder = f"{key.namespace}/{key.name}"
    command = Command(
        argv=plan.render(program=engine.program, model=str(launch.weights.path), host=settings.bind_address, port=port),
        env=dict(plan.env),
        work_dir=settings.state_dir / "work" / folder,
        log_path=settings.state_dir / "logs" / f"{folder}.log",
    )
    async with ports.engines.open_child(command) as child:
        view = ServiceView(Reason.LOADING, "the engine is loading the model", settings.bind_address, port)
        reporter.say(attrs.evolve(view, pid=child.pid, alias=plan.alias))
        return await _serve(child, plan.ready_path, reporter, ports, settings)


async def _serve(child: Child, ready_path: str, reporter: Reporter, ports: Ports, settings: AgentSettings) -> Failure:
    """Return when the child has exited, or has not become ready in time."""
    host, port = reporter.view.host, reporter.view.port
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{ready_path}"
    started_at, ready_at = trio.current_time(), None
    ended: Exit | None = None
    async with trio.open_nursery() as nursery:

        async def notice_exit() -> None:
            nonlocal ended
            ended = await child.wait()
            nursery.cancel_scope.cancel(reason=f"the engine ended: {ended}")

        nursery.start_soon(notice_exit)
        with trio.move_on_after(settings.load_timeout_seconds):
            await health.wait_ready(ports.http, url)
            ready_at = trio.current_time()
        if ready_at is not None:
            async with reporter.serving(f"loaded in {ready_at - started_at:.1f} s"):
                log.info(
                    "started inference service",
                    name=reporter.key.name,
                    namespace=reporter.key.namespace,
                    pid=child.pid,
                    port=port,
                )
                await health.watch(ports.http, url, reporter.answering)
        nursery.cancel_scope.cancel(reason="not ready in time")
    if ended is None:
        words = await _last_words(child)
        return Failure(Reason.LOAD_TIMED_OUT, f"not ready after {settings.load_timeout_seconds:g} s{words}")
    when = "while loading" if ready_at is None else "while serving"
    seconds = 0.0 if ready_at is None else trio.current_time() - ready_at
    return Failure(Reason.ENGINE_EXITED, f"the engine ended {when}: {ended}{await _last_words(child)}", seconds)


async def _last_words(child: Child) -> str:
    lines = await child.last_lines(LAST_LINES)
    return "\n" + "\n".join(lines) if lines else ""


def _innermost(error: BaseException) -> BaseException:
    """The first leaf of a group: what actually went wrong."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
