"""`llmkube fit`: the memory that a model needs, whether it fits, and how to make it fit; without a download."""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes, parse_bytes
from llmkube.cli.commands.models.inspect import local_facts, remote_facts
from llmkube.cli.commands.services.deploy import absolute_source
from llmkube.cli.options import output_option
from llmkube.cli.view import formats, output
from llmkube.programs.config import AgentConfig, load
from llmkube.programs.options import command
from llmkube.runtimes.llama_fields import DEFAULT_CONTEXT
from llmkube.supervisor.host.this_machine import sample_here
from llmkube.supervisor.memory.budget import Budget, host_budget
from llmkube.supervisor.network import host_facts
from llmkube.weights.estimate.demand import ALL_LAYERS, Demand, Estimate, Location
from llmkube.weights.estimate.mlx import is_mlx_folder, read_folder
from llmkube.weights.estimate.sizing import default_cache_ram_bytes, estimate, largest_context
from llmkube.weights.formats.gguf import require_model
from llmkube.weights.formats.projector import read_projector
from llmkube.weights.formats.shape import GGUFFacts, Shape
from llmkube.weights.source import RemoteFile

CACHE_TYPES: Final = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
SMALLER: Final = ("q8_0", "q4_0")
"""Cache types to try if f16 does not fit, the best quality first."""
_MIN_MEMORY_BYTES: Final = 1 << 20
"""With less, the user has probably left out the unit."""
_CONTEXT_HELP: Final = "Context of all slots together, in tokens."
COLUMNS: Final = ("PART", "WHERE", "SIZE")


@attrs.frozen
class Verdict:
    """The result for one model on one machine."""

    title: str
    demand: Demand
    estimate: Estimate
    budget: Budget
    largest_context: int | None
    trained_context: int
    smaller: tuple[tuple[str, int], ...]  # cache types that make it fit, and the total with each
    asked_context: int | None = None  # before the limit of the trained context

    @property
    def fits(self) -> bool:
        """Whether the total fits the machine's budget, and the GPU's part its limit."""
        return self.estimate.total_bytes <= self.budget.limit_bytes and not self.over_device_bytes

    @property
    def over_device_bytes(self) -> int:
        """Excess over the GPU's limit; 0 if it fits."""
        limit = self.budget.device_limit_bytes
        return 0 if limit is None else max(0, self.estimate.bytes_in(Location.DEVICE) - limit)


@command("fit")
@click.argument("model", metavar="MODEL", type=click.Path())
@click.option("--context-size", "--context", "-c", "context", type=click.IntRange(1), metavar="N", help=_CONTEXT_HELP)
@click.option("--parallel", type=click.IntRange(1), default=1, metavar="N", help="Requests served at the same time.")
@click.option("--kv-type", type=click.Choice(CACHE_TYPES), default="f16", help="Type of the KV cache.  [default: f16]")
@click.option("--memory", metavar="SIZE", help="Memory of the machine, such as 64Gi. Default: this machine's.")
@click.option("--accelerator", type=click.Choice(("cpu", "metal")), help="Default: metal on a Mac, else cpu.")
@click.option("--mmproj", type=click.Path(path_type=Path), help="Projector of pictures, a file.")
@click.option("--hf-token-file", type=click.Path(path_type=Path), help="File with a Hugging Face token.")
@output_option("json", "yaml")
def fit(
    *,
    model: str,
    context: int | None,
    parallel: int,
    kv_type: str,
    memory: str | None,
    accelerator: str | None,
    mmproj: Path | None,
    hf_token_file: Path | None,
    form: str,
) -> None:
    """Show how much memory MODEL needs, and whether it fits.

    MODEL is a GGUF file, an MLX folder, https://…, hf://ORG/REPO/FILE.gguf or ORG/REPO. Only the header of a remote
    file is fetched. Exits with 1 if it does not fit.
    """
    title, shape = _read(model, hf_token_file)
    device = accelerator or ("metal" if sys.platform == "darwin" else "cpu")
    demand = demand_for(shape, context, parallel, kv_type, on_device=device == "metal")
    if mmproj is not None:
        demand = attrs.evolve(demand, projector_path=str(mmproj), projector=read_projector(mmproj).shape)
    limit = device_limit_here() if device == "metal" and memory is None else None
    budget = host_budget(_memory(memory), device_limit_bytes=limit)
    verdict = attrs.evolve(assess(title, shape, demand, budget), asked_context=context)
    click.echo(formats.dump(as_data(verdict), form) if form else output.wrapped("\n".join(as_lines(verdict))))
    if not verdict.fits:
        sys.exit(1)


def assess(title: str, shape: Shape, demand: Demand, budget: Budget) -> Verdict:
    """Compare the estimate for a model with the budget of a machine."""
    found = estimate(shape, demand)
    smaller, device = [], budget.device_limit_bytes
    capacity_bytes = (
        budget.limit_bytes if device is None else min(budget.limit_bytes, device + found.bytes_in(Location.HOST))
    )
    if found.total_bytes > capacity_bytes and demand.cache_type_k == "f16" and shape.format == "gguf":
        for kind in SMALLER:
            candidate = _with_prompt_cache(shape, attrs.evolve(demand, cache_type_k=kind, cache_type_v=kind))
            if (total := estimate(shape, candidate).total_bytes) <= capacity_bytes:
                smaller.append((kind, total))
    largest = largest_context(shape, demand, capacity_bytes)
    return Verdict(title, demand, found, budget, largest, shape.trained_context, tuple(smaller))


def as_lines(verdict: Verdict) -> Sequence[str]:
    """Return the verdict as lines of text."""
    demand, found, limit = verdict.demand, verdict.estimate, format_bytes(verdict.budget.limit_bytes)
    slots = f"{demand.slots} slot" if demand.slots == 1 else f"{demand.slots} slots"
    rows = [(each.name, each.place.value, format_bytes(each.size_bytes)) for each in found.components]
    rows.append(("total", "", format_bytes(found.total_bytes)))
    widths = output.widths_of([COLUMNS, *rows])
    table = [output.aligned((part, where, size.rjust(widths[2])), widths) for part, where, size in (COLUMNS, *rows)]
    lines = [
        output.printable(verdict.title),
        f"context {demand.context} tokens, {slots}, {demand.cache_type_k} cache",
        "",
    ]
    lines += [*table, ""]
    budget = f"models may use {verdict.budget}"
    if verdict.fits:
        lines.append(f"It fits: {budget}.")
    elif verdict.over_device_bytes:
        over, gpu = format_bytes(verdict.over_device_bytes), format_bytes(verdict.budget.device_limit_bytes or 0)
        lines.append(f"It does not fit ({over} over): the GPU's limit is {gpu} (set by sysctl iogpu.wired_limit_mb).")
    else:
        over = format_bytes(found.total_bytes - verdict.budget.limit_bytes)
        lines.append(f"It does not fit ({over} over): {budget}.")
    if (verdict.asked_context or 0) > demand.context:
        lines.append(
            f"The model was trained for {verdict.trained_context} tokens, the limit of each request: "
            f"a context of {verdict.asked_context} is reduced to {demand.context}."
        )
    lines.append(_context_line(verdict))
    lines += [
        f"--kv-type {kind} would make it fit: {format_bytes(total)} of {limit}." for kind, total in verdict.smaller[:1]
    ]
    lines += [f"Note: {note}." for note in found.notes]
    if not found.certain:
        lines.append("Not everything about this model is known: the estimate errs on the high side.")
    return lines


def as_data(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON data; sizes in bytes."""
    found = verdict.estimate
    return {
        "model": verdict.title,
        "context": verdict.demand.context,
        "slots": verdict.demand.slots,
        "kvType": verdict.demand.cache_type_k,
        "components": [
            {"name": each.name, "place": each.place.value, "sizeBytes": each.size_bytes} for each in found.components
        ],
        "totalBytes": found.total_bytes,
        "deviceBytes": found.bytes_in(Location.DEVICE),
        "hostBytes": found.bytes_in(Location.HOST),
        "certain": found.certain,
        "notes": list(found.notes),
        "memoryBytes": verdict.budget.total_bytes,
        "budgetBytes": verdict.budget.limit_bytes,
        "deviceLimitBytes": verdict.budget.device_limit_bytes,
        "fits": verdict.fits,
        "largestContext": verdict.largest_context,
        "kvTypesThatFit": [kind for kind, _ in verdict.smaller],
    }


def _context_line(verdict: Verdict) -> str:
    largest = verdict.largest_context
    if largest is None:
        return "No context fits: the parts that do not depend on it take all the memory, or nearly all."
    if verdict.trained_context and largest >= verdict.trained_context:
        return f"Largest context that fits: {largest} tokens, the trained context."
    return f"Largest context that fits: {largest} tokens."


def _read(model: str, hf_token_file: Path | None) -> tuple[str, Shape]:
    found = read_local(model, Path.cwd())
    if isinstance(found, tuple):
        return found
    facts = trio.run(remote_facts, found, load("agent", AgentConfig, {"hf_token_file": hf_token_file}))
    return titled_shape(model, facts)


def read_local(model: str, folder: Path) -> tuple[str, Shape] | RemoteFile:
    """Return title and shape of a local model, or the parsed source of a remote file. Blocks."""
    if is_mlx_folder(path := folder / model):
        shape = read_folder(path)
        kind = shape.architecture.removeprefix("mlx:")
        return f"{path.resolve().name}: {kind}, MLX, {format_bytes(shape.size_bytes)}", shape
    found = local_facts(absolute_source(model, folder))
    return titled_shape(model, found) if isinstance(found, GGUFFacts) else found


def titled_shape(model: str, facts: GGUFFacts) -> tuple[str, Shape]:
    """Return title and shape of a model from the header of its file."""
    require_model(facts, model)
    if facts.shape is None:
        raise UserError(
            f"{model}: the header lacks numbers that the estimate needs; `llmkube inspect` shows the header"
        )
    kinds = [facts.architecture, *([facts.quantization] if facts.quantization else [])]
    name = facts.name or (model if "://" in model else Path(model).name)
    return f"{name}: {', '.join(kinds)}, {format_bytes(facts.shape.size_bytes)}", facts.shape


def demand_for(shape: Shape, context: int | None, slots: int, kv_type: str, *, on_device: bool) -> Demand:
    """Return the demand of the agent's command line for a model; without a context, with the agent's default."""
    wanted = context or min(shape.trained_context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    candidate = Demand(
        context=min(wanted, shape.trained_context * slots) if shape.trained_context else wanted,
        slots=slots,
        cache_type_k=kv_type,
        cache_type_v=kv_type,
        device_layers=ALL_LAYERS if on_device else 0,
        machine=platform.machine(),
    )
    return _with_prompt_cache(shape, candidate)


def _with_prompt_cache(shape: Shape, demand: Demand) -> Demand:
    return attrs.evolve(demand, cache_ram_bytes=default_cache_ram_bytes(shape, demand))


def device_limit_here() -> int | None:
    """Return the limit of this machine's GPU memory, in bytes; None if unknown."""
    try:
        return sample_here().device_limit_bytes
    except (OSError, ValueError, KeyError):
        return None


def _memory(text: str | None) -> int:
    if text is None:
        if total_bytes := host_facts().total_bytes:
            return total_bytes
        raise UserError("the memory of this machine cannot be read; specify its size, such as 64Gi", field="--memory")
    try:
        size_bytes = parse_bytes(text)
    except UserError as exc:
        raise click.BadParameter(str(exc), param_hint="--memory") from exc
    if size_bytes < _MIN_MEMORY_BYTES:
        raise click.BadParameter(f"{text} is {size_bytes} bytes; write a unit: {text}Gi", param_hint="--memory")
    return size_bytes
