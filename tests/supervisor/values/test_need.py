from pathlib import Path

import attrs
import pytest

from llmkube.runtimes.devices import Device
from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.memory.learned import Figure
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.need import CONTEXT_BYTES, GUESS_BYTES, need_of
from llmkube.weights.estimate.demand import Component, Demand, Estimate, Location
from llmkube.weights.store.blobs import WeightsFile

PLAN = LaunchPlan((), (), "llamacpp", "chat")
WEIGHTS = WeightsFile(Path("/m.gguf"), 1000, None, "")
ESTIMATE = Estimate((Component("weights", Location.DEVICE, 1000), Component("buffers", Location.HOST, 200)), (), True)


@pytest.mark.parametrize(
    ("estimate", "figure", "need"),
    [
        (ESTIMATE, None, Need(1200, 1000, estimated_bytes=1200)),
        (ESTIMATE, Figure(measured_bytes=1100), Need(1200, 1000, estimated_bytes=1200)),
        (ESTIMATE, Figure(measured_bytes=1500), Need(1500, 1000, estimated_bytes=1200)),
        (ESTIMATE, Figure(reported_bytes=1300, device_bytes=1250), Need(1300, 1250, estimated_bytes=1200)),
        (None, Figure(measured_bytes=1500, device_bytes=900), Need(1500, 900)),
        (
            attrs.evolve(ESTIMATE, unlimited="no limit"),
            Figure(measured_bytes=1500),
            Need(1500, 1000, sized=False, why="no limit", estimated_bytes=1200),
        ),
    ],
)
def test_a_launch_reserves_the_largest_known_figure(estimate, figure, need):
    """The largest of estimated, reported and measured bytes."""
    assert need_of(Launch(PLAN, WEIGHTS, estimate), figure) == need


@pytest.mark.parametrize(("declared", "measured", "need"), [(1500, 0, 1500), (1500, 1700, 1700), (10, 0, 1000)])
def test_a_declared_need_is_the_least(declared, measured, need):
    """A larger measured figure of an engine of the owner's applies, and so does the size of its weights."""
    launch = Launch(attrs.evolve(PLAN, runtime="generic", engine="own", memory_bytes=declared), WEIGHTS)
    assert need_of(launch, Figure(measured_bytes=measured)) == Need(need)


def test_an_unknown_need_is_guessed_from_the_file():
    """The guess is marked as one, with its reason."""
    need = need_of(Launch(PLAN, WEIGHTS), None)
    assert (need.total_bytes, need.sized) == (1200 + GUESS_BYTES, False)
    assert "1000 B" in need.why


RTX = (
    Device("cuda", "RTX 3090", "CUDA0", 24000),
    Device("cuda", "RTX 3060", "CUDA1", 12000),
    Device("vulkan", "UHD", "Vulkan0", 30000, unified=True),
)
ON_DEVICES = Estimate(
    (
        *ESTIMATE.components,
        Component("KV cache", Location.DEVICE, 200),
        Component("compute buffer", Location.DEVICE, 30),
    )
)


@pytest.mark.parametrize(
    ("demand", "layers"),
    [
        (Demand(), {"CUDA0": 800, "CUDA1": 400}),
        (Demand(tensor_split="1,3"), {"CUDA0": 300, "CUDA1": 900}),
        (Demand(tensor_split="1"), {"CUDA0": 1200}),
        (Demand(tensor_split="wrong"), {"CUDA0": 800, "CUDA1": 400}),
        (Demand(split_mode="none", main_gpu=1), {"CUDA1": 1200}),
        (Demand(devices="cuda1,CUDA0"), {"CUDA0": 800, "CUDA1": 400}),
        (Demand(devices="CUDA1"), {"CUDA1": 1200}),
    ],
)
def test_layers_take_memory_of_the_devices_that_hold_them(demand, layers):
    """Each device has its share, a compute buffer and the driver's memory; the rest is the machine's."""
    launch = Launch(attrs.evolve(PLAN, demand=demand), WEIGHTS, ON_DEVICES)
    need = need_of(launch, None, RTX)
    assert need.devices == {name: size + 30 + CONTEXT_BYTES for name, size in layers.items()}
    assert (need.total_bytes, need.device_bytes, need.estimated_bytes) == (200, 0, 200)
    learned = need_of(launch, Figure(measured_bytes=150, reported_bytes=1900, device_bytes=1630), RTX)
    assert (learned.total_bytes, sum(learned.devices.values()) > sum(need.devices.values())) == (270, True)


def test_memory_that_is_the_machines_stays_one_pool():
    """An integrated GPU, a device of unknown size, and a model without layers on a device."""
    launch = Launch(attrs.evolve(PLAN, demand=Demand()), WEIGHTS, ESTIMATE)
    shared = Need(1200, 1000, estimated_bytes=1200)
    assert need_of(launch, None, RTX[2:]) == need_of(launch, None, [Device("rocm", "AMD", total_bytes=9)]) == shared
    on_cpu = Estimate((Component("weights", Location.HOST, 1000),))
    assert need_of(attrs.evolve(launch, estimate=on_cpu), None, RTX) == Need(1000, estimated_bytes=1000)
