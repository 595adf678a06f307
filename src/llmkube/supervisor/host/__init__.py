"""One look at this host's memory: a provider per platform behind one Protocol."""

from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.host.sample import UNREADABLE, HostMemory, Level, Sample
from llmkube.supervisor.host.this_machine import footprints_here, open_host_memory, sample_here

__all__ = [
    "UNREADABLE",
    "HostMemory",
    "Level",
    "Sample",
    "Thresholds",
    "footprints_here",
    "open_host_memory",
    "sample_here",
]
