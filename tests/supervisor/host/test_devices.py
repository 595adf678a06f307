from types import SimpleNamespace

import pytest

from device_trees import listing, plant
from llmkube.runtimes.devices import Device, Devices, parse_listed, preferred
from llmkube.supervisor.host import devices
from llmkube.supervisor.host.devices import find_devices, vulkan_drivers

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture(autouse=True)
def without_nvml(monkeypatch):
    monkeypatch.setattr(devices, "_nvml", lambda: None)


def machine(name, tmp_path):
    return Devices(find_devices(plant(name, tmp_path), "linux"), parse_listed(listing(name)), "/bin/llama-server")


@pytest.mark.parametrize(
    ("name", "found", "usable"),
    [
        (
            "nvidia",
            "NVIDIA GeForce RTX 2060 (memory unknown, /proc/driver/nvidia, driver 550.54.14)",
            "NVIDIA GeForce RTX 2060 (CUDA0, 5.8 GiB, /proc/driver/nvidia, driver 550.54.14)",
        ),
        (
            "amd",
            "AMD GPU gfx1100 (24.0 GiB, /dev/kfd)",
            "Radeon RX 7900 XTX (ROCm0, 24.0 GiB, /dev/kfd)",
        ),
        (
            "strix-halo",
            "AMD GPU (512.0 MiB, /dev/kfd)",
            "Radeon 8060S Graphics (RADV GFX1151) (Vulkan0, 124.0 GiB, /dev/kfd)",
        ),
        ("laptop", "Intel GPU 8086:46A6 (memory unknown, /sys/class/drm, i915)", ""),
    ],
)
def test_a_machine_with_its_engine_shows_what_computes_and_where_that_was_found(name, found, usable, tmp_path):
    here = machine(name, tmp_path)
    assert ", ".join(map(str, here.found)) == found
    assert ", ".join(map(str, here.usable)) == usable


def test_memory_is_a_devices_own_or_the_machines(tmp_path):
    amd = machine("amd", tmp_path / "amd").usable[0]
    assert (amd.unified, amd.free_bytes) == (False, 25753026560 - GIB)
    halo = machine("strix-halo", tmp_path / "halo").usable[0]
    assert (halo.unified, halo.free_bytes) == (True, None)
    nvidia = machine("nvidia", tmp_path / "nvidia").usable[0]
    assert (nvidia.unified, nvidia.total_bytes, nvidia.free_bytes) == (False, 5926 * MIB, None)  # none reads it later
    assert vulkan_drivers(plant("laptop", tmp_path / "laptop")) == ("intel_icd.x86_64",)


def test_a_gpu_that_the_build_lists_twice_is_one_device(tmp_path):
    assert [each.id for each in machine("two-nvidia", tmp_path).usable] == ["CUDA0", "CUDA1"]


def test_an_accelerator_that_cannot_be_used_is_refused_with_what_was_found_and_the_fix(tmp_path):
    assert machine("nvidia", tmp_path / "one").problem("cuda") == ""
    halo = machine("strix-halo", tmp_path / "two")
    assert halo.problem("vulkan") == ""
    assert "found AMD GPU (512.0 MiB, /dev/kfd), but /bin/llama-server lists no ROCm device; pip install" in (
        halo.problem("rocm")
    )
    assert Devices().problem("cuda") == (
        "this machine has no CUDA device (found no GPU); leave it out, or see `llmkube doctor`"
    )
    old = Devices(find_devices(tmp_path / "one", "linux"), None, "/bin/llama-server")
    assert old.problem("cuda") == ""  # a build that cannot list devices is not doubted
    cpu_build = Devices(old.found, (), "/bin/llama-server")
    assert "/bin/llama-server lists no CUDA device; pip install --force-reinstall xllamacpp" in cpu_build.problem(
        "cuda"
    )
    assert preferred({"cpu", "vulkan", "cuda"}) == "cuda"
    assert preferred({"cpu"}) == "cpu"


def test_nvml_reports_memory_where_it_is_installed(monkeypatch, tmp_path):
    class NVMLError(Exception):
        pass

    def memory(handle):
        if handle == 1:  # a GPU that shares the machine's memory
            raise NVMLError
        return SimpleNamespace(total=25757220864, free=20 * GIB)

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlSystemGetDriverVersion=lambda: "550.54.14",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: (b"NVIDIA GeForce RTX 3090", "NVIDIA GB10")[handle],
        nvmlDeviceGetMemoryInfo=memory,
    )
    monkeypatch.setattr(devices, "_nvml", lambda: nvml)
    evidence = "NVML, driver 550.54.14"
    assert find_devices(plant("nvidia", tmp_path), "linux") == (
        Device("cuda", "NVIDIA GeForce RTX 3090", "", 25757220864, 20 * GIB, False, evidence),
        Device("cuda", "NVIDIA GB10", unified=True, evidence=evidence),
    )
