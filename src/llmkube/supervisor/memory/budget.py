"""Memory that models may use on a host: the default table, the operator's fraction, a Model's own cap. Pure.

There are three limits, each with its own message: the host's budget for all engines, the device's working set for
device memory, and the cap that a Model sets itself. The cap limits that model; where the host's budget comes from the
table and not from a flag, a larger `memoryBudget` overrides it for that model, up to all of the host's memory.
"""

from collections.abc import Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes, parse_bytes
from llmkube.k8s.crd.placement import Hardware

GIB: Final = 1 << 30

FRACTIONS: Final = ((16, 0.67), (36, 0.67), (48, 0.75), (64, 0.75), (128, 0.90))
"""Minimum host memory in GiB, and the share of it that models may use by default: the rows of the guide."""


def default_fraction(total_bytes: int) -> float:
    """Return the share of a host's memory that models may use unless a flag sets it.

    It is that of the largest row that the host reaches; below the first row, the first row applies.
    """
    fraction = FRACTIONS[0][1]
    for row_gib, share in FRACTIONS:
        if total_bytes >= row_gib * GIB:
            fraction = share
    return fraction


@attrs.frozen
class Budget:
    """Memory that all engines of a host may use together.

    Attributes:
        total_bytes: The host's memory.
        limit_bytes: The part of it that engines may use.
        source: The origin of the limit, for people.
        device_limit_bytes: The limit for device memory; None if unknown.
        by_default: Whether the limit comes from the table, not from a flag.
        devices: Memory of each device that has its own, in bytes by its name.
    """

    total_bytes: int
    limit_bytes: int
    source: str = ""
    device_limit_bytes: int | None = None
    by_default: bool = False
    devices: Mapping[str, int] = {}

    @property
    def pools(self) -> dict[str, int]:
        """Limit of each device in bytes, by the names of `Need.pools`; those that are not known are left out."""
        shared = {} if self.device_limit_bytes is None else {"device": self.device_limit_bytes}
        return {**shared, **self.devices}

    def for_model(self, hardware: Hardware | None) -> "Budget":
        """Return the budget for all engines together once an engine of this Model is among them.

        The Model's `memoryBudget` overrides a default budget, but not `--memory-fraction`.
        """
        # A user who may edit an object must not override the host's owner.
        cap = valid_cap(hardware, 0) if hardware is not None and hardware.memory_budget is not None else None
        if cap is None or cap.limit_bytes <= self.limit_bytes:
            return self
        if not self.by_default:
            return attrs.evolve(self, source=f"{self.source}, which limits the {cap}")
        if cap.limit_bytes <= self.total_bytes:
            return attrs.evolve(self, limit_bytes=cap.limit_bytes, source=f"by {cap.field}")
        source = f"all of this machine's memory, which limits the {cap}"
        return attrs.evolve(self, limit_bytes=self.total_bytes, source=source)

    def __str__(self) -> str:
        """Format as `48.0 GiB (75 % of 64.0 GiB by default)`."""
        return f"{format_bytes(self.limit_bytes)} ({self.source})"


def host_budget(total_bytes: int, fraction: float | None = None, device_limit_bytes: int | None = None) -> Budget:
    """Return the budget of a host.

    Args:
        total_bytes: The host's memory.
        fraction: `--memory-fraction`, more than 0 and at most 1; None if not given.
        device_limit_bytes: The device's working set; None if it could not be read.
    """
    share = default_fraction(total_bytes) if fraction is None else fraction
    why = "by default" if fraction is None else "by --memory-fraction"
    source = f"{share * 100:g} % of {format_bytes(total_bytes)} {why}"
    return Budget(total_bytes, int(total_bytes * share), source, device_limit_bytes, by_default=fraction is None)


@attrs.frozen
class Cap:
    """The limit that a Model sets for itself, and the field that sets it."""

    limit_bytes: int
    field: str

    def __str__(self) -> str:
        """Format as `24.0 GiB set by Model.spec.hardware.memoryBudget`."""
        return f"{format_bytes(self.limit_bytes)} set by {self.field}"


def valid_cap(hardware: Hardware | None, total_bytes: int) -> Cap | None:
    """Return the cap that a Model sets itself; None if it is not set, or invalid, which the planner reports."""
    try:
        return own_cap(hardware, total_bytes)
    except UserError:
        return None


def own_cap(hardware: Hardware | None, total_bytes: int) -> Cap | None:
    """Return the cap that a Model sets itself: memoryBudget, else memoryFraction of the host; None when it sets none.

    Raises:
        UserError: The cap is 0 or malformed.
    """
    if hardware is None:
        return None
    if hardware.memory_budget is not None:
        path = "Model.spec.hardware.memoryBudget"
        limit = parse_bytes(hardware.memory_budget, field=path)
        if limit == 0:
            raise UserError("with a budget of 0 no model can run; remove it or set one such as 24Gi", field=path)
        return Cap(limit, path)
    if hardware.memory_fraction is not None:
        path = "Model.spec.hardware.memoryFraction"
        if not 0 < hardware.memory_fraction <= 1:
            problem = f"{hardware.memory_fraction:g} is not a fraction of this machine's memory"
            raise UserError(f"{problem}; set a value greater than 0 and at most 1", field=path)
        return Cap(int(total_bytes * hardware.memory_fraction), path)
    return None
