"""Exit events of a Mac's kernel: it hides an exiting engine while it frees the memory that the GPU had wired."""

import attrs
import trio

from llmkube.supervisor.host.exit_events import NOTE_EXIT


@attrs.define(eq=False)
class MacExit:
    """One engine's `ExitEvents`.

    Attributes:
        nursery: Nursery of its machine.
        seconds: Duration of its exit; no signal shortens it.
        begun: Set when its exit has begun: from then on the kernel knows no such process, and can reap none.
        over: Set when it has exited.
    """

    nursery: trio.Nursery
    seconds: float = 0.0
    begun: trio.Event = attrs.field(factory=trio.Event)
    over: trio.Event = attrs.field(factory=trio.Event)

    async def wait(self, pid, flags):
        await trio.lowlevel.checkpoint()
        if self.begun.is_set():
            raise ProcessLookupError(3, "No such process")
        await self.over.wait()
        return NOTE_EXIT, 0

    def hides(self, child, code):
        """Return whether the exit only begins here: sockets are closed, and the GPU's memory is still wired."""
        if self.over.is_set():
            return False
        if not self.begun.is_set():
            self.begun.set()
            child.serves, child.closed, child.odd = False, True, True
            self.nursery.start_soon(self._free, child, code)
        return True

    async def _free(self, child, code):
        await trio.sleep(self.seconds)
        self.over.set()
        child.end(code)
