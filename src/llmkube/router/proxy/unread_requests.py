"""Answers requests that cannot be read: too long, too slow or malformed; each is counted.

One of a client that the judge has let in has a line of the audit log as well, as what it sends and is refused for has:
without its body, and with a path only of those that there are. Of strangers, and of requests without a head, nothing
is written, so that a client without a key cannot make the log grow.
"""

import random
from collections.abc import Callable

import attrs

from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.router.auth.principals import principal_of
from llmkube.router.dialects.inbound import unread_code, unread_refusal
from llmkube.router.dispatch.record import record_of
from llmkube.router.proxy.audit_log import AuditLog, fields_of
from llmkube.router.proxy.handler import ROUTES
from llmkube.router.proxy.live_config import Routing
from llmkube.router.proxy.metrics import RouterMetrics


@attrs.frozen(eq=False)
class UnreadRequests:
    """The `Unread` of a router.

    Attributes:
        routing: Returns what counts now.
        metrics: Counts.
        audit: Writes down.
        rng: Draws names of requests.
    """

    routing: Callable[[], Routing]
    metrics: RouterMetrics
    audit: AuditLog
    rng: random.Random

    async def __call__(self, head: RequestHead | None, peer: str, status: int, words: str) -> Response:
        """Count a request, write it down, and return what its client is told."""
        code, said = unread_code(status), await unread_refusal(head, peer, status, words)
        self.metrics.unread(code)
        routing = self.routing()
        principal = None if head is None else principal_of(head.lines, peer, routing.clients)
        if head is None or principal is None:
            return said
        path = head.path.rstrip("/")
        record, _ = record_of(head, peer, path if path in ROUTES else "other", self.rng)
        record.principal, record.status, record.outcome = principal, status, code
        await self.audit.dispatched(fields_of(record, routing.config, 0.0))
        return attrs.evolve(said, headers=said.headers.with_("X-Request-Id", record.request_id))
