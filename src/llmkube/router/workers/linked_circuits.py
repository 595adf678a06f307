"""A worker's circuits: what its requests show goes to the parent, and what the parent says counts.

A closed circuit lets requests through, and an open one holds them back, without a question. Which of all workers'
requests is the one that tries a backend again, the parent decides.
"""

from typing import Any, Final

import attrs
import trio

from llmkube.router.dispatch.circuits import Circuits, State
from llmkube.router.workers.link import Link, LinkError, Message
from llmkube.router.workers.written import circuit_from

ENTER_SECONDS: Final = 2.0
"""How long a request waits for leave to try a backend again; without it, it goes elsewhere."""


@attrs.define(eq=False)
class LinkedCircuits(Circuits):
    """Those of one worker.

    Attributes:
        link: To the parent.
    """

    link: Link = attrs.field(kw_only=True)
    _found: set[tuple[str, str]] = attrs.field(factory=set)  # what this worker holds to be unwell, and by what

    async def enter(self, name: str, now: float) -> bool:
        """Return whether a request may go to this backend."""
        circuit = self.of(name)
        state = circuit.state(now)
        if state is not State.HALF_OPEN or circuit.probing:
            return state is State.CLOSED
        try:
            return bool((await self.link.call("enter", ENTER_SECONDS, name=name))["may"])
        except LinkError:
            self._tell("abandoned", name)
            return False
        except BaseException:  # its client has gone: the leave that may come is given back
            self._tell("abandoned", name)
            raise

    def began(self, name: str) -> None:
        """The backend's stream has begun."""
        before = self.of(name)
        super().began(name)
        if self.of(name) != before:
            self._tell("began", name)

    def succeeded(self, name: str) -> None:
        """The backend answered, to the end."""
        before = self.of(name)
        super().succeeded(name)
        if self.of(name) != before:
            self._tell("succeeded", name)

    def failed(self, name: str, now: float, *, wait_seconds: float | None = None) -> None:
        """The backend did not answer, or said when it wants to be asked again."""
        super().failed(name, now, wait_seconds=wait_seconds)
        self._tell("failed", name, wait=wait_seconds)

    def abandoned(self, name: str) -> None:
        """Nothing became known."""
        before = self.of(name)
        super().abandoned(name)
        if self.of(name) != before:
            self._tell("abandoned", name)

    def found(self, name: str, by: str, why: str, now: float) -> None:
        """Something beside requests has found the backend unwell, or well, which is ""."""
        (self._found.add if why else self._found.discard)((name, by))
        self._tell("found", name, by=by, why=why)  # the parent says it to all, with who has found it

    def keep_only(self, names: frozenset[str]) -> None:
        """Forget backends that are no more; what was found of them is of none that has their name now."""
        super().keep_only(names)
        for name, by in [each for each in self._found if each[0] not in names]:
            self.found(name, by, "", trio.current_time())

    def take(self, message: Message) -> None:
        """Take what the parent says of a circuit."""
        self._by_name[message["name"]] = circuit_from(message["circuit"], trio.current_time())

    def _tell(self, event: str, name: str, **fields: Any) -> None:
        self.link.send_nowait("circuit", event=event, name=name, **fields)
