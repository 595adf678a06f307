"""`llmkube catalog`: the models that can be deployed by name, and what each takes here."""

import sys
from typing import Any, Final

import click

from llmkube.base.units import format_bytes
from llmkube.cli.catalog.entries import CHECKED, Entry, entries, find, similar
from llmkube.cli.catalog.shapes import shape_of
from llmkube.cli.commands.models.fit import demand_for
from llmkube.cli.commands.services.deploy import CATALOG_CONTEXT
from llmkube.cli.options import output_option
from llmkube.cli.view import formats, output
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, guarded
from llmkube.supervisor.memory.budget import Budget, host_budget
from llmkube.supervisor.network import host_facts
from llmkube.weights.estimate.sizing import estimate

CONTEXTS: Final = (4096, CATALOG_CONTEXT, 32768, 131072)
COLUMNS: Final = ("NAME", "SIZE", "QUANT", "CONTEXT", "MEMORY", "FITS", "PIN")
_NOTE: Final = f"""\
MEMORY is what it takes at {CATALOG_CONTEXT} tokens of context, as computed; FITS says
whether this machine gives it. PIN is what a download is held to. No file of
the catalog was fetched when the list was made."""


@click.group("catalog", context_settings=HELP)
def catalog() -> None:
    """Show the models that `llmkube deploy NAME` and `llmkube run NAME` know."""


@catalog.command("list", context_settings=HELP)
@output_option("json", "yaml")
@guarded
def list_catalog(*, form: str) -> None:
    """List the catalog with the memory that each model takes."""
    if form:
        click.echo(formats.dump([as_data(each) for each in entries().values()], form))
        return
    budget = _budget()
    rows = [_row(each, budget) for each in entries().values()]
    click.echo(output.table(COLUMNS, rows, width=output.line_width()))
    click.echo(_NOTE, err=True)


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in entries() if name.startswith(incomplete)]


@catalog.command("info", context_settings=HELP)
@click.argument("name", shell_complete=_names)
@output_option("json", "yaml")
@guarded
def info(*, name: str, form: str) -> None:
    """Show where a model comes from, what is known about its file, and what it takes at several contexts."""
    entry = the_entry(name)
    click.echo(formats.dump(as_data(entry), form) if form else output.flowing("\n".join(described(entry, _budget()))))


def the_entry(name: str) -> Entry:
    """Return a model of the catalog.

    Raises:
        CommandError: There is none of that name; the sentence has those that look like it.
    """
    if (entry := find(name)) is not None:
        return entry
    like = similar(name)
    hint = f"; did you mean {' or '.join(like)}?" if like else "; see `llmkube catalog list`"
    raise CommandError(f"the catalog has no model {name}{hint}", ExitCode.NOT_FOUND)


def memory_bytes(entry: Entry, context: int) -> int:
    """Return what serving a model takes, with one slot and all layers on this machine's accelerator."""
    shape = shape_of(entry)
    demand = demand_for(shape, context, 1, "f16", on_device=sys.platform == "darwin")
    return estimate(shape, demand).total_bytes


def context_of(entry: Entry) -> int:
    """Return the tokens of context that a deployment from the catalog gets."""
    return min(CATALOG_CONTEXT, entry.architecture.context)


def described(entry: Entry, budget: Budget | None) -> list[str]:
    """Return the lines for people."""
    rows = [
        ("source", entry.source),
        ("sha256", entry.sha256 or output.NOTHING),
        ("checked", f"{CHECKED[entry.checked]}; no file of the catalog was fetched when the list was made"),
        ("file", f"{entry.quantization}, {format_bytes(entry.size_bytes)}"),
        ("licence", entry.licence),
        ("trained", f"{entry.architecture.context} tokens of context"),
        ("other names", ", ".join(entry.aliases) or output.NOTHING),
    ]
    lines = [f"{entry.name}: {entry.title}", *(f"  {label:<12} {text}" for label, text in rows), ""]
    lines += output.table(("CONTEXT", "MEMORY", "FITS"), _at_contexts(entry, budget)).splitlines()
    if budget is not None:
        lines.append(f"Models get {budget} here.")
    return [*lines, "", f"  llmkube deploy {entry.name}", f"  llmkube run {entry.name}"]


def as_data(entry: Entry) -> dict[str, Any]:
    """Return a model for programs; sizes in bytes."""
    return {
        "name": entry.name,
        "title": entry.title,
        "aliases": list(entry.aliases),
        "source": entry.source,
        "sha256": entry.sha256 or None,
        "checked": entry.checked,
        "quantization": entry.quantization,
        "mode": entry.mode or "chat",
        "licence": entry.licence,
        "sizeBytes": entry.size_bytes,
        "trainedContext": entry.architecture.context,
        "memoryBytes": {str(context): memory_bytes(entry, context) for context in _contexts(entry)},
    }


def _contexts(entry: Entry) -> list[int]:
    trained = entry.architecture.context
    return [*(each for each in CONTEXTS if each < trained), trained]


def _at_contexts(entry: Entry, budget: Budget | None) -> list[tuple[str, ...]]:
    found = [(context, memory_bytes(entry, context)) for context in _contexts(entry)]
    return [(str(context), format_bytes(size), _fits(size, budget)) for context, size in found]


def _row(entry: Entry, budget: Budget | None) -> tuple[str, ...]:
    size = memory_bytes(entry, context_of(entry))
    return (
        entry.name,
        format_bytes(entry.size_bytes),
        entry.quantization,
        str(entry.architecture.context),
        format_bytes(size),
        _fits(size, budget),
        entry.pin,
    )


def _fits(size_bytes: int, budget: Budget | None) -> str:
    return "unknown" if budget is None else ("yes" if size_bytes <= budget.limit_bytes else "no")


def _budget() -> Budget | None:
    total_bytes = host_facts().total_bytes
    return host_budget(total_bytes) if total_bytes else None
