"""Processor time as the kernel counts it."""

import os
import subprocess
import sys

from llmkube.supervisor.power.cpu_time import CpuTime


def test_what_this_process_computes_is_counted_in_both():
    """Its own time grows with its work, and that of all programs by no less, but for the kernel's ticks."""
    cpu = CpuTime()
    own, host = cpu.of_process(os.getpid()), cpu.of_host()
    while cpu.of_process(os.getpid()) < own + 0.5:
        sum(range(100_000))
    assert cpu.of_host() - host > 0.3


def test_a_process_that_has_ended_has_none():
    """Its pid may be another process's soon."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert CpuTime().of_process(child.pid) is None
