"""The obstacle to one start, as a table, without Trio and without a clock."""

import attrs
import pytest

from llmkube.k8s.crd.placement import Hardware
from llmkube.supervisor.host.sample import Level
from llmkube.supervisor.memory.budget import host_budget
from llmkube.supervisor.memory.refusal import Block, find_refusal, needed_bytes
from llmkube.supervisor.memory.reservation import Need
from supervisor.memory.requests import EMPTY, GIB, PRESSED, busy, holds, waits

OPEN = attrs.evolve(EMPTY, budget=attrs.evolve(EMPTY.budget, by_default=True), available_bytes=60 * GIB)
HELD = attrs.evolve(OPEN, available_bytes=52 * GIB)  # other programs of a host that only this table has


def full_of(gib):
    return attrs.evolve(OPEN, reservations=(holds("a", gib),))


@pytest.mark.parametrize(
    ("waiting", "host", "block"),
    [
        (waits(), EMPTY, None),
        (waits(gib=48), EMPTY, None),
        (waits(gib=48.1), EMPTY, Block.HOST_BUDGET),
        (waits(hardware=Hardware(memory_budget="19Gi")), EMPTY, Block.OWN_BUDGET),
        (waits(hardware=Hardware(memory_budget="20Gi")), EMPTY, None),
        (waits(hardware=Hardware(memory_fraction=0.3)), EMPTY, Block.OWN_BUDGET),
        (waits(hardware=Hardware(memory_budget="60Gi"), gib=50), EMPTY, Block.HOST_BUDGET),
        (waits(hardware=Hardware(memory_budget="56Gi"), gib=50), OPEN, None),
        (waits(hardware=Hardware(memory_fraction=0.9), gib=50), OPEN, Block.HOST_BUDGET),
        (waits(hardware=Hardware(memory_budget="80Gi"), gib=65), OPEN, Block.HOST_BUDGET),
        (waits(hardware=Hardware(memory_budget="56Gi"), gib=50), full_of(10), Block.FULL),
        (waits(hardware=Hardware(memory_budget="56Gi"), gib=50), HELD, Block.HEADROOM),
        (waits(gib=45, device=41), EMPTY, Block.DEVICE),
        (waits(gib=20, device=20), busy(holds("a", 21, device=21)), Block.DEVICE_FULL),
        (waits(gib=29), busy(holds("a", 20)), Block.FULL),
        (waits(gib=20), attrs.evolve(EMPTY, available_bytes=26 * GIB), Block.HEADROOM),
        (waits(gib=20), attrs.evolve(EMPTY, available_bytes=27 * GIB), None),
        # reserved by an engine that still loads: not free twice
        (waits(gib=20), busy(holds("a", 20, resident=0, loaded_at=None), available_bytes=46 * GIB), Block.HEADROOM),
        # exited, and its memory not seen to be free
        (waits(gib=20), attrs.evolve(EMPTY, releasing_bytes=30 * GIB), Block.FULL),
        # grown far beyond its reservation
        (waits(gib=20), busy(holds("a", 30)), Block.FULL),
        (waits(gib=20), PRESSED, Block.PRESSURE),
        (waits(gib=20), attrs.evolve(EMPTY, admitting=False), Block.DWELL),
        (waits(gib=20), attrs.evolve(EMPTY, level=Level.UNKNOWN), Block.UNREADABLE),
        (waits(dwell_seconds=30.0), attrs.evolve(EMPTY, calm_seconds=29.0), Block.DWELL),
        (waits(dwell_seconds=30.0), attrs.evolve(EMPTY, calm_seconds=30.0), None),
        (waits(dwell_seconds=30.0), busy(holds("a", 1, returns=True, loaded_at=None), calm_seconds=99.0), Block.TURN),
        (waits(margin_bytes=GIB), attrs.evolve(EMPTY, available_bytes=27 * GIB), Block.HEADROOM),
        # a demo model starts wherever there is that much, except in an emergency
        (waits(gib=0.2), PRESSED, None),
        (waits(gib=0.2), attrs.evolve(EMPTY, available_bytes=GIB), None),
        (waits(gib=0.2), attrs.evolve(EMPTY, available_bytes=GIB // 8), Block.HEADROOM),
        (waits(gib=0.2), attrs.evolve(PRESSED, level=Level.CRITICAL), Block.PRESSURE),
    ],
)
def test_the_obstacle_of_a_start(waiting, host, block):
    """A start needs free memory in the ledger and on the host, without pressure; the bound that is hit is named."""
    refusal = find_refusal(waiting, host)
    assert (refusal and refusal.block) == block


def test_an_unknown_need_is_refused_unless_guesses_are_allowed():
    """An unknown need is not a need of zero."""
    unknown = attrs.evolve(waits(), need=Need(GIB, sized=False, why="the file's header does not say"))
    assert find_refusal(unknown, EMPTY).block is Block.UNSIZED
    assert find_refusal(unknown, attrs.evolve(EMPTY, admit_unsized=True)) is None
    assert find_refusal(unknown, attrs.evolve(PRESSED, admit_unsized=True)).block is Block.PRESSURE


def test_a_need_without_a_limit_is_refused_unless_guesses_are_allowed():
    """With `warn` it is admitted by its estimate, within the same bounds."""
    need = Need(50 * GIB, sized=False, why="the prompt cache has no limit; set --cache-ram", estimated_bytes=50 * GIB)
    endless = attrs.evolve(waits(), need=need)
    refusal = find_refusal(endless, EMPTY)
    assert (refusal.block, "has no limit; set --cache-ram" in refusal.message) == (Block.UNSIZED, True)
    assert find_refusal(endless, attrs.evolve(EMPTY, admit_unsized=True)).block is Block.HOST_BUDGET
    smaller = attrs.evolve(need, total_bytes=GIB, estimated_bytes=GIB)
    assert find_refusal(attrs.evolve(endless, need=smaller), attrs.evolve(EMPTY, admit_unsized=True)) is None


@pytest.mark.parametrize(
    ("waiting", "host", "words"),
    [
        (waits(gib=50), EMPTY, "needs 50.0 GiB, more than all models on this machine may use together: 48.0 GiB"),
        (waits(hardware=Hardware(memory_budget="8Gi")), EMPTY, "its own budget of 8.0 GiB set by Model.spec.hardware"),
        (waits(gib=45, device=41), EMPTY, "needs 41.0 GiB on the device, which holds at most 40.0 GiB"),
        (waits(gib=29), busy(holds("a", 20)), "needs 29.0 GiB, 28.0 GiB free of 48.0 GiB"),
    ],
)
def test_each_refusal_names_need_capacity_and_bound(waiting, host, words):
    assert words in find_refusal(waiting, host).message


@pytest.mark.parametrize(
    ("budget", "gib", "host", "words"),
    [
        ("56Gi", 58, OPEN, "58.0 GiB, more than its own budget of 56.0 GiB set by Model.spec.hardware.memoryBudget"),
        (
            "80Gi",
            65,
            OPEN,
            (
                "65.0 GiB, more than all models on this machine may use together: 64.0 GiB "
                "(all of this machine's memory, which limits the 80.0 GiB set by Model.spec.hardware.memoryBudget)"
            ),
        ),
        (
            "56Gi",
            50,
            attrs.evolve(EMPTY, budget=host_budget(64 * GIB, 0.75)),
            (
                "50.0 GiB, more than all models on this machine may use together: 48.0 GiB (75 % of "
                "64.0 GiB by --memory-fraction, which limits the 56.0 GiB set by Model.spec.hardware.memoryBudget)"
            ),
        ),
    ],
)
def test_the_bound_of_a_models_own_budget_is_named(budget, gib, host, words):
    """The status names the Model's budget, the host's, and the one that applies."""
    assert find_refusal(waits(hardware=Hardware(memory_budget=budget), gib=gib), host).message == f"needs {words}"


def test_a_device_with_memory_of_its_own_is_named():
    """Its bytes are not the machine's; a model for the CPU does not wait for it."""
    budget = attrs.evolve(EMPTY.budget, device_limit_bytes=None, devices={"CUDA0": 24 * GIB})
    host, held = attrs.evolve(EMPTY, budget=budget), Need(GIB, devices={"CUDA0": 20 * GIB})
    full = attrs.evolve(host, reservations=(attrs.evolve(holds("a", 1), need=held),), devices={"CUDA0": 2 * GIB})
    asks = attrs.evolve(waits(), need=Need(GIB, devices={"CUDA0": 100 * GIB}))
    assert find_refusal(asks, host).message == "needs 100.0 GiB on CUDA0, which holds at most 24.0 GiB"
    assert find_refusal(attrs.evolve(asks, need=held), host) is None
    refusal = find_refusal(attrs.evolve(asks, need=held), full)
    assert (refusal.block, refusal.message) == (Block.DEVICE_FULL, "needs 20.0 GiB on CUDA0, 2.0 GiB free of 24.0 GiB")
    others = attrs.evolve(full, devices={"CUDA0": -GIB})
    assert find_refusal(waits(gib=20), others) is None
    assert needed_bytes(waits(gib=20), others) == {"budget": 20 * GIB, "headroom": 20 * GIB}
