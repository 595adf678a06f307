"""Clients of a host's gateway: their requests are held until a model is loaded, and are answered by its engine."""

import math
from types import SimpleNamespace

import attrs
import trio

from llmkube.base.http.message import Headers
from llmkube.programs.one_machine import AgentDirectory
from llmkube.router.backends import HOLD_SECONDS, Backend, UnavailableModel
from llmkube.router.dispatch.holds import HeldRequest, Holds
from llmkube.router.refusals import RefusedError

SLACK_SECONDS = 1.0
"""Maximum time from the end of a request's bound to its error."""


@attrs.define(eq=False)
class SimClient:
    """A client that waits for its answer for `patience` seconds, and names that time; its stream can begin earlier."""

    patience: float = math.inf
    begun: bool = False

    @property
    def exchange(self):
        """The head of its request."""
        lines = [] if math.isinf(self.patience) else [("X-Stainless-Timeout", f"{self.patience:g}")]
        return SimpleNamespace(head=SimpleNamespace(lines=Headers(lines)))

    async def begin(self, lines):
        """Receive the head of a stream."""
        await trio.lowlevel.checkpoint()
        self.begun = True

    async def send(self, events):
        """Receive a comment."""
        assert self.begun, "a comment before the head of its stream"
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Gateway:
    """The gateway in the process of one agent; what it holds is lost with the process.

    Attributes:
        host: The host of the agent.
        monitor: Records requests, and those that break an invariant.
    """

    host: object
    monitor: object
    directory: AgentDirectory = attrs.field(init=False)
    holds: Holds = attrs.field(init=False)

    def __attrs_post_init__(self):
        agent = self.host.agent
        self.directory = AgentDirectory(agent.services, lambda: agent.changed.version)
        self.holds = Holds(self.directory, agent.activator)

    async def ask(self, name, *, seconds=0.0, client=None, streams=False):
        """Send a request; return its engine if that has answered, otherwise the state or the error; None if it is lost.

        Args:
            name: The service.
            seconds: Duration of the answer.
            client: The client; one of endless patience if None.
            streams: Whether it requests a stream.
        """
        outcome = None
        async with trio.open_nursery() as nursery:

            async def end_with_process():
                await self.host.gone.wait()
                nursery.cancel_scope.cancel(reason="the gateway has ended")

            nursery.start_soon(end_with_process)
            outcome = await self._answer(name, seconds, client or SimClient(), b"" if streams else None)
            nursery.cancel_scope.cancel(reason="the request has ended")
        return outcome

    async def _answer(self, name, seconds, client, lines):
        found = self.directory.lookup(name)
        with self.monitor.requested(name), self.holds.using(found, "") as hold:
            if isinstance(found, UnavailableModel):
                try:
                    await self._wait(name, found, client, lines, hold)
                except RefusedError as error:
                    return error
            found = self.directory.lookup(name)
            if not isinstance(found, Backend):
                return found
            return await self._compute(name, found, seconds)

    async def _wait(self, name, found, client, lines, hold):
        arrived, standstills = trio.current_time(), self.monitor.standstills
        try:
            await self.holds.wait(name, HeldRequest("somebody", arrived, client, lines), hold)
        finally:
            newest, waited = self.directory.lookup(name), trio.current_time() - arrived
            longest = max(each.hold_seconds for each in (found, newest or found) if isinstance(each, UnavailableModel))
            if self.monitor.desired.touched[name] > arrived:  # by the newest spec, which a loaded model does not show
                longest = max(longest, HOLD_SECONDS)
            if standstills == self.monitor.standstills and waited > min(longest, client.patience) + SLACK_SECONDS:
                self.monitor.report("late", f"a request for {name} has waited for {waited:.0f} s")

    async def _compute(self, name, found, seconds):
        engines = self.host.machine.live(name)
        engine = next((each for each in engines if found.port in (each.port, each.address[1])), None)
        if engine is None or not engine.ready:  # it has just exited, or will be found to be mute
            return None
        engine.requests += 1
        try:
            with trio.move_on_after(seconds):
                await engine.ended.wait()
        finally:
            engine.requests -= 1
        return engine if engine.exit is None else None
