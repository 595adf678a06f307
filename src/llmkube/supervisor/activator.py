"""Load and unload services on request: the supervisor's side of the gateway's `Activator`."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Never

import attrs
import trio

from llmkube.base.hold import Hold
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.resource import Key
from llmkube.supervisor.service.gate import Gate


@attrs.define(eq=False)
class ServiceActivator:
    """Wakes, keeps and unloads the services of this host, each named by namespace and name.

    Attributes:
        gate_of: Returns the gate of a service; None if this host does not serve it.
        changed: Its version grows whenever a service may have changed.
    """

    gate_of: Callable[[Key], Gate | None]
    changed: Mailbox[None]
    _rescheduled: trio.Event = attrs.field(factory=trio.Event)

    def using(self, service: str, tenant: str = "") -> AbstractContextManager[Hold]:
        """Keep a service loaded while a request of a tenant waits or runs; load it first if it is idle."""
        gate = self.gate_of(Key.parse(service))
        return nullcontext(nullcontext) if gate is None else gate.using(tenant)

    def load(self, service: str) -> None:
        """Load a service that is idle, also during the back-off after a failed load."""
        if (gate := self.gate_of(Key.parse(service))) is not None:
            gate.change(gate.activation.load())

    def unload(self, service: str) -> bool:
        """Unload a service once its requests have ended, and end its pin; return whether it was loaded or loading."""
        gate = self.gate_of(Key.parse(service))
        if gate is None or not gate.activation.on_request or not gate.is_active:
            return False
        gate.change(gate.activation.keep(0.0))
        return True

    def pin(self, service: str, seconds: float | None) -> None:
        """Load a service and keep it loaded until `seconds` after its last request; if None, until `unload`.

        One that has just been displaced is not loaded: the request that asked for this has been answered.
        """
        if (gate := self.gate_of(Key.parse(service))) is not None and gate.activation.on_request:
            engine, after = gate.ledger.book.records.serving(gate.manager.key), gate.activation.keep(seconds)
            gate.change(after if engine is not None and engine.is_exiting else after.load())

    async def wait_changed(self, service: str) -> None:
        """Return once the directory's answer for a service may have changed since the call."""
        del service  # one mailbox has the changes of all
        await self.changed.wait_newer(self.changed.version)

    def reschedule(self) -> None:
        """Compute again when the next service is unloaded."""
        self._rescheduled.set()

    async def run(self, services: Iterable[Key]) -> Never:
        """Unload services whose time without requests is over; never return.

        Args:
            services: The services of this host, as they change.
        """
        while True:
            self._rescheduled = trio.Event()
            due = {gate: gate.unload_at for key in services if (gate := self.gate_of(key)) is not None}
            over = [gate for gate, at in due.items() if at <= trio.current_time()]
            for gate in over:
                gate.change(gate.activation.unload())
            if over:
                continue
            with trio.move_on_at(min(due.values(), default=math.inf)):
                await self._rescheduled.wait()
