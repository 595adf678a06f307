"""The text of `llmkube status`: the state of a service or Model, what it waits for, the last error, the next retry."""

import datetime
import re
from collections.abc import Sequence
from typing import Any, Final

import attrs

from llmkube.base.units import format_bytes, format_duration
from llmkube.cli.view import output
from llmkube.cli.view.advice import advice, refusal_text
from llmkube.cli.view.locations import Engine, Host
from llmkube.cli.view.progress import choice_of
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
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
from llmkube.k8s.wire.reasons import Reason
from llmkube.k8s.wire.service_health import Health, State, model_health, service_health
from llmkube.weights.estimate.layers import unknown_architecture

# `next attempt at 2026-01-01T00:00:05Z`: written by the agent into messages of failures that it retries.
_NEXT_ATTEMPT: Final = re.compile(r"next attempt at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)")
_RETRY_HEAD: Final = re.compile(r"^(?:restarting at once|\d+ failures in a row; next attempt at \S+): ")
_LABEL_WIDTH: Final = 12


@attrs.frozen
class StatusView:
    """An InferenceService and related objects.

    Attributes:
        service: The service.
        model: The Model that it refers to; None if it does not exist.
        engines: The endpoints in its EndpointSlices.
        reporters: Hosts whose agents write its status.
        hosts: All live hosts; None if this user may not read Leases.
        memory: Text about the memory of its engine on this machine; empty without one.
        cause: Text about a local file that cannot be served, for the user of this machine; empty without one.
        drafts: Text about the drafts of its engine on this machine; empty without any.
    """

    service: InferenceService
    model: Model | None
    engines: Sequence[Engine] = ()
    reporters: Sequence[str] = ()
    hosts: Sequence[Host] | None = None
    memory: str = ""
    cause: str = ""
    drafts: str = ""

    @property
    def health(self) -> Health:
        """The health of the service."""
        return service_health(self.service, self.model)


def describe_service(view: StatusView, now: datetime.datetime) -> str:
    """Return a service's state as labelled lines, its conditions as a table, and the last lines of a failed engine."""
    service, status = view.service, view.service.status
    wanted = service.spec.replicas if status.desired_replicas is None else status.desired_replicas
    rows = [
        ("phase", f"{status.phase or 'New'}, {status.ready_replicas or 0} of {wanted} ready"),
        ("waits for", waits_for(view)),
        ("progress", progress(view.model)),
        ("last error", error := last_error(service, view.model)),
        ("cause", view.cause),
        ("what to do", remedy(service, view.model)),
        ("next retry", next_retry(view.health, now)),
        ("since", since(view.health, now)),
        ("note", ignored_fields(service)),
        ("note", model_note(view.model)),
        ("update", "" if error else update(service)),
        ("model", _model_line(service, view.model)),
        ("chosen", choice_of(view.model) if view.model is not None else ""),
        ("projector", view.model.status.projector if view.model is not None else ""),
        ("runtime", _runtime_line(service, view.model)),
        ("engine", f"{status.engine} serves" if status.engine else ""),
        ("computed on", str(status.acceleration or "")),
        *(("host", text) for text in host_lines(view)),
        ("memory", view.memory),
        ("drafts", view.drafts),
        ("also named", output.further_names(service)),
        *(("adapters", f"{a.name or 'always'} ({a.model_ref}, scale {a.scale})") for a in service.spec.adapters),
        ("loading", "when a request needs it" if status.activation == ON_REQUEST else ""),
        ("endpoint", status.endpoint or output.NOTHING),
    ]
    return _described(service, rows, engine_output(service))


def describe_object(model: Model | ModelRouter | GPUQuota | ModelPool, now: datetime.datetime, cause: str = "") -> str:
    """Return the state of a Model or another object of ours as labelled lines, and its conditions as a table.

    Args:
        model: The object.
        now: The current time.
        cause: As in `StatusView`.
    """
    if isinstance(model, ModelRouter):
        return _describe_router(model)
    if isinstance(model, ModelPool):
        states = [("member", f"{one.name}: {one.phase or 'New'}") for one in model.status.members]
        return _described(model, [("phase", model.status.phase or "New"), *states])
    if isinstance(model, GPUQuota):
        return _describe_quota(model)
    facts, health = model.status.gguf, model_health(model)
    is_stated = model.spec.quantization and (facts is None or not facts.quantization)
    context = f"{facts.context_length} tokens" if facts is not None and facts.context_length else ""
    known = (facts.architecture, facts.quantization, context, facts.license) if facts is not None else ()
    rows = [
        ("phase", model.status.phase or "New"),
        ("progress", progress(model)),
        ("last error", f"{health.reason}: {health.headline}" if health.failing or health.recovering else ""),
        ("cause", cause),
        ("next retry", next_retry(health, now)),
        ("source", output.shown_source(model.spec.source)),
        ("accelerator", model.spec.hardware.accelerator),
        ("size", model.status.size or output.NOTHING),
        ("path", model.status.path or output.NOTHING),
        ("sha256", model.status.sha256),
        ("quantization", f"{model.spec.quantization} (from the spec)" if is_stated else ""),
        ("projector", model.status.projector),
        ("gguf", ", ".join(filter(None, known))),
        ("note", model_note(model)),
    ]
    return _described(model, rows)


def _describe_router(router: ModelRouter) -> str:
    status = router.status
    states = {None: "unknown", True: "usable", False: "not usable"}
    rows = [
        ("phase", status.phase or "New"),
        ("endpoint", status.endpoint or output.NOTHING),
        *(("backends", f"{one.name} ({states[one.healthy]}) {one.message or one.address}") for one in status.backends),
        *(("budgets", f"{one.name}: {one.utilization or 0} of the budget used") for one in status.budget_utilization),
    ]
    return _described(router, rows)


def _describe_quota(quota: GPUQuota) -> str:
    spec, status = quota.spec, quota.status
    used, size = status.used_gpu_count or 0, status.used_vram_bytes or 0
    limit = f" of {format_bytes(spec.vram_bytes)}" if spec.vram_bytes else ""
    rows = [
        ("GPUs", f"{used} of {spec.gpu_count}"),
        ("memory", f"{format_bytes(size)}{limit}, as declared"),
        *(("waiting", name) for name in status.waiting),
        ("last wait began", status.last_denial or output.NOTHING),
    ]
    return _described(quota, rows)


def summary(service: InferenceService, model: Model | None) -> str:
    """Return one line: the phase, and the last error, the progress or what the service waits for."""
    view = StatusView(service, model)
    detail = last_error(service, model) or progress(model) or waits_for(view)
    return ": ".join(filter(None, [service.status.phase or "New", detail]))


def waits_for(view: StatusView) -> str:
    """Return what has to happen before the service is Ready; empty if it is, or if it failed."""
    service, health = view.service, view.health
    if service.spec.suspend:
        return "nothing: spec.suspend is true"
    if service.spec.replicas == 0:
        return "nothing: spec.replicas is 0; `llmkube scale` starts it"
    if view.model is None:
        return f"a Model named {service.spec.model_ref}"
    if health.reason == Reason.NO_HOST:
        others = sorted({each for host in view.hosts or () for each in host.accelerators})
        served = f"; live hosts serve {', '.join(others)}" if others else ""
        return f"a host that serves {view.model.spec.hardware.accelerator}{served}"
    if progress(view.model):
        return "the Model's file"
    if health.state is not State.WAITING or health.recovering:
        return ""
    return health.headline.removeprefix("waiting for ")


def progress(model: Model | None) -> str:
    """Return the progress of the Model's download or copy; empty without one."""
    health = model_health(model) if model is not None else None
    is_moving = health is not None and health.reason in {Reason.FETCHING, Reason.DOWNLOAD_STARTED, Reason.COPY_STARTED}
    return health.headline if health is not None and is_moving else ""


def last_error(service: InferenceService, model: Model | None) -> str:
    """Return the failure of the spec, the file, the engine or a pod; empty without one."""
    health = service_health(service, model)
    if model is None or health.reason == Reason.NO_HOST or not (health.failing or health.recovering):
        return ""
    if health.serving:
        return _RETRY_HEAD.sub("", refusal_text(health))
    return f"{health.reason}: {_RETRY_HEAD.sub('', health.headline)}"


def remedy(service: InferenceService, model: Model | None) -> str:
    """Return the fix for a failure; empty without one."""
    health = service_health(service, model)
    return advice(health.reason, service.key) if health.failing else ""


def since(health: Health, now: datetime.datetime) -> str:
    """Return how long a service has not been ready; empty if it is, or if no condition states a time."""
    if health.state in {State.READY, State.STOPPED} or not health.since:
        return ""
    return f"{output.age(health.since, now)} ago"


def update(service: InferenceService) -> str:
    """Return why the newest spec is not served yet; empty if it is."""
    newest = find_condition(service.status.conditions, UP_TO_DATE)
    if newest is None or newest.status != "False":
        return ""
    return f"{newest.reason}: {_first_line(newest.message)}"


def ignored_fields(service: InferenceService) -> str:
    """Return which fields of the spec have no effect where the service runs; empty if all have."""
    honoured = find_condition(service.status.conditions, SPEC_HONOURED)
    reported = honoured is not None and honoured.reason == Reason.FIELDS_IGNORED
    return _first_line(honoured.message) if honoured is not None and reported else ""


def model_note(model: Model | None) -> str:
    """Return a remark about the model's file; empty without one."""
    facts = model.status.gguf if model is not None else None
    return unknown_architecture(facts.architecture) if facts is not None and facts.architecture else ""


def engine_output(service: InferenceService) -> list[str]:
    """Return the engine's last lines, which the agent appends to the first line of a failure's message."""
    conditions = (find_condition(service.status.conditions, kind) for kind in (LOADED, UP_TO_DATE))
    failed = next((each for each in conditions if each is not None and each.status == "False"), None)
    return [] if failed is None else output.printable(failed.message.partition("\n")[2]).splitlines()


def host_lines(view: StatusView) -> list[str]:
    """Return where it runs: the endpoints in its EndpointSlices, else the hosts that write its status."""
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


def next_retry(health: Health, now: datetime.datetime) -> str:
    """Return when a failed start or fetch is retried; empty if it is not."""
    found = _NEXT_ATTEMPT.search(health.message)
    if found is None:
        return ""
    at = datetime.datetime.fromisoformat(found[1])
    left_seconds = (at - now).total_seconds()
    when = f"in {format_duration(left_seconds)}" if left_seconds > 0 else "now"
    return f"{when} ({at.astimezone():%H:%M:%S})"


def _model_line(service: InferenceService, model: Model | None) -> str:
    if model is None:
        return f"{service.spec.model_ref} (not found)"
    facts = model.status.gguf
    quantization = (facts.quantization if facts else "") or model.spec.quantization or ""
    known = (model.status.size, facts.architecture if facts else "", quantization)
    details = ", ".join(each for each in known if each)
    return f"{service.spec.model_ref} ({details})" if details else service.spec.model_ref


def _runtime_line(service: InferenceService, model: Model | None) -> str:
    spec, tokens = service.spec, output.context_in_effect(service, model)
    requested = f" ({spec.context_size} requested)" if spec.context_size not in {None, tokens} else ""
    context = f", {tokens} tokens of context{requested}" if tokens else ""
    slots = f", {spec.parallel_slots} slots" if spec.parallel_slots != 1 else ""
    health = service_health(service, model)
    older = " (requested; the previous spec is served)" if health.serving and health.faulty_kind else ""
    return f"{spec.runtime}{context}{slots}{older}"


_ORDER: Final = (
    ACCEPTED, FETCHED, LOADED, UP_TO_DATE, PUBLISHED, MEMORY_PRESSURE, AVAILABLE, PROGRESSING, DEGRADED, SUSPENDED,
    SPEC_HONOURED,
)  # fmt: skip
"""From cause to effect; other conditions come last, by name."""


def _conditions(conditions: Sequence[Condition], reported: str) -> list[str]:
    """Return a table of the conditions that state something; a message that is in `reported` is not repeated."""
    rows = []
    for each in sorted(conditions, key=_sort_key):
        kind, status, reason, message = each.type, each.status, each.reason, each.message.partition("\n")[0]
        if status == "Unknown" and reason == Reason.NOT_STATED:
            continue
        rows.append((kind, status, reason, "(as above)" if message and message in reported else message))
        reported += f"\n{message}"
    return ["", output.table(output.CONDITION_COLUMNS, rows)] if rows else []


def _sort_key(condition: Condition) -> tuple[int, str]:
    kind = condition.type
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind)


def _described(obj: Any, rows: Sequence[tuple[str, str]], last_lines: Sequence[str] = ()) -> str:
    """Return an object's name, the rows that have a text, the last lines of its engine, and its conditions."""
    lines, before = [f"{obj.RESOURCE.kind} {obj.key}"], ""
    for label, text in rows:
        if text:
            shown = "" if label == before else label
            lines.append(f"  {shown:<{_LABEL_WIDTH}} {output.printable(text)}".rstrip())
            before = label
    if last_lines:
        lines += ["", "The engine's last lines:", *(f"  {line}" for line in last_lines)]
    return "\n".join([*lines, *_conditions(obj.status.conditions, "\n".join(lines))])


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
