import json

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.swap import Cost
from llmkube.supervisor.memory.learned import COSTS_SECONDS, MAX_FIGURES, Figure, LearnedFigures, figure_key, load
from llmkube.weights.estimate.demand import Demand

CHAT = Key("ns", "chat")
PLAN = LaunchPlan(("x",), (), "llamacpp", "chat", "sha:1", demand=Demand(context=4096))


@pytest.mark.parametrize(
    ("changes", "version", "same"),
    [
        ({}, "b1", True),
        ({"alias": "other", "env": (("A", "1"),)}, "b1", True),
        ({}, "b2", False),
        ({"weights_identity": "sha:2"}, "b1", False),
        ({"demand": Demand(context=8192)}, "b1", False),
        ({"demand": Demand(context=4096, slots=2)}, "b1", False),
        ({"demand": Demand(context=4096, cache_type_k="q8_0")}, "b1", False),
    ],
)
def test_figures_belong_to_their_inputs(changes, version, same):
    """Weights, demands and build make a key; the service's name and environment do not."""
    assert (figure_key(attrs.evolve(PLAN, **changes), version) == figure_key(PLAN, "b1")) is same


def test_a_smaller_measurement_unlearns_nothing():
    """The highest measurement stays, and the estimate is the newest."""
    learned = LearnedFigures()
    learned.record("k", Figure(500, 400, 0, 450))
    learned.record("k", Figure(300, 600, 0, 460))
    assert learned.get("k") == Figure(500, 600, 0, 460)


async def test_figures_outlive_the_agent(tmp_path, nursery):
    """The figures of one agent are read by the next one."""
    path = tmp_path / "learned.json"
    learned = LearnedFigures(path, trio.CapacityLimiter(1))
    nursery.start_soon(learned.run)
    learned.record("k", Figure(500))
    with trio.fail_after(60):
        while not path.exists():  # noqa: ASYNC110 - a thread writes it
            await trio.sleep(0.01)
    again = LearnedFigures(path, trio.CapacityLimiter(1))
    again.read()
    assert again.get("k") == Figure(500)


async def test_costs_outlive_the_agent(tmp_path, autojump_clock, nursery):
    """They are written within a minute, and the next agent, which has another clock, reads their age."""
    path, now = tmp_path / "learned.json", trio.current_time()
    learned = LearnedFigures(path, trio.CapacityLimiter(1))
    nursery.start_soon(learned.run)
    await wait_all_tasks_blocked()
    learned.costs[CHAT] = Cost(12.0, 3.0, 2.0, now - 50.0)
    await trio.sleep(COSTS_SECONDS + 1)
    again = LearnedFigures(path)
    again.read(1e6)
    assert attrs.astuple(again.costs[CHAT]) == pytest.approx((12.0, 3.0, 2.0, 1e6 - 50.0 - COSTS_SECONDS))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": 9, "figures": {}}',
        '{"format": 1, "figures": {"k": {"measured_bytes": -1}}}',
        '{"format": 1, "figures": {"k": {"measured_bytes": 1.5}}}',
        '{"format": 1, "figures": {"k": {"measured_bytes": 1}}, "costs": {"ns/chat": [1, 1, 1, 1, 1]}}',
        '{"format": 1, "figures": {"k": {"measured_bytes": 1}}, "costs": {"ns/chat": [1, 1, 1, -1]}}',
    ],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path, text):
    """Invalid content of the file does not stop the agent."""
    path = tmp_path / "learned.json"
    path.write_text(text, "utf-8")
    learned = LearnedFigures(path)
    learned.read()
    assert learned.get("k") is None


def test_the_oldest_figures_are_forgotten():
    """The file has a bound, and the newest figures are kept."""
    learned = LearnedFigures()
    for number in range(MAX_FIGURES + 5):
        learned.record(str(number), Figure(number + 1))
    assert learned.get("0") is None
    assert learned.get(str(MAX_FIGURES + 4)) is not None


def test_a_foreign_file_is_refused():
    """Figures of another shape are a ValueError, and not a KeyError somewhere later."""
    with pytest.raises(ValueError, match="figures"):
        load(json.loads('{"format": 1}'))
