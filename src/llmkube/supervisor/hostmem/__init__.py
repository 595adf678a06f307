"""One look at this host's memory: a provider per platform behind one Protocol."""

from llmkube.supervisor.hostmem.local import footprints_here, open_host_memory, sample_here
from llmkube.supervisor.hostmem.rule import Thresholds
from llmkube.supervisor.hostmem.sample import UNREADABLE, HostMemory, Level, Sample

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
