"""When a probe's answers make a backend unhealthy: three failures in a row, as a kubelet counts; one good one ends it.

A redirect is no good answer: it is not followed. An engine of ours that loads its model is neither: it is waited for.
"""

from typing import Final

import attrs

UNHEALTHY_AFTER: Final = 3
"""Failures in a row: kubelet's failureThreshold where none is given."""


@attrs.frozen
class Reply:
    """What a backend answers to a question about its health.

    Attributes:
        status: Of the answer.
        server: What it calls itself.
        is_loading: Whether it says that it loads its model.
        body: What it says.
    """

    status: int
    server: str = ""
    is_loading: bool = False
    body: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class ProbeState:
    """What probes have found so far.

    Attributes:
        failures: In a row.
        why: What the last one was; "" after a good answer.
    """

    failures: int = 0
    why: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether requests are sent to it."""
        return self.failures < UNHEALTHY_AFTER

    def replied(self, reply: Reply, path: str) -> "ProbeState":
        """Return the state after an answer."""
        if reply.is_loading:
            return self
        if 200 <= reply.status < 300:
            return ProbeState()
        return self.failed(f"it answers {reply.status} at {path}")

    def failed(self, why: str) -> "ProbeState":
        """Return the state after no answer, or a bad one."""
        return ProbeState(self.failures + 1, why)
