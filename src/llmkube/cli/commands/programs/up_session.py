"""The session of `llmkube up`: ask one question and exit, or print state changes until Ctrl-C.

It reads state through the API and sends requests through the gateway, as any other client would.
"""

import json
import shlex
import textwrap
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Never

import attrs
import trio
from rich.console import Console

from llmkube.base.http.client import HttpClient
from llmkube.base.http.message import Headers
from llmkube.base.units import format_bytes, format_duration
from llmkube.cli.commands.inference.conversation import error_text
from llmkube.cli.view import output
from llmkube.cli.view.advice import explain
from llmkube.cli.view.progress import Phases, Stopwatch, changes, phases_of
from llmkube.cli.view.progress_line import Display, open_display
from llmkube.cli.view.readiness import DELETED, Readiness
from llmkube.controller.status.model_status import not_served_here
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health, State, service_health
from llmkube.programs.failures import CommandError, ExitCode, program_name
from llmkube.programs.informer import ObjectCaches
from llmkube.programs.one_machine import UpSession
from llmkube.programs.program import open_service_nursery
from llmkube.programs.server_side_apply import ApplyResult
from llmkube.supervisor.memory.capacity import MemoryView

_NOT_READY = frozenset({404, 502, 503})  # model not known yet, engine lost, model loading
_PAUSE_SECONDS = 0.25


@attrs.frozen
class FirstSteps:
    """A user's view of a running `llmkube up`.

    Attributes:
        session: Clients, caches and addresses.
        console: Standard error, for progress.
        accelerators: The accelerators that this machine serves.
    """

    session: UpSession
    console: Console
    accelerators: Collection[str]

    def health_of(self, key: Key) -> Health | None:
        """Return the current health of a service; None if it does not exist."""
        service = self.session.caches.services.get(key)
        return self._assess(service, self.session.caches.model_of(service)) if service is not None else None

    async def answer(self, key: Key, question: str, *, before: Health | None = None) -> None:
        """Wait until a service is ready, ask it, and print question, answer, objects and the time of each step.

        Args:
            key: The service.
            question: The prompt.
            before: The health before the agent started: the same failure may be from an earlier run.

        Raises:
            CommandError: The service cannot be served, or does not answer.
        """
        timer = Stopwatch(self.session.started_at)
        timer.lap("start", trio.current_time())
        with open_display(self.console) as display:
            async with open_service_nursery() as nursery:
                nursery.start_soon(display.run)
                await self._wait_ready(key, before, display, timer)
                display.show_step("answer", question)
                text = await ask(self.session.http, self.session.addresses.gateway_url, str(key), question)
                timer.lap("answer", trio.current_time())
                display.done("answer", "", timer.laps["answer"])
        output.echo(f"\n> {output.printable(question)}\n{output.wrapped(text)}\n\n{self.tables()}\n\n{times(timer)}")

    async def report_changes(self, before: Phases, memory: MemoryView | None) -> Never:
        """Print models and memory, then a line whenever the phase of a service changes, until cancelled."""
        output.echo(summary(self.session.caches.services.values(), memory))
        while True:
            version = self.session.caches.changed.version
            after = phases_of(self.session.caches.services.values(), before)
            for line in changes(before, after):
                output.echo(output.wrapped(f"{self.session.utcnow().astimezone():%H:%M:%S}  {line}"))
            before = after
            await self.session.caches.changed.wait_newer(version)

    def tables(self) -> str:
        """Return all Models and InferenceServices as tables."""
        now = self.session.utcnow()
        models = sorted(self.session.caches.models.values(), key=lambda each: each.key)
        services = sorted(self.session.caches.services.values(), key=lambda each: each.key)
        rows = (output.service_row(each, self.session.caches.model_of(each), now) for each in services)
        table = output.table(output.MODEL_COLUMNS, (output.model_row(each, now) for each in models))
        return f"{table}\n\n{output.table(output.SERVICE_COLUMNS, rows)}"

    async def _wait_ready(self, key: Key, before: Health | None, display: Display, timer: Stopwatch) -> None:
        readiness = Readiness(
            caches=self.session.caches,
            key=key,
            assess=self._assess,
            display=display,
            detail=lambda health: health.headline,
            may_be_stale=partial(_may_be_stale, before),
            timer=timer,
        )
        health = await readiness.wait()
        if health.reason == DELETED:
            raise CommandError(f"InferenceService {key} was deleted")
        if health.state is State.STOPPED:
            raise CommandError(f"InferenceService {key} is stopped: {health.message}")
        if health.failing:
            raise CommandError(explain(key, health))

    def _assess(self, service: InferenceService, model: Model | None) -> Health:
        """Assess a service; report an accelerator that is not served here without waiting for the controller."""
        accelerator = model.spec.hardware.accelerator if model is not None else None
        if accelerator is None or accelerator in self.accelerators:
            return service_health(service, model)
        message = not_served_here(accelerator, self.accelerators)
        return Health(State.FAILING, 0, Reason.NO_HOST, message, faulty_kind=Model.RESOURCE.kind)


async def _find_target(applied: tuple[ApplyResult, ...], caches: ObjectCaches) -> Key | CommandError:
    """Return the service to ask: the first one in the manifests, else the first one that exists."""
    refused = [each for each in applied if each.error]
    if refused:
        message = "\n".join(f"{each.manifest.title}: {each.error}" for each in refused)
        return CommandError(f"some manifests could not be applied, so --ask was skipped\n{message}")
    kind = InferenceService.RESOURCE.kind
    given = [each.key for each in applied if each.manifest.body["kind"] == kind]
    present = sorted(service.key for service in caches.services.values())
    if not given and not present:
        return CommandError("no InferenceService to ask; add one with -f FILE, or use --demo")
    target = (given or present)[0]
    while target not in caches.services:  # applied, but not in the cache yet
        await caches.changed.wait_newer(caches.changed.version)
    return target


async def prepare_session(
    session: UpSession,
    applied: tuple[ApplyResult, ...],
    *,
    console: Console,
    accelerators: Collection[str],
    question: str | None,
    timeout_seconds: float,
) -> Callable[[MemoryView | None], Awaitable[bool]]:
    """Record the status of the objects before the agent starts, because it describes an earlier run.

    Returns:
        A function that asks the question and returns True; without a question it runs until it is cancelled.
    """
    first = FirstSteps(session, console, accelerators)
    target = await _find_target(applied, session.caches) if question is not None else None
    before = first.health_of(target) if isinstance(target, Key) else None
    phases = phases_of(session.caches.services.values())
    outdated = {key: phase for key, phase in phases.items() if phase.name == "Ready"}  # nothing runs yet

    async def ask_or_report(memory: MemoryView | None) -> bool:
        if isinstance(target, CommandError):
            raise target
        if target is None or question is None:
            await first.report_changes(outdated, memory)
        with trio.move_on_after(timeout_seconds):
            await first.answer(target, question, before=before)
            return True
        message = f"no answer within {timeout_seconds:g} s; run without --ask to see why, or raise --timeout"
        raise CommandError(message, ExitCode.TIMED_OUT)

    return ask_or_report


def _may_be_stale(before: Health | None, health: Health) -> bool:
    """Whether a failure is from before the agent started, or disappears once the agent's Lease has been seen."""
    if health.reason == Reason.NO_HOST and not health.faulty_kind:
        return True
    return before is not None and (before.reason, before.message) == (health.reason, health.message)


def summary(services: Iterable[InferenceService], memory: MemoryView | None) -> str:
    """Return the deployed models, the memory for them, and how to stop, one per line."""
    names = textwrap.shorten(", ".join(sorted(each.key.name for each in services)), 60, placeholder=" …")
    lines = {"models": names or "none yet; deploy one with `llmkube run NAME|FILE`"}
    if memory is not None:
        free, budget = format_bytes(memory.free_bytes), format_bytes(memory.budget.limit_bytes)
        lines["memory"] = f"{free} free of {budget} for models"
    lines["stop"] = "Ctrl-C, or `llmkube up stop`"
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items()) + "\n"


def next_steps(name: str, source: str, question: str) -> str:
    """Return the commands that serve the same model permanently: a demo run is removed at its end."""
    program = shlex.quote(program_name())
    return "\n".join(
        (
            "The demo has been removed. To keep a model served and talk to it:",
            f"  {program} up start",
            f"  {program} deploy {shlex.quote(name)} --source {shlex.quote(source)}",
            f"  {program} chat {shlex.quote(name)} {shlex.quote(question)}",
        )
    )


def times(timer: Stopwatch) -> str:
    """Return a table with the duration of each step, and the total since the program started."""
    rows = [(step, format_duration(seconds)) for step, seconds in timer.laps.items()]
    return output.table(("STEP", "TIME"), [*rows, ("total", format_duration(sum(timer.laps.values())))])


async def ask(client: HttpClient, gateway_url: str, model_id: str, question: str) -> str:
    """Return a model's answer at temperature 0; retry while the model is not ready.

    Raises:
        CommandError: The gateway or the engine rejects the request.
        HttpError: The gateway cannot be reached.
    """
    body = {"model": model_id, "temperature": 0, "messages": [{"role": "user", "content": question}]}
    while True:
        response = await client.request(
            "POST",
            f"{gateway_url}/v1/chat/completions",
            headers=Headers.of({"Content-Type": "application/json"}),
            body=json.dumps(body).encode(),
        )
        if response.status == 200:
            return read_answer(response.body)
        if response.status not in _NOT_READY:
            message = error_text(response.body.decode("utf-8", "replace"))
            raise CommandError(f"question rejected with status {response.status}: {message}")
        await trio.sleep(_PAUSE_SECONDS)


def read_answer(body: bytes) -> str:
    """Return the text of a chat completion.

    Raises:
        CommandError: The body is not a chat completion.
    """
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
        if not isinstance(text, str):  # null if the model produced reasoning only
            raise TypeError("no text")
        return text.strip()
    except (ValueError, LookupError, TypeError) as exc:
        raise CommandError(f"the engine's answer is not a chat completion: {body[:200]!r}") from exc
