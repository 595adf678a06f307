"""Checks of LLMKube's programs: engine, job, ports, listeners, exits of engines. The `assess_*` functions are pure."""

import ipaddress
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import psutil
import trio

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.installation import Installation
from llmkube.cli.commands.doctor.mac import newest_jetsam
from llmkube.cli.commands.programs.background.agent_jobs import AGENT_LABEL, START_LIMIT, UP_LABEL
from llmkube.cli.commands.programs.background.agent_status import probe_health
from llmkube.cli.commands.programs.background.launchctl import JobState, launchd_of
from llmkube.cli.commands.programs.background.start_limit import FailedStarts, read_failed_starts
from llmkube.cli.commands.programs.background.systemd import UNIT, systemctl
from llmkube.programs.config import AgentConfig
from llmkube.programs.host_settings import configured_programs, find_llama_server
from llmkube.programs.program import LOOPBACK, find_holder
from llmkube.runtimes.devices import parse_listed
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.host.processes import listens, start_of
from llmkube.supervisor.values.journal import Entry
from llmkube.supervisor.values.settings import AgentSettings

_LIST_DEVICES: Final = "--list-devices"
_ENGINE_NAMES: Final = ("llama-server",)
_KEY_FLAGS: Final = ("--api-key", "--api-key-file")
_DEFAULT_PORT: Final = 8080

_MANY_STARTS: Final = 3
"""Starts of a failing job that are a crash loop: a single restart may be an accident."""

_WORKING_STATES: Final = frozenset({"active", "activating", "reloading"})


def check_settings(here: Installation) -> Finding:
    """Check the settings, and report which program is running. Pure."""
    if here.problem:
        return failed(
            here.problem,
            why=f"LLMKube does not start with these settings ({here.folder})",
            fix="correct the setting; docs/reference/config.md lists all settings",
            name="settings",
        )
    if here.pid is not None:
        return passed(f"llmkube {here.program} (pid {here.pid}) on {here.folder}", name="running")
    return passed(f"no LLMKube program on {here.folder}", name="running")


async def check_engine(here: Installation) -> Finding:
    """Check the programs that the settings name, llama-server's version, and with Metal its GPUs."""
    try:
        configured_programs(here.config)
    except UserError as exc:
        return failed(
            str(exc),
            why="LLMKube does not start with this setting",
            fix="name a program that exists, or remove the setting",
        )
    try:
        program = find_llama_server(here.config.llama_server)
        # Not `here.folder`, which belongs to the agent.
        probe_settings = AgentSettings("doctor", here.folder / "doctor", here.store, str(program))
        info = await LocalEngines(probe_settings).info()
    except LLMKubeError as exc:
        return failed(
            str(exc),
            why="no model can be served without llama-server",
            fix="`pip install --upgrade xllamacpp`, or `brew install llama.cpp`; --llama-server names another",
        )
    devices = None
    if here.mac and "metal" in here.config.accelerator and _LIST_DEVICES in info.flags:
        done = await trio.run_process([program, _LIST_DEVICES], check=False, capture_stdout=True, capture_stderr=True)
        devices = tuple(each.name for each in parse_listed(done.stdout.decode("utf-8", "replace")))
    return assess_engine(info.program, info.version or "of an unknown version", devices)


def assess_engine(program: str, version: str, devices: Sequence[str] | None) -> Finding:
    """Check that the engine lists a GPU; `devices` is None if it was not queried. Pure."""
    if devices is not None and not devices:
        return warned(
            f"{program}, {version}: it lists no GPU",
            why="this host serves Models for Metal, which need one; Metal shows none under ssh and tmux",
            fix=f"check in a terminal of the desktop: `{program} --list-devices`",
        )
    return passed(f"{program}, {version}{'; ' if devices else ''}{', '.join(devices or ())}")


async def check_launchd_job(here: Installation) -> Finding:
    """Check the launchd job; launchd shows its state without sudo."""
    label = AGENT_LABEL if here.program == "agent" else UP_LABEL
    port = _health_port(here)
    state = await launchd_of(here.user, label=label, daemon=here.daemon, change=False).state()
    healthy = here.pid is not None and (not port or bool(await probe_health(port)))
    return assess_launchd_job(here, state, healthy, read_failed_starts(here.folder, start_of(1)))


def assess_launchd_job(here: Installation, state: JobState | None, healthy: bool, failures: FailedStarts) -> Finding:
    """Check that the job runs and is not in a crash loop, which `launchctl list` does not show. Pure.

    Args:
        here: The installation, with the job's file and the running process.
        state: State of the job in launchd; None if it is not loaded.
        healthy: Whether the program answers at its port.
        failures: Failed starts in a row.
    """
    name, is_running = here.program, here.pid is not None
    restart = "`llmkube agent start`" if name == "agent" else "`llmkube up install`"
    last_exit = f", last exit with {state.last_exit}" if state and state.last_exit else ""
    if failures.count >= START_LIMIT and not is_running:
        return failed(
            f"the {name} has failed to start {failures.count} times and is no longer restarted",
            why=failures.problem or "its log shows why",
            fix=f"fix that; then: {restart}",
        )
    if state is None:
        return warned(f"{here.job} is not loaded", why=f"llmkube {name} does not start automatically", fix=restart)
    logs = f"`llmkube {name} logs --tail 20` shows why"
    if not is_running and state.runs >= _MANY_STARTS and state.last_exit not in {"", "0"}:
        return failed(
            f"crash loop: the {name} was started {state.runs} times{last_exit}",
            why=failures.problem or "launchd restarts it repeatedly and shows it as loaded; it serves nothing",
            fix=f"{logs}; fix that, then: {restart}",
        )
    if not is_running and state.pid is None:
        return warned(
            f"the {name} is loaded but not running: {state.runs} starts{last_exit}",
            why=failures.problem or "it serves nothing",
            fix=f"{logs}; then: {restart}",
        )
    if not healthy:
        return warned(
            f"the {name} is running (pid {state.pid}) but does not answer at /healthz",
            why="it was started a moment ago, or it hangs",
            fix=f"{logs}; then: {restart}",
        )
    kind = "a daemon" if here.daemon else "a login job"
    return passed(f"the {name} is running as {kind}: {state.runs} starts{last_exit}")


async def check_systemd_unit(here: Installation) -> Finding:
    """Check the unit in the user's systemd."""
    arguments = ("show", "--property", "ActiveState", "--value", UNIT)
    state = await trio.to_thread.run_sync(systemctl, *arguments, abandon_on_cancel=True)
    return assess_systemd_unit(state.strip())


def assess_systemd_unit(state: str) -> Finding:
    """Check that the unit of `llmkube up` is active; `state` is its ActiveState. Pure."""
    if state in _WORKING_STATES:
        return passed(f"{UNIT} is {state}")
    verdict = failed if state == "failed" else warned
    return verdict(
        f"{UNIT} is {state}",
        why="llmkube up is not running",
        fix=f"`llmkube up logs --tail 20` shows why; then: `systemctl --user restart {UNIT}`",
    )


async def check_for_job() -> Finding:
    """Return the finding without a job or unit, which are optional."""
    await trio.lowlevel.checkpoint()
    return passed("LLMKube does not start automatically; use `llmkube up install` or `llmkube agent install`")


async def check_ports(here: Installation) -> Sequence[Finding]:
    """Check each port of the program: that it can be opened, or that the running program answers there."""
    wanted, found = _wanted_ports(here), []
    for flag, number in wanted:
        if here.pid is not None:
            if number == _health_port(here) and not await probe_health(number):
                found.append(
                    failed(
                        f"llmkube {here.program} is running, but nothing answers at port {number}",
                        why="it hangs, or was started with another port",
                        fix=f"`llmkube {here.program} logs --tail 20` shows why",
                    )
                )
        elif (holder := await find_holder(number)) is not None:
            found.append(
                failed(
                    f"port {number} is in use{f' by {holder}' if holder else ''}",
                    why=f"llmkube {here.program} does not start without it",
                    fix=f"stop that program (`lsof -nP -iTCP:{number} -sTCP:LISTEN`), or choose another port: {flag}",
                )
            )
    numbers = ", ".join(str(number) for _, number in wanted) or "none"
    return found or [passed(f"{numbers}: available to llmkube {here.program}")]


async def check_keyless_listeners(here: Installation) -> Sequence[Finding]:
    """Check for engines without an API key: those in the journal, and other llama-servers by their command lines."""
    found = await trio.to_thread.run_sync(lambda: list(_without_key(here)), abandon_on_cancel=True)
    if here.config.insecure_lan:
        open_to_all = failed(
            "--insecure-lan: published engines accept every request, from any address",
            why="every client can use the models, and read other users' prompts in shared caches",
            fix="remove insecure_lan from config.toml and the job, admit networks with --allow-from, and restart",
        )
        found = [open_to_all, *found]
    return found or [passed("no engine accepts requests without a key from other machines")]


async def check_last_exits(here: Installation) -> Sequence[Finding]:
    """Check for engines that exited unexpectedly: by the journal if LLMKube is not running, and by macOS's reports."""
    entries = await trio.to_thread.run_sync(here.journal, abandon_on_cancel=True)
    report, process = "", ""
    if here.mac:
        report, process = await trio.to_thread.run_sync(newest_jetsam, time.time(), abandon_on_cancel=True)
    ends = lost_engines(entries.values() if here.pid is None else ())
    this_boot = start_of(1).rpartition(":")[0]
    rebooted = any(_boot_of(entry) not in {"", this_boot} for entry in ends)
    return tuple(assess_last_exits(ends, rebooted=rebooted, jetsam=report, largest_process=process))


def assess_last_exits(lost: Sequence[Entry], *, rebooted: bool, jetsam: str, largest_process: str) -> Iterator[Finding]:
    """Check that no engine exited unexpectedly. Pure.

    Args:
        lost: Journal entries whose engine exited while LLMKube was not running; the largest first.
        rebooted: Whether the machine was restarted meanwhile.
        jetsam: Name of macOS's newest recent report of killed programs; empty without one.
        largest_process: Largest process in that report.
    """
    hint = "reduce memory_fraction in config.toml, or contextSize; `llmkube fit` shows what a model needs"
    if jetsam:
        largest = f"; the largest process was {largest_process}" if largest_process else ""
        yield warned(
            f"macOS killed programs because memory was short: {jetsam}{largest}",
            why="an engine that is killed loses its requests",
            fix=hint,
        )
    if lost:
        size = _needs(lost[0])
        how = "when this machine restarted" if rebooted else "unexpectedly"
        yield warned(
            f"{len(lost)} engine{'s' if len(lost) > 1 else ''} exited {how}; the largest was {lost[0].key}"
            f"{f' ({format_bytes(size)})' if size else ''}",
            why="the cause may be a restart, a power cut, a kill, or a lack of memory",
            fix=f"`llmkube up` or `llmkube agent start` starts them again. If memory was short: {hint}",
        )
    if not jetsam and not lost:
        yield passed("no engine has exited unexpectedly")


def lost_engines(entries: Iterable[Entry]) -> Sequence[Entry]:
    """Return the entries whose process has exited, the one with the largest memory need first."""
    ends = [
        entry
        for entry in entries
        if entry.engine is not None and entry.engine.pid and start_of(entry.engine.pid) != entry.engine.started
    ]
    return sorted(ends, key=_needs, reverse=True)


def _needs(entry: Entry) -> int:
    return entry.launch.estimate.total_bytes if entry.launch.estimate else entry.launch.weights.size_bytes


def _boot_of(entry: Entry) -> str:
    """Return the boot id of an engine's start; empty except on Linux."""
    boot, colon, _ = entry.engine.started.rpartition(":") if entry.engine else ("", "", "")
    return boot if colon else ""


def _without_key(here: Installation) -> Iterator[Finding]:
    ours = set()
    for entry in here.journal().values():
        record = entry.engine
        if record is None or not record.pid or start_of(record.pid) != record.started:
            continue
        ours.add(record.pid)
        host, port = record.address
        if not record.api_key and not _is_loopback(host):
            yield _lacks_key(f"the engine of {entry.key}", (host, port), "`llmkube restart NAME` starts it with one")
    for process in psutil.process_iter(["pid", "cmdline"]):
        argv = process.info["cmdline"] or []
        if process.pid not in ours and (address := keyless_address(argv)) and listens(process.pid, address[1]):
            name = f"llama-server (pid {process.pid})"
            yield _lacks_key(name, address, "give it --api-key-file FILE, or --host 127.0.0.1")


def _lacks_key(name: str, address: tuple[str, int], fix: str) -> Finding:
    return failed(
        f"{name} listens at {address[0]}:{address[1]} without a key",
        why="every client that can reach this machine can use it",
        fix=fix,
    )


def keyless_address(argv: Sequence[str]) -> tuple[str, int] | None:
    """Return the address at which a llama-server accepts requests without a key, by its command line.

    None if it requires a key or listens on loopback only, as it does without `--host`, and for other programs.
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
    names = ("port",) if isinstance(here.config, AgentConfig) else ("api_port", "gateway_port", "probe_port")
    flags = {f"--{name.replace('_', '-')}": getattr(here.config, name) for name in names}
    return [(flag, number) for flag, number in flags.items() if number]


def _health_port(here: Installation) -> int:
    return here.config.port if isinstance(here.config, AgentConfig) else here.config.probe_port
