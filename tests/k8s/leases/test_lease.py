"""Candidates for one Lease on an API server in memory: whatever fails, never two bodies at a time."""

import datetime
import functools
import random
from contextlib import asynccontextmanager

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import EXAMPLES
from llmkube.apiserver.app import ApiServer
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.storage.revisions import Store
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.leases import lease
from llmkube.k8s.leases.lease import DURATION_SECONDS, HOLD_SECONDS, RENEW_SECONDS, LeaseLostError, hold_lease
from llmkube.k8s.resource import Key
from virtual_clock import virtual_clock

KEY = Key("llmkube-system", "llmkube-controller")


class Link(httpx.AsyncBaseTransport):
    """One candidate's way to the API server.

    Attributes:
        down: Nothing gets through.
        deaf: Requests arrive, answers do not.
        slow_seconds: Duration of a response.
    """

    def __init__(self, inner):
        self.inner = inner
        self.down = False
        self.deaf = False
        self.slow_seconds = 0.0

    async def handle_async_request(self, request):
        await trio.lowlevel.checkpoint()
        if self.down:
            raise httpx.ConnectError("connection refused")
        response = await self.inner.handle_async_request(request)
        await trio.sleep(self.slow_seconds)
        if self.deaf:
            await response.aclose()
            raise httpx.ReadError("connection reset")
        return response


@attrs.define(eq=False)
class Candidate:
    """A process that wants the Lease, again and again."""

    lab: "Lab"
    name: str
    link: Link
    utcnow: object
    life: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    entered: list = attrs.field(factory=list)
    left: list = attrs.field(factory=list)
    lost: int = 0

    async def run(self):
        rng = random.Random(self.name)
        async with httpx.AsyncClient(transport=self.link, base_url="http://apiserver", timeout=None) as http:
            with self.life:
                while True:
                    try:
                        async with hold_lease(Client(http), KEY, self.name, utcnow=self.utcnow, rng=rng):
                            await self._body()
                    except LeaseLostError:
                        self.lost += 1

    async def _body(self):
        assert not self.lab.inside, f"{self.name} and {self.lab.inside} at {trio.current_time()}"
        self.lab.inside.append(self.name)
        self.entered.append(trio.current_time())
        try:
            await trio.sleep_forever()
        finally:
            self.left.append(trio.current_time())
            self.lab.inside.remove(self.name)


@attrs.define(eq=False)
class Lab:
    client: Client
    transport: httpx.AsyncBaseTransport
    nursery: trio.Nursery
    inside: list = attrs.field(factory=list)

    def start(self, name, utcnow=None):
        candidate = Candidate(self, name, Link(self.transport), utcnow or clock)
        self.nursery.start_soon(candidate.run)
        return candidate

    async def lease(self):
        return await self.client.get(Lease, KEY)

    async def edit(self, **spec):
        await self.client.patch(Lease, KEY, {"spec": spec})


def clock():
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=trio.current_time())


@asynccontextmanager
async def open_lab():
    server = ApiServer(Store(), utcnow=clock, rng=random.Random(0))
    await server.ensure_namespaces()
    await server.ensure([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KEY.namespace}}])
    async with (
        open_transport(server.handle) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http,
        trio.open_nursery() as nursery,
    ):
        yield Lab(Client(http), transport, nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.ci
async def test_one_holds_and_the_other_waits(autojump_clock):
    """Of two candidates one is inside for an hour, the Lease says which, and each renewal moves its renewTime on."""
    async with open_lab() as lab:
        first = lab.start("a")
        await trio.sleep(1)
        second = lab.start("b")
        before = await lab.lease()
        await trio.sleep(3600)
        after = await lab.lease()
        assert (len(first.entered), len(second.entered), lab.inside) == (1, 0, ["a"])
        assert after.spec.holder_identity == before.spec.holder_identity
        assert after.spec.holder_identity.startswith("a_")
        assert after.spec.renew_time > before.spec.renew_time
        assert after.spec.lease_transitions == 0


async def test_an_orderly_end_hands_the_lease_over(autojump_clock):
    """A holder that leaves is followed within one look, by a candidate that knows the new count of transitions."""
    async with open_lab() as lab:
        first = lab.start("a")
        await trio.sleep(1)
        second = lab.start("b")
        await trio.sleep(100)
        first.life.cancel()
        await trio.sleep(RENEW_SECONDS)
        assert lab.inside == ["b"]
        assert second.entered[0] - first.left[0] <= RENEW_SECONDS
        assert (await lab.lease()).spec.lease_transitions == 1


async def test_a_killed_holder_is_waited_for(autojump_clock):
    """A holder that vanishes without a word is followed after its duration, and after one look more at the latest."""
    async with open_lab() as lab:
        first = lab.start("a")
        await trio.sleep(1)
        second = lab.start("b")
        await trio.sleep(100)
        first.link.down = True
        first.life.cancel()
        await trio.sleep(2 * DURATION_SECONDS)
        waited = second.entered[0] - first.left[0]
        assert DURATION_SECONDS - RENEW_SECONDS <= waited <= DURATION_SECONDS + RENEW_SECONDS


async def test_a_holder_that_is_cut_off_stops_in_time(autojump_clock):
    """The body of a holder without a network ends before anybody else's begins; it comes back as a candidate."""
    async with open_lab() as lab:
        first = lab.start("a")
        await trio.sleep(1)
        second = lab.start("b")
        await trio.sleep(100)
        first.link.down = True
        await trio.sleep(2 * DURATION_SECONDS)
        assert lab.inside == ["b"]
        assert first.lost == 1
        assert HOLD_SECONDS - RENEW_SECONDS <= first.left[0] - 101 <= HOLD_SECONDS
        assert second.entered[0] - first.left[0] >= DURATION_SECONDS - HOLD_SECONDS - 1
        first.link.down = False
        await trio.sleep(100)
        assert lab.inside == ["b"]
        second.life.cancel()
        await trio.sleep(RENEW_SECONDS)
        assert lab.inside == ["a"]


async def test_an_outage_for_everybody_leaves_one_holder(autojump_clock):
    """While the API server is away longer than the Lease there is no holder, and afterwards there is one again."""
    async with open_lab() as lab:
        both = [lab.start("a"), lab.start("b")]
        await trio.sleep(100)
        for candidate in both:
            candidate.link.down = True
        await trio.sleep(HOLD_SECONDS + 1)
        assert not lab.inside
        await trio.sleep(300)
        for candidate in both:
            candidate.link.down = False
        await trio.sleep(DURATION_SECONDS + 2 * RENEW_SECONDS)
        assert len(lab.inside) == 1


async def test_a_short_outage_and_lost_answers_cost_nothing(autojump_clock):
    """Half a Lease's time without a network, or renewals that arrive but are not answered, do not end the body."""
    async with open_lab() as lab:
        holder = lab.start("a")
        await trio.sleep(100)
        for _ in range(3):
            holder.link.down = True
            await trio.sleep(HOLD_SECONDS - 2 * RENEW_SECONDS)
            holder.link.down = False
            await trio.sleep(60)
            holder.link.deaf = True
            await trio.sleep(HOLD_SECONDS - 2 * RENEW_SECONDS)
            holder.link.deaf = False
            await trio.sleep(60)
        assert (len(holder.entered), holder.lost) == (1, 0)


async def test_an_acquisition_whose_answer_is_lost_is_found_again(autojump_clock):
    """A candidate that took the Lease without hearing of it does not wait for itself."""
    async with open_lab() as lab:
        candidate = lab.start("a")
        candidate.link.deaf = True
        await trio.sleep(12)
        assert not lab.inside
        candidate.link.deaf = False
        await trio.sleep(RENEW_SECONDS + 1)
        assert lab.inside == ["a"]


async def test_answers_that_never_come_end_the_body(autojump_clock):
    """Renewals that hang are given up, and the deadline does not wait for them."""
    async with open_lab() as lab:
        holder = lab.start("a")
        await trio.sleep(100)
        holder.link.slow_seconds = 1e6
        await trio.sleep(HOLD_SECONDS)
        assert holder.left[0] <= 100 + HOLD_SECONDS


@pytest.mark.ci
async def test_wall_clocks_do_not_matter(autojump_clock):
    """A holder whose clock is stopped and a candidate whose clock jumps by years behave normally."""

    def ahead():
        return datetime.datetime(2126, 1, 1, tzinfo=datetime.UTC)

    def jumping(rng=random.Random(1)):  # noqa: B008 (one generator for all calls is meant)
        return datetime.datetime(rng.randint(1990, 2090), 1, 1, tzinfo=datetime.UTC)

    async with open_lab() as lab:
        first = lab.start("a", ahead)
        await trio.sleep(1)
        second = lab.start("b", jumping)
        await trio.sleep(3600)
        assert lab.inside == ["a"]
        first.link.down = True
        first.life.cancel()
        await trio.sleep(DURATION_SECONDS + 2 * RENEW_SECONDS)
        assert lab.inside == ["b"]
        await trio.sleep(3600)
        assert (len(second.entered), second.lost) == (1, 0)


async def taken_by_hand():
    """Somebody else's name appears in the Lease: the body ends at the next renewal, and the name stays."""
    async with open_lab() as lab:
        holder = lab.start("a")
        await trio.sleep(100)
        await lab.edit(holderIdentity="someone")
        await trio.sleep(RENEW_SECONDS + 1)
        assert not lab.inside
        assert holder.lost == 1
        assert (await lab.lease()).spec.holder_identity == "someone"
        await trio.sleep(DURATION_SECONDS + RENEW_SECONDS)  # who does not renew, and so is followed
        assert lab.inside == ["a"]


async def test_a_lease_that_was_taken_is_given_up(autojump_clock):
    """A machine that slept through its Lease finds another holder there: it leaves, and overwrites nothing."""
    await taken_by_hand()


async def test_a_deleted_lease_is_lost(autojump_clock):
    """A deleted Lease ends the body; the next candidate creates a new one."""
    async with open_lab() as lab:
        holder = lab.start("a")
        await trio.sleep(100)
        await lab.client.delete(Lease, KEY)
        await trio.sleep(2 * RENEW_SECONDS + 1)
        assert (holder.lost, lab.inside) == (1, ["a"])


async def test_a_foreign_label_costs_no_lease(autojump_clock):
    """A change by another hand that leaves the holder alone does not end the body."""
    async with open_lab() as lab:
        holder = lab.start("a")
        await trio.sleep(100)
        await lab.client.patch(Lease, KEY, {"metadata": {"labels": {"team": "ml"}}})
        await trio.sleep(100)
        assert (len(holder.entered), holder.lost) == (1, 0)
        assert (await lab.lease()).metadata.labels == {"team": "ml"}


async def test_what_the_body_raises_travels_up(autojump_clock):
    """An error of the body comes out in a group, after the Lease has been handed back."""
    async with open_lab() as lab:
        with pytest.RaisesGroup(ZeroDivisionError):
            async with hold_lease(lab.client, KEY, "a", utcnow=clock, rng=random.Random(0)):
                raise ZeroDivisionError
        assert not (await lab.lease()).spec.holder_identity


# -- every fault at random, and the mistakes that this must catch ------------------------------------------------------

FAULTS = st.sampled_from(["down", "deaf", "slow", "fine", "killed"])
STEPS = st.lists(st.tuples(st.integers(0, 2), FAULTS, st.integers(1, 70)), max_size=12)


async def _storm(steps):
    async with open_lab() as lab:
        candidates = [lab.start(name) for name in "abc"]
        for index, fault, seconds in steps:
            link = candidates[index].link
            link.down, link.deaf = fault in ("down", "killed"), fault == "deaf"
            link.slow_seconds = 7.0 if fault == "slow" else 0.0
            if fault == "killed":
                candidates[index].life.cancel()
                candidates[index] = lab.start(f"{candidates[index].name}'")
            await trio.sleep(seconds)
        for candidate in candidates:
            candidate.link.down = candidate.link.deaf = False
            candidate.link.slow_seconds = 0.0
        await trio.sleep(DURATION_SECONDS + 3 * RENEW_SECONDS)
        assert len(lab.inside) == 1, "no candidate took over"


@settings(max_examples=EXAMPLES // 2)
@given(STEPS)
def test_never_two_and_in_the_end_one(steps):
    """Whatever fails for whom and for how long: no two bodies at a time, and one when everything works again."""
    trio.run(_storm, steps, clock=virtual_clock())


CUT_OFF = [(0, "fine", 20), (0, "down", 60), (0, "fine", 30), (1, "down", 60), (2, "down", 60), (1, "fine", 60)]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", ["renewal without a look at the holder", "a hold longer than the Lease"])
def test_mistakes_are_caught(monkeypatch, mutant):
    """The timelines above fail for an implementation that overwrites another holder or holds on too long."""
    clock = virtual_clock()
    if mutant == "a hold longer than the Lease":
        monkeypatch.setattr(lease, "HOLD_SECONDS", 2.0 * DURATION_SECONDS)
        timeline = functools.partial(_storm, CUT_OFF)
    else:

        async def write_blindly(self, spec):
            newest = await self.client.get(Lease, self.key)
            await self._write(newest.metadata.resource_version, spec)
            return True

        monkeypatch.setattr(lease._Candidate, "_write_if_ours", write_blindly)
        timeline = taken_by_hand
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        trio.run(timeline, clock=clock)
