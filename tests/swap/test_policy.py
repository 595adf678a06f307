"""1,000 random workloads in `make soak`, twenty in CI: nothing is killed or cut, nobody starves, and few loads."""

import statistics
from functools import cache

import attrs

from lengths import SWAP_SEEDS
from llmkube.runtimes.swap import PATIENCE_SECONDS
from swap.host import EXIT_SECONDS, Host
from swap.ours import Ours
from swap.playing import WORST, Played
from swap.workloads import ANSWER_SECONDS, MODELS, SEEDS, Call, generate

RUNS = SEEDS[:SWAP_SEEDS]

SELDOM = 0.01
"""Share of the workloads in which one of the references may be cheaper by more than a fifth."""


@cache
def played(seed):
    """Play a workload once for all tests."""
    return Played.of(seed)


def calm(call):
    """The same call without sub-calls."""
    return Call(call.at, call.model, call.seconds, None, call.then and calm(call.then))


def equal(workload):
    """The same workload in which nothing but the policy makes a request wait for long."""
    return attrs.evolve(
        workload,
        max_hold=1e9,
        models=tuple(attrs.evolve(each, rank=2, always=False) for each in workload.models),
        calls=tuple(calm(each) for each in workload.calls),
        squeezes=(),
    )


def test_no_memory_kill_and_no_cut_request():
    """No model is loaded into memory that others have, and none with requests in use is unloaded, nor a pinned one."""
    for seed in RUNS:
        ours = played(seed).ours
        assert (ours.killed, ours.cut) == (0, 0), seed


def test_every_request_has_its_answer_in_time():
    """A request is started, or refused, within the time for which the host holds requests."""
    for seed in RUNS:
        max_hold = played(seed).workload.max_hold
        for each in played(seed).ours.requests:
            answered_at = each.refused_at if each.started_at is None else each.started_at
            assert answered_at is not None, (seed, each)
            assert answered_at - each.at <= max_hold + 1e-6, (seed, each)


def test_a_service_waits_only_for_those_before_it():
    """Among equals each load of another service delays a waiting one by one patience, one answer and the loads."""
    for seed in RUNS:
        workload = equal(generate(seed))
        result = Host(workload, Ours(workload)).play()
        slowest = 1.5 * max(each.load_seconds for each in workload.models)
        turn = PATIENCE_SECONDS + ANSWER_SECONDS[3] + 2 * slowest + EXIT_SECONDS
        assert not result.refused
        assert result.overtaken <= 2 * (MODELS - 1), seed
        for each in result.requests:
            others = sum(each.at <= at < each.started_at for at in result.loaded_at)
            assert each.started_at - each.at <= turn * (1 + others), (seed, each)


def test_the_swap_cost_is_not_above_that_of_the_best_reference():
    """On average it is below those of LRU, LFU and GreedyDual-Size-Frequency, and seldom above 1.2 times the best."""
    runs = [played(seed) for seed in RUNS]
    for number in range(len(runs[0].references)):
        for cost in (Played.cost, lambda _, result: result.load_seconds):
            ours = statistics.mean(cost(each, each.ours) for each in runs)
            assert ours <= statistics.mean(cost(each, each.references[number]) for each in runs)
    assert statistics.mean(each.ratio for each in runs) <= 1
    assert len([each for each in runs if each.ratio > WORST]) <= len(runs) * SELDOM
    assert max(each.ratio for each in runs) < 1.4


def test_the_lower_bound_is_below_every_cost():
    """The clairvoyant bound that is reported is not above the cost of the run whose waits it was given."""
    for seed in RUNS:
        assert 0 < played(seed).bound <= played(seed).ours.load_seconds, seed
