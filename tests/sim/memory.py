"""The memory of a simulated host: use by other programs and by engines as they load, and the pressure level."""

import attrs
import trio

from llmkube.supervisor.host.pressure_level import Signals, Thresholds, assess_pressure
from llmkube.supervisor.host.sample import UNREADABLE, Level, Sample
from llmkube.weights.formats.shape import Shape, Tensor
from sim.daemons import is_front

GIB = 1 << 30
FRONT_BYTES = 40 << 20
"""Memory of a front's process."""


def shape_of(gib):
    """Return the header of a model with this many GiB of weights."""
    size = int(gib * GIB)
    numbers = {
        "block_count": (1,),
        "embedding_length": (64,),
        "context_length": (4096,),
        "attention.head_count": (1,),
        "attention.head_count_kv": (1,),
        "feed_forward_length": (64,),
    }
    tensors = (Tensor("blk.0.ffn_up.weight", "F16", (64, 64), size),)  # small to compute with, whatever its size
    return Shape("llama", tensors, numbers, 1, 64, 100, 4096, size)


@attrs.define(eq=False)
class SimMemory:
    """`HostMemory` of one simulated machine; sizes in GiB.

    Attributes:
        machine: The machine of the engines.
        total: Memory of the host.
        other: Memory of other programs.
        sizes: Size of a service's engine once it is loaded.
        late_seconds: Time from the end of a process until its memory is free.
        level: The kernel's level, if it differs from the figures.
        broken: Nothing can be read.
        leaked: Leaked memory of processes, by pid.
        keeps: Whether the kernel keeps the wired memory of a killed engine, as macOS may.
        reports_wired: Whether the kernel reports the wired memory, as only macOS does.
    """

    machine: object
    total: float = 64.0
    other: float = 8.0
    sizes: dict[str, float] = attrs.field(factory=dict)
    late_seconds: float = 0.0
    level: Level | None = None
    broken: bool = False
    leaked: dict[int, float] = attrs.field(factory=dict)
    keeps: bool = False
    reports_wired: bool = False
    lowest_bytes: int = 1 << 62  # the lowest free memory so far
    _ended: dict[int, float] = attrs.field(factory=dict)
    _kept: set[int] = attrs.field(factory=set)
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def holds(self, child):
        """Return the bytes that one process holds now."""
        now = trio.current_time()
        if child.exit is not None:
            ended = self._ended.setdefault(child.pid, now)
            if now >= ended + self.late_seconds and not (child.pid in self._kept or self._is_kept(child)):
                return 0
        size = FRONT_BYTES if is_front(child.argv) else self._bytes_of(child.name)
        seconds = child.script.load_seconds
        share = min(1.0, (now - child.spawned_at) / seconds) if seconds else 1.0
        return int(size * share + self.leaked.get(child.pid, 0.0) * GIB)

    def _is_kept(self, child):
        if self.keeps and child.exit.code == -9:
            self._kept.add(child.pid)
        return child.pid in self._kept

    def restart(self):
        """Restart the machine: no wired memory is kept any more."""
        self._kept.clear()
        self.keeps = False

    @property
    def available_bytes(self):
        """Free memory; below 0 when the host is out of memory."""
        return int((self.total - self.other) * GIB) - self.engines_bytes

    @property
    def engines_bytes(self):
        """Memory of all engines, and of the processes in which daemons hold their models."""
        of_daemons = (each.held_bytes(self._bytes_of) for each in self.machine.daemons.values())
        return int(sum(self.holds(child) for child in self.machine.spawned) + sum(of_daemons))

    def _bytes_of(self, service):
        return self.sizes.get(service, 0.1) * GIB

    def speak(self, level=None):
        """Set the kernel's level, or derive it from the figures again."""
        self.level = level
        self._changed.set()

    async def sample(self):
        await trio.lowlevel.checkpoint()
        if self.broken or self.machine.no_descriptors:
            return UNREADABLE
        left = self.available_bytes
        self.lowest_bytes = min(self.lowest_bytes, left)
        total, available = int(self.total * GIB), max(0, left)
        level, why = assess_pressure(Signals(total, available), Thresholds())
        wired = 3 * GIB + self.engines_bytes if self.reports_wired else None
        return Sample(total, available, level if self.level is None else self.level, wired_bytes=wired, why=why)

    async def wait_change(self):
        await self._changed.wait()
        self._changed = trio.Event()

    async def footprint(self, pids):
        await trio.lowlevel.checkpoint()
        if self.machine.no_descriptors:
            return {}
        live = [child for child in self.machine.spawned if child.pid in pids and child.exit is None]
        return {child.pid: self.holds(child) for child in live}
