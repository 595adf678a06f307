"""Two workers and their parent in one process, joined by real pairs of sockets; either side can go at any moment."""

import datetime
import random
import socket
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from llmkube.router.budget_store.kept_budgets import KeptBudgets
from llmkube.router.budgets.meter import Demand
from llmkube.router.config.routing_config import Budget
from llmkube.router.dispatch.circuits import Circuits, Terms
from llmkube.router.policy.data_limits import NO_LIMITS
from llmkube.router.policy.decision import decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from llmkube.router.queue.turns import Turns
from llmkube.router.responses.shelf import NewResponse, OwnShelf
from llmkube.router.responses.store import ResponseStore
from llmkube.router.workers.link import Link
from llmkube.router.workers.shared_state import SharedState
from llmkube.router.workers.worker_link import WorkerLink
from router.proxy.router_lab import config_of, local

BACKEND = local("mac", slots=1)
HOUR = Budget(name="hour", scope="router", window_seconds=3600, max_tokens=1000)
CONFIG = config_of(BACKEND, budgets=(HOUR,))
FACTS = RequestFacts(model="m")
DEMAND = Demand(body={"max_tokens": 100}, body_bytes=100, writes=True)


def utcnow():
    return datetime.datetime(2026, 11, 24, tzinfo=datetime.UTC)


class SlowBudgets(KeptBudgets):
    """On a disk that takes its time."""

    seconds = 0.0

    def reserve_nowait(self, claim, teams):
        found, is_kept = super().reserve_nowait(claim, teams)
        return found, is_kept and not self.seconds

    async def keep(self, reservation):
        await trio.sleep(self.seconds)


@attrs.define(eq=False, slots=False)
class Worker:
    """One worker, as a router in it sees it."""

    name: str
    side: WorkerLink
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self):
        self.parts = self.side.shared(0)
        self.turns, self.circuits = self.parts.turns, self.parts.circuits
        self.budgets, self.shelf = self.parts.budgets, self.parts.shelf

    def die(self):
        """What the kernel does when the process is killed."""
        self.scope.cancel()

    async def run(self):
        with self.scope:
            await self.side.link.run(self.side.take)

    async def reserve(self):
        permits = permits_for(CONFIG, FACTS)
        decision = decide(CONFIG, FACTS, permits, first_byte_seconds={}, pick=0.0, load={})
        return await self.budgets.admit(CONFIG, decision, FACTS, DEMAND)

    async def hold(self, tenant, log, seconds=1.0):
        """Wait for a turn, and have it for some time."""
        with self.turns.turn(BACKEND, tenant, 10) as turn:
            await turn.called.wait()
            log.append((self.name, tenant))
            await trio.sleep(seconds)


@attrs.define(eq=False)
class Lab:
    state: SharedState
    workers: list
    taken: list = attrs.field(factory=list)

    async def settled(self):
        """Return when all that was said has been heard."""
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked(0.002)

    def used(self):
        return self.state.budgets.used(CONFIG)[0]["tokensUsed"]

    @property
    def queue(self):
        return self.state.turns.line(BACKEND).queue


@asynccontextmanager
async def open_lab():
    rng = random.Random(3)
    state = SharedState(Turns(), Circuits(Terms(), rng), SlowBudgets(None, utcnow, rng), OwnShelf(ResponseStore()))
    lab = Lab(state, [])
    async with trio.open_nursery() as nursery:
        for name in ("1", "2"):
            ours, theirs = socket.socketpair()
            worker = Worker(name, WorkerLink(Link(theirs), CollectorRegistry(), random.Random(5)))
            lab.workers.append(worker)
            served = partial(state.serve, name, Link(ours), frozenset(CONFIG.backends), lab.taken.append)
            nursery.start_soon(served)  # noqa: ASYNC113 (the settling waits for it)
            nursery.start_soon(worker.run)  # noqa: ASYNC113 (as above)
        await lab.settled()
        yield lab
        nursery.cancel_scope.cancel()


def response(response_id, answered=b"[]", size=100, owner="team a"):
    return NewResponse(
        owner=owner,
        response_id=response_id,
        response=b"{}",
        asked=b'["q"]',
        answered=answered,
        limits=NO_LIMITS,
        conversation_bytes=size,
    )
