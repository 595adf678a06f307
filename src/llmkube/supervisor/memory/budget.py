"""How much of a host its models may take: the guide's table, the operator's fraction, a Model's own cap. Pure.

Three bounds, each with a message of its own: the host's budget over all engines, the device's working set over what
lies on the device, and what one Model says of itself. The last one bounds that claim, and where the host's budget is
the table's word and not a flag's, a `memoryBudget` wins over it for that claim, up to all of the host's memory.
"""

from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes, parse_bytes
from llmkube.k8s.crd.placement import Hardware

GIB: Final = 1 << 30

FRACTIONS: Final = ((16, 0.67), (36, 0.67), (48, 0.75), (64, 0.75), (128, 0.90))
"""Share of the memory that models may take by default, from so many GiB of it on: the rows of the guide."""


def default_fraction(total_bytes: int) -> float:
    """Return the share of a host's memory that models may take unless a flag says otherwise.

    Between two rows of the table the row below holds; under the first one the first, above the last one the last.
    """
    fraction = FRACTIONS[0][1]
    for row_gib, share in FRACTIONS:
        if total_bytes >= row_gib * GIB:
            fraction = share
    return fraction


@attrs.frozen
class Budget:
    """What all engines of a host may take together.

    Attributes:
        total_bytes: The host's memory.
        limit_bytes: How much of it the engines may take.
        source: Where that comes from, for people.
        device_limit_bytes: How much may lie on the device, when that is known.
        by_default: Whether it is the table's, and not what a flag of the host says.
    """

    total_bytes: int
    limit_bytes: int
    source: str = ""
    device_limit_bytes: int | None = None
    by_default: bool = False

    def for_model(self, hardware: Hardware | None) -> "Budget":
        """Return what all engines may take together once an engine of this Model is among them.

        The Model's `memoryBudget` wins over a budget by default, and not over `--memory-fraction`: who may edit an
        object does not undo what the host's owner has said.
        """
        cap = _budget_of(hardware)
        if cap is None or cap.limit_bytes <= self.limit_bytes:
            return self
        if not self.by_default:
            return attrs.evolve(self, source=f"{self.source}, which bounds the {cap}")
        if cap.limit_bytes <= self.total_bytes:
            return attrs.evolve(self, limit_bytes=cap.limit_bytes, source=f"by {cap.field}")
        source = f"all of this host's memory, which bounds the {cap}"
        return attrs.evolve(self, limit_bytes=self.total_bytes, source=source)

    def __str__(self) -> str:
        """`48.0 GiB (75 % of 64.0 GiB by default)`."""
        return f"{format_bytes(self.limit_bytes)} ({self.source})"


def host_budget(total_bytes: int, fraction: float | None = None, device_limit_bytes: int | None = None) -> Budget:
    """Return the budget of a host.

    Args:
        total_bytes: Its memory.
        fraction: `--memory-fraction`, if it was given: more than 0, at most 1.
        device_limit_bytes: The device's working set, when it could be read.
    """
    share = default_fraction(total_bytes) if fraction is None else fraction
    why = "by default" if fraction is None else "by --memory-fraction"
    source = f"{share * 100:g} % of {format_bytes(total_bytes)} {why}"
    return Budget(total_bytes, int(total_bytes * share), source, device_limit_bytes, by_default=fraction is None)


@attrs.frozen
class Cap:
    """What one Model may take by its own word, and which field says so."""

    limit_bytes: int
    field: str

    def __str__(self) -> str:
        """`24.0 GiB by spec.hardware.memoryBudget`."""
        return f"{format_bytes(self.limit_bytes)} by {self.field}"


def _budget_of(hardware: Hardware | None) -> Cap | None:
    """Return a Model's `memoryBudget`; None for one that the planner refuses by its field's name."""
    if hardware is None or hardware.memory_budget is None:
        return None
    try:
        return own_cap(hardware, 0)
    except UserError:
        return None


def own_cap(hardware: Hardware | None, total_bytes: int) -> Cap | None:
    """Return the cap that a Model sets itself: memoryBudget, else memoryFraction of the host; None when it sets none.

    Raises:
        UserError: The cap is nothing, or not a quantity.
    """
    if hardware is None:
        return None
    if hardware.memory_budget is not None:
        path = "Model.spec.hardware.memoryBudget"
        limit = parse_bytes(hardware.memory_budget, field=path)
        if limit == 0:
            raise UserError("a budget of 0 lets nothing run; leave it out, or give one such as 24Gi", field=path)
        return Cap(limit, path)
    if hardware.memory_fraction is not None:
        path = "Model.spec.hardware.memoryFraction"
        if not 0 < hardware.memory_fraction <= 1:
            problem = f"{hardware.memory_fraction:g} is no share of the host's memory"
            raise UserError(f"{problem}; give more than 0, at most 1", field=path)
        return Cap(int(total_bytes * hardware.memory_fraction), path)
    return None
