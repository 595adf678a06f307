"""Who is next: a table of cases, and what holds of every history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.router.queue import fair_queue
from llmkube.router.queue.fair_queue import MOST_WAITING, FairQueue


def test_a_quiet_tenant_is_before_every_waiting_request_of_a_busy_one():
    """The slot that ends is its own, although it came last."""
    queue = FairQueue(1)
    for number in range(5):
        queue.offer("busy", number, 100)
    assert queue.admit() == [0]
    queue.offer("quiet", "q", 100)
    queue.ended("busy", 100, 100)
    assert queue.admit() == ["q"]


@pytest.mark.parametrize(("quiet_tokens", "every"), [(20, 1), (20, 3), (400, 20), (1000, 40)])
def test_a_quiet_tenant_gets_the_next_slot_however_soon_it_asks_again(quiet_tokens, every):
    """Twelve always wait, two slots: the starts of the twelve are the same, and the quiet one's a little later."""
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
    """A request of a million tokens that waits, or that no engine computes, puts no tenant of its sender first."""
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
    names = []
    for _ in range(8):
        ((name, _),) = queue.admit()
        names.append(name)
        queue.ended(name, *((1_000_000, 0) if name == "large" else (100, 100)))
    assert names.count("steady") >= 3


@pytest.mark.ci
def test_saving_nothing_or_everything_is_noticed(monkeypatch):
    """Deliberate bugs: who was quiet waits for a turn of all others, or keeps all the time of its quiet."""
    monkeypatch.setattr(FairQueue, "_earliest", property(lambda queue: queue.virtual))
    with pytest.raises(AssertionError):
        test_a_quiet_tenant_gets_the_next_slot_however_soon_it_asks_again(20, 1)
    monkeypatch.setattr(FairQueue, "_earliest", property(lambda queue: queue.virtual - 10**9))
    with pytest.raises(AssertionError):
        test_idle_time_saves_no_more_than_one_request_up()


def test_a_quiet_tenant_gets_no_more_than_its_share():
    """One that always asks for little has as many tokens as the others, and not more for the little that it saves."""
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
    """One each, whatever the order in which they came."""
    queue = FairQueue(1)
    for name in ("a", "a", "a", "b", "b", "b"):
        queue.offer(name, (name, queue.waiting), 10)
    order = []
    while admitted := queue.admit():
        order += [name for name, _ in admitted]
        queue.ended(order[-1], 10, 10)
    assert order in (["a", "b"] * 3, ["a", "b", "b", "a", "a", "b"])


def test_tokens_count_and_not_requests():
    """One whose requests are four times as long has a quarter as many."""
    queue = FairQueue(1)
    for number in range(100):
        queue.offer("long", ("long", number), 400)
        queue.offer("short", ("short", number), 100)
    names = []
    for _ in range(50):
        (ticket,) = queue.admit()
        names.append(ticket[0])
        queue.ended(ticket[0], 400 if ticket[0] == "long" else 100, 400 if ticket[0] == "long" else 100)
    assert names.count("long") == pytest.approx(10, abs=1)


def test_what_a_request_took_replaces_what_it_was_taken_to_take():
    """Who is charged more than was thought waits for it."""
    queue = FairQueue(1)
    for number in range(20):
        queue.offer("greedy", ("greedy", number), 10)
        queue.offer("modest", ("modest", number), 10)
    names = []
    for _ in range(11):
        (ticket,) = queue.admit()
        names.append(ticket[0])
        queue.ended(ticket[0], 10, 100 if ticket[0] == "greedy" else 10)
    assert names.count("greedy") == pytest.approx(2, abs=1)


def test_idle_time_saves_no_more_than_one_request_up():
    """Who was away for long has one turn first, and then every second one."""
    queue = FairQueue(1)
    for number in range(50):
        queue.offer("busy", ("busy", number), 10)
    for _ in range(30):
        queue.admit()
        queue.ended("busy", 10, 10)
    for number in range(10):
        queue.offer("back", ("back", number), 10)
    names = []
    for _ in range(10):
        (ticket,) = queue.admit()
        names.append(ticket[0])
        queue.ended(ticket[0], 10, 10)
    assert names[0] == "back"
    assert names.count("back") == pytest.approx(5, abs=1)


def test_a_full_queue_drops_the_newest_of_whoever_has_most():
    """A quiet tenant finds room; the flood makes it."""
    queue = FairQueue(1)
    for number in range(MOST_WAITING):
        assert queue.offer("flood", number, 1) is None
    assert queue.offer("quiet", "q", 1) == ("flood", MOST_WAITING - 1)
    assert queue.offer("flood", "more", 1) == ("flood", "more")
    assert (queue.waiting, queue.waiting_of("quiet")) == (MOST_WAITING, 1)


def test_the_end_of_what_is_not_there_is_nothing():
    """Neither a slot nor a place appears."""
    queue = FairQueue(1)
    queue.ended("nobody", 1, 1)
    queue.leave("nobody", "x")
    queue.offer("a", 1, 1)
    queue.ended("a", 1, 1)
    queue.leave("a", 2)
    assert (queue.waiting, queue.running) == (1, 0)


def test_remembered_tenants_are_bounded(monkeypatch):
    """Of those that have gone, the ones that had the most are remembered."""
    monkeypatch.setattr(fair_queue, "MOST_REMEMBERED", 3)
    queue = FairQueue(20)
    for number in range(10):
        queue.offer(f"t{number}", number, 1000 + number)
    queue.offer("stays", "s", 1)
    queue.admit()
    for number in range(10):
        queue.ended(f"t{number}", 1000 + number, 1000 + number)
    assert queue.remembered == 4


STEPS = st.lists(
    st.tuples(st.sampled_from(["offer", "end", "leave"]), st.integers(0, 5), st.integers(1, 500), st.integers(0, 500)),
    max_size=120,
)


@given(slots=st.integers(1, 4), steps=STEPS)
def test_every_history_keeps_the_slots_full_and_loses_no_request(slots, steps):
    """Counters are what is there; a slot is free only if nothing waits; the virtual time never goes back."""
    queue, waiting, running, number = FairQueue(slots), {}, {}, 0
    for kind, who, tokens, took in steps:
        before, tenant = queue.virtual, f"t{who}"
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
            queue.leave(waiting.pop(ticket)[0], ticket)
        for ticket in queue.admit():
            running[ticket] = waiting.pop(ticket)
        assert (queue.waiting, queue.running) == (len(waiting), len(running))
        assert len(running) == slots or not waiting
        assert len(running) <= slots
        assert queue.virtual >= before
        assert queue.active == len({name for name, _ in (*waiting.values(), *running.values())})
    if not waiting and not running:
        assert queue.remembered == 0


@given(st.lists(st.integers(1, 300), min_size=20, max_size=60), st.lists(st.integers(1, 300), min_size=20, max_size=60))
def test_two_that_always_wait_have_equal_tokens_but_for_one_request_each(first, second):
    """Whatever their requests are like."""
    queue, had = FairQueue(1), {"a": 0, "b": 0}
    for name, sizes in (("a", first), ("b", second)):
        for number, tokens in enumerate(sizes):
            queue.offer(name, (name, number, tokens), tokens)
    while queue.waiting_of("a") and queue.waiting_of("b"):
        (ticket,) = queue.admit()
        had[ticket[0]] += ticket[2]
        queue.ended(ticket[0], ticket[2], ticket[2])
        assert abs(had["a"] - had["b"]) <= 600
