"""One step of the policy that decides which models make room: its properties, and a table of delays."""

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.k8s.resource import Key
from llmkube.runtimes.swap import DRAIN_SECONDS, PATIENCE_SECONDS, SHARE_SECONDS, Cost, Resident, Waiting, step

NOW = 10_000.0
DEVICES = ("host", "gpu0", "gpu1")
SIZES = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 9), min_size=1)
AGES = st.sampled_from([0.0, 5.0, 59.0, 60.0, 61.0, 400.0, 5000.0]).map(lambda age: NOW - age)
SWAPS = st.sampled_from([math.nan, math.nan, 0.0, 1.5, 3.0, 20.0])
RESIDENTS = st.builds(
    Resident,
    key=st.integers().map(str),
    bytes=SIZES,
    rank=st.integers(1, 3),
    on_request=st.booleans(),
    pinned=st.sampled_from([False, False, True]),
    uses=st.sampled_from([0, 0, 1, 4]),
    closed_at=st.none() | AGES,
    exiting=st.sampled_from([False, False, True]),
    loaded_at=st.none() | AGES,
    used_at=AGES,
    swaps=SWAPS,
)
WAITING = st.builds(
    Waiting,
    key=st.integers().map(str),
    bytes=SIZES,
    since=AGES,
    rank=st.integers(1, 3),
    on_request=st.booleans(),
    requests=st.integers(0, 5),
    first=st.booleans(),
    swaps=SWAPS,
)
COSTS = st.builds(Cost, load_seconds=st.floats(1, 200), uses=st.floats(0, 50), loads=st.floats(0, 5), at=AGES)


@st.composite
def hosts(draw, waiting=4):
    residents = [
        attrs.evolve(each, key=Key("ns", f"r{at}")) for at, each in enumerate(draw(st.lists(RESIDENTS, max_size=7)))
    ]
    queue = [
        attrs.evolve(each, key=Key("ns", f"w{at}"))
        for at, each in enumerate(draw(st.lists(WAITING, min_size=1, max_size=waiting)))
    ]
    free = {device: draw(st.integers(-3, 6)) for device in DEVICES}
    return residents, queue, free, {each.key: draw(COSTS) for each in residents}


def total(those, device):
    return sum(each.bytes.get(device, 0) for each in those)


def by_key(those):
    return {each.key: each for each in those}


@given(hosts())
def test_a_step_keeps_its_rules(host):
    """Nothing in use, pinned or more important is displaced; no byte is promised twice; each set suffices."""
    residents, queue, free, costs = host
    outcome = step(residents, queue, free, costs, NOW)
    there, waits = by_key(residents), by_key(queue)
    for victim, winner in (*outcome.displaced.items(), *outcome.closed.items()):
        one, other = there[victim], waits[winner]
        assert not one.pinned
        assert not one.exiting
        assert (one.uses > 0) == (victim in outcome.closed)
        assert one.rank < other.rank or (one.rank == other.rank and one.on_request and other.on_request)
    for victim in outcome.closed:
        assert there[victim].loaded_at is not None
    assert not outcome.displaced.keys() & outcome.closed.keys()
    started = [waits[key] for key in outcome.started]
    winners = [waits[key] for key in {*outcome.displaced.values(), *outcome.closed.values()}]
    promised = [*started, *(each for each in winners if each not in started)]
    ending = [each for each in residents if each.exiting or each.key in {*outcome.displaced, *outcome.closed}]
    # An idle resident of a set that has to drain stays, and is promised as well.
    assert not set(outcome.displaced.values()) & set(outcome.closed.values())
    draining = set(outcome.closed.values())
    for device in DEVICES:
        if total(started, device):
            assert total(started, device) <= free[device]
        sure = [each for each in promised if each.key not in draining]
        if total(sure, device) and not draining:
            assert total(sure, device) <= free[device] + total(ending, device)
    assert all(at > NOW for at in outcome.delayed.values())
    assert not outcome.delayed.keys() & {*outcome.started, *(each.key for each in promised)}


@given(hosts(waiting=1))
def test_only_what_is_needed_makes_room(host):
    """Of the models that are displaced for a service none could stay, and they suffice; otherwise none is."""
    residents, queue, free, costs = host
    outcome = step(residents, queue, free, costs, NOW)
    lacking = {
        device: size - free[device] - total([each for each in residents if each.exiting], device)
        for device, size in queue[0].bytes.items()
    }
    if outcome.displaced:
        victims = [each for each in residents if each.key in outcome.displaced]
        assert all(total(victims, device) >= size for device, size in lacking.items())
        for each in victims:
            rest = [other for other in victims if other is not each]
            assert any(total(rest, device) < size for device, size in lacking.items())
    if all(size <= 0 for size in lacking.values()):
        assert not outcome.displaced
        assert not outcome.closed


@given(hosts(waiting=1))
def test_no_one_waits_for_ever_or_without_a_time(host):
    """A service for which its equals could make room gets it at once, or at the time that the step names."""
    residents, queue, free, costs = host
    one = queue[0]
    settled = [attrs.evolve(each, loaded_at=0.0 if each.loaded_at is None else each.loaded_at) for each in residents]
    outcome = step(settled, queue, free, costs, NOW)
    pool = [
        each
        for each in settled
        if each.exiting
        or (
            not each.pinned and (each.rank < one.rank or (each.rank == one.rank and each.on_request and one.on_request))
        )
    ]
    enough = all(total(pool, device) + free[device] >= size for device, size in one.bytes.items())
    leaving = [each for each in settled if each.exiting]
    soon = all(total(leaving, device) + free[device] >= size for device, size in one.bytes.items())
    made = bool(outcome.started or outcome.displaced or outcome.closed)
    assert (made or soon or one.key in outcome.delayed) == enough
    if one.key in outcome.delayed:
        at = outcome.next_at
        assert at <= max(NOW, one.since) + SHARE_SECONDS + max(each.load_seconds for each in costs.values())
        later = step(settled, queue, free, costs, at)
        assert later.displaced or later.closed


@given(hosts(), st.randoms())
def test_the_order_of_the_arguments_has_no_effect(host, rng):
    """The same residents and services in another order give the same outcome."""
    residents, queue, free, costs = host
    outcome = step(residents, queue, free, costs, NOW)
    rng.shuffle(residents)
    rng.shuffle(queue)
    assert step(residents, queue, free, costs, NOW) == outcome


@given(hosts(waiting=1))
def test_doors_stay_closed_until_they_have_helped(host):
    """Doors that are closed for a service are not opened for another set a moment later."""
    residents, queue, free, costs = host
    outcome = step(residents, queue, free, costs, NOW)
    after = [
        attrs.evolve(each, closed_at=NOW if each.key in outcome.closed else None)
        for each in residents
        if not outcome.displaced
    ]
    later = step(after, queue, free, costs, NOW + 1)
    assert later.displaced or outcome.closed.keys() <= later.closed.keys()


def resident(name, size, **facts):
    seen = {"rank": 2, "loaded_at": 0.0, "used_at": NOW - 3}
    return Resident(Key("ns", name), {"host": size}, **(seen | facts))


def wants(size, **facts):
    return Waiting(Key("ns", "new"), {"host": size}, **({"since": NOW, "rank": 2} | facts))


THRASHES = Cost(load_seconds=30.0, uses=5.0, loads=4.0, at=NOW)


@pytest.mark.parametrize(
    ("one", "other", "cost", "seconds"),
    [
        (wants(5), resident("a", 5), Cost(30.0, 5.0, 1.0, NOW), None),  # loaded once: nothing thrashes
        (wants(5), resident("a", 5), THRASHES, 57.0),  # until it has been idle for as long as two loads take
        (wants(5, requests=3), resident("a", 5), THRASHES, 17.0),  # three share that
        (wants(5, first=True), resident("a", 5), THRASHES, None),  # a user's own start
        (wants(5, rank=3), resident("a", 5), THRASHES, None),
        (wants(5), resident("a", 5), attrs.evolve(THRASHES, load_seconds=300.0), PATIENCE_SECONDS),
        (wants(5), resident("a", 5, uses=1), THRASHES, PATIENCE_SECONDS),
        (wants(5), resident("a", 5, uses=1, loaded_at=NOW), attrs.evolve(THRASHES, load_seconds=90.0), 90.0),
        # Tenants: the quiet one's model stays for longer, and it waits for none of the busy one.
        (wants(5, swaps=6.0), resident("a", 5, swaps=4.0), THRASHES, SHARE_SECONDS - 3),
        (wants(5, swaps=6.0), resident("a", 5, uses=1, swaps=4.0), THRASHES, SHARE_SECONDS),
        (wants(5, swaps=6.0, since=NOW - SHARE_SECONDS), resident("a", 5, swaps=0.0), THRASHES, None),
        (wants(5, swaps=6.0, rank=3), resident("a", 5, swaps=0.0), THRASHES, None),
        (wants(5, swaps=4.0), resident("a", 5, swaps=6.0), THRASHES, None),
        (wants(5, swaps=4.0), resident("a", 5, uses=1, loaded_at=NOW, swaps=6.0), THRASHES, 30.0),
        (wants(5, swaps=5.0), resident("a", 5, swaps=4.0), THRASHES, 57.0),
        # Members of a pool displace each other, whatever their ranks.
        (wants(5, peers="p"), resident("a", 5, peers="p", rank=3), THRASHES, 57.0),
        (wants(5, peers="p", rank=3), resident("a", 5, peers="p"), THRASHES, None),
        (wants(5, peers="p", rank=3, ranked=False), resident("a", 5, peers="p"), THRASHES, 57.0),
        (wants(5, swaps=5.0), resident("a", 5, swaps=math.nan), THRASHES, 57.0),
    ],
)
def test_a_swap_is_delayed_until(one, other, cost, seconds):
    """The step names the time until which it delays a service."""
    outcome = step([other], [one], {"host": 0}, {other.key: cost}, NOW)
    assert outcome.next_at == (None if seconds is None else pytest.approx(NOW + seconds))
    assert bool(outcome.displaced) == (seconds is None)


@pytest.mark.parametrize(
    ("facts", "displaced"),
    [
        ({"load_seconds": 5.0}, "a"),
        ({"uses": 1.0}, "a"),
        ({"loads": 1.0}, "a"),
        ({"at": NOW - 5000}, "a"),
        ({"load_seconds": 50.0}, "b"),
    ],
)
def test_the_least_expected_cost_is_displaced(facts, displaced):
    """Load time, use, reloads and age order two models of one size."""
    base = Cost(load_seconds=20.0, uses=5.0, loads=2.0, at=NOW - 500)
    there = [resident("a", 5, used_at=0.0), resident("b", 5, used_at=0.0)]
    costs = {there[0].key: attrs.evolve(base, **facts), there[1].key: base}
    outcome = step(there, [wants(5, since=0.0)], {"host": 0}, costs, NOW)
    assert [key.name for key in outcome.displaced] == [displaced]


@pytest.mark.parametrize(
    ("sizes", "displaced"),
    [
        ({"a": (6, 10), "b": (2, 4), "c": (2, 4), "d": (2, 4)}, "a"),  # one that is dearer than each of three
        ({"a": (6, 10), "b": (2, 2), "c": (2, 2), "d": (2, 2)}, "bcd"),
        ({"a": (1, 1), "b": (6, 100)}, "b"),  # a cheap one that does not help
        ({"a": (6, 1, {"uses": 1}), "b": (6, 100)}, "b"),  # in use
        ({"a": (6, 100, {"rank": 1}), "b": (6, 1)}, "a"),
        ({"a": (5, 1), "b": (6, 1, {"pinned": True})}, ""),
    ],
)
def test_the_cheapest_set_is_displaced(sizes, displaced):
    """The set that costs least in all, of the lowest priority, and before any door is closed an idle one."""
    there = [resident(name, row[0], used_at=0.0, **(row[2:] or ({},))[0]) for name, row in sizes.items()]
    costs = {Key("ns", name): Cost(float(row[1]), uses=1.0, at=NOW) for name, row in sizes.items()}
    outcome = step(there, [wants(6, since=0.0)], {"host": 0}, costs, NOW)
    assert "".join(sorted(key.name for key in outcome.displaced)) == displaced
    assert not outcome.closed


@pytest.mark.parametrize(
    ("facts", "winner"),
    [
        ({}, "new"),
        ({"first": True}, "other"),
        ({"rank": 3}, "other"),
        ({"since": NOW - 101}, "other"),
        ({"swaps": 1.0}, "other"),
        ({"swaps": 2.0}, "new"),
        ({"swaps": math.nan}, "new"),
    ],
)
def test_a_model_makes_room_for_one_service(facts, winner):
    """Of two that want its memory one gets it: by priority, a user's own start, the tenant, the longest wait."""
    there = resident("a", 5, used_at=0.0)
    other = attrs.evolve(wants(5, since=NOW - 90), key=Key("ns", "other"), **facts)
    outcome = step([there], [wants(5, since=NOW - 100, swaps=3.0), other], {"host": 0}, {}, NOW)
    assert outcome.displaced == {there.key: Key("ns", winner)}


def test_the_doors_of_another_set_are_closed_if_requests_do_not_end():
    """A model whose requests wait for the very service that waits for it keeps its door closed for a while only."""
    stuck, other = resident("a", 5, uses=1, closed_at=NOW - DRAIN_SECONDS), resident("b", 5, uses=1)
    costs = {stuck.key: Cost(1.0), other.key: Cost(100.0)}
    one = wants(5, since=NOW - 1000)
    assert [*step([stuck, other], [one], {"host": 0}, costs, NOW - 1).closed] == [stuck.key]
    assert [*step([stuck, other], [one], {"host": 0}, costs, NOW).closed] == [other.key]


def test_promised_memory_goes_to_no_younger_service():
    """A younger service that would fit into memory that is promised waits, and one that fits in the rest starts."""
    there = resident("a", 5, uses=1, exiting=False)
    old, young = wants(7, since=NOW - 1000), attrs.evolve(wants(3), key=Key("ns", "young"))
    outcome = step([there], [young, old], {"host": 3}, {}, NOW)
    assert outcome.closed == {there.key: old.key}
    assert outcome.started == ()
    assert step([there], [young, old], {"host": 5}, {}, NOW).started == (young.key,)


def test_costs_are_learned():
    """Uses and loads lose half their weight in half an hour, a burst is one use, and the last load time is taken."""
    cost = Cost().loaded(12.0, 0.0).used(0.0).used(30.0).used(1800.0)
    assert attrs.astuple(cost) == pytest.approx((12.0, 1.5, 0.5, 1800.0))
