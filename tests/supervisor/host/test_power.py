"""What a Mac's chip draws: the text of powermetrics, samplers that end, and the one line of sudoers."""

import os
import random
import sys

import pytest
import trio
from structlog.testing import capture_logs

from llmkube.supervisor.host import power
from llmkube.supervisor.host.power import (
    POWERMETRICS,
    STALE_SECONDS,
    PowerMeter,
    PowerReader,
    PowerSample,
    power_command,
    run_power_meter,
    sudoers_rule,
)

SAMPLE = """
*** Sampled system activity (Sat Nov 21 19:20:01 2026 +0100) (5004.50ms elapsed) ***

**** Processor usage ****

E-Cluster HW active frequency: 1017 MHz
CPU Power: 1250 mW
GPU Power: 31500 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 32750 mW

**** GPU usage ****

GPU HW active frequency: 1296 MHz
GPU Power: 31498 mW
"""


def samples_of(text):
    reader = PowerReader()
    return [sample for line in text.splitlines() if (sample := reader.feed(line)) is not None]


# -- what it says -----------------------------------------------------------------------------------------------------


def test_a_sample_is_read_as_soon_as_its_sum_is_there():
    """Watts by domain and the seconds that they were measured for; the GPU's own section counts for nothing more."""
    watts = {"cpu": 1.25, "gpu": 31.5, "ane": 0.0, "combined": 32.75}
    assert samples_of(SAMPLE * 2) == [PowerSample(watts, 5.0045)] * 2


def test_a_system_that_writes_no_sum_gets_ours():
    """MacOS 12 writes no line of the sum: the next header ends a sample, and the sum is that of its parts."""
    text = SAMPLE.replace("Combined Power (CPU + GPU + ANE): 32750 mW\n", "")
    samples = samples_of(text * 3)
    assert len(samples) == 2
    assert samples[0] == PowerSample({"cpu": 1.25, "gpu": 31.5, "ane": 0.0, "combined": 32.75}, 5.0045)


@pytest.mark.parametrize(
    "text",
    [
        "Combined Power (CPU + GPU + ANE): 32750 mW",
        SAMPLE.replace("Combined", "Package"),
        SAMPLE.replace("mW", "W"),
        SAMPLE.replace("5004.50ms", "5.0.4ms"),
        SAMPLE.replace("32750", "9" * 5000),
        "\x00\xff garbage",
    ],
    ids=["no header", "no sum", "another unit", "no time", "no number", "garbage"],
)
def test_what_is_no_sample_is_none(text):
    """A sum without its header, another unit, and figures that no chip draws say nothing, and break nothing."""
    assert samples_of(text) == []


# -- what is known ----------------------------------------------------------------------------------------------------


async def test_an_old_figure_is_not_told_as_new(autojump_clock):
    """Power is forgotten when no sample has come for a while, energy is kept."""
    meter = PowerMeter()
    assert meter.view().watts == {}
    meter.take(PowerSample({"gpu": 30.0, "combined": 30.0}, 5.0))
    meter.take(PowerSample({"gpu": 10.0, "combined": 10.0}, 5.0))
    assert meter.view().watts == {"gpu": 10.0, "combined": 10.0}
    await trio.sleep(STALE_SECONDS)
    assert meter.view().watts == {}
    assert meter.view().joules == {"cpu": 0.0, "gpu": 200.0, "ane": 0.0}


# -- real processes ---------------------------------------------------------------------------------------------------


def script(tmp_path, body):
    """Write a sampler that says one sample, and then does what the body says."""
    path = tmp_path / "sampler"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{SAMPLE}\nEND\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


async def until(true):
    with trio.fail_after(20):
        while not true():  # noqa: ASYNC110 - what another process has done by now comes without an event
            await trio.sleep(0.01)


@pytest.fixture
def _at_once(monkeypatch):
    monkeypatch.setattr(power, "RETRY", power.Backoff(base_seconds=0.01, cap_seconds=0.01))


@pytest.mark.usefixtures("_at_once")
async def test_a_sampler_that_ends_is_told_and_started_again(tmp_path):
    """Its last words are in the log, and its successor is heard."""
    meter = PowerMeter()
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            command = script(tmp_path, "echo second underflow >&2; exit 3")
            nursery.start_soon(run_power_meter, meter, command, random.Random(1))
            await until(lambda: meter.view().joules["gpu"] > 2 * 31.5 * 5)
            nursery.cancel_scope.cancel()
    assert "second underflow" in logs[0]["said"]
    assert not logs[0]["hint"]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(
    ("command", "said"),
    [(["/nowhere/sudo"], "/nowhere/sudo: No such file"), (["/bin/sh", "-c", "echo no right; exit 1"], "no right")],
)
async def test_who_may_not_measure_is_told_what_to_do(command, said):
    """A sampler that cannot begin costs one line in the log, which says why and how to allow it."""
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_power_meter, PowerMeter(), command, random.Random(1))
            await until(lambda: len(logs) > 1)
            nursery.cancel_scope.cancel()
    assert said in logs[0]["said"]
    assert "llmkube agent sudoers" in logs[0]["hint"]


@pytest.mark.parametrize("deaf", ["", "trap '' TERM;"], ids=["ours to signal", "deaf like a process of root"])
async def test_a_sampler_ends_with_its_reader(tmp_path, deaf):
    """When the reader has stopped the sampler is gone: by the signal, or by its next line, which nobody reads."""
    pid_file = tmp_path / "pid"
    body = f"{deaf} echo $$ > {pid_file}; while :; do echo line; sleep 0.05; done"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_power_meter, PowerMeter(), script(tmp_path, body), random.Random(1))
        await until(lambda: pid_file.exists() and pid_file.read_text().strip())
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def test_a_line_without_an_end_takes_no_memory(tmp_path):
    """A hundred megabytes in one line are passed over, and the sample before them is kept."""
    meter = PowerMeter()
    command = script(tmp_path, f"exec {sys.executable} -c \"print('x' * 100_000_000)\"")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_power_meter, meter, command, random.Random(1))
        with capture_logs() as logs:
            await until(lambda: logs)
        nursery.cancel_scope.cancel()
    assert meter.view().watts["gpu"] == 31.5
    assert len(logs[0]["said"]) < 5000


# -- who may ----------------------------------------------------------------------------------------------------------


def test_sudo_gets_the_arguments_and_no_pattern():
    """The rule names the user by number, the program by its path, and each argument; commas are quoted."""
    comment, rule = sudoers_rule(501).splitlines()
    assert comment.startswith("# ")
    who, _, command = rule.partition(" NOPASSWD: ")
    assert who == "#501 ALL=(root)"
    assert command.replace(r"\,", ",").split(" ") == list(POWERMETRICS)
    assert not set(command) & set("*?[]!")
    assert r"cpu_power\,gpu_power" in command


def test_root_needs_no_sudo():
    """Only who is not root goes through sudo, which never asks for a password."""
    assert power_command(0) == POWERMETRICS
    assert power_command(501) == ("/usr/bin/sudo", "-n", *POWERMETRICS)
