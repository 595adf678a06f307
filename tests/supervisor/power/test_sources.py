"""The power source of a host.

RAPL's files are read, subtracted, and reported when they fail.
"""

import random

import pytest
import trio
from structlog.testing import capture_logs

from llmkube.base.errors import UserError
from llmkube.supervisor.power import sources
from llmkube.supervisor.power.powermetrics import POWERMETRICS, Powermetrics
from llmkube.supervisor.power.sample import PowerProblem, PowerSample
from llmkube.supervisor.power.sources import (
    SAMPLE_SECONDS,
    Counter,
    CounterSnapshot,
    Rapl,
    power_source,
    problem_of,
    read_counters,
    sample_between,
)


def test_a_mac_has_powermetrics(tmp_path):
    """Root runs it at once, others through sudo."""
    source = power_source("darwin", 0, random.Random(1), folder=tmp_path)
    assert isinstance(source, Powermetrics)
    assert source.command == POWERMETRICS
    assert power_source("darwin", 501, random.Random(1)).command[0] == "/usr/bin/sudo"


def test_linux_has_its_counters(tmp_path):
    """They are read once before the agent starts."""
    machine(tmp_path, 1.0)
    assert isinstance(power_source("linux", 501, random.Random(1), folder=tmp_path), Rapl)


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_machine_without_counters_is_an_error_at_the_start(tmp_path, folder):
    """The error names the flag, the folder, and the fix."""
    with pytest.raises(UserError, match=r"--power-enabled: no readable RAPL counter .*remove the flag"):
        power_source("linux", 0, random.Random(1), folder=tmp_path / folder)


def test_counters_of_root_alone_are_an_error_with_the_fix(tmp_path, monkeypatch):
    """The error names the file and the command that opens it."""

    def refused(folder, now):
        raise PermissionError(13, "Permission denied", str(folder / "intel-rapl:0/energy_uj"))

    monkeypatch.setattr(sources, "read_counters", refused)
    with pytest.raises(UserError, match=r"intel-rapl:0/energy_uj is not readable; .*chmod a\+r"):
        power_source("linux", 501, random.Random(1), folder=tmp_path)


def zone(folder, name, domain, joules, most=262143.0):
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "name").write_text(f"{domain}\n")
    (place / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (place / "max_energy_range_uj").write_text(f"{round(most * 1e6)}\n")


def machine(folder, joules):
    zone(folder, "intel-rapl:0", "package-0", joules)
    zone(folder, "intel-rapl:0:0", "core", joules / 2)
    zone(folder, "intel-rapl:0:1", "dram", joules / 10)
    zone(folder, "intel-rapl:1", "package-1", joules)
    zone(folder, "intel-rapl:2", "psys", joules * 3)
    zone(folder, "intel-rapl-mmio:0", "package-0", joules)
    (folder / "dtpm").mkdir(exist_ok=True)


def test_packages_and_their_memory_are_counted_once(tmp_path):
    """Cores are part of a package, psys is all of it, and mmio is the same counter again."""
    machine(tmp_path, 100.0)
    before = read_counters(tmp_path, 10.0)
    machine(tmp_path, 200.0)
    sample = sample_between(before, read_counters(tmp_path, 20.0))
    assert sample == PowerSample({"package": 20.0, "dram": 1.0, "combined": 21.0}, 10.0)


@pytest.mark.parametrize(
    ("before", "now", "watts"),
    [(100.0, 350.0, 50.0), (262000.0, 107.0, 50.0), (262143.0, 0.0, 0.0), (200000.0, 5.0, None)],
    ids=["counts", "begins again at its end", "exactly there", "reset during a sleep"],
)
def test_a_counter_that_wraps_or_is_reset(before, now, watts):
    """Zero follows the largest number; a counter that was reset has no figure for the time before."""
    first, second = (
        CounterSnapshot(at, {"z": Counter(j, 262143.0)}, {"z": "package"}) for at, j in ((0.0, before), (5.0, now))
    )
    sample = sample_between(first, second)
    assert (None if sample is None else round(sample.watts["package"], 6)) == watts


def test_counters_that_come_and_go_are_not_subtracted():
    """A package that was switched off makes the others unknown as well, for one sample."""
    first = CounterSnapshot(0.0, {"a": Counter(1.0, 9.0)}, {"a": "package"})
    second = CounterSnapshot(5.0, {"a": Counter(1.0, 9.0), "b": Counter(1.0, 9.0)}, {"a": "package", "b": "package"})
    assert sample_between(first, second) is None
    assert sample_between(first, first) is None


async def test_a_host_is_measured_until_its_counters_go_and_again_when_they_are_back(autojump_clock, tmp_path):
    """Each failure is reported with its kind; the first sample after it does not span it."""
    samples, problems = [], []
    machine(tmp_path, 100.0)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Rapl(random.Random(1), tmp_path).run, samples.append, problems.append)
            await trio.sleep(SAMPLE_SECONDS / 2)
            machine(tmp_path, 200.0)
            await trio.sleep(SAMPLE_SECONDS)
            assert samples[0].watts["package"] == pytest.approx(200.0 / samples[0].seconds)
            (tmp_path / "intel-rapl:0" / "energy_uj").write_text("unheard of")
            await trio.sleep(SAMPLE_SECONDS)
            assert problems == [PowerProblem.NOT_UNDERSTOOD]
            machine(tmp_path, 900.0)
            count = len(samples)
            await trio.sleep(60)
            machine(tmp_path, 950.0)
            await trio.sleep(SAMPLE_SECONDS)
            assert all(each.watts["package"] <= 100.0 / SAMPLE_SECONDS for each in samples[count:])
            assert samples[count:]
            for each in tmp_path.glob("*/*"):
                each.unlink()
            await trio.sleep(SAMPLE_SECONDS)
            assert problems[1] is PowerProblem.NOT_FOUND
            nursery.cancel_scope.cancel()
    assert [entry["problem"] for entry in logs[:2]] == ["NotUnderstood", "NotFound"]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (PermissionError("energy_uj"), PowerProblem.NOT_PERMITTED),
        (FileNotFoundError("energy_uj"), PowerProblem.NOT_FOUND),
        (ValueError("abc"), PowerProblem.NOT_UNDERSTOOD),
    ],
)
def test_each_failure_has_a_name(error, problem):
    """Files of root alone, as the kernel makes them since 2020, are a missing right."""
    assert problem_of(error) is problem
