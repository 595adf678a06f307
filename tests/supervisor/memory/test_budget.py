import pytest

from llmkube.base.errors import UserError
from llmkube.k8s.crd.placement import Hardware
from llmkube.supervisor.memory.budget import Cap, default_fraction, host_budget, own_cap

GIB = 1 << 30


@pytest.mark.parametrize(
    ("gib", "fraction", "shown"),
    [(16, 0.67, "10.7"), (36, 0.67, "24.1"), (48, 0.75, "36.0"), (64, 0.75, "48.0"), (128, 0.90, "115.2")],
)
def test_the_guides_five_rows(gib, fraction, shown):
    """Each row of the guide's table has its fraction and its budget."""
    assert default_fraction(gib * GIB) == fraction
    assert str(host_budget(gib * GIB)).startswith(f"{shown} GiB (")


@pytest.mark.parametrize(
    ("total_bytes", "fraction"),
    [
        (1, 0.67),
        (8 * GIB, 0.67),
        (24 * GIB, 0.67),
        (48 * GIB - 1, 0.67),
        (96 * GIB, 0.75),
        (128 * GIB - 1, 0.75),
        (192 * GIB, 0.90),
        (512 * GIB, 0.90),
    ],
)
def test_between_two_rows_the_row_below_holds(total_bytes, fraction):
    """Hosts that are not in the guide's table use the row below, the first one, or the last one."""
    assert default_fraction(total_bytes) == fraction


def test_a_given_fraction_wins_and_is_named():
    """The flag replaces the table, and the budget names it."""
    budget = host_budget(10 * GIB, 0.5)
    assert budget.limit_bytes == 5 * GIB
    assert "--memory-fraction" in str(budget)


@pytest.mark.parametrize(
    ("hardware", "cap"),
    [
        (None, None),
        (Hardware(), None),
        (Hardware(memory_budget="24Gi", memory_fraction=0.1), Cap(24 * GIB, "Model.spec.hardware.memoryBudget")),
        (Hardware(memory_fraction=0.25), Cap(8 * GIB, "Model.spec.hardware.memoryFraction")),
    ],
)
def test_a_models_own_cap(hardware, cap):
    """The budget of a Model has priority over its fraction, and without both there is none."""
    assert own_cap(hardware, 32 * GIB) == cap


@pytest.mark.parametrize("hardware", [Hardware(memory_budget="0"), Hardware(memory_fraction=0.0)])
def test_a_cap_of_nothing_is_refused(hardware):
    """A cap that lets nothing run is a user error, and the field is named."""
    with pytest.raises(UserError, match="hardware"):
        own_cap(hardware, 32 * GIB)


@pytest.mark.parametrize(
    ("word", "fraction", "gib"),
    [(None, None, 48), ("24Gi", None, 48), ("56Gi", None, 56), ("80Gi", None, 64), ("56Gi", 0.75, 48), ("0", None, 48)],
)
def test_a_models_own_budget_wins_over_the_table_alone(word, fraction, gib):
    """A memoryBudget raises a host's default, up to all its memory; a flag and a cap of 0 stay."""
    assert host_budget(64 * GIB, fraction).for_model(Hardware(memory_budget=word)).limit_bytes == gib * GIB
