"""`llmkube catalog`: the models that can be deployed by name, and the memory that each needs."""

import math
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from llmkube.base.units import format_bytes
from llmkube.cli.catalog.entries import CHECKS, Entry, architectures, entries, find, hint_for
from llmkube.cli.commands.models.fit import demand_for
from llmkube.cli.commands.services.deploy import CATALOG_CONTEXT
from llmkube.cli.options import output_option
from llmkube.cli.view import formats, output
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, command
from llmkube.supervisor.memory.budget import Budget, host_budget
from llmkube.supervisor.network import host_facts
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.shape import Shape, Tensor

CONTEXTS: Final = (4096, CATALOG_CONTEXT, 32768, 131072)
COLUMNS: Final = ("NAME", "SIZE", "QUANT", "CONTEXT", "MEMORY", "FITS", "PIN")
_NOTE: Final = f"""\
MEMORY is an estimate for {CATALOG_CONTEXT} tokens of context; FITS shows whether this
machine has enough, PIN how the download is pinned. No file of the catalog
was fetched when the list was made."""

_BYTES = {"Q4_K": 144 / 256, "Q6_K": 210 / 256, "Q8_0": 34 / 32, "MXFP4": 17 / 32}
"""Bytes per element, by ggml's block sizes."""


@click.group("catalog", context_settings=HELP)
def catalog() -> None:
    """Show the models that can be deployed by name."""


@command("list", catalog)
@output_option("json", "yaml")
def list_catalog(*, form: str) -> None:
    """List the models of the catalog, with the memory that each needs."""
    if form:
        click.echo(formats.dump([as_data(each) for each in entries().values()], form))
        return
    budget = _budget()
    rows = [_row(each, budget) for each in entries().values()]
    click.echo(output.table(COLUMNS, rows, width=output.line_width()))
    click.echo(_NOTE, err=True)


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in entries() if name.startswith(incomplete)]


@command("info", catalog)
@click.argument("name", shell_complete=_names)
@output_option("json", "yaml")
def info(*, name: str, form: str) -> None:
    """Show a model's source, the facts about its file, and its memory need at several context sizes."""
    entry = require_entry(name)
    click.echo(formats.dump(as_data(entry), form) if form else output.wrapped("\n".join(as_lines(entry, _budget()))))


def require_entry(name: str) -> Entry:
    """Return a model of the catalog.

    Raises:
        CommandError: The name is unknown; the message suggests similar ones.
    """
    if (entry := find(name)) is not None:
        return entry
    raise CommandError(f"the catalog has no model {name}; {hint_for(name)}", ExitCode.NOT_FOUND)


def memory_bytes(entry: Entry, context: int) -> int:
    """Estimate the memory that a model needs, with one slot and all layers on this machine's accelerator."""
    shape = shape_of(entry)
    demand = demand_for(shape, context, 1, "f16", on_device=sys.platform == "darwin")
    return estimate(shape, demand).total_bytes


def context_of(entry: Entry) -> int:
    """Return the context of a deployment from the catalog, in tokens."""
    return min(CATALOG_CONTEXT, entry.context)


def as_lines(entry: Entry, budget: Budget | None) -> list[str]:
    """Return a model as lines of text."""
    rows = [
        ("source", entry.source),
        ("sha256", entry.sha256 or output.NOTHING),
        ("checked", f"{CHECKS[entry.checked]}; no file of the catalog was fetched when the list was made"),
        ("file", f"{entry.quantization}, {format_bytes(entry.size_bytes)}"),
        ("licence", entry.licence),
        ("trained for", f"{entry.context} tokens of context"),
        ("other names", ", ".join(entry.aliases) or output.NOTHING),
    ]
    lines = [f"{entry.name}: {entry.title}", *(f"  {label:<12} {text}" for label, text in rows), ""]
    lines += output.table(("CONTEXT", "MEMORY", "FITS"), _at_contexts(entry, budget)).splitlines()
    if budget is not None:
        lines.append(f"Models may use {budget} on this machine.")
    return [*lines, "", f"  llmkube deploy {entry.name}", f"  llmkube run {entry.name}"]


def as_data(entry: Entry) -> dict[str, Any]:
    """Return a model as JSON data; sizes in bytes."""
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
        "trainedContext": entry.context,
        "memoryBytes": {str(context): memory_bytes(entry, context) for context in _contexts(entry)},
    }


def _contexts(entry: Entry) -> list[int]:
    trained = entry.context
    return [*(each for each in CONTEXTS if each < trained), trained]


def _at_contexts(entry: Entry, budget: Budget | None) -> list[tuple[str, ...]]:
    found = [(context, memory_bytes(entry, context)) for context in _contexts(entry)]
    return [(str(context), format_bytes(size), _fits(size, budget)) for context, size in found]


def _row(entry: Entry, budget: Budget | None) -> tuple[str, ...]:
    size = memory_bytes(entry, context_of(entry))
    file = (format_bytes(entry.size_bytes), entry.quantization, str(entry.context))
    return (entry.name, *file, format_bytes(size), _fits(size, budget), entry.pin)


def _fits(size_bytes: int, budget: Budget | None) -> str:
    return "unknown" if budget is None else ("yes" if size_bytes <= budget.limit_bytes else "no")


def _budget() -> Budget | None:
    total_bytes = host_facts().total_bytes
    return host_budget(total_bytes) if total_bytes else None


def shape_of(entry: Entry) -> Shape:
    """Return the shape of a model; its tensors are scaled so that they add up to the size of the file."""
    arch, plan = entry.architecture, architectures()[entry.architecture["name"]]
    known = sizes_of(arch)
    listed: dict[str, list[Any]] = {"token_embd.weight": ["width", "vocabulary"], "output_norm.weight": ["width"]}
    if not arch.get("tied"):
        listed["output.weight"] = ["width", "vocabulary"]
    for at in range(arch["layers"]):
        attends = "recurrent" not in plan or (at + 1) % plan["numbers"]["full_attention_interval"] == 0
        block = plan["block" if attends else "recurrent"]
        listed |= {f"blk.{at}.{name}": size for name, size in block.items()}
    sizes = {name: tuple(int(known.get(each, each)) for each in size) for name, size in listed.items()}
    vectors = {name: size for name, size in sizes.items() if len(size) == 1}
    types = {name: _type_of(entry, name) for name in sizes if name not in vectors}
    wanted = {name: math.prod(sizes[name]) * _BYTES[kind] for name, kind in types.items()}
    remaining_bytes = entry.size_bytes - 4 * sum(size[0] for size in vectors.values())
    share = remaining_bytes / sum(wanted.values())
    tensors = tuple(
        Tensor(name, "F32", size, 4 * size[0])
        if name in vectors
        else Tensor(name, types[name], size, int(wanted[name] * share))
        for name, size in sizes.items()
    )
    numbers = {name: known.get(of, of) for name, of in plan["numbers"].items()}
    return Shape(
        architecture=arch["name"],
        tensors=tensors,
        numbers={name: (value,) for name, value in numbers.items() if value},
        layer_count=arch["layers"],
        embedding_size=arch["width"],
        vocabulary_size=arch["vocabulary"],
        trained_context=entry.context,
        size_bytes=entry.size_bytes,
    )


def sizes_of(arch: Mapping[str, Any]) -> dict[str, int]:
    """Return the given and derived numbers of an architecture, by the names of `architectures.yaml`."""
    queries, kv_width = arch["heads"] * arch["headLength"], arch["kvHeads"] * arch["headLength"]
    given = {"window": 0, "experts": 0, "expertsUsed": 0, "expertInner": 0, **arch}
    return given | {
        "queries": queries,
        "kept": kv_width,
        "mixed": queries + 2 * kv_width,
        "doubleQueries": 2 * queries,
        "doubleInner": 2 * arch["inner"],
        "allInner": given["expertInner"] * given["experts"],
        "allWidths": arch["width"] * given["experts"],
    }


def _type_of(entry: Entry, name: str) -> str:
    arch = entry.architecture
    if entry.quantization == "MXFP4":
        return "MXFP4" if "_exps" in name else "Q8_0"
    if entry.quantization != "Q4_K_M":
        return entry.quantization
    if name == "output.weight" or (arch.get("tied") and name == "token_embd.weight"):
        return "Q6_K"
    if "attn_v." in name or "ffn_down" in name or "attn_qkv." in name:
        return "Q6_K" if _has_more_bits(int(name.split(".")[1]), arch["layers"]) else "Q4_K"
    return "Q4_K"


def _has_more_bits(at: int, layers: int) -> bool:
    eighth = layers // 8
    return at < eighth or at >= 7 * layers // 8 or (at - eighth) % 3 == 2
