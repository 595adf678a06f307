"""What facts of our own programs mean."""

from collections.abc import Iterator
from typing import Final

from llmkube.base.units import format_bytes
from llmkube.cli.commands.doctor.findings import Finding, failed, passed, warned
from llmkube.cli.commands.doctor.program_facts import (
    Engine,
    LastEnds,
    LaunchdJob,
    Listeners,
    NoJob,
    Ports,
    Settings,
    SystemdUnit,
)
from llmkube.cli.commands.programs.background.agent_jobs import START_LIMIT

_MANY_STARTS: Final = 3
"""Of a job that has ended badly: one restart is a mishap, the third a loop."""

_WORKING_STATES: Final = frozenset({"active", "activating", "reloading"})


def settings(fact: Settings) -> Iterator[Finding]:
    """What runs, and with which settings."""
    if fact.problem:
        yield failed(
            "settings",
            fact.problem,
            why=f"no program of ours starts with them ({fact.folder})",
            fix="mend what it names; docs/config.md has every setting",
        )
    elif fact.pid is not None:
        yield passed("running", f"llmkube {fact.program} (pid {fact.pid}) on {fact.folder}")
    else:
        yield passed("running", f"nothing of ours on {fact.folder}")


def engine(fact: Engine) -> Iterator[Finding]:
    """There is an engine, it starts, and it is new enough."""
    if not fact.starts:
        yield failed(
            "engine",
            fact.problem,
            why="no program of ours starts with that setting",
            fix="name a program that is there, or leave the setting out",
        )
    elif fact.problem:
        yield failed(
            "engine",
            fact.problem,
            why="no model is served without one",
            fix="`pip install --upgrade xllamacpp`, or `brew install llama.cpp`; --llama-server names another",
        )
    elif fact.devices is not None and not fact.devices:
        yield warned(
            "engine",
            f"{fact.program}, {fact.version}: it lists no GPU here",
            why="this host serves Models for Metal, which want one; Metal shows none to ssh and tmux",
            fix=f"look in a terminal of the login: `{fact.program} --list-devices`",
        )
    else:
        devices = f"; {', '.join(fact.devices)}" if fact.devices else ""
        yield passed("engine", f"{fact.program}, {fact.version}{devices}")


def launchd_job(fact: LaunchdJob) -> Iterator[Finding]:
    """A job that launchd starts again and again does not run, whatever `launchctl list` shows."""
    name, ours = "launchd", f"llmkube {fact.what}"
    restart = "`llmkube agent start`" if fact.what == "agent" else "`llmkube up install`"
    state, failures = fact.state, fact.failed
    ended = f", ended last with {state.last_exit}" if state and state.last_exit else ""
    if failures.count >= START_LIMIT and not fact.holds:
        yield failed(
            name,
            f"the {fact.what} has failed to start {failures.count} times, and does not try again",
            why=failures.problem or "its log says why",
            fix=f"mend that; then: {restart}",
        )
    elif state is None:
        yield warned(name, f"{fact.file} is not loaded", why=f"{ours} does not begin by itself", fix=restart)
    elif not fact.holds and state.runs >= _MANY_STARTS and state.last_exit not in {"", "0"}:
        yield failed(
            name,
            f"a crash loop: the {fact.what} was started {state.runs} times{ended}",
            why=failures.problem or "launchd starts it again and again, and shows it as loaded; it serves nothing",
            fix=f"`llmkube {fact.what} logs --tail 20` says why; mend that, then: {restart}",
        )
    elif not fact.holds and state.pid is None:
        yield warned(
            name,
            f"the {fact.what} is loaded and does not run: {state.runs} starts{ended}",
            why=failures.problem or "it serves nothing",
            fix=f"`llmkube {fact.what} logs --tail 20` says why; then: {restart}",
        )
    elif not fact.healthy:
        yield warned(
            name,
            f"the {fact.what} runs (pid {state.pid}) and does not answer at /healthz",
            why="it has just been started, or it hangs",
            fix=f"`llmkube {fact.what} logs --tail 20` says why; then: {restart}",
        )
    else:
        kind = "a daemon" if fact.daemon else "a job of the login"
        yield passed(name, f"the {fact.what} runs as {kind}: {state.runs} starts{ended}")


def systemd_unit(fact: SystemdUnit) -> Iterator[Finding]:
    """The unit of `llmkube up` is active."""
    if fact.state in _WORKING_STATES:
        yield passed("systemd", f"{fact.file.name} is {fact.state}")
    else:
        verdict = failed if fact.state == "failed" else warned
        yield verdict(
            "systemd",
            f"{fact.file.name} is {fact.state}",
            why="llmkube up does not run",
            fix=f"`llmkube up logs --tail 20` says why; then: `systemctl --user restart {fact.file.name}`",
        )


def no_job(_: NoJob) -> Iterator[Finding]:
    """The user asked for none."""
    yield passed("background", "nothing of ours starts by itself; `llmkube up install` or `agent install` has it so")


def ports(fact: Ports) -> Iterator[Finding]:
    """Each port is free, or ours."""
    bad = False
    for port in fact.ports:
        if port.taken:
            bad = True
            by = f" by {port.holder}" if port.holder else ""
            yield failed(
                "ports",
                f"{port.number} is taken{by}",
                why=f"llmkube {fact.program} does not start without it",
                fix=f"end that program (`lsof -nP -iTCP:{port.number} -sTCP:LISTEN`), or choose another: {port.flag}",
            )
        elif port.silent:
            bad = True
            yield failed(
                "ports",
                f"llmkube {fact.program} runs, and nothing answers at {port.number}",
                why="it hangs, or was started with another port",
                fix=f"`llmkube {fact.program} logs --tail 20` says why",
            )
    if not bad:
        numbers = ", ".join(str(port.number) for port in fact.ports) or "none"
        yield passed("ports", f"{numbers}: free or ours, for llmkube {fact.program}")


def listeners(fact: Listeners) -> Iterator[Finding]:
    """No engine answers every machine that reaches this one."""
    name, bad = "keys", False
    if fact.insecure_lan:
        bad = True
        yield failed(
            name,
            "--insecure-lan: every request is let in at published engines, from any address",
            why="who reaches this machine uses its models, and reads other users' prompts in shared caches",
            fix="take insecure_lan out of config.toml and of the job, name networks with --allow-from, and restart",
        )
    for each in fact.open:
        bad = True
        fix = (
            "`llmkube restart NAME` starts it with one"
            if each.ours
            else "give it --api-key-file FILE, or --host 127.0.0.1"
        )
        yield failed(
            name,
            f"{each.what} listens at {each.address} without a key",
            why="who reaches this machine uses it",
            fix=fix,
        )
    if not bad:
        yield passed(name, "no engine listens without a key beyond this machine")


def last_ends(fact: LastEnds) -> Iterator[Finding]:
    """Engines ended because a program or a user asked them to."""
    name = "last end"
    less = "give models less: memory_fraction in config.toml, a smaller contextSize; `llmkube fit` says what one needs"
    if fact.jetsam:
        largest = f"; the largest process was {fact.jetsam_largest}" if fact.jetsam_largest else ""
        yield warned(
            name,
            f"macOS ended programs for want of memory: {fact.jetsam}{largest}",
            why="an engine that is ended loses its requests",
            fix=less,
        )
    if fact.lost:
        size = f" ({format_bytes(fact.largest_bytes)})" if fact.largest_bytes else ""
        how = "with this machine" if fact.rebooted else "without a word of ours"
        yield warned(
            name,
            f"{len(fact.lost)} engine{'s' if len(fact.lost) > 1 else ''} ended {how}; the largest was {fact.largest}"
            f"{size}",
            why="a restart, a power cut, a kill, or want of memory",
            fix=f"`llmkube up` or `llmkube agent start` goes on with them. If it was memory: {less}",
        )
    if not fact.jetsam and not fact.lost:
        yield passed(name, "no engine has ended without our saying so")
