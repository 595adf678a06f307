"""Another controller next to the one of `open_cluster`."""

import functools
import random

import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from controller.cluster import Faults, utcnow
from llmkube.controller.operator import run_controller
from llmkube.k8s.client import Client


class Second:
    """Another controller on the same API server, with a network of its own."""

    def __init__(self, cluster):
        self.faults = Faults(cluster.faults._inner, cluster.faults.store)
        self.scope = trio.CancelScope()
        self.acting = trio.Event()

    async def run(self, settings):
        async with httpx.AsyncClient(transport=self.faults, base_url="http://apiserver") as http:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    start = functools.partial(run_controller, utcnow=utcnow, rng=random.Random(9))
                    await nursery.start(start, Client(http), settings)
                    self.acting.set()
