"""Checks of the machine on any system. The `assess_*` functions are pure."""

import platform
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
import trio

from llmkube import __version__
from llmkube.base.errors import UserError
from llmkube.base.http.egress import DIRECT, Egress, redacted
from llmkube.base.http.outbound import system_bundle, trust_file
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.programs.host_settings import detect_devices, find_llama_server, memory_settings
from llmkube.runtimes.devices import Devices
from llmkube.supervisor.host.devices import vulkan_drivers
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.host.this_machine import sample_here
from llmkube.supervisor.memory.budget import Budget, host_budget, own_cap
from llmkube.weights.store.disk import free_bytes

GIB: Final = 1 << 30

DISK_FAILS_BYTES: Final = 1 * GIB
DISK_WARNS_BYTES: Final = 10 * GIB
"""Twice the size of a model with 8 billion weights in 4 bits; logs, the journal and downloads need space too."""


async def check_linux_system() -> Finding:
    """Check the system of a machine that is not a Mac."""
    await trio.lowlevel.checkpoint()
    return assess_system(platform.system(), platform.release(), platform.machine())


def assess_system(
    system: str,
    release: str,
    machine: str,
    *,
    python: str = platform.python_version(),
    mac: bool = False,
    apple_silicon: bool = False,
    translated: bool = False,
    wants_metal: bool = False,
) -> Finding:
    """Check for Linux, or a Mac with Apple silicon and a native Python. Pure.

    Args:
        system: `macOS` or `Linux`.
        release: Version of the system.
        machine: Processor architecture.
        python: Version of Python.
        mac: Whether it is a Mac.
        apple_silicon: Whether it has Apple silicon.
        translated: Whether this Python is for Intel and translated by Rosetta.
        wants_metal: Whether the settings serve Models for Metal but not for the CPU.
    """
    platform_text = f"{system} {release}, {machine}"
    programs = f"LLMKube {__version__}, Python {python}"
    if mac and translated:
        return failed(
            f"{platform_text}; Python {python} is for Intel",
            why="macOS translates it and its engines, and translated engines cannot use the GPU",
            fix="install a Python for Apple silicon (/opt/homebrew/bin/python3), and LLMKube with it",
        )
    if mac and not apple_silicon:
        result = failed if wants_metal else warned
        return result(
            f"{platform_text}: a Mac with an Intel processor",
            why="engines run on the CPU only: llama.cpp's Metal backend requires Apple silicon",
            fix="`llmkube agent install --accelerator cpu`" if wants_metal else "none needed, if it is fast enough",
        )
    if mac and tuple(map(int, re.findall(r"\d+", release)[:2])) < (13, 3):
        return failed(
            f"{platform_text}; {programs}",
            why="the bundled engine requires macOS 13.3",
            fix="update macOS, or name another engine: --llama-server PATH",
        )
    return passed(f"{platform_text}; {programs}")


async def check_memory(here: Installation) -> Finding:
    """Check the memory, and the memory budgets of Models that this host has run."""
    sample = await trio.to_thread.run_sync(sample_here, abandon_on_cancel=True)
    settings = memory_settings(here.config)
    entries = await trio.to_thread.run_sync(here.journal, abandon_on_cancel=True)
    promised = {}
    for entry in entries.values():
        model = entry.desired.model
        try:
            cap = own_cap(model.spec.hardware, sample.total_bytes)
        except UserError:  # its service reports it
            continue
        if cap is not None:
            promised[str(model.key)] = cap.limit_bytes
    return assess_memory(
        budget=host_budget(sample.total_bytes, settings["memory_fraction"], sample.device_limit_bytes),
        available_bytes=sample.available_bytes,
        critical_share=settings["memory_policy"].thresholds.critical_share,
        shortage="" if sample.level is Level.NORMAL else sample.why or sample.level.name.lower(),
        promised=promised,
    )


def assess_memory(
    *, budget: Budget, available_bytes: int, critical_share: float, shortage: str, promised: Mapping[str, int]
) -> Finding:
    """Check that the memory budget leaves enough for the system and other programs. Pure.

    Args:
        budget: Memory budget of the settings.
        available_bytes: Memory that is available now.
        critical_share: Share of the memory; with less available, memory is critically short.
        shortage: Cause of a current memory shortage; empty without one.
        promised: `memoryBudget` of Models that this host has run, in bytes by name.
    """
    most = int(budget.total_bytes * (1 - critical_share))
    message = f"models may take {budget}"
    available = f"{message}; {format_bytes(available_bytes)} are available now"
    above = {model: size for model, size in promised.items() if size > budget.total_bytes}
    if budget.limit_bytes > most:
        return failed(
            message,
            why=f"above {format_bytes(most)} memory is critically short, and engines are evicted",
            fix="set a smaller memory_fraction in config.toml (0 chooses it by the size of the memory), and restart",
        )
    if above:
        model, size = max(above.items(), key=lambda item: item[1])
        return failed(
            f"Model {model} has a memoryBudget of {format_bytes(size)}; this host has "
            f"{format_bytes(budget.total_bytes)}",
            why="the budget is larger than the memory",
            fix=f"set spec.hardware.memoryBudget of {model} to {format_bytes(budget.limit_bytes)} or less",
        )
    if shortage:
        return warned(
            available,
            why=f"no engine is started while memory is short: {shortage}",
            fix="quit other programs; `llmkube ps` shows the memory of engines",
        )
    return passed(available)


async def check_devices(here: Installation) -> Finding:
    """Check which GPUs this machine has, and whether llama-server can use them."""
    program = find_llama_server(here.config.llama_server)
    devices = await trio.to_thread.run_sync(detect_devices, here.config, program, abandon_on_cancel=True)
    return assess_devices(devices, await trio.to_thread.run_sync(vulkan_drivers))


def assess_devices(devices: Devices, vulkan: Sequence[str]) -> Finding:
    """Check that the engine can use a GPU that the machine has; `vulkan` has the names of Vulkan's drivers. Pure."""
    drivers = f"; Vulkan drivers: {', '.join(vulkan)}" if vulkan else ""
    if devices.usable:
        blind = any(each.kind == "cuda" and each.free_bytes is None for each in devices.usable)
        note = "; without nvidia-ml-py, memory that other programs use on it is not seen" if blind else ""
        return passed(f"{', '.join(map(str, devices.usable))}{drivers}{note}")
    if not devices.found:
        return passed(f"no GPU: models are computed on the CPU{drivers}")
    problem, _, fix = devices.problem(devices.found[0].kind).partition("; ")
    return warned(f"{problem}{drivers}", why="models are computed on the CPU", fix=fix)


async def check_disk(here: Installation) -> Finding:
    """Check the disk of the store, or of the folder in which it will be created."""
    folder = here.store
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return assess_disk(folder, await trio.to_thread.run_sync(free_bytes, folder, abandon_on_cancel=True))


def assess_disk(folder: Path, free: int) -> Finding:
    """Check that the disk has space for a model; `free` is in bytes. Pure."""
    message = f"{format_bytes(free)} free in {folder}"
    fix = "`llmkube cache prune`, or another folder: --model-store"
    if free < DISK_FAILS_BYTES:
        return failed(message, why="there is no space for a model, and soon none for logs and the journal", fix=fix)
    if free < DISK_WARNS_BYTES:
        return warned(message, why="the next model may not fit", fix=fix)
    return passed(message)


async def check_egress(here: Installation) -> Sequence[Finding]:
    """Check the proxies and the certificates of the running program; without one, those of this command."""
    running = psutil.Process(here.pid) if here.pid is not None else psutil.Process()
    environ = await trio.to_thread.run_sync(running.environ, abandon_on_cancel=True)
    return assess_proxies(here.config.proxy, environ), assess_certificates(here.config.ca_file, environ)


def assess_proxies(rules: Iterable[str], environ: Mapping[str, str]) -> Finding:
    """Check the proxies of the setting and an environment; their credentials are not shown. Pure."""
    try:
        egress = Egress.of(rules, None, environ)
        egress.proxy_urls()
    except UserError as error:
        problem, _, fix = str(error).partition("; ")
        return failed(problem, why="servers with this proxy cannot be reached", fix=fix)
    shown = [f"--proxy {targets.text}={redacted(url) or DIRECT}" for targets, url in egress.rules]
    shown += [f"{name}={redacted(text)}" for name, text in egress.variables.items()]
    return passed(", ".join(shown) or "none; downloads and providers are reached directly")


def assess_certificates(ca_file: Path | None, environ: Mapping[str, str]) -> Finding:
    """Check the certificates that are trusted besides the system's; reads their files."""
    named = {"SSL_CERT_FILE": environ.get("SSL_CERT_FILE"), "--ca-file": ca_file}
    files = {name: text for name, text in named.items() if text}
    try:
        for name, file in files.items():
            trust_file(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), Path(file), name)
    except UserError as error:
        problem, _, fix = str(error).partition("; ")
        return failed(
            problem, why="servers with certificates of its authority are refused", fix=fix, name="certificates"
        )
    shown = ["the system's", *(f"{name} {file}" for name, file in files.items())]
    return passed(f"{', '.join(shown)} (system: {system_bundle()})", name="certificates")


async def check_linux_power() -> Finding:
    """Check whether the machine runs on battery."""
    await trio.lowlevel.checkpoint()
    battery = psutil.sensors_battery()
    return assess_linux_power(battery.power_plugged if battery is not None else None)


def assess_linux_power(plugged: bool | None) -> Finding:
    """Check for mains power; `plugged` is None without a battery. Pure."""
    if plugged is False:
        return warned("on battery", why="it sleeps earlier and computes more slowly", fix="connect it to mains power")
    return passed("on mains power" if plugged else "no battery")
