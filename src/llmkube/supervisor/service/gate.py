"""The gate between planner and runner of one service, and the activator, which opens and closes the gates of a host."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Never

import attrs
import trio

from llmkube.base.hold import Hold
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason, is_failing
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.activation import Activation
from llmkube.supervisor.values.desired import Idle, Launch, Target, launch_of
from llmkube.supervisor.values.lifecycle import ServiceView

WOKEN = ServiceView(Reason.PENDING, "a request needs it")


@attrs.define(eq=False)
class _Use:
    """A request of a tenant, "" if that is not known; `ended` is set once no engine has it."""

    tenant: str = ""
    ended: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class Gate:
    """Activation of one service, and its effect on the target.

    Attributes:
        manager: Reports the service.
        ledger: Admits its engines.
        changed: Called when the time of an unload may have changed.
        activation: Whether the service is wanted, and by whom.
    """

    manager: StatusManager
    ledger: Ledger
    changed: Callable[[], None] = lambda: None
    activation: Activation = Activation()
    _target: Mailbox[Target] | None = None
    _uses: dict[_Use, None] = attrs.field(factory=dict)

    def open(self, first: Target) -> Mailbox[Target]:
        """Return a new mailbox for the targets of the service."""
        self._target = Mailbox(self.activation.target(first))
        return self._target

    @property
    def launch(self) -> Launch | None:
        """The plan that runs, or that runs once the service is wanted; None if there is none yet."""
        return launch_of(self._target.value) if self._target is not None else None

    @property
    def is_active(self) -> bool:
        """Whether an engine runs or is to run."""
        return self._target is not None and isinstance(self._target.value, Launch)

    @property
    def unload_at(self) -> float:
        """When it is unloaded if no request comes."""
        serving = self.ledger.book.records.serving(self.manager.key)
        busy_at = serving.busy_at if serving is not None else -math.inf
        return self.activation.due_at(busy_at if self.manager.view.ready else None)

    def set_activation(self, after: Activation) -> None:
        """Set the activation; the planner's next target follows it."""
        if after.awaited and self.manager.view.ready:  # a user wants what is loaded already
            after = attrs.evolve(after, awaited=False)
        self.activation = after
        self.ledger.set_usage(self.manager.key, after.usage)
        if after.limit_seconds < math.inf and not after.requests:
            self.changed()

    def change(self, after: Activation) -> None:
        """Set the activation, and start or stop the engine accordingly."""
        was_wanted = self.activation.wanted
        self.set_activation(after)
        launch = self.launch
        if self._target is None or launch is None or after.wanted == was_wanted:
            return
        view, idle = self.manager.view, None
        if is_failing(view.reason, unknown=False):
            idle = Idle(view.reason, view.message)
            if after.wanted:  # requests fail at once as long as a failure is reported
                self.manager.update(Facts.with_view, WOKEN)
        self._target.put_nowait(after.target(launch, idle))

    @contextmanager
    def using(self, tenant: str = "") -> Iterator[Hold]:
        """Keep the service loaded while one of its requests waits or runs; load it first if it is idle."""
        use = _Use(tenant)
        self._uses[use] = None
        self.change(self.activation.begin(trio.current_time(), tenant))
        try:
            yield partial(self._holding, use)
        finally:
            del self._uses[use]
            use.ended.set()
            self.end_request("" if any(each.tenant == tenant for each in self._uses) else tenant)

    def uses(self) -> tuple[trio.Event, ...]:
        """Return an event for each request that may be in the engine, which is set at its end."""
        return tuple(use.ended for use in self._uses if not use.ended.is_set())

    @contextmanager
    def _holding(self, use: _Use) -> Iterator[None]:
        use.ended.set()  # no engine has it
        self.add_held(1)
        try:
            yield
        finally:
            self.add_held(-1)
            use.ended = trio.Event()

    def add_held(self, more: int) -> None:
        """Record that so many more requests wait."""
        self.set_activation(self.activation.hold(self.activation.held + more, trio.current_time()))

    def end_request(self, tenant: str = "") -> None:
        """Record that a request has ended, or its client has left, and that it was the last one of a tenant."""
        engine = self.ledger.book.records.serving(self.manager.key)
        stays = engine is not None and (engine.urgent or not engine.is_exiting)  # or returns, after a shortage
        has_memory = stays or not self.ledger.watched
        self.change(self.activation.end(trio.current_time(), has_memory=has_memory, tenant=tenant))

    def record_loaded(self) -> None:
        """Record that the engine answers."""
        self.change(self.activation.loaded(trio.current_time()))


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
