"""Devices that compute models: as the system reports them, and as an engine's program lists them. Pure.

The system's list shows what the machine has, the program's list what the program can use: a build of llama.cpp has the
backends that it was compiled with. The names are those of llama-server's `--list-devices`
(https://github.com/ggml-org/llama.cpp/pull/10497).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import attrs

from llmkube.base.units import format_bytes
from llmkube.weights.estimate.demand import Demand

GPUS: Final = ("metal", "cuda", "rocm", "vulkan", "intel")
"""Accelerators other than the CPU, the preferred one first."""

BACKENDS: Final = {"metal": "Metal", "cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan", "intel": "SYCL"}
"""Backend of llama.cpp for each accelerator."""

_WHEELS: Final = "https://xorbitsai.github.io/xllamacpp/whl/"
_WHEEL_OF: Final = {"cuda": "cu128", "rocm": "rocm-7.2.4", "vulkan": "vulkan"}
_KINDS: Final = {
    "MTL": "metal",
    "Metal": "metal",
    "CUDA": "cuda",
    "ROCm": "rocm",
    "HIP": "rocm",
    "Vulkan": "vulkan",
    "SYCL": "intel",
}
_LISTED: Final = re.compile(
    r"^\s+(?P<id>(?P<backend>[A-Za-z]+)\d*): (?P<name>.+?)(?: \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\))?\s*$",
    re.MULTILINE | re.ASCII,
)
_SHARED: Final = re.compile(r"ggml_vulkan: (\d+) = .*\| uma: 1\b")


@attrs.frozen
class Device:
    """A device that can compute models.

    Attributes:
        kind: Its accelerator, as in `spec.hardware.accelerator`.
        name: Name for people.
        id: Name under which the engine knows it, such as CUDA0; "" if only the system reports it.
        total_bytes: Its memory; 0 if unknown.
        free_bytes: The free part; None if nothing reports it while engines run.
        unified: Whether that is the machine's own memory.
        evidence: Where it was found, and its driver.
    """

    kind: str
    name: str
    id: str = ""
    total_bytes: int = 0
    free_bytes: int | None = None
    unified: bool = False
    evidence: str = ""

    def __str__(self) -> str:
        """Format as `NVIDIA L4 (22.5 GiB, /proc/driver/nvidia, driver 550.54)`."""
        size = format_bytes(self.total_bytes) if self.total_bytes else "memory unknown"
        return f"{self.name} ({', '.join(filter(None, (self.id, size, self.evidence)))})"


@attrs.frozen
class Offload:
    """Where an engine has put the layers of its model, as its log says.

    Attributes:
        device: Names of the devices that hold layers, or CPU.
        layers: Number of layers on devices; the output layer is one of them.
        total: Number of layers of the model; None if unknown.
    """

    device: str
    layers: int
    total: int | None = None


def kind_of(device: str) -> str:
    """Return the accelerator of an engine's device, such as `cuda` for `CUDA0`; "" for an unknown backend."""
    return _KINDS.get(device.rstrip("0123456789"), "")


def parse_listed(text: str) -> tuple[Device, ...]:
    """Parse the output of `llama-server --list-devices`; backends that are no accelerator are left out."""
    shared = {f"Vulkan{number}" for number in _SHARED.findall(text)}
    found = []
    for row in _LISTED.finditer(text.partition("Available devices:")[2]):
        kind, id_ = _KINDS.get(row["backend"]), row["id"]
        if kind is not None:
            total, free = (int(row[each] or 0) << 20 for each in ("total", "free"))
            unified = kind == "metal" or id_ in shared
            found.append(
                Device(kind, row["name"], id_, total, free if total else None, unified, "listed by the engine")
            )
    return tuple(found)


@attrs.frozen
class Devices:
    """The devices of a machine.

    Attributes:
        found: Those that the system reports.
        listed: Those that the engine's program lists; None if it was not asked, or cannot list any.
        program: Path of that program.
    """

    found: tuple[Device, ...] = ()
    listed: tuple[Device, ...] | None = None
    program: str = ""

    @property
    def usable(self) -> tuple[Device, ...]:
        """Devices that the engine computes on, with the free memory that the system reports for them."""
        if self.listed is None:
            return self.found
        left, joined = list(self.found), []
        # A build with several backends lists a GPU under each of them; llama.cpp takes the vendor's.
        native = any(each.kind != "vulkan" and not each.unified for each in self.listed)
        for each in self.listed:
            if each.kind == "vulkan" and native:
                continue
            near = [one for one in left if each.kind in {one.kind, "vulkan"}]
            best = min(near, key=lambda one: _distance(each, one), default=None)
            if best is not None:
                left.remove(best)
            joined.append(_joined(each, best))
        return tuple(joined)

    @property
    def kinds(self) -> frozenset[str]:
        """Accelerators that the engine supports on this machine."""
        return frozenset(each.kind for each in self.usable)

    def problem(self, kind: str) -> str:
        """Return why nothing is computed on this accelerator, with what was found and the fix; "" if it can be used."""
        if kind == "cpu" or kind in self.kinds:
            return ""
        here = [each for each in self.found if kind in {each.kind, "vulkan"}]
        if here:
            names = ", ".join(map(str, here))
            return f"found {names}, but {self.program} lists no {BACKENDS[kind]} device; {remedy(kind)}"
        names = ", ".join(map(str, self.usable or self.found)) or "no GPU"
        return f"this machine has no {BACKENDS[kind]} device (found {names}); leave it out, or see `llmkube doctor`"


NO_DEVICES: Final = Devices()


def with_own_memory(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Return the devices whose memory is not the machine's, and is known."""
    return tuple(each for each in devices if each.id and each.total_bytes and not each.unified)


def shares_of(demand: Demand, devices: Sequence[Device]) -> dict[str, float]:
    """Return the share of each device in the layers of a model on devices, by its name, as llama.cpp splits them.

    Without `--tensor-split` it does so by their free memory (llama-model.cpp, `load_tensors`).
    """
    chosen = list(devices)
    if demand.devices:
        by_name = {each.id.lower(): each for each in devices}
        chosen = [by_name[name] for name in demand.devices.lower().split(",") if name in by_name]
    if demand.split_mode == "none":
        chosen = chosen[demand.main_gpu :][:1]
    try:
        sizes = [float(part) for part in re.split("[,/]", demand.tensor_split) if part]
    except ValueError:  # the engine reports it
        sizes = []
    if not any(sizes):
        sizes = [float(each.free_bytes or each.total_bytes) for each in chosen]
    known = dict(zip((each.id for each in chosen), sizes, strict=False))
    total = sum(known.values()) or 1.0
    return {name: size / total for name, size in known.items() if size}


def preferred(accelerators: Collection[str]) -> str:
    """Return the accelerator of models that name none: the best one of these, else the CPU."""
    return next((each for each in GPUS if each in accelerators), "cpu")


def remedy(kind: str) -> str:
    """Return which build of llama.cpp computes on an accelerator, and where it is."""
    backend, wheel = BACKENDS[kind], _WHEEL_OF.get(kind)
    release = f"llama.cpp's release for {backend} (--llama-server PATH)"
    if wheel is None:
        return f"install {release}"
    return f"pip install --force-reinstall xllamacpp --index-url {_WHEELS}{wheel}, or install {release}"


def _distance(listed: Device, found: Device) -> tuple[bool, int]:
    other_vendor = found.name.split()[0].lower() not in listed.name.lower()
    return (other_vendor, abs(listed.total_bytes - found.total_bytes))


def _joined(listed: Device, found: Device | None) -> Device:
    if found is None:
        return attrs.evolve(listed, free_bytes=None)
    is_same = abs(listed.total_bytes - found.total_bytes) <= listed.total_bytes // 8
    # An integrated GPU is listed with the machine's memory, of which the system reports only a small part as its own.
    unified = listed.unified or found.unified or 0 < found.total_bytes < listed.total_bytes // 2
    free_bytes = found.free_bytes if is_same and not unified else None
    return attrs.evolve(listed, free_bytes=free_bytes, unified=unified, evidence=found.evidence)
