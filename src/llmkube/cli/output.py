"""Tables for people, in kubectl's manner: no frames, two spaces between columns, the same in a terminal and a pipe."""

import contextlib
import datetime
import functools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import click

from llmkube.base.units import format_age
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.crd.model import Model

NOTHING = "<none>"
_UNPRINTABLE = {code: "�" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in {0x09, 0x0A}}

SERVICE_COLUMNS = ("NAME", "MODEL", "PHASE", "READY", "REASON", "ENDPOINT", "AGE")
MODEL_COLUMNS = ("NAME", "PHASE", "SIZE", "ACCELERATOR", "ARCHITECTURE", "AGE")
CONDITION_COLUMNS = ("CONDITION", "STATUS", "REASON", "MESSAGE")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the rows under their headings, columns aligned; empty cells read `<none>`."""
    lines = [list(columns), *([printable(cell).replace("\n", " ") or NOTHING for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def say(text: str) -> None:
    """Print to standard output; a reader that has gone (`| head`, a closed terminal) does not end what is running."""
    with contextlib.suppress(OSError):
        click.echo(text)


def flowing(text: str) -> str:
    """Return prose for standard output: on a terminal its long lines break between words, elsewhere they stay whole."""
    text = printable(text)
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    fold = functools.partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(line if len(line) <= width else fold(line) for line in text.split("\n"))


def printable(text: str) -> str:
    """Return the text without control characters: an object's message must not steer the reader's terminal."""
    return text.translate(_UNPRINTABLE)


def service_row(service: InferenceService, now: datetime.datetime) -> tuple[str, ...]:
    """Return an InferenceService's cells for `SERVICE_COLUMNS`."""
    status = service.status
    wanted = service.spec.replicas if status.desired_replicas is None else status.desired_replicas
    available = condition(status.conditions, "Available")
    return (
        service.metadata.name,
        service.spec.model_ref,
        status.phase,
        f"{status.ready_replicas or 0}/{wanted}",
        "" if available is None or available.status == "True" else available.reason,
        status.endpoint,
        age(service.metadata.creation_timestamp, now),
    )


def model_row(model: Model, now: datetime.datetime) -> tuple[str, ...]:
    """Return a Model's cells for `MODEL_COLUMNS`."""
    return (
        model.metadata.name,
        model.status.phase,
        model.status.size,
        model.spec.hardware.accelerator,
        model.status.gguf.architecture if model.status.gguf else "",
        age(model.metadata.creation_timestamp, now),
    )


def condition_rows(conditions: Iterable[Condition]) -> list[tuple[str, ...]]:
    """Return cells for `CONDITION_COLUMNS`; of a long message the first line."""
    return [(each.type, each.status, each.reason, each.message.partition("\n")[0]) for each in conditions]


def condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of one type."""
    return next((each for each in conditions if each.type == kind), None)


def age(timestamp: str | None, now: datetime.datetime) -> str:
    """Return how long ago an RFC 3339 timestamp was, or nothing if there is none."""
    if not timestamp:
        return ""
    try:
        return format_age((now - datetime.datetime.fromisoformat(timestamp)).total_seconds())
    except (ValueError, TypeError):  # TypeError: a timestamp without a zone cannot be subtracted
        return "<invalid>"
