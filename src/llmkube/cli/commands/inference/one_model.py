"""A port of this machine that answers for one model of a gateway, as the port of its engine would, and for no other."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Never

import attrs
import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.server import run_server
from llmkube.base.times import utcnow
from llmkube.cli.commands.inference.service_route import Way
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.router.backends import Backend
from llmkube.router.front_door import passing_door
from llmkube.router.origin_policy import page_grant, refuse_foreign_pages
from llmkube.router.pass_through import PassThrough


@attrs.define(eq=False)
class OneModel:
    """The directory of a gateway that has one model, behind another gateway.

    Attributes:
        name: What the model is called here.
        further: The other ids under which it may be asked for.
        way: Where the other gateway is now, and the id that the model has there.
    """

    name: str
    further: Sequence[str]
    way: Way

    def model_ids(self) -> Sequence[str]:
        """Return its name: a request that names no model means this one."""
        return [self.name]

    def aliases(self) -> Sequence[str]:
        """Return the ids of `spec.aliases`."""
        return self.further

    def lookup(self, model_id: str) -> Backend | None:
        """Return the other gateway for this model's ids, and nothing for those of others."""
        if model_id not in {self.name, self.way.model_id, *self.further}:
            return None
        return Backend(self.way.host, self.way.port, self.way.model_id)


async def run_one_model(
    listeners: Sequence[trio.SocketListener], service: InferenceService, way: Way, find: Callable[[], Awaitable[Way]]
) -> Never:
    """Serve until cancelled.

    Args:
        listeners: Where to accept.
        service: The model.
        way: Where its gateway is.
        find: Says where it is by now, before each request.
    """
    directory = OneModel(service.key.name, service.spec.aliases, way)
    async with open_http_client() as client:
        gateway = passing_door(PassThrough(directory, client), utcnow)

        async def handle(exchange: StreamExchange) -> None:
            directory.way = await find()
            await gateway(exchange)

        await run_server(handle, listeners, judge=refuse_foreign_pages, stamp=page_grant)
