"""A host, its engines and its waiting requests, for the tables about admission."""

import attrs

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import Cost
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.capacity import Capacity
from llmkube.supervisor.memory.reservation import MemorySpec, Need, Request, Reservation

GIB = 1 << 30
SMALL = GIB // 4
EMPTY = Capacity(Budget(64 * GIB, 48 * GIB, "75 % of 64.0 GiB by default", 40 * GIB), 56 * GIB, 7 * GIB, SMALL)
PRESSED = attrs.evolve(EMPTY, level=Level.WARNING, admitting=False)


def waits(name="chat", gib=20.0, priority="normal", *, device=0.0, **facts):
    need = Need(int(gib * GIB), int(device * GIB))
    hardware = facts.pop("hardware", None)
    return Request(Key("ns", name), need, MemorySpec(priority, hardware=hardware), **facts)


def holds(name, gib, priority="normal", *, resident=None, protected=False, idle_seconds=0.0, device=0.0, **facts):
    """The reservation of an engine that has loaded, and was measured since."""
    need = Need(int(gib * GIB), int(device * GIB))
    there = need.total_bytes if resident is None else int(resident * GIB)
    seen = {"resident_bytes": there, "measured": True, "loaded_at": -1e6, "busy_at": -idle_seconds}
    return Reservation(1, Key("ns", name), need, MemorySpec(priority, protected), **(seen | facts))


def busy(*engines, **facts):
    """A host on which these run; resident memory is not available."""
    left = EMPTY.available_bytes - sum(each.resident_bytes for each in engines)
    costs = {each.key: Cost(loads=1.0, at=each.busy_at) for each in engines}
    return attrs.evolve(EMPTY, **({"reservations": engines, "available_bytes": left, "costs": costs} | facts))
