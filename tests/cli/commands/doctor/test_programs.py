"""Findings about LLMKube's programs: engine, job, ports, listeners and exits."""

import os
import socket
from pathlib import Path

import attrs
import pytest
import trio

from cli.commands.doctor.places import check_finding, installation
from free_ports import free_port
from llmkube.cli.commands.doctor.programs import (
    assess_engine,
    assess_last_exits,
    assess_launchd_job,
    assess_systemd_unit,
    check_engine,
    check_for_job,
    check_keyless_listeners,
    check_last_exits,
    check_ports,
    check_settings,
    check_systemd_unit,
    keyless_address,
    lost_engines,
)
from llmkube.cli.commands.programs.background.launchctl import JobState
from llmkube.cli.commands.programs.background.start_limit import FailedStarts
from llmkube.programs.config import AgentConfig, UpConfig
from llmkube.runtimes.devices import parse_listed
from llmkube.supervisor.host.processes import start_of
from llmkube.supervisor.values.journal import FileJournal
from supervisor.values.entries import ENGINE, entry

ALIVE = attrs.evolve(ENGINE, pid=os.getpid(), started=start_of(os.getpid()))
LOST = entry(ENGINE)
GONE = attrs.evolve(ENGINE, pid=os.getpid(), started="another boot:1")

FOLDER = Path("/state")
NO_FAILURES = FailedStarts("boot")
NO_ENDS = {"rebooted": False, "jetsam": "", "largest_process": ""}


def job(state, *, holds, healthy=False, failures=NO_FAILURES, **changes):
    """Return the finding about a launchd job."""
    facts = {"program": "agent", "job": Path("/Users/ada/Library/LaunchAgents/com.llmkube.metal-agent.plist")}
    here = installation(FOLDER, pid=4711 if holds else None, **{**facts, **changes})
    return assess_launchd_job(here, state, healthy, failures)


UP = {"holds": True, "healthy": True}
DOWN = {"holds": False}
NO_ENGINE = FailedStarts("boot", 5, "no engine")


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (check_settings(installation(FOLDER)), "pass", "no LLMKube program on /state"),
        (check_settings(installation(FOLDER, program="agent", pid=7)), "pass", "llmkube agent (pid 7)"),
        (check_settings(installation(FOLDER, pid=7, problem="port = x")), "fail", "docs/reference/config.md"),
        (assess_engine("/e", "6900", None), "pass", "/e, 6900"),
        (assess_engine("/e", "6900", ("Apple M3", "M4")), "pass", "/e, 6900; Apple M3, M4"),
        (assess_engine("/e", "6900", ()), "warn", "`/e --list-devices`"),
        (job(JobState(4711, 1, ""), **UP), "pass", "a login job"),
        (job(JobState(4711, 1, ""), **UP, daemon=True), "pass", "a daemon"),
        (job(JobState(4711, 9, "1"), **UP), "pass", "9 starts, last exit with 1"),  # running now
        (job(JobState(4711, 1, ""), holds=True), "warn", "does not answer at /healthz"),
        (job(None, **DOWN), "warn", "com.llmkube.metal-agent.plist is not loaded"),
        (job(JobState(None, 1, "1"), **DOWN), "warn", "not running"),
        (job(JobState(None, 3, "1"), **DOWN), "fail", "crash loop"),
        (job(JobState(4712, 30, "78"), **DOWN), "fail", "started 30 times, last exit with 78"),
        (job(JobState(None, 3, "0"), **DOWN), "warn", "`llmkube agent start`"),
        (job(JobState(4711, 1, ""), **DOWN, failures=NO_ENGINE), "fail", "no engine"),
        (job(JobState(4711, 1, ""), **UP, failures=NO_ENGINE), "pass", ""),
        (job(None, **DOWN, program="up"), "warn", "`llmkube up install`"),
        (assess_systemd_unit("active"), "pass", "active"),
        (assess_systemd_unit("inactive"), "warn", "`systemctl --user restart llmkube-up.service`"),
        (assess_systemd_unit("failed"), "fail", "`llmkube up logs --tail 20`"),
        (*assess_last_exits([], **NO_ENDS), "pass", "no engine has exited"),
        (*assess_last_exits([LOST, LOST], **NO_ENDS), "warn", "2 engines exited unexpectedly"),
        (
            *assess_last_exits([LOST], **{**NO_ENDS, "rebooted": True}),
            "warn",
            "1 engine exited when this machine restarted",
        ),
        (
            *assess_last_exits([], rebooted=False, jetsam="JetsamEvent-1.ips", largest_process="llama-server"),
            "warn",
            "was llama-server",
        ),
    ],
)
def test_each_check_is_one_finding_with_its_fix(found, verdict, words):
    check_finding(found, verdict, words)


async def test_missing_programs_of_the_settings_are_reported(tmp_path):
    config = UpConfig(ollama=tmp_path / "o")
    check_finding(await check_engine(installation(tmp_path, config=config)), "fail", "remove the setting")
    config = UpConfig(llama_server=tmp_path / "l")
    check_finding(await check_engine(installation(tmp_path, config=config)), "fail", "`brew install llama.cpp`")


async def test_machine_without_a_job_passes():
    check_finding(await check_for_job(), "pass", "LLMKube does not start automatically")


def test_the_gpus_that_an_engine_lists_are_read():
    """Old and new output of llama.cpp is read; the CPU is no GPU."""
    text = "load_backend: x\nAvailable devices:\n  MTL0: Apple M3 Ultra (98304 MiB, 1 MiB free)\n  BLAS: Accelerate\n"
    assert [each.name for each in parse_listed(text)] == ["Apple M3 Ultra"]
    old = parse_listed("Available devices:\n  Metal: Apple M1 (10922 MiB, 10922 MiB free)\n")
    assert [each.name for each in old] == ["Apple M1"]
    assert parse_listed("Available devices:\n") == ()


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("llama-server --host 0.0.0.0 --port 8081", ("0.0.0.0", 8081)),
        ("/opt/bin/llama-server --host=192.168.1.5", ("192.168.1.5", 8080)),
        ("sh /opt/bin/llama-server --host ::", ("::", 8080)),
        ("llama-server --host 0.0.0.0 --api-key secret", None),
        ("llama-server --host 0.0.0.0 --api-key-file=/k", None),
        ("llama-server", None),  # loopback only
        ("llama-server --host localhost", None),
        ("llama-server --host /run/llama.sock", None),
        ("llama-server --host 0.0.0.0 --port eighty", None),
        ("vim notes about llama-server --host 0.0.0.0", None),
        ("", None),
    ],
)
def test_an_open_llama_server_is_known_by_its_command_line(words, address):
    """A server with a key, or on loopback only, is not open."""
    assert keyless_address(words.split()) == address


async def write(folder, *entries):
    journal = FileJournal(folder / "journal", trio.CapacityLimiter(1))
    for each in entries:
        await journal.write(each)


async def test_engines_without_a_key_are_found_by_the_journal(tmp_path):
    """Only a live engine without a key at a reachable address is reported."""
    open_one = attrs.evolve(ALIVE, public_host="192.168.1.5", public_port=40001, api_key="")
    for record, count in (
        (open_one, 1),
        (attrs.evolve(open_one, api_key="k"), 0),
        (attrs.evolve(open_one, started="another boot:1"), 0),
        (attrs.evolve(ALIVE, host="127.0.0.1", public_host="", api_key=""), 0),
    ):
        await write(tmp_path, entry(record))
        found = await check_keyless_listeners(installation(tmp_path))
        assert [each.found for each in found if "the engine of" in each.found] == [
            f"the engine of {entry().key} listens at 192.168.1.5:40001 without a key"
        ] * count
        if count:
            check_finding(found[0], "fail", "`llmkube restart NAME`")


async def test_open_setting_is_reported_next_to_open_engines(tmp_path):
    """Each problem is reported, so fixing one does not hide the other."""
    await write(tmp_path, entry(attrs.evolve(ALIVE, public_host="192.168.1.5", public_port=40001, api_key="")))
    everyone, ours, *_ = await check_keyless_listeners(installation(tmp_path, config=UpConfig(insecure_lan=True)))
    check_finding(everyone, "fail", "--allow-from")
    check_finding(ours, "fail", "`llmkube restart NAME`")


async def test_exit_is_reported_unless_a_running_program_has_handled_it(tmp_path):
    """A running agent has handled it itself."""
    await write(tmp_path, entry(GONE))
    (found,) = await check_last_exits(installation(tmp_path))
    check_finding(found, "warn", f"1 engine exited when this machine restarted; the largest was {entry().key}")
    (found,) = await check_last_exits(installation(tmp_path, pid=1))
    check_finding(found, "pass", "no engine has exited")
    await write(tmp_path, entry(ALIVE))
    (found,) = await check_last_exits(installation(tmp_path))
    check_finding(found, "pass", "no engine has exited")


def test_largest_engine_comes_first():
    """Engines are compared by reserved memory, else by file size."""
    small = entry(GONE)
    weights = attrs.evolve(small.launch.weights, size_bytes=small.launch.weights.size_bytes + 1)
    large = attrs.evolve(small, launch=attrs.evolve(small.launch, weights=weights, estimate=None))
    small = attrs.evolve(small, launch=attrs.evolve(small.launch, estimate=None))
    assert list(lost_engines([small, large, entry(None), entry(ALIVE)])) == [large, small]


async def test_port_zero_is_not_checked(tmp_path):
    """Port 0 means any free port."""
    config = UpConfig(api_port=0, gateway_port=0, probe_port=0)
    for here in (
        installation(tmp_path, config=config),
        installation(tmp_path, program="agent", config=AgentConfig(port=0)),
    ):
        (found,) = await check_ports(here)
        check_finding(found, "pass", f"none: available to llmkube {here.program}")


async def test_running_program_that_does_not_answer_is_reported(tmp_path):
    port = free_port()
    (found,) = await check_ports(installation(tmp_path, program="agent", config=AgentConfig(port=port), pid=1))
    check_finding(found, "fail", f"nothing answers at port {port}")
    (found,) = await check_ports(installation(tmp_path, program="agent", config=AgentConfig(port=port)))
    check_finding(found, "pass", f"{port}: available to")


async def test_each_port_that_is_taken_is_a_line_of_its_own(tmp_path):
    """The owner of each port is named, and the flag that chooses another port."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        numbers = [each.getsockname()[1] for each in (one, two)]
        config = UpConfig(api_port=numbers[0], gateway_port=numbers[1], probe_port=0)
        found = await check_ports(installation(tmp_path, config=config))
    for line, number, flag in zip(found, numbers, ("--api-port", "--gateway-port"), strict=True):
        check_finding(line, "fail", f"port {number} is in use by ")
        assert f"(pid {os.getpid()})" in line.found
        assert f"-iTCP:{number}" in line.fix
        assert line.fix.endswith(flag)


async def test_a_unit_s_state_is_systemd_s_word(tmp_path, monkeypatch):
    """`is-active` fails for any state but `active`."""
    program = tmp_path / "systemctl"
    asked = "--user show --property ActiveState --value llmkube-up.service"
    program.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] && echo failed\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    check_finding(await check_systemd_unit(installation(tmp_path)), "fail", "llmkube-up.service is failed")
