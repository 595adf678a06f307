"""A keeper that runs against a fake daemon, and a starter for daemons that do not run."""

from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from llmkube.base.http.client import HttpClient
from llmkube.programs.daemon_engine.keeper import Counters, GivenUpError, Keeper


@attrs.define(eq=False)
class Stage:
    """A keeper that runs.

    Attributes:
        keeper: The keeper.
        client: A client of the server.
        scope: The cancel scope of the keeper's loop.
        given_up: The keeper's message when it gave up.
    """

    keeper: Keeper
    client: HttpClient
    scope: trio.CancelScope
    given_up: str = ""

    async def unload(self):
        """Stop the keeper, and unload the model."""
        self.scope.cancel(reason="stopped by the test")
        await trio.lowlevel.checkpoint()
        return await self.keeper.unload()


@asynccontextmanager
async def keep_loaded(connected, make):
    """Keep a model loaded during the block: `make` returns its adapter for the client of `connected`."""
    failed = None
    async with connected as client, trio.open_nursery() as nursery:
        stage = Stage(Keeper(make(client), Counters()), client, trio.CancelScope())

        async def run():
            with stage.scope:
                try:
                    await stage.keeper.run()
                except GivenUpError as error:
                    stage.given_up = str(error)

        nursery.start_soon(run)
        try:
            yield stage
        except (AssertionError, ValueError, trio.TooSlowError) as error:
            failed = error  # raised inside the nursery it would become a group
        nursery.cancel_scope.cancel(reason="the test is over")
    if failed is not None:
        raise failed


def given(**facts):
    """Parametrize a test with a `fake` that differs from the default one in these attributes."""
    return pytest.mark.parametrize("fake", [facts], indirect=True, ids=["-".join(facts)])


@attrs.define(eq=False)
class FakeStarter:
    """Start the fake server, and stop it."""

    fake: Any
    starts: int = 0
    ends: int = 0

    @asynccontextmanager
    async def __call__(self):
        self.starts += 1
        self.fake.start()
        try:
            yield self.fake.server()
        finally:
            self.ends += 1
            self.fake.stop()
