"""Which source a host has."""

import random

import pytest

from llmkube.base.errors import UserError
from llmkube.supervisor.power import sources
from llmkube.supervisor.power.powermetrics import POWERMETRICS, Powermetrics
from llmkube.supervisor.power.rapl import Rapl
from llmkube.supervisor.power.sources import power_source
from supervisor.power.test_rapl import machine


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
def test_a_machine_without_counters_is_told_at_the_start(tmp_path, folder):
    """The error names the flag, the folder, and the way out."""
    with pytest.raises(UserError, match=r"--power-enabled: .* has no counter of RAPL .*leave the flag out"):
        power_source("linux", 0, random.Random(1), folder=tmp_path / folder)


def test_counters_of_root_alone_are_told_with_the_way_out(tmp_path, monkeypatch):
    """The error names the file and the command that opens it."""

    def refused(folder, now):
        raise PermissionError(13, "Permission denied", str(folder / "intel-rapl:0/energy_uj"))

    monkeypatch.setattr(sources, "read_counters", refused)
    with pytest.raises(UserError, match=r"intel-rapl:0/energy_uj may not be read; .*chmod a\+r"):
        power_source("linux", 501, random.Random(1), folder=tmp_path)
