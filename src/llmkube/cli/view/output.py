"""Tables in the style of kubectl: no borders, two spaces between columns, the same on a terminal and in a pipe.

Modules that only `-o wide` and `status` need are imported there, so that `list` starts faster.
"""

import contextlib
import datetime
import shutil
import sys
from collections.abc import Iterable, Sequence

import click

from llmkube.base.errors import UserError
from llmkube.base.messages import is_control
from llmkube.base.units import format_age
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.wire.service_health import State, service_health, unready_condition
from llmkube.k8s.wire.times import parse_timestamp
from llmkube.programs.failures import runnable, wrap_text
from llmkube.runtimes.devices import kind_of

NOTHING = "<none>"
SEPARATOR = "  "

SERVICE_COLUMNS = ("NAME", "MODEL", "PHASE", "READY", "REASON", "AGE")
SERVICE_WIDE_COLUMNS = ("ENDPOINT", "RUNTIME", "CONTEXT", "SLOTS", "PRIORITY", "NAMES", "MESSAGE")
MODEL_COLUMNS = ("NAME", "PHASE", "SIZE", "ACCELERATOR", "ARCHITECTURE", "AGE")
MODEL_WIDE_COLUMNS = ("QUANT", "CONTEXT", "LICENSE", "SOURCE")
ROUTER_COLUMNS = ("NAME", "PHASE", "BACKENDS", "ENDPOINT", "AGE")
POOL_COLUMNS = ("NAME", "PHASE", "RESIDENT", "WAITING", "AGE")
QUOTA_COLUMNS = ("NAME", "GPUS", "USED", "WAITING", "AGE")
CONDITION_COLUMNS = ("CONDITION", "STATUS", "REASON", "MESSAGE")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None) -> str:
    """Return the rows under their headings, columns aligned; empty cells are shown as `<none>`.

    Args:
        columns: The headings.
        rows: The cells.
        width: Maximum width of a line: the widest columns are truncated until it fits. None means no limit.
    """
    lines = [tuple(columns), *map(shown_cells, rows)]
    widths = widths_of(lines)
    if width is not None:
        widths = _narrowed(widths, [len(name) for name in columns], width)
        lines = [tuple(map(_cut, line, widths)) for line in lines]
    return "\n".join(aligned(line, widths) for line in lines)


def wide_table(columns: Sequence[str], extra: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> str:
    """Return the rows with extra columns; if a line is too short for them, they follow below each row.

    A cell that had to be truncated is repeated in full below its row.

    Args:
        columns: The headings.
        extra: Headings of the extra columns.
        rows: The cells of `columns`, then of `extra`.
        width: Maximum width of a line. None means no limit.
    """
    cells_by_row = list(rows)
    full = table((*columns, *extra), cells_by_row)
    if width is None or all(len(line) <= width for line in full.split("\n")):
        return full
    names, first = (*columns, *extra), len(columns)
    head, *lines = table(columns, [row[:first] for row in cells_by_row], width=width).split("\n")
    lines_shown, most = [head], max(map(len, extra))
    for line, row in zip(lines, cells_by_row, strict=True):
        cells = list(zip(names, shown_cells(row), strict=True))
        below = [each for each in cells[:first] if each[1] not in line]
        below += [each for each in cells[first:] if each[1] != NOTHING]
        lines_shown += [line, *(wrap_text(f"  {name.lower():{most}}  {cell}", width) for name, cell in below)]
    return "\n".join(lines_shown)


def line_width(*, err: bool = False) -> int | None:
    """Return the width of standard output (or error) if it is a terminal, else None."""
    return shutil.get_terminal_size().columns if (sys.stderr if err else sys.stdout).isatty() else None


def _narrowed(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return the widths, with the widest column reduced repeatedly until they fit; headings are not truncated."""
    found = list(widths)
    while sum(found) + len(SEPARATOR) * (len(found) - 1) > width:
        wide = [index for index, each in enumerate(found) if each > least[index]]
        if not wide:
            break
        found[max(wide, key=lambda index: found[index])] -= 1
    return found


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"


def shown_cells(row: Iterable[str]) -> tuple[str, ...]:
    """Return a row's cells for display: printable, on one line, never empty."""
    return tuple(printable(cell).replace("\n", " ") or NOTHING for cell in row)


def widths_of(lines: Iterable[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of a table."""
    return SEPARATOR.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def echo(text: str) -> None:
    """Print to standard output; ignore a reader that has exited (`| head`, a closed terminal)."""
    with contextlib.suppress(OSError):
        click.echo(text)


def wrapped(text: str, *, err: bool = False) -> str:
    """Return text for standard output (or error), with long lines wrapped between words on a terminal."""
    return wrap_text(runnable(printable(text)), line_width(err=err))


def printable(text: str) -> str:
    """Replace control characters except line breaks and tabs: an object's message must not control the terminal."""
    if text.isprintable():
        return text
    return "".join("�" if is_control(char) and char not in "\n\t" else char for char in text)


def runs_on(service: InferenceService, model: Model | None) -> str:
    """Return the accelerator that computes a service, with its share of the layers if that is not all."""
    wanted, found = model.spec.hardware.accelerator if model is not None else "", service.status.acceleration
    if found is None or found.layers_offloaded is None:
        return wanted
    if not found.layers_offloaded:
        return "cpu"
    kind = kind_of(found.device.partition(",")[0]) or wanted
    partial = found.layers_total is not None and found.layers_offloaded < found.layers_total
    return f"{kind} {found.layers_offloaded}/{found.layers_total}" if partial else kind


def service_row(service: InferenceService, model: Model | None, now: datetime.datetime) -> tuple[str, ...]:
    """Return an InferenceService's cells for `SERVICE_COLUMNS`; `model` is its Model, if known."""
    status = service.status
    wanted = service.spec.replicas if status.desired_replicas is None else status.desired_replicas
    return (
        service.metadata.name,
        service.spec.model_ref,
        status.phase,
        f"{status.ready_replicas or 0}/{wanted}",
        _health_reason(service, model),
        age(service.metadata.creation_timestamp, now),
    )


def _health_reason(service: InferenceService, model: Model | None) -> str:
    """Return the reason of the service's health, with the agent's conditions; empty if it is fine or is the phase."""
    if model is None:
        return reason_of(service)
    health = service_health(service, model)
    fine = health.state in {State.READY, State.STOPPED} or health.reason == service.status.phase
    return "" if fine else health.reason


def reason_of(service: InferenceService) -> str:
    """Return the controller's reason why a service is not ready; empty if it is, or if the reason is the phase."""
    cause = unready_condition(service)
    return "" if cause is None or cause.reason == service.status.phase else cause.reason


def context_in_effect(service: InferenceService, model: Model | None) -> int | None:
    """Return the context in tokens of all slots together, as the engine is started with it; None if it is not known."""
    facts, spec = model.status.gguf if model is not None else None, service.spec
    if spec.runtime not in {"llamacpp", "ollama"} or not (spec.context_size or facts):
        return spec.context_size or None
    from llmkube.runtimes.llama_fields import context_of  # noqa: PLC0415 - see above

    return context_of(spec, facts.context_length if facts else None)


def served_by(service: InferenceService) -> str:
    """Return the engine that serves, with its build and the format of its weights; else the runtime."""
    status = service.status
    if status.engine is not None:
        return str(status.engine)
    return status.runtime or ("" if status.phase else service.spec.runtime)  # no phase: not reconciled yet


def model_row(model: Model, now: datetime.datetime) -> tuple[str, ...]:
    """Return a Model's cells for `MODEL_COLUMNS`."""
    return (
        model.metadata.name,
        "Fetched" if model.status.phase == "Ready" else model.status.phase,  # a Model serves nothing itself
        model.status.size,
        model.spec.hardware.accelerator,
        model.status.gguf.architecture if model.status.gguf else "",
        age(model.metadata.creation_timestamp, now),
    )


def router_row(router: ModelRouter, now: datetime.datetime) -> tuple[str, ...]:
    """Return a ModelRouter's cells for `ROUTER_COLUMNS`."""
    status = router.status
    usable = sum(one.healthy is True for one in status.backends)
    counted = f"{usable}/{len(router.spec.backends)}"
    return (router.metadata.name, status.phase, counted, status.endpoint, age(router.metadata.creation_timestamp, now))


def pool_row(pool: ModelPool, now: datetime.datetime) -> tuple[str, ...]:
    """Return a ModelPool's cells for `POOL_COLUMNS`."""
    status, since = pool.status, age(pool.metadata.creation_timestamp, now)
    return (pool.metadata.name, status.phase, status.resident_member, status.pending_member, since)


def quota_row(quota: GPUQuota, now: datetime.datetime) -> tuple[str, ...]:
    """Return a GPUQuota's cells for `QUOTA_COLUMNS`."""
    used, waiting = quota.status.used_gpu_count or 0, len(quota.status.waiting)
    since = age(quota.metadata.creation_timestamp, now)
    return (quota.metadata.name, str(quota.spec.gpu_count), str(used), str(waiting), since)


def further_names(service: InferenceService) -> str:
    """Return the model ids that clients may send besides the service's name."""
    spec = service.spec
    named = (*spec.aliases, *(each.name for each in spec.presets), *(each.name for each in spec.adapters))
    return ", ".join(each for each in dict.fromkeys(named) if each and each != service.key.name)


def service_wide_cells(service: InferenceService, model: Model | None) -> tuple[str, ...]:
    """Return an InferenceService's cells for `SERVICE_WIDE_COLUMNS`."""
    health = service_health(service, model) if model is not None else None
    cause = unready_condition(service)
    message = service.status.scheduling_message or (cause.message if cause is not None else "")
    if health is not None and health.state not in {State.READY, State.STOPPED}:
        message = health.message
    return (
        service.status.endpoint,
        served_by(service),
        str(context_in_effect(service, model) or ""),
        str(service.spec.parallel_slots),
        service.spec.priority,
        further_names(service),
        message.partition("\n")[0],
    )


def model_wide_cells(model: Model) -> tuple[str, ...]:
    """Return a Model's cells for `MODEL_WIDE_COLUMNS`."""
    facts = model.status.gguf
    return (
        (facts.quantization if facts else "") or model.spec.quantization or "",
        str(facts.context_length or "") if facts else "",
        facts.license if facts else "",
        shown_source(model.spec.source),
    )


def shown_source(text: str) -> str:
    """Return a source for display: without a password, and without a query, which may have a signature."""
    from llmkube.weights.source import Builtin, LocalFile, parse_source  # noqa: PLC0415 - see above

    try:
        source = parse_source(text)
    except UserError:
        return text.partition("?")[0]
    return text if isinstance(source, Builtin | LocalFile) else source.redacted


def age(timestamp: str | None, now: datetime.datetime) -> str:
    """Return the age of an RFC 3339 timestamp; empty without one."""
    if not timestamp:
        return ""
    then = parse_timestamp(timestamp)
    return format_age((now - then).total_seconds()) if then is not None else "<invalid>"
