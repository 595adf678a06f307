"""Power of a Mac's chip: the text of powermetrics, samplers that end, and the one line of sudoers."""

import os
import random
import signal
import sys
from types import SimpleNamespace

import pytest
import trio
from structlog.testing import capture_logs

from llmkube.supervisor.power import powermetrics
from llmkube.supervisor.power.powermetrics import (
    POWERMETRICS,
    Powermetrics,
    PowerReader,
    power_command,
    problem_of,
    sudoers_rule,
)
from llmkube.supervisor.power.sample import PowerProblem, PowerSample

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


# -- its output -------------------------------------------------------------------------------------------------------


def test_a_sample_is_read_as_soon_as_its_sum_is_there():
    """Watts by domain and the seconds that they were measured for; the GPU's own section adds nothing."""
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
        SAMPLE.replace("32750", "9" * 8),
        "\x00\xff garbage",
    ],
    ids=["no header", "no sum", "another unit", "no time", "no number", "more than any chip draws", "garbage"],
)
def test_invalid_samples_are_ignored(text):
    """A sum without its header, another unit, and implausible figures are ignored, and raise nothing."""
    assert samples_of(text) == []


# -- its failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "writes", "problem"),
    [
        ("sudo: a password is required", 1, True, PowerProblem.NOT_PERMITTED),
        ("powermetrics must be invoked as the superuser", 1, True, PowerProblem.NOT_PERMITTED),
        ("mac is not in the sudoers file.", 1, True, PowerProblem.NOT_PERMITTED),
        ("second underflow occured", 3, True, PowerProblem.ENDED),
        ("", 0, False, PowerProblem.ENDED),
        ("", -9, False, PowerProblem.KILLED),
        ("<plist>", None, True, PowerProblem.NOT_UNDERSTOOD),
        ("", None, False, PowerProblem.SILENT),
    ],
)
def test_each_failure_has_a_name(words, code, writes, problem):
    """A sampler's exit, its output and its silence are classified."""
    assert problem_of(words, code, writes=writes) is problem


# -- real processes ---------------------------------------------------------------------------------------------------


def script(tmp_path, body):
    """Write a sampler that prints one sample, and then runs the body."""
    path = tmp_path / "sampler"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{SAMPLE}\nEND\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


async def until(true):
    with trio.fail_after(60):
        while not true():  # noqa: ASYNC110 - what another process has done by now comes without an event
            await trio.sleep(0.01)


class Recorder:
    """The problems and samples that a source has reported."""

    def __init__(self):
        self.samples, self.problems = [], []

    async def record(self, command, done):
        """Listen until the condition holds."""
        async with trio.open_nursery() as nursery:
            source = Powermetrics(command, random.Random(1))
            nursery.start_soon(source.run, self.samples.append, self.problems.append)
            await until(done)
            nursery.cancel_scope.cancel()


@pytest.fixture
def _at_once(monkeypatch):
    monkeypatch.setattr(powermetrics, "RETRY", powermetrics.Backoff(base_seconds=0.01, cap_seconds=0.01))


@pytest.mark.parametrize(("samples", "failures"), [(True, [1, 1, 1]), (False, [1, 2, 3])])
async def test_only_failures_without_a_sample_back_off(tmp_path, monkeypatch, samples, failures):
    """A sampler that delivered a sample is restarted after the first delay."""
    counted = []
    monkeypatch.setattr(powermetrics, "RETRY", SimpleNamespace(delay=lambda count, _rng: counted.append(count) or 0))
    await Recorder().record(script(tmp_path, "") if samples else ["/bin/false"], lambda: len(counted) > 2)
    assert counted[:3] == failures


@pytest.fixture
def _impatient(monkeypatch, _at_once):
    monkeypatch.setattr(powermetrics, "STALE_SECONDS", 2.0)
    monkeypatch.setattr(powermetrics, "SAMPLE_SECONDS", 0.5)


@pytest.mark.usefixtures("_at_once")
async def test_a_sampler_that_ends_is_reported_and_started_again(tmp_path):
    """Its last output is in the log, and its successor is read."""
    recorder = Recorder()
    with capture_logs() as logs:
        await recorder.record(script(tmp_path, "echo second underflow >&2; exit 3"), lambda: len(recorder.samples) > 2)
    assert recorder.problems[0] is PowerProblem.ENDED
    assert "second underflow" in logs[0]["said"]
    assert not logs[0]["hint"]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(
    ("command", "output", "problem", "hint"),
    [
        (["/nowhere/sudo"], "/nowhere/sudo: No such file", PowerProblem.NOT_FOUND, "/usr/bin/powermetrics"),
        (
            ["/bin/sh", "-c", "echo 'sudo: a password is required'; exit 1"],
            "a password",
            PowerProblem.NOT_PERMITTED,
            "llmkube agent sudoers",
        ),
    ],
)
async def test_a_missing_right_is_reported_with_its_fix(command, output, problem, hint):
    """A sampler that cannot start costs one line in the log, with the reason and the command that allows it."""
    recorder = Recorder()
    with capture_logs() as logs:
        await recorder.record(command, lambda: len(logs) > 1)
    assert output in logs[0]["said"]
    assert hint in logs[0]["hint"]
    assert (recorder.problems[0], recorder.samples) == (problem, [])


@pytest.mark.ci
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("kill -9 $$", PowerProblem.KILLED),
        ("kill -STOP $$; sleep 60", PowerProblem.SILENT),
        ("while :; do echo '<plist version=1.0>'; sleep 0.1; done", PowerProblem.NOT_UNDERSTOOD),
        ("exec tr '\\0' x < /dev/zero", PowerProblem.NOT_UNDERSTOOD),
        ("exec sleep 60", PowerProblem.SILENT),
    ],
    ids=["killed", "stopped", "another format", "a line without an end", "hangs"],
)
async def test_a_sampler_without_output_is_ended(tmp_path, body, problem):
    """After its first sample it is killed, stopped, or writes nonsense: the reason is reported, and it is ended."""
    recorder = Recorder()
    pid_file = tmp_path / "pids"
    await recorder.record(script(tmp_path, f"echo $$ >> {pid_file}; {body}"), lambda: len(recorder.problems) >= 2)
    assert recorder.problems[0] is problem
    assert len(recorder.samples) >= 2, "it was not tried again"
    for pid in pid_file.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), signal.SIGCONT)


@pytest.mark.parametrize("deaf", ["", "trap '' TERM;"], ids=["ours to signal", "deaf like a process of root"])
async def test_a_sampler_ends_with_its_reader(tmp_path, deaf):
    """When the reader has stopped the sampler exits: by the signal, or by its next line, which is not read."""
    pid_file = tmp_path / "pid"
    body = f"{deaf} echo $$ > {pid_file}; while :; do echo line; sleep 0.05; done"
    await Recorder().record(script(tmp_path, body), lambda: pid_file.exists() and pid_file.read_text().strip())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def test_a_line_without_an_end_takes_no_memory(tmp_path):
    """A hundred megabytes in one line are skipped, and the sample before them is kept."""
    recorder = Recorder()
    command = script(tmp_path, f"exec {sys.executable} -c \"print('x' * 100_000_000)\"")
    with capture_logs() as logs:
        await recorder.record(command, lambda: logs)
    assert recorder.samples[0].watts["gpu"] == 31.5
    assert len(logs[0]["said"]) < 5000


# -- its rights -------------------------------------------------------------------------------------------------------


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
    """Other users go through sudo, which never prompts for a password."""
    assert power_command(0) == POWERMETRICS
    assert power_command(501) == ("/usr/bin/sudo", "-n", *POWERMETRICS)
