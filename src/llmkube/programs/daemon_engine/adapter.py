"""What a daemon has to be able to do with one model of it, so that the model is served as an engine of ours."""

from collections.abc import Sequence
from typing import Protocol

from llmkube.base.http.message import Headers
from llmkube.programs.daemon_engine.seen import Seen, Words


class Adapter(Protocol):
    """One model of one daemon. All methods but `look`, `cpu_seconds` and `end` raise `DaemonError`."""

    @property
    def words(self) -> Words:
        """What is said of this daemon."""
        ...

    @property
    def name(self) -> str:
        """What the model is called in requests to the daemon."""
        ...

    @property
    def url(self) -> str:
        """Where the daemon answers."""
        ...

    @property
    def headers(self) -> Headers:
        """What requests to the daemon have to carry, such as its key."""
        ...

    @property
    def shared_as(self) -> str:
        """What tells the model from all others of this machine, for other fronts on it; "" of a server that is ours."""
        ...

    async def look(self) -> Seen:
        """Ask the daemon, and look at the processes."""
        ...

    async def prepare(self) -> None:
        """Have the model among those of the daemon.

        Raises:
            OSError: The weights cannot be read.
        """
        ...

    async def load(self) -> None:
        """Have it loaded; it takes as long as that takes."""
        ...

    async def renew(self) -> None:
        """Prolong its stay, where a daemon ends that by itself."""
        ...

    async def unload(self) -> None:
        """Have it unloaded; the answer may come before that is done."""
        ...

    async def cpu_seconds(self, pids: Sequence[int]) -> float:
        """Return what these processes have used of the processors."""
        ...

    async def end(self, pids: Sequence[int]) -> None:
        """Kill these processes."""
        ...
