"""Looks at our own programs: engine, job, ports, listeners, and how engines ended."""

import ipaddress
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import psutil
import trio

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.http.listen import PortTakenError, open_listeners
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.doctor.probes.mac_probes import newest_jetsam
from llmkube.cli.commands.doctor.program_facts import (
    Engine,
    LastEnds,
    LaunchdJob,
    Listener,
    Listeners,
    Port,
    Ports,
    Settings,
    SystemdUnit,
)
from llmkube.cli.commands.programs.background.health import probed_health
from llmkube.cli.commands.programs.background.launchctl import Launchd, caller
from llmkube.cli.commands.programs.background.launchd_job import AGENT_LABEL, UP_LABEL
from llmkube.cli.commands.programs.background.launchd_user import EXIT_SECONDS
from llmkube.cli.commands.programs.background.start_limit import read_failed_starts
from llmkube.cli.commands.programs.background.systemd import UNIT, systemctl
from llmkube.programs.config.agent_config import AgentConfig
from llmkube.programs.host.engine_program import find_llama_server, further_programs
from llmkube.programs.program import LOOPBACK
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.host.processes import listens, start_of
from llmkube.supervisor.nouns.journal import Entry
from llmkube.supervisor.nouns.settings import AgentSettings

_LIST_DEVICES: Final = "--list-devices"
_ENGINE_NAMES: Final = ("llama-server",)
_KEY_FLAGS: Final = ("--api-key", "--api-key-file")
_DEFAULT_PORT: Final = 8080


def settings(here: Installation) -> Settings:
    """Return what runs."""
    return Settings(here.folder, here.program, here.pid, here.problem)


async def engine(here: Installation) -> Engine:
    """Look for the programs that settings name; ask llama-server for its version, and on Metal for its GPUs."""
    try:
        further_programs(here.config)
    except UserError as exc:
        return Engine(problem=str(exc), starts=False)
    try:
        program = find_llama_server(here.config.llama_server)
        # Not `here.folder`: an engine that is only asked is not the agent's.
        asked = AgentSettings("doctor", here.folder / "doctor", here.store, str(program))
        info = await LocalEngines(asked).info()
    except LLMKubeError as exc:
        return Engine(problem=str(exc))
    devices = None
    if here.mac and "metal" in here.config.accelerator and _LIST_DEVICES in info.flags:
        done = await trio.run_process([program, _LIST_DEVICES], check=False, capture_stdout=True, capture_stderr=True)
        devices = listed_devices(done.stdout.decode("utf-8", "replace"))
    return Engine(program=info.program, version=info.version or "of an unknown version", devices=devices)


def listed_devices(text: str) -> tuple[str, ...]:
    """Return the GPUs of a list such as `  MTL0: Apple M3 Ultra (98304 MiB, 98303 MiB free)`."""
    return tuple(re.findall(r"^\s+(?:MTL\d+|Metal): (.+?)(?: \(\d|$)", text, re.MULTILINE))


async def launchd_job(here: Installation) -> LaunchdJob:
    """Ask launchd, without sudo: it tells everyone what it knows of a job."""
    assert here.job is not None, "the caller has looked"
    label = AGENT_LABEL if here.program == "agent" else UP_LABEL
    domain = "system" if here.daemon else f"gui/{here.user.uid}"
    job = Launchd(call=caller(), domain=domain, label=label, exit_seconds=EXIT_SECONDS)
    port = _health_port(here)
    return LaunchdJob(
        what=here.program,
        file=here.job,
        daemon=here.daemon,
        state=await job.state(),
        holds=here.pid is not None,
        healthy=here.pid is not None and (not port or bool(await probed_health(port))),
        failed=read_failed_starts(here.folder, start_of(1)),
    )


async def systemd_unit(here: Installation) -> SystemdUnit:
    """Ask the user's systemd."""
    assert here.unit is not None, "the caller has looked"
    words = ("show", "--property", "ActiveState", "--value", UNIT)
    state = await trio.to_thread.run_sync(systemctl, *words, abandon_on_cancel=True)
    return SystemdUnit(here.unit, state.strip())


async def ports(here: Installation) -> Ports:
    """Try to listen at each port as the program would, or ask ours whether it does."""
    found = []
    for flag, number in _wanted_ports(here):
        if here.pid is not None:
            silent = number == _health_port(here) and not await probed_health(number)
            found.append(Port(flag, number, silent=silent))
            continue
        try:
            for listener in await open_listeners(LOOPBACK, number):
                await trio.aclose_forcefully(listener)
            found.append(Port(flag, number))
        except PortTakenError:
            holder = await trio.to_thread.run_sync(_holder_of, number, abandon_on_cancel=True)
            found.append(Port(flag, number, taken=True, holder=holder))
    return Ports(here.program, tuple(found))


async def listeners(here: Installation) -> Listeners:
    """Look at our engines by the journal, and at others by their command lines."""
    found = await trio.to_thread.run_sync(lambda: tuple(_without_key(here)), abandon_on_cancel=True)
    return Listeners(found, here.config.insecure_lan)


async def last_ends(here: Installation) -> LastEnds:
    """Compare the journal with the processes that there are, while nothing of ours runs to do so."""
    entries = await trio.to_thread.run_sync(here.journal, abandon_on_cancel=True)
    report, process = "", ""
    if here.mac:
        report, process = await trio.to_thread.run_sync(newest_jetsam, time.time(), abandon_on_cancel=True)
    ends = lost_engines(entries.values() if here.pid is None else ())
    return LastEnds(
        lost=tuple(str(entry.key) for entry in ends),
        rebooted=any(_boot_of(entry) not in {"", _boot_now()} for entry in ends),
        largest=str(ends[0].key) if ends else "",
        largest_bytes=_needs(ends[0]) if ends else 0,
        jetsam=report,
        jetsam_largest=process,
    )


def lost_engines(entries: Iterable[Entry]) -> Sequence[Entry]:
    """Return those whose process is gone, the one that needed most memory first."""
    ends = [
        entry
        for entry in entries
        if entry.engine is not None and entry.engine.pid and start_of(entry.engine.pid) != entry.engine.started
    ]
    return sorted(ends, key=_needs, reverse=True)


def _needs(entry: Entry) -> int:
    return entry.launch.estimate.total_bytes if entry.launch.estimate else entry.launch.weights.size_bytes


def _boot_of(entry: Entry) -> str:
    """Return the boot in which an engine was started, where its start names one: on Linux."""
    boot, colon, _ = entry.engine.started.rpartition(":") if entry.engine else ("", "", "")
    return boot if colon else ""


def _boot_now() -> str:
    return start_of(1).rpartition(":")[0]


def _without_key(here: Installation) -> Iterator[Listener]:
    ours = set()
    for entry in here.journal().values():
        record = entry.engine
        if record is None or not record.pid or start_of(record.pid) != record.started:
            continue
        ours.add(record.pid)
        host, port = record.address
        if not record.api_key and not _is_loopback(host):
            yield Listener(f"the engine of {entry.key}", f"{host}:{port}", ours=True)
    for process in psutil.process_iter(["pid", "cmdline"]):
        argv = process.info["cmdline"] or []
        if process.pid not in ours and (place := open_address(argv)) and listens(process.pid, place[1]):
            yield Listener(f"llama-server (pid {process.pid})", f"{place[0]}:{place[1]}", ours=False)


def open_address(argv: Sequence[str]) -> tuple[str, int] | None:
    """Return where a llama-server lets everyone in, by its command line; None where it does not, or is another program.

    Without `--host` it listens on this machine alone.
    """
    program = next((index for index, word in enumerate(argv[:2]) if word.rpartition("/")[2] in _ENGINE_NAMES), None)
    if program is None:
        return None
    words = [part for word in argv[program + 1 :] for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    given = dict(pairwise([*words, ""]))
    host, port = given.get("--host", LOOPBACK), given.get("--port", str(_DEFAULT_PORT))
    if any(flag in given for flag in _KEY_FLAGS) or _is_loopback(host) or not port.isdecimal():
        return None
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", ""} or host.endswith(".sock")


def _wanted_ports(here: Installation) -> list[tuple[str, int]]:
    config = here.config
    if isinstance(config, AgentConfig):
        wanted = [("--port", config.port)]
    else:
        wanted = [
            ("--api-port", config.api_port),
            ("--gateway-port", config.gateway_port),
            ("--probe-port", config.probe_port),
        ]
    return [(flag, number) for flag, number in wanted if number]


def _health_port(here: Installation) -> int:
    return here.config.port if isinstance(here.config, AgentConfig) else here.config.probe_port


def _holder_of(port: int) -> str:
    """Return the program that listens at a port: its name and pid; "" where only root is told."""
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f"{psutil.Process(each.pid).name()} (pid {each.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""
