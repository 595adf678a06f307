"""What one engine may say: in its service's name while it leads, and nothing before and after that.

While an engine is replaced there are two, and a service has one mouth.

```
 old engine   ── leads ──────────────────────────┐ (drains, ends)
 its successor        ── loads, says nothing ────┴─ leads ──▶
                                         endpoint and conditions change hands here, in one write each
```
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import structlog
import trio

from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.nouns.lifecycle import Exit, ServiceView
from llmkube.supervisor.nouns.ports import Parting
from llmkube.supervisor.service.status_manager import Reporter

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class Voice:
    """One engine's way to its service's reporter.

    Attributes:
        reporter: The service's.
        view: What the engine has said last, heard or not.
        newest: Whether it is of the newest plan.
    """

    reporter: Reporter
    view: ServiceView = ServiceView("")
    newest: bool = True

    @property
    def leads(self) -> bool:
        """Whether this engine is the one that its service is served by, or will be as soon as it answers."""
        return self.reporter.leader is self

    def lead(self) -> None:
        """Speak in the service's name from now on, and whoever did so until now does not any more."""
        self.reporter.leader = self
        if self.view.reason:
            self.reporter.say(self.view)

    def say(self, view: ServiceView) -> None:
        """Replace what is known of this engine."""
        self.view = view
        if self.leads:
            self.reporter.say(view)

    def amend(self, reason: str, message: str = "") -> None:
        """Change why it is in the state that it is in, and keep where it is."""
        self.say(attrs.evolve(self.view, reason=reason, message=message))

    def answering(self, yes: bool) -> None:
        """The running engine has stopped to answer, or answers again; the endpoint follows."""
        if yes:
            self.amend(Reason.LOADED, "the engine answers again")
        else:
            self.amend(Reason.NOT_ANSWERING, "the process runs, but nothing listens on its port")

    def serve(self, loaded: ServiceView) -> None:
        """Claim the endpoint; within `withdrawn`."""
        if self.newest:
            self.reporter.current()
        self.say(loaded)
        self.reporter.loaded(loaded)

    @asynccontextmanager
    async def withdrawn(
        self,
        parting: Parting,
        in_service: Callable[[], bool],
        ended: Callable[[], Exit | None],
        urgent: Callable[[], bool],
    ) -> AsyncIterator[None]:
        """On the way out of the body, withdraw the claim to the endpoint before anything stops, if there may be one.

        The wait for the API server is bounded: an engine must be stoppable while the cluster is away. A parting that
        keeps the engine keeps the claim, and one that has ended by itself is not waited for; nor is anybody waited for
        when it is urgent. One whose successor has the endpoint has nothing to withdraw.
        """
        try:
            yield
        finally:
            if not in_service():
                pass
            elif (how := ended()) is not None:
                self.amend(Reason.ENGINE_EXITED, f"the engine ended: {how}")
            elif self.leads and not parting.keep:
                if self.view.ready or not self.view.reason:  # else it has been said that it is not, and why
                    self.amend(Reason.STOPPING, "the endpoint is withdrawn")
                if not urgent():
                    await self._heard()  # noqa: ASYNC102 - it shields itself, with a deadline

    async def _heard(self) -> None:
        reporter = self.reporter
        with trio.move_on_after(reporter.settings.withdraw_seconds, shield=True) as bound:
            await reporter.wait_endpoint_heard()
        if bound.cancelled_caught:
            key = reporter.key
            log.warning("stopping before the API server knows", name=key.name, namespace=key.namespace)
