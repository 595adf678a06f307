"""One request on its way to backends: what was decided, what is asked, who gets the answer, and what became of it."""

import attrs

from llmkube.router.dispatch.attempt import Asked
from llmkube.router.dispatch.client_stream import ClientStream
from llmkube.router.dispatch.record import Record
from llmkube.router.policy.decision import Decision


@attrs.frozen(eq=False)
class RoutedRequest:
    """One request.

    Attributes:
        decision: Which backends may be asked, in which order, and for how long.
        asked: What they are asked.
        client: Gets the answer.
        record: Remembers what became of it.
    """

    decision: Decision
    asked: Asked
    client: ClientStream
    record: Record

    def first_byte_seconds(self, name: str) -> float:
        """How long this backend has for the first byte of its answer."""
        return self.decision.first_byte_seconds[name]
