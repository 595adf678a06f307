"""Order of waiting requests: a table of cases, and invariants of every history.

A turn is passed on however its scope ends; a light tenant next to a flood, under a clock.
"""

import math
import random

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router import fair_queue
from llmkube.router.fair_queue import MAX_WAITING, FairQueue
from llmkube.router.turns import Turns, engines_of
from router.proxy.router_lab import local


def served(queue, turns, charged):
    """Serve requests one by one; return their tenants. `charged` has estimated and actual tokens."""
    names = []
    for _ in range(turns):
        ((name, _),) = queue.admit()
        names.append(name)
        queue.ended(name, *charged(name))
    return names


def test_a_light_tenant_is_before_every_waiting_request_of_a_busy_one():
    """It gets the next free slot, although it came last."""
    queue = FairQueue(1)
    for number in range(5):
        queue.offer("busy", number, 100)
    assert queue.admit() == [0]
    queue.offer("quiet", "q", 100)
    queue.ended("busy", 100, 100)
    assert queue.admit() == ["q"]


@pytest.mark.parametrize(("quiet_tokens", "every"), [(20, 1), (20, 3), (400, 20), (1000, 40)])
def test_a_light_tenant_gets_the_next_slot_however_soon_it_asks_again(quiet_tokens, every):
    """Twelve tenants always wait for two slots: they start together, and the light one a little later."""
    queue = FairQueue(2)
    for busy in range(12):
        queue.offer(f"busy{busy}", (f"busy{busy}", 400, busy), 400)
    running = queue.admit()
    for turn in range(400):
        name, tokens, _ = running.pop(0)
        queue.ended(name, tokens, tokens)
        if name != "quiet":
            queue.offer(name, (name, 400, 100 + turn), 400)
        if turn % every == 0 and turn > 24 and not any(each[0] == "quiet" for each in running):
            queue.offer("quiet", ("quiet", quiet_tokens, turn), quiet_tokens)
            admitted = queue.admit()
            assert [each[0] for each in admitted] == ["quiet"]
        else:
            admitted = queue.admit()
        running += admitted


def test_what_is_only_claimed_is_not_saved_up():
    """Neither a waiting request of a million tokens nor a refused one gives its tenant an advantage."""
    queue = FairQueue(1)
    for number in range(40):
        queue.offer("steady", ("steady", number), 100)
    for _ in range(20):
        queue.admit()
        queue.ended("steady", 100, 100)
    assert queue.admit() == [("steady", 20)]
    queue.offer("large", ("large", 0), 1_000_000)
    queue.ended("steady", 100, 100)
    assert queue.admit() == [("large", 0)]
    queue.offer("large", ("large", 1), 1_000_000)
    for number in range(10):
        queue.offer("other", ("other", number), 100)
    queue.ended("large", 1_000_000, 0)  # the engine has refused it
    names = served(queue, 8, lambda name: (1_000_000, 0) if name == "large" else (100, 100))
    assert names.count("steady") >= 3


@pytest.mark.ci
def test_saving_nothing_or_everything_is_noticed(monkeypatch):
    """Deliberate bugs: a light tenant waits for a turn of all others, or accumulates its idle time."""
    monkeypatch.setattr(FairQueue, "_earliest", property(lambda queue: queue.virtual_time))
    with pytest.raises(AssertionError):
        test_a_light_tenant_gets_the_next_slot_however_soon_it_asks_again(20, 1)
    monkeypatch.setattr(FairQueue, "_earliest", property(lambda queue: queue.virtual_time - 10**9))
    with pytest.raises(AssertionError):
        test_idle_time_saves_no_more_than_one_request_up()


def test_a_light_tenant_gets_no_more_than_its_share():
    """A tenant with small requests gets as many tokens as the others, and its savings give it no more."""
    queue, had = FairQueue(1), {"long": 0, "short": 0}
    sizes = {"long": 400, "short": 20}
    for name, tokens in sizes.items():
        queue.offer(name, (name, tokens, 0), tokens)
    for turn in range(3000):
        ((name, tokens, _),) = queue.admit()
        had[name] += tokens
        queue.ended(name, tokens, tokens)  # the next one comes when this one has ended: a moment without any request
        queue.offer(name, (name, tokens, turn + 1), tokens)
    assert abs(had["long"] - had["short"]) <= 800


def test_tenants_of_equal_requests_take_turns():
    """Each gets one turn, in any order of arrival."""
    queue = FairQueue(1)
    for name in ("a", "a", "a", "b", "b", "b"):
        queue.offer(name, (name, queue.waiting), 10)
    order = []
    while admitted := queue.admit():
        order += [name for name, _ in admitted]
        queue.ended(order[-1], 10, 10)
    assert order in (["a", "b"] * 3, ["a", "b", "b", "a", "a", "b"])


def test_shares_are_in_tokens_and_not_in_requests():
    """A tenant with requests four times as long gets a quarter as many."""
    queue = FairQueue(1)
    for number in range(100):
        queue.offer("long", ("long", number), 400)
        queue.offer("short", ("short", number), 100)
    names = served(queue, 50, lambda name: (400, 400) if name == "long" else (100, 100))
    assert names.count("long") == pytest.approx(10, abs=1)


def test_what_a_request_took_replaces_what_it_was_taken_to_take():
    """A tenant that was charged more than estimated waits for it."""
    queue = FairQueue(1)
    for number in range(20):
        queue.offer("greedy", ("greedy", number), 10)
        queue.offer("modest", ("modest", number), 10)
    names = served(queue, 11, lambda name: (10, 100 if name == "greedy" else 10))
    assert names.count("greedy") == pytest.approx(2, abs=1)


def test_idle_time_saves_no_more_than_one_request_up():
    """After a long idle time a tenant has one turn first, and then every second one."""
    queue = FairQueue(1)
    for number in range(50):
        queue.offer("busy", ("busy", number), 10)
    for _ in range(30):
        queue.admit()
        queue.ended("busy", 10, 10)
    for number in range(10):
        queue.offer("back", ("back", number), 10)
    names = served(queue, 10, lambda name: (10, 10))
    assert names[0] == "back"
    assert names.count("back") == pytest.approx(5, abs=1)


def test_a_full_queue_drops_the_newest_of_the_busiest_tenant():
    """A light tenant is queued; the flood loses a request."""
    queue = FairQueue(1)
    for number in range(MAX_WAITING):
        assert queue.offer("flood", number, 1) is None
    assert queue.offer("quiet", "q", 1) == ("flood", MAX_WAITING - 1)
    assert queue.offer("flood", "more", 1) == ("flood", "more")
    assert (queue.waiting, queue.waiting_of("quiet")) == (MAX_WAITING, 1)


def test_ending_an_unknown_request_has_no_effect():
    """No slot or place in the queue is added."""
    queue = FairQueue(1)
    queue.ended("nobody", 1, 1)
    queue.remove("nobody", "x")
    queue.offer("a", 1, 1)
    queue.ended("a", 1, 1)
    queue.remove("a", 2)
    assert (queue.waiting, queue.running) == (1, 0)


def test_remembered_tenants_are_bounded(monkeypatch):
    """Of idle tenants, those with the highest charge are kept."""
    monkeypatch.setattr(fair_queue, "MAX_REMEMBERED", 3)
    queue = FairQueue(20)
    for number in range(10):
        queue.offer(f"t{number}", number, 1000 + number)
    queue.offer("stays", "s", 1)
    queue.admit()
    for number in range(10):
        queue.ended(f"t{number}", 1000 + number, 1000 + number)
    assert len(queue._tenants) == 4


STEPS = st.lists(
    st.tuples(st.sampled_from(["offer", "end", "leave"]), st.integers(0, 5), st.integers(1, 500), st.integers(0, 500)),
    max_size=120,
)


@given(slots=st.integers(1, 4), steps=STEPS)
def test_every_history_keeps_the_slots_full_and_loses_no_request(slots, steps):
    """Counters match; a slot is free only if no request waits; virtual time never goes back."""
    queue, waiting, running, number = FairQueue(slots), {}, {}, 0
    for kind, who, tokens, took in steps:
        before, tenant = queue.virtual_time, f"t{who}"
        if kind == "offer":
            number += 1
            waiting[number] = (tenant, tokens)
            assert queue.offer(tenant, number, tokens) is None
        elif kind == "end" and running:
            ticket = sorted(running)[who % len(running)]
            name, taken = running.pop(ticket)
            queue.ended(name, taken, took)
        elif kind == "leave" and waiting:
            ticket = sorted(waiting)[who % len(waiting)]
            queue.remove(waiting.pop(ticket)[0], ticket)
        for ticket in queue.admit():
            running[ticket] = waiting.pop(ticket)
        assert (queue.waiting, queue.running) == (len(waiting), len(running))
        assert len(running) == slots or not waiting
        assert len(running) <= slots
        assert queue.virtual_time >= before
        assert queue.active == len({name for name, _ in (*waiting.values(), *running.values())})
    if not waiting and not running:
        assert queue._tenants == {}


@given(st.lists(st.integers(1, 300), min_size=20, max_size=60), st.lists(st.integers(1, 300), min_size=20, max_size=60))
def test_two_that_always_wait_have_equal_tokens_but_for_one_request_each(first, second):
    """This holds for any request lengths."""
    queue, had = FairQueue(1), {"a": 0, "b": 0}
    for name, sizes in (("a", first), ("b", second)):
        for number, tokens in enumerate(sizes):
            queue.offer(name, (name, number, tokens), tokens)
    while queue.waiting_of("a") and queue.waiting_of("b"):
        (ticket,) = queue.admit()
        had[ticket[0]] += ticket[2]
        queue.ended(ticket[0], ticket[2], ticket[2])
        assert abs(had["a"] - had["b"]) <= 600


TOKENS_PER_SECOND = 50


async def hold(turns, backend, tenant, seconds, log=None):
    with turns.turn(backend, tenant, 100) as turn:
        await turn.settled.wait()
        if log is not None:
            log.append((tenant, trio.current_time()))
        await trio.sleep(seconds)


async def test_a_turn_is_given_on_by_one_that_ends_crashes_or_is_cancelled(autojump_clock):
    """Each time, the next one is called at once."""
    turns, backend, log = Turns(), local("mac", slots=1), []

    async def crash():
        with turns.turn(backend, "b", 1) as turn:
            await turn.settled.wait()
            await trio.sleep(1)
            raise RuntimeError("boom")

    async def crash_alone():
        with pytest.raises(RuntimeError, match="boom"):
            await crash()

    async def cancelled():
        with trio.move_on_after(3):
            await hold(turns, backend, "c", math.inf)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, turns, backend, "a", 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(crash_alone)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(cancelled)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(hold, turns, backend, "d", 1, log)
        await trio.testing.wait_all_tasks_blocked()
        assert turns.waiting(backend) == 3
    assert log == [("d", 3.0)]
    assert (turns.waiting(backend), turns.queue_of(backend).queue.running) == (0, 0)


async def test_two_backends_that_name_one_engine_share_its_queue():
    """Address and model identify the engine; the queue of one that no config names is removed once it is empty."""
    await trio.lowlevel.checkpoint()
    turns, one = Turns(), local("one", slots=1)
    other = attrs.evolve(one, name="other")
    with turns.turn(one, "a", 1), turns.turn(other, "a", 1) as second:
        assert not second.settled.is_set()
        assert turns.waiting(one) == turns.waiting(other) == 1
        turns.keep_only(frozenset())
        assert turns.waiting(one) == 1
    turns.queue_of(one).seconds = 99.0
    turns.keep_only(engines_of([one]))
    assert turns.queue_of(one).seconds == 99.0
    turns.keep_only(engines_of([local("x")]))
    assert turns.queue_of(one).seconds != 99.0


async def test_a_full_queue_calls_the_one_that_has_to_leave():
    """Its error states whether its own tenant has filled the queue."""
    await trio.lowlevel.checkpoint()
    turns, backend = Turns(), local("mac", slots=1)
    with turns.turn(backend, "flood", 1):
        scopes = [turns.turn(backend, "flood", 1) for _ in range(MAX_WAITING)]
        held = [scope.__enter__() for scope in scopes]
        with turns.turn(backend, "quiet", 1) as quiet:
            assert (held[-1].is_dropped, held[-1].has_siblings, held[-1].settled.is_set()) == (True, True, True)
            assert not quiet.is_dropped
        for scope in scopes:
            scope.__exit__(None, None, None)
    assert (turns.waiting(backend), turns.queue_of(backend).queue.running) == (0, 0)


async def test_what_is_learned_of_answers(autojump_clock):
    """Answers adjust the estimate, the requested maximum limits it; the wait depends on tenants and slots."""
    turns, backend = Turns(), local("mac", slots=2)
    engine_queue = turns.queue_of(backend)
    assert engine_queue.tokens_of(400, None) == 100 + 256
    assert engine_queue.tokens_of(400, 10) == 100 + 10
    for _ in range(60):
        with turns.turn(backend, "a", 100) as turn:
            await trio.sleep(8)
            engine_queue.record_answer(turn, 120, 64)
    assert engine_queue.tokens_of(400, None) == 100 + 64
    with turns.turn(backend, "a", 1), turns.turn(backend, "b", 1), turns.turn(backend, "c", 1):
        assert engine_queue.retry_seconds() == 12  # 8 seconds, 3 tenants, 2 slots


async def simulate(seed, *, fair):
    """Simulate two slots, twelve flooders and a light tenant; return its waits, and the starts."""
    rng = random.Random(seed)
    turns, backend = Turns(), local("mac", slots=2)
    ends, waits, served = [], [], [0]
    order = trio.StrictFIFOLock()
    free = trio.Semaphore(2)

    async def serve(tokens):
        end = trio.current_time() + tokens / TOKENS_PER_SECOND
        ends.append(end)
        await trio.sleep_until(end)
        ends.remove(end)
        served[0] += tokens

    async def ask(tenant, tokens):
        if fair:
            with turns.turn(backend, tenant, 256) as turn:
                await turn.settled.wait()
                begun = trio.current_time()
                await serve(tokens)
                turn.charge = tokens
        else:
            async with order:
                await free.acquire()
            begun = trio.current_time()
            await serve(tokens)
            free.release()
        return begun

    async def flood(name):
        while True:
            await ask(name, rng.randint(20, 400))

    async with trio.open_nursery() as nursery:
        for number in range(12):
            for _ in range(5):
                nursery.start_soon(flood, f"f{number}")
        for _ in range(100):
            await trio.sleep(rng.uniform(20, 120))
            at, first_end = trio.current_time(), min(ends)
            begun = await ask("quiet", rng.randint(20, 60))
            waits.append((begun - at, first_end - at))
        nursery.cancel_scope.cancel()
    return waits, served[0] / trio.current_time() / TOKENS_PER_SECOND / 2


@pytest.mark.parametrize("seed", range(3))
async def test_a_light_tenant_waits_only_for_the_first_free_slot(autojump_clock, seed):
    """It waits no longer than is necessary without preemption, and the slots stay busy."""
    waits, used = await simulate(seed, fair=True)
    assert all(wait <= first + 1e-6 for wait, first in waits)
    assert used >= 0.95


@pytest.mark.ci
async def test_without_the_queue_it_waits_for_all_earlier_requests(autojump_clock):
    """First come, first served keeps the light tenant behind 58 requests of others."""
    waits, used = await simulate(0, fair=False)
    late = [wait / first for wait, first in waits if first > 0.1]
    assert min(late) > 5
    assert used >= 0.95
