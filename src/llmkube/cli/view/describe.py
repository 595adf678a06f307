"""One service or one Model in words: how it does, what it waits for, what went wrong, when it is tried again."""

import datetime
import re
from collections.abc import Sequence
from typing import Final

import attrs

from llmkube.base.units import format_duration
from llmkube.cli.view import output
from llmkube.cli.view.advice import advice, refusal_text
from llmkube.cli.view.locations import Engine, Host
from llmkube.cli.view.progress import choice_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.conditions import (
    ACCEPTED,
    AVAILABLE,
    DEGRADED,
    FETCHED,
    LOADED,
    MEMORY_PRESSURE,
    PROGRESSING,
    PUBLISHED,
    SPEC_HONOURED,
    SUSPENDED,
    UP_TO_DATE,
    find_condition,
)
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.k8s.wire.service_health import Health, State, model_health, service_health

# `next attempt at 2026-01-01T00:00:05Z`: what the agent writes into the messages of failures that it retries.
_NEXT_ATTEMPT: Final = re.compile(r"next attempt at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")
_RETRY_HEAD: Final = re.compile(r"^(?:restarting at once|\d+ failures in a row; next attempt at \S+): ")
_LABEL_WIDTH: Final = 12


@attrs.frozen
class StatusView:
    """One InferenceService and what belongs to it.

    Attributes:
        service: The service.
        model: The Model that it refers to, or None if there is none.
        engines: Where slices say that it answers.
        reporters: The hosts whose agents report about it.
        hosts: All hosts that are alive, or None if this user may not know.
        memory: What its engine on this machine takes, in words; empty when there is none.
    """

    service: InferenceService
    model: Model | None
    engines: Sequence[Engine] = ()
    reporters: Sequence[str] = ()
    hosts: Sequence[Host] | None = None
    memory: str = ""

    @property
    def health(self) -> Health:
        """How the service does."""
        return service_health(self.service, self.model)


def describe_service(view: StatusView, now: datetime.datetime) -> str:
    """Return a service's state as labelled lines and a table of its conditions, with the engine's words if any."""
    service, status = view.service, view.service.status
    wanted = service.spec.replicas if status.desired_replicas is None else status.desired_replicas
    rows = [
        ("phase", f"{status.phase or 'New'}, {status.ready_replicas or 0} of {wanted} ready"),
        *(("waits for", words) for words in waits_for(view)),
        *(("progress", words) for words in progress(view.model)),
        *(("last error", words) for words in last_error(service, view.model)),
        *(("what to do", words) for words in remedies(service, view.model)),
        *(("next retry", words) for words in next_retry(service, view.model, now)),
        *(("since", words) for words in since(view.health, now)),
        *(("no effect", words) for words in ignored_fields(service)),
        *(("update", words) for words in update(service) if not last_error(service, view.model)),
        ("model", _model_line(service, view.model)),
        *(("chosen", words) for words in filter(None, [choice_of(view.model) if view.model is not None else ""])),
        ("runtime", _runtime_line(service, view.model)),
        *(("engine", f"{engine} serves") for engine in filter(None, [status.engine])),
        *(("host", words) for words in host_lines(view)),
        *(("memory", words) for words in filter(None, [view.memory])),
        ("endpoint", status.endpoint or output.NOTHING),
    ]
    lines = [f"InferenceService {service.key}", *_labelled(rows)]
    words = engine_output(service)
    if words:
        lines += ["", "The engine's last lines:", *(f"  {line}" for line in words)]
    return "\n".join([*lines, *_conditions(status.conditions, "\n".join(lines))])


def describe_model(model: Model, now: datetime.datetime) -> str:
    """Return a Model's state as labelled lines and a table of its conditions."""
    facts, health = model.status.gguf, model_health(model)
    rows = [
        ("phase", model.status.phase or "New"),
        *(("progress", words) for words in progress(model)),
        *(("last error", words) for words in _model_error(health)),
        *(("next retry", words) for words in _retry_in(health, now)),
        ("source", output.shown_source(model.spec.source)),
        ("accelerator", model.spec.hardware.accelerator),
        ("size", model.status.size or output.NOTHING),
        ("path", model.status.path or output.NOTHING),
    ]
    if model.status.sha256:
        rows.append(("sha256", model.status.sha256))
    if model.spec.quantization and (facts is None or not facts.quantization):
        rows.append(("quantization", f"{model.spec.quantization}, as the spec says"))
    if facts is not None:
        context = f"{facts.context_length} tokens" if facts.context_length else ""
        known = (facts.architecture, facts.quantization, context, facts.license)
        rows.append(("gguf", ", ".join(each for each in known if each)))
    lines = [f"Model {model.key}", *_labelled(rows)]
    return "\n".join([*lines, *_conditions(model.status.conditions, "\n".join(lines))])


def summary(service: InferenceService, model: Model | None) -> str:
    """Return one line: the phase and the most telling words about it."""
    view = StatusView(service, model)
    words = [*last_error(service, model), *progress(model), *waits_for(view)]
    return ": ".join([service.status.phase or "New", *words[:1]])


def waits_for(view: StatusView) -> list[str]:
    """Say what has to happen before the service is Ready; nothing when it is, or when something went wrong."""
    service, health = view.service, view.health
    if service.spec.suspend:
        return ["nothing: spec.suspend is true"]
    if service.spec.replicas == 0:
        return ["nothing: spec.replicas is 0; `llmkube scale` starts it"]
    if view.model is None:
        return [f"a Model called {service.spec.model_ref}"]
    if health.reason == Reason.NO_HOST:
        others = sorted({each for host in view.hosts or () for each in host.accelerators})
        served = f"; live hosts serve {', '.join(others)}" if others else ""
        return [f"a host that serves {view.model.spec.hardware.accelerator}{served}"]
    if progress(view.model):
        return ["the Model's file"]
    if health.state is not State.WAITING or _is_recovering(health):
        return []
    return [health.headline.removeprefix("waiting for ")]


def progress(model: Model | None) -> list[str]:
    """Say how far the Model's file is on its way."""
    health = model_health(model) if model is not None else None
    is_moving = health is not None and health.reason in {Reason.FETCHING, Reason.DOWNLOAD_STARTED, Reason.COPY_STARTED}
    return [health.headline] if health is not None and is_moving else []


def last_error(service: InferenceService, model: Model | None) -> list[str]:
    """Say what stands in the way, if something went wrong: the spec, the file, the engine or a pod."""
    health = service_health(service, model)
    if model is None or health.reason == Reason.NO_HOST or not (health.failing or _is_recovering(health)):
        return []
    if health.serving:
        return [_RETRY_HEAD.sub("", refusal_text(health))]
    return [f"{health.reason}: {_RETRY_HEAD.sub('', health.headline)}"]


def remedies(service: InferenceService, model: Model | None) -> list[str]:
    """Say what the user can do about a failure."""
    health = service_health(service, model)
    return [advice(health.reason, service.key)] if health.failing else []


def next_retry(service: InferenceService, model: Model | None, now: datetime.datetime) -> list[str]:
    """Say when a failed start or fetch is tried again."""
    return _retry_in(service_health(service, model), now)


def _model_error(health: Health) -> list[str]:
    return [f"{health.reason}: {health.headline}"] if health.failing or _is_recovering(health) else []


def _is_recovering(health: Health) -> bool:
    reason = Reason.of(health.reason)
    return reason is not None and reason.meaning is Meaning.RECOVERING


def since(health: Health, now: datetime.datetime) -> list[str]:
    """Say for how long a service has not been ready; nothing when it is, or when no condition says it."""
    if health.state in {State.READY, State.STOPPED} or not health.since:
        return []
    age = output.age(health.since, now)
    return [f"{age} ago"]


def update(service: InferenceService) -> list[str]:
    """Say why what serves is not what was asked for last."""
    newest = find_condition(service.status.conditions, UP_TO_DATE)
    if newest is None or newest.status != "False":
        return []
    return [f"{newest.reason}: {_first_line(newest.message)}"]


def ignored_fields(service: InferenceService) -> list[str]:
    """Say which fields of the spec have no effect where the service runs, if there are any."""
    honoured = find_condition(service.status.conditions, SPEC_HONOURED)
    reported = honoured is not None and honoured.reason == Reason.FIELDS_IGNORED
    return [_first_line(honoured.message)] if honoured is not None and reported else []


def engine_output(service: InferenceService) -> list[str]:
    """Return the engine's last lines, which the agent puts below the first line of a failure."""
    conditions = (find_condition(service.status.conditions, kind) for kind in (LOADED, UP_TO_DATE))
    failed = next((each for each in conditions if each is not None and each.status == "False"), None)
    return [] if failed is None else output.printable(failed.message.partition("\n")[2]).splitlines()


def host_lines(view: StatusView) -> list[str]:
    """Say where it runs: each address in a slice, else the hosts that report about it."""
    if view.engines:
        return [
            f"{each.host or 'unknown'}, {each.netloc}" + ("" if each.ready else " (not ready)") for each in view.engines
        ]
    if view.service.status.phase in {"Stopped", "Suspended"}:
        return []
    alive = None if view.hosts is None else {host.name for host in view.hosts}
    return [
        name if alive is None or name in alive else f"{name} (its Lease was not renewed)" for name in view.reporters
    ]


def _retry_in(health: Health, now: datetime.datetime) -> list[str]:
    found = _NEXT_ATTEMPT.search(health.message)
    if found is None:
        return []
    at = datetime.datetime.fromisoformat(found[1])
    left_seconds = (at - now).total_seconds()
    when = f"in {format_duration(left_seconds)}" if left_seconds > 0 else "now"
    return [f"{when} ({at.astimezone():%H:%M:%S})"]


def _model_line(service: InferenceService, model: Model | None) -> str:
    if model is None:
        return f"{service.spec.model_ref} (not there)"
    facts = model.status.gguf
    quantization = (facts.quantization if facts else "") or model.spec.quantization or ""
    known = (model.status.size, facts.architecture if facts else "", quantization)
    words = ", ".join(each for each in known if each)
    return f"{service.spec.model_ref} ({words})" if words else service.spec.model_ref


def _runtime_line(service: InferenceService, model: Model | None) -> str:
    spec, tokens = service.spec, output.context_in_effect(service, model)
    requested = f" ({spec.context_size} asked for)" if tokens != spec.context_size else ""
    context = f", {tokens} tokens of context{requested}" if tokens else ""
    slots = f", {spec.parallel_slots} slots" if spec.parallel_slots != 1 else ""
    health = service_health(service, model)
    older = " (asked for; the previous spec serves)" if health.serving and health.faulty_kind else ""
    return f"{spec.runtime}{context}{slots}{older}"


_ORDER: Final = (
    ACCEPTED, FETCHED, LOADED, UP_TO_DATE, PUBLISHED, MEMORY_PRESSURE, AVAILABLE, PROGRESSING, DEGRADED, SUSPENDED,
    SPEC_HONOURED,
)  # fmt: skip
"""From what happens first to what follows from it; others come last, by name."""


def _conditions(conditions: Sequence[Condition], reported: str) -> list[str]:
    """Return the table of those that state something, in one order; a message that was said before is not repeated."""
    rows = []
    for kind, status, reason, message in output.condition_rows(sorted(conditions, key=_sort_key)):
        if status == "Unknown" and reason == Reason.NOT_STATED:
            continue
        rows.append((kind, status, reason, "(as above)" if message and message in reported else message))
        reported += f"\n{message}"
    return ["", output.table(output.CONDITION_COLUMNS, rows)] if rows else []


def _sort_key(condition: Condition) -> tuple[int, str]:
    kind = condition.type
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind)


def _labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    before = ""
    for label, text in rows:
        shown = "" if label == before else label
        lines.append(f"  {shown:<{_LABEL_WIDTH}} {output.printable(text)}".rstrip())
        before = label
    return lines


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
