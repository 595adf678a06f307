from llmkube.supervisor.host import pss
from llmkube.supervisor.host.procfs import ProcessStat
from llmkube.supervisor.host.pss import PssSampler

GIB = 1 << 30


def stat(start_ticks, resident_bytes):
    return ProcessStat("S", 0, 0.0, start_ticks, resident_bytes)


class Measurements:
    """Processes as the kernel shows them, and how often it had to walk their page tables."""

    def __init__(self, monkeypatch):
        self.stat, self.own, self.walks = stat(1, 8 * GIB), 5 * GIB, 0
        monkeypatch.setattr(pss, "read_stat", lambda pid: self.stat)
        monkeypatch.setattr(pss, "read_pss_bytes", self.walk)
        self.sampler = PssSampler()

    def walk(self, pid):
        self.walks += 1
        return self.own

    def at(self, now):
        return self.sampler.footprints([2**22 + 1], now).get(2**22 + 1)


def test_a_large_process_is_walked_now_and_then(monkeypatch):
    """8 GiB are measured every 12 s; between that, what has become resident or has gone is added to the last figure."""
    kernel = Measurements(monkeypatch)
    assert kernel.at(100.0) == 5 * GIB
    kernel.stat = stat(1, 9 * GIB)
    assert kernel.at(105.0) == 6 * GIB
    kernel.stat = stat(1, 6 * GIB)
    assert (kernel.at(111.9), kernel.walks) == (3 * GIB, 1)
    kernel.own = GIB
    assert (kernel.at(112.0), kernel.walks) == (GIB, 2)


def test_a_pid_that_is_used_again_is_measured(monkeypatch):
    """What was measured of a process says nothing of the next one with its pid."""
    kernel = Measurements(monkeypatch)
    assert kernel.at(100.0) == 5 * GIB
    kernel.stat, kernel.own = stat(2, 8 * GIB), 7 * GIB
    assert kernel.at(100.1) == 7 * GIB


def test_who_has_ended_is_forgotten(monkeypatch):
    """A process that has ended has no footprint, and nothing of it is kept."""
    kernel = Measurements(monkeypatch)
    kernel.at(100.0)
    kernel.stat = None
    assert kernel.at(101.0) is None
    assert not kernel.sampler._known
