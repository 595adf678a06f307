"""Turns in a ModelPool: its GPUs are never promised twice, and members with requests never leave."""

import random

import attrs
import pytest

from llmkube.controller.status.model_pool import Member, Turn, decide
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.resource import Key


def pool(*names: str, **spec) -> ModelPool:
    members = [{"inferenceServiceRef": {"name": name}} for name in names]
    return decode(ModelPool, {"metadata": {"name": "slot", "namespace": "ml"}, "spec": {"members": members, **spec}})


@pytest.mark.parametrize("seed", range(30))
def test_gpus_are_never_promised_twice(seed):
    """Members come, work, leave and end at random; at each step those with pods fit, and none waits forever."""
    rng, names = random.Random(seed), ("a", "b", "c", "d")
    total = rng.choice((1, 2, 3))
    slot = pool(*names, gpu=total, default=rng.choice(("", "a")), swapBudget="100s")
    members = {name: Member(key=Key("ml", name), gpus=rng.randint(0, 4)) for name in names}
    waits = dict.fromkeys(names, 0)
    now = 0.0
    for _ in range(600):
        now += rng.uniform(0.1, 20)
        for name, one in members.items():
            wanted = one.wanted_since is not None
            wanted = rng.random() < 0.9 if wanted else rng.random() < 0.1
            since = (now if one.replicas or one.wanted_since is None else one.wanted_since) if wanted else None
            busy = bool(one.replicas) and wanted and rng.random() < 0.5
            ready = (now if one.ready_at is None else one.ready_at) if one.replicas else None
            used = now if busy or wanted else one.used_at
            pods = bool(one.replicas) or (one.has_pods and rng.random() < 0.5)
            seen = {"wanted_since": since, "is_busy": busy, "ready_at": ready, "used_at": used, "has_pods": pods}
            members[name] = attrs.evolve(one, **seen)
        turns = decide(slot, list(members.values()), now).turns
        for name, one in members.items():
            turn = turns[one.key]
            waits[name] = waits[name] + 1 if turn is Turn.WAITS else 0
            if turn is Turn.STARTS:
                members[name] = attrs.evolve(one, replicas=1, has_pods=True)
            elif turn is Turn.LEAVES:
                assert not one.is_busy
                members[name] = attrs.evolve(one, replicas=0, closed_at=None)
            elif turn is Turn.CLOSES:
                leaves = not one.is_busy
                closed = now if one.closed_at is None else one.closed_at
                members[name] = attrs.evolve(one, replicas=int(not leaves), closed_at=None if leaves else closed)
        needs = [min(total, max(1, one.gpus)) for one in members.values() if one.is_resident]
        assert sum(needs) <= total
        assert max(waits.values()) < 100


@pytest.mark.parametrize("policy", ["sticky", "priority"])
def test_a_less_important_member_takes_its_turn(policy):
    """It waits until the other one is idle."""
    running = Member(key=Key("ml", "a"), weight=9, replicas=1, has_pods=True, ready_at=0.0)
    turns = decide(
        pool("a", "b", swapPolicy=policy), [running, Member(key=Key("ml", "b"), wanted_since=50.0)], 60.0
    ).turns
    assert {key.name: turn for key, turn in turns.items()} == {"a": Turn.LEAVES, "b": Turn.WAITS}


def test_members_that_ran_before_the_pool_leave_but_the_default_one():
    """The pool has fewer GPUs than its members use: those leave that are not the default one."""
    running = [Member(key=Key("ml", name), replicas=1, has_pods=True, ready_at=0.0) for name in ("a", "b", "c")]
    turns = decide(pool("a", "b", "c", default="b"), running, 10.0).turns
    assert {key.name: turn for key, turn in turns.items()} == {"a": Turn.LEAVES, "b": Turn.STAYS, "c": Turn.LEAVES}
