"""`llmkube` on a machine that says it has more memory: so that many engines that take little are admitted.

An engine is admitted by the estimate for a real one (118 MiB with the demo model), of which a fake one takes 7. Only
the reported size of the machine is changed; usage and engines are measured as always.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import attrs

from llmkube.cli.main import main
from llmkube.supervisor import local
from llmkube.supervisor.host import this_machine
from llmkube.supervisor.host.sample import HostMemory, Sample

TIMES = 8
"""Factor of the machine's memory."""


@attrs.define(eq=False)
class Roomy:
    """A host's memory, and more that does not exist."""

    real: HostMemory

    async def sample(self) -> Sample:
        """Look once."""
        seen = await self.real.sample()
        more = (TIMES - 1) * seen.total_bytes
        return attrs.evolve(seen, total_bytes=seen.total_bytes + more, available_bytes=seen.available_bytes + more)

    def __getattr__(self, name: str) -> Any:
        """All else is as it is."""
        return getattr(self.real, name)


@asynccontextmanager
async def open_roomy_memory(*args: Any) -> AsyncIterator[HostMemory]:
    """Look at this machine's memory through a magnifying glass."""
    async with this_machine.open_host_memory(*args) as memory:
        yield Roomy(memory)


if __name__ == "__main__":
    with patch.object(local, "open_host_memory", open_roomy_memory):
        main()
