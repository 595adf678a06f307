"""Find the GPUs of this machine in the files of its drivers; without a GPU, no library is loaded.

| vendor | files | memory |
|---|---|---|
| NVIDIA | NVML (`nvidia-ml-py`), else `/proc/driver/nvidia` | NVML only |
| AMD | `/sys/class/drm`, `/dev/kfd`, `/sys/class/kfd` | `mem_info_vram_*` |
| Intel | `/sys/class/drm` (i915, xe) | unknown; the engine lists it |
| Apple | macOS on Apple silicon | that of the machine |

Formats: https://docs.kernel.org/gpu/amdgpu/driver-misc.html (VRAM), drivers/gpu/drm/amd/amdkfd/kfd_topology.c (KFD).
"""

import functools
import importlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.runtimes.devices import Device, Devices, with_own_memory
from llmkube.supervisor.host.sample import HostMemory, Sample

ROOT = Path("/")
"""Folder of `/proc`, `/sys` and `/dev`."""

_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_VULKAN_DRIVERS: Final = ("usr/share/vulkan/icd.d", "etc/vulkan/icd.d")
_SOFTWARE: Final = "lvp_icd"  # Mesa's Vulkan on the CPU, which is installed nearly everywhere


def find_devices(root: Path | None = None, platform: str = sys.platform) -> tuple[Device, ...]:
    """Return the GPUs of this machine; blocks."""
    root = root or ROOT
    if platform == "darwin":
        return (Device("metal", "Apple GPU", unified=True, evidence="macOS"),)
    return (*(_nvml_devices() or _nvidia_files(root)), *_amd(root), *_intel(root))


def vulkan_drivers(root: Path | None = None) -> tuple[str, ...]:
    """Return the names of the installed Vulkan drivers for GPUs; blocks."""
    folders = [(root or ROOT) / folder for folder in _VULKAN_DRIVERS]
    files = {file.stem for folder in folders for file in folder.glob("*.json")}
    return tuple(sorted(each for each in files if not each.startswith(_SOFTWARE)))


@attrs.frozen
class MemoryWithDevices:
    """The memory of a host, and of those of its devices that have memory of their own.

    Attributes:
        host: The memory of the host.
        devices: The devices that the engine computes on.
    """

    host: HostMemory
    devices: tuple[Device, ...]

    async def sample(self) -> Sample:
        """Take a sample; the libraries of devices may take milliseconds, in a thread."""
        sample = await self.host.sample()
        return attrs.evolve(sample, devices=await trio.to_thread.run_sync(self._free_bytes, abandon_on_cancel=True))

    @property
    def wait_change(self) -> Callable[[], Awaitable[None]]:
        """As that of the host."""
        return self.host.wait_change

    async def footprint(self, pids: Sequence[int]) -> Mapping[int, int]:
        """Return the memory of processes in the host's memory."""
        return await self.host.footprint(pids)

    def _free_bytes(self) -> dict[str, int]:
        now = with_own_memory(Devices(find_devices(), self.devices).usable)
        return {each.id: each.free_bytes for each in now if each.free_bytes is not None}


@functools.cache
def _nvml() -> Any:
    """Return NVIDIA's library, initialised once per process, because that may take a second; None if there is none."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


def _nvml_devices() -> list[Device]:
    library, found = _nvml(), []
    if library is None:
        return []
    try:
        evidence = f"NVML, driver {_text(library.nvmlSystemGetDriverVersion())}"
        for index in range(library.nvmlDeviceGetCount()):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            name = _text(library.nvmlDeviceGetName(handle))
            try:
                memory = library.nvmlDeviceGetMemoryInfo(handle)
            except library.NVMLError:  # a GPU that shares the machine's memory has none of its own
                found.append(Device("cuda", name, unified=True, evidence=evidence))
            else:
                found.append(Device("cuda", name, "", memory.total, memory.free, evidence=evidence))
    except library.NVMLError:
        return []
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _nvidia_files(root: Path) -> Iterator[Device]:
    folder = root / "proc/driver/nvidia"
    version = re.search(r"Module.*?\s(\d+\.\d[\d.]*)", _read(folder / "version"))
    evidence = f"/proc/driver/nvidia{f', driver {version[1]}' if version else ''}"
    for path in sorted(folder.glob("gpus/*/information")):
        model = re.search(r"^Model:\s*(.+?)\s*$", _read(path), re.MULTILINE)
        name = model[1] if model else "GPU"
        yield Device("cuda", name if "nvidia" in name.lower() else f"NVIDIA {name}", evidence=evidence)


def _cards(root: Path, vendor: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the folder of each GPU of a vendor, with its `uevent`, in the order of the system."""
    for card in sorted(root.glob("sys/class/drm/card*"), key=lambda path: (len(path.name), path.name)):
        device = card / "device"
        if card.name[4:].isdigit() and _VENDORS.get(_read(device / "vendor").strip()) == vendor:
            yield device, dict(line.split("=", 1) for line in _read(device / "uevent").splitlines() if "=" in line)


def _amd(root: Path) -> Iterator[Device]:
    nodes = [_numbers(path) for path in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"))]
    targets = {each.get("drm_render_minor"): each.get("gfx_target_version", 0) for each in nodes}
    driver = "/dev/kfd" if (root / "dev/kfd").exists() else "amdgpu without /dev/kfd: ROCm cannot use it"
    for device, _ in _cards(root, "AMD"):
        total, used = (_number(device / f"mem_info_vram_{name}") for name in ("total", "used"))
        minor = next((int(path.name[7:]) for path in device.glob("drm/renderD*")), None)
        target = targets.get(minor, 0)
        product = _read(device / "product_name").strip()
        name = product or f"GPU{f' gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}' if target else ''}"
        free = max(0, total - used) if total else None
        yield Device("rocm", name if "amd" in name.lower() else f"AMD {name}", "", total, free, evidence=driver)


def _intel(root: Path) -> Iterator[Device]:
    for _, event in _cards(root, "Intel"):
        unified = event.get("PCI_SLOT_NAME", "").startswith("0000:00:")  # on the root bus: part of the processor
        evidence = f"/sys/class/drm, {event.get('DRIVER', 'no driver')}"
        yield Device("intel", f"Intel GPU {event.get('PCI_ID', '')}".strip(), unified=unified, evidence=evidence)


def _numbers(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _number(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
