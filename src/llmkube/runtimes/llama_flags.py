"""llama-server's flags: which ones a binary has, which ones fields own, which ones no service may use."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from llmkube.runtimes.arguments import EXTRA_ARGS, FLAG, flag_of, flags_in, refuse_owned
from llmkube.runtimes.plan import EngineInfo, PlanError

__all__ = [
    "OWNED",
    "OWNED_IN_PODS",
    "check_extra_args",
    "flags_in",
    "parse_help",
    "parse_switches",
    "parse_version",
    "render_extra_args",
]

_FLAG_IN_NAMES: Final = re.compile(rf"(?<![\w<{{\[-]){FLAG.pattern}", re.ASCII)
_GONE: Final = "argument has been removed"  # newer builds list flags only to say so


def parse_help(text: str) -> frozenset[str]:
    """Return every flag that a `--help` lists, long and short, whether llama-server or argparse wrote it."""
    return frozenset(flag for names in _entries(text) for flag in _FLAG_IN_NAMES.findall(names))


def parse_switches(text: str) -> frozenset[str]:
    """Return those of them that take no value; a flag that once was a switch may want one in a later build."""
    switches: set[str] = set()
    for names in _entries(text):
        flags = _FLAG_IN_NAMES.findall(names)
        if not _FLAG_IN_NAMES.sub("", names).strip(" ,"):
            switches.update(flags)
    return frozenset(switches)


def _entries(text: str) -> Iterator[str]:
    """Yield what stands before each description: a flag's names and its value's."""
    entries: list[tuple[str, str]] = []
    for line in text.splitlines():
        if re.match(r" {0,4}-{1,2}[A-Za-z]", line):
            # "-m,    --model FNAME      model path to load": the description starts after two spaces, aliases do not
            names, _, description = re.sub(r",\s+", ", ", line.strip()).partition("  ")
            entries.append((names, description))
        elif entries and line.strip():
            names, description = entries[-1]
            entries[-1] = (names, f"{description} {line.strip()}")
    yield from (names for names, description in entries if _GONE not in description)


def parse_version(text: str) -> str:
    """Return what a `--version` says after `version:`, or its first line, or nothing."""
    found = re.search(r"^version:\s*(.+)$", text, re.MULTILINE)
    lines = text.strip().splitlines()
    return found.group(1).strip() if found else lines[0].strip() if lines else ""


def _by_flag(table: Mapping[str, str]) -> dict[str, str]:
    return {flag: where for flags, where in table.items() for flag in flags.split()}


# Who decides each of these, so that a message can say where to write it instead
OWNED: Final[Mapping[str, str]] = _by_flag(
    {
        "-m --model": "the Model's spec.source",
        "--host": "LLMKube, which listens where only the host's own gateway or the cluster reaches it",
        "--port": "LLMKube, which takes a free one",
        "--reuse-port": "LLMKube, which takes a port of its own",
        "-a --alias --tags": "metadata.name",
        "--metrics": "LLMKube, which always turns it on",
        "--api-prefix": "LLMKube, which asks /health whether the engine is ready",
        "--fit -fit --fit-target -fitt --fit-ctx -fitc": "LLMKube, which places models itself",
        "-c --ctx-size": "spec.contextSize",
        "-np --parallel": "spec.parallelSlots",
        "-b --batch-size": "spec.batchSize",
        "-ub --ubatch-size": "spec.uBatchSize",
        "-ngl --gpu-layers --n-gpu-layers": "the Model's spec.hardware.gpu.layers",
        "-fa --flash-attn": "spec.flashAttention",
        "-ctk --cache-type-k": "spec.cacheTypeK",
        "-ctv --cache-type-v": "spec.cacheTypeV",
        "-nkvo --no-kv-offload -kvo --kv-offload": "spec.noKvOffload",
        "-cmoe --cpu-moe": "spec.moeCPUOffload",
        "-ncmoe --n-cpu-moe": "spec.moeCPULayers",
        "-ot --override-tensor": "spec.tensorOverrides",
        "--override-kv": "spec.metadataOverrides",
        "--rope-scaling": "spec.ropeScaling.type",
        "--rope-scale": "spec.ropeScaling.factor",
        "--yarn-orig-ctx": "spec.ropeScaling.originalContext",
        "--warmup --no-warmup": "spec.noWarmup",
        "--jinja --no-jinja": "spec.jinja",
        "--embedding --embeddings --rerank --reranking": "spec.mode",
        "--reasoning-budget": "spec.reasoningBudget",
        "--reasoning-budget-message": "spec.reasoningBudgetMessage",
        "--spec-type": "spec.speculativeDecoding.type",
        "--spec-draft-n-max --draft-max --draft --draft-n": "spec.speculativeDecoding.nDraftMax",
        "--spec-draft-p-min --draft-p-min": "spec.speculativeDecoding.pMin",
        "-md --model-draft --spec-draft-model": "spec.speculativeDecoding.draftModelRef",
    }
)

OWNED_IN_PODS: Final[Mapping[str, str]] = {
    **OWNED,
    **_by_flag(
        {
            "-mm --mmproj": "the Model's spec.mmproj",
            "-sm --split-mode": "the Model's spec.hardware.gpu.sharding.strategy",
            "-ts --tensor-split": "the Model's spec.hardware.gpu.sharding.layerSplit",
            "--host": "spec.bindAddress",
            "--port": "spec.containerPort",
        }
    ),
}
"""The same in a pod, which has an address of its own and may have several GPUs."""

# The right to create an InferenceService must not include to read the host's files, run its programs or open its
# network
_FORBIDDEN: Final = re.compile(
    r"--(\w[\w-]*-)?(files?|path|dir|url|repo|token)"
    r"|--(hf|docker|models|mcp|tools|ssl|lora|control-vector|mmproj|media|lookup-cache|ui|webui|embd|fim)(-.*)?"
    r"|--(api-key|rpc|agent|model-vocoder|slot-save-path)"
    r"|-(hf.*|mu|dr|mm|mmu|mmdev|mv|ag|jf|lcs|lcd|lsp)"
)

# Flags that were replaced: what they are today, for engines that have forgotten them
_LOAD_MODES: Final[Mapping[frozenset[str], str]] = {
    frozenset({"--mlock"}): "mmap+mlock",
    frozenset({"--no-mmap"}): "none",
    frozenset({"--mlock", "--no-mmap"}): "mlock",
    frozenset({"--direct-io"}): "dio",
}


def check_extra_args(args: Sequence[str]) -> None:
    """Refuse what no service may add, judging by the flags alone.

    Raises:
        PlanError: A flag belongs to a field, or would let a service reach into the host; the message names it.
    """
    refuse_owned(args, OWNED)
    for arg in args:
        flag = flag_of(arg)
        if "\0" in arg:
            raise PlanError(f"{arg!r} has a NUL character in it", field=EXTRA_ARGS)
        if _FORBIDDEN.fullmatch(flag):
            raise PlanError(f"{flag} would let a service reach into the host: it cannot be used here", field=EXTRA_ARGS)


def render_extra_args(args: Sequence[str], engine: EngineInfo) -> Iterator[str]:
    """Yield the arguments as this engine spells them: `--x=1` in two parts, and flags that were replaced translated.

    Raises:
        PlanError: The engine has no such flag.
    """
    replaced = frozenset(args) & frozenset.union(*_LOAD_MODES) - engine.flags
    if replaced and "--load-mode" in engine.flags:
        if (mode := _LOAD_MODES.get(replaced)) is None:
            raise PlanError(f"{' and '.join(sorted(replaced))} exclude each other", field=EXTRA_ARGS)
        yield from ("--load-mode", mode)
        args = [arg for arg in args if arg not in replaced]
    for arg in args:
        flag = flag_of(arg)
        if flag.startswith("--") and engine.flags and flag not in engine.flags:
            raise PlanError(f"the engine {engine.version or engine.program} has no flag {flag}", field=EXTRA_ARGS)
        if flag and "=" in arg:
            yield flag
            yield arg.partition("=")[2]
        else:
            yield flag or arg
