"""The page of a cluster's front door: its models and a chat, for clients that may use all models."""

import secrets

import attrs
import trio

from llmkube import __version__
from llmkube.base.http.exchange import StreamExchange
from llmkube.programs.gateway.engines import ClusterDirectory, ServedService
from llmkube.programs.page.feed import Feed
from llmkube.programs.page.handler import Page, is_page, is_public, load_files
from llmkube.programs.page.machine import STEP, Describe
from llmkube.programs.page.requests import RecentRequests
from llmkube.programs.page.state import Rates, State, engine_state
from llmkube.router.auth.principals import principal_of
from llmkube.router.proxy.router import Router


@attrs.define(eq=False)
class _Cluster:
    directory: ClusterDirectory
    describe: Describe
    _known: dict[str, tuple[ServedService, State]] = attrs.field(factory=dict)

    async def collect(self, rates: Rates) -> State:
        """Return the state of the page; what has not changed is not computed again."""
        self.directory.refresh()
        known, self._known = self._known, {}
        for number, (key, served) in enumerate(self.directory.services.items()):
            if number % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            before, state = known.get(key, (None, {}))
            self._known[key] = served, state if before is served else self._state(served)
        services = {key: state | rates.state_of(key) for key, (_, state) in self._known.items()}
        return {"version": __version__, "host": "cluster", "readOnly": True, "memory": None, "services": services}

    def _state(self, served: ServedService) -> State:
        engines = len(served.engines)
        return (
            self.describe(served.service, served.model) | engine_state(None) | {"loaded": engines > 0, "pods": engines}
        )


async def add_page(
    router: Router, directory: ClusterDirectory, describe: Describe, requests: RecentRequests, nursery: trio.Nursery
) -> None:
    """Serve the page at a front door's address; its files need no key, and its figures the key of a client."""
    files = await trio.to_thread.run_sync(load_files)
    feed = Feed(_Cluster(directory, describe).collect, secrets.token_hex(4), requests.rates)
    nursery.start_soon(feed.run)
    page = Page(feed, files, router.handler, requests, needs_key=lambda: router.live.routing.clients is not None)
    check = router.request_filter

    async def handle(exchange: StreamExchange) -> None:
        if is_page(exchange.head):
            exchange.client = principal_of(exchange.head.lines, exchange.owner, router.live.routing.clients)
        await page(exchange)

    router.handler = handle
    router.request_filter = lambda head, peer: None if is_public(head) else check(head, peer)
