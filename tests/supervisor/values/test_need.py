from pathlib import Path

import attrs
import pytest

from llmkube.runtimes.plan import LaunchPlan
from llmkube.supervisor.memory.learned import Figure
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.need import GUESS_BYTES, need_of
from llmkube.weights.estimate.demand import Component, Estimate, Location
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
