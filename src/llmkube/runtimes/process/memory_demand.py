"""Read the memory settings of a llama-server from its finished command line.

The command line is read instead of the objects, so that `extraArgs` and the engine's own defaults are included.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from llmkube.base.package_data import read_table
from llmkube.runtimes.arguments import flags_in
from llmkube.runtimes.plan import EngineInfo, Placeholder
from llmkube.weights.estimate.demand import ALL_LAYERS, DEFAULT_CACHE_RAM_BYTES, Demand
from llmkube.weights.estimate.tensor_placement import EXPERTS

_MIB: Final = 1 << 20
_MAX_LAYERS: Final = 512
_OFF: Final = frozenset(("off", "0", "false", "disabled"))
_TABLE: Final = read_table(__package__, "memory_flags")
_FLAGS: Final[Mapping[str, str]] = {flag: name for name, flags in _TABLE["values"].items() for flag in flags.split()}
_SWITCHES: Final[Mapping[str, tuple[str, str]]] = {
    flag: (name, value)
    for name, settings in _TABLE["switches"].items()
    for value, flags in settings.items()
    for flag in flags.split()
}


def demand_of(argv: Sequence[str], engine: EngineInfo, machine: str = "") -> Demand:
    """Return the memory settings of a command line; an invalid value is ignored, since the engine reports it.

    Args:
        argv: The finished command line; placeholders are skipped.
        engine: The engine: one without `--cache-ram` has no prompt cache.
        machine: Architecture of the processor; "" for this machine's.
    """
    settings: dict[str, Any] = {
        "machine": machine or platform.machine(),
        "cache_ram_bytes": DEFAULT_CACHE_RAM_BYTES if "--cache-ram" in engine.flags else 0,
        "checkpoints": 32 if "--ctx-checkpoints" in engine.flags else 0,
    }
    overrides: tuple[tuple[str, str], ...] = ()
    for name, value in _flag_values(argv, engine):
        if name == "overrides":
            overrides += _overrides(value)
        elif (read := _READERS.get(name, _count)(value)) is not _UNREADABLE:
            settings[name] = read
    if not settings.get("slots"):  # 0 lets the build choose
        settings.pop("slots", None)
    return Demand(overrides=overrides, **settings)


def _flag_values(argv: Sequence[str], engine: EngineInfo) -> Iterator[tuple[str, str]]:
    """Yield the setting of each flag, with its value, in the order of the arguments: the last one applies."""
    for at, word in enumerate(argv):
        if isinstance(word, Placeholder):
            continue
        flag = next(iter(flags_in([word])), "")
        value = word.partition("=")[2] if "=" in word else str(argv[at + 1]) if at + 1 < len(argv) else ""
        if flag in _SWITCHES:
            yield _SWITCHES[flag]
        elif flag in {"-cmoe", "--cpu-moe"}:
            yield "overrides", f"{EXPERTS}=CPU"
        elif flag in {"-ncmoe", "--n-cpu-moe"}:
            layers = range(min(_number(value) or 0, _MAX_LAYERS))
            yield "overrides", ",".join(rf"blk\.{layer}{EXPERTS}=CPU" for layer in layers)
        elif flag in _FLAGS:  # some switches take a value in later builds
            yield _FLAGS[flag], "on" if flag in engine.switches else value


_UNREADABLE: Final = object()


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _count(text: str) -> object:
    number = _number(text)
    return _UNREADABLE if number is None else max(0, number)


def _layers(text: str) -> object:
    return ALL_LAYERS if text in {"all", "auto", "-1", "-2"} else _count(text)


def _limit(text: str) -> object:
    number = _number(text)
    return _UNREADABLE if number is None else None if number < 0 else number * _MIB


def _overrides(text: str) -> tuple[tuple[str, str], ...]:
    parts = (each.rpartition("=") for each in text.split(",") if "=" in each)
    return tuple((pattern, buffer) for pattern, _, buffer in parts)


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "cache_type_k": str.lower,
    "cache_type_v": str.lower,
    "flash_attention": lambda text: "off" if text in _OFF else "auto" if text == "auto" else "on",
    "device_layers": _layers,
    "draft_device_layers": _layers,
    "cache_ram_bytes": _limit,
    "mmap": lambda text: text == "auto" or "mmap" in text,
    "speculation": lambda text: tuple(word.strip() for word in text.split(",")),
    "draft_path": str,
    "projector_path": str,
    **dict.fromkeys(("devices", "split_mode", "tensor_split"), str),
    **dict.fromkeys(
        ("unified_kv", "swa_full", "kv_offload", "repack", "embedding", "projector_on_device"), "yes".__eq__
    ),
}
