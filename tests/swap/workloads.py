"""Random workloads of 20 models on a host with memory for some of them. One seed is one workload.

The distributions are the constants below; `SEEDS` are the published workloads. A policy is never adjusted to these
seeds: it is developed on those from `DEVELOPMENT_SEED` on.
"""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

MODELS: Final = 20
SEEDS: Final = range(1000)
DEVELOPMENT_SEED: Final = 100_000

MIB: Final = 1 << 20
HOURS: Final = (2.0, 6.0)
"""Length of a workload, uniform."""
CALLS: Final = (300, 900)
"""Expected calls in it without sub-calls, uniform."""
POPULARITY: Final = (0.4, 1.4)
"""Exponent of Zipf's law over the models, uniform."""
SIZE_MIB: Final = (512, 40 * 1024)
"""Size of a model, log-uniform."""
SHARE: Final = (0.10, 0.60)
"""Memory for models, as a share of the size of all of them, uniform; at least what the largest one needs besides those
that no request displaces."""
READ_MIB: Final = (300, 3000)
"""MiB that the host reads in a second, log-uniform. A model loads in size / this * lognormal(0, 0.5) and 1 to 4 s."""
LOAD_NOISE: Final = 0.1
"""Standard deviation of the logarithm of a load's duration."""
DEVICES: Final = ((0, 0.5), (1, 0.3), (2, 0.2))
"""Number of devices with memory of their own besides the host's; on such a host a model has 5 to 30 % of its size in
the host's memory."""
PATTERNS: Final = (("poisson", 0.4), ("bursts", 0.25), ("diurnal", 0.15), ("agent", 0.2))
BURST: Final = (8, 5.0)
"""Mean calls of a burst, geometric, and mean seconds between two of them."""
DAY_SECONDS: Final = (3600.0, 10_800.0)
"""Period of a diurnal rate, which is proportional to 1 + sin."""
AGENT_STEPS: Final = (3, 10)
"""Calls of an agent's loop, each 0 to 30 s after the end of the one before; 80 % of them hold their model while they
wait for a sub-call of another model, 20 % of which wait for one of a third."""
ANSWER_SECONDS: Final = (6.0, 1.0, 0.2, 300.0)
"""Duration of an answer: median and sigma of its lognormal distribution, lower and upper limit."""
STREAMS: Final = (0.05, 60.0, 300.0)
"""Share of long streams, and their duration, uniform."""
RANKS: Final = (0.3, (1, 2, 2, 2, 3))
"""Share of workloads whose models have different priorities, and these; otherwise all are 2."""
ALWAYS: Final = 0.4
"""Share of workloads with one or two services that are always loaded; they return after they were displaced."""
PINNED: Final = 0.2
"""Share of workloads with a pinned one."""
SQUEEZES: Final = (0.5, (1, 6), (120.0, 1200.0), (0.1, 0.5))
"""Share of workloads in which other programs take memory: how often, for how many seconds, and which share of the
memory for models."""
MAX_HOLD: Final = (300.0, 600.0)


@attrs.frozen
class Model:
    """A service: its bytes by device, and what it takes to load it."""

    name: str
    bytes: Mapping[str, int]
    load_seconds: float
    rank: int = 2
    always: bool = False
    pinned: bool = False


@attrs.frozen
class Call:
    """A request that computes for `seconds`.

    Attributes:
        at: When it is made: for a sub-call, after its caller began to compute.
        call: A sub-call that the caller waits for.
        then: The next call of the same client, `at` seconds after the end of this one.
    """

    at: float
    model: str
    seconds: float
    call: "Call | None" = None
    then: "Call | None" = None


@attrs.frozen
class Squeeze:
    """Memory of the host that other programs want for a time."""

    at: float
    until: float
    bytes: int


@attrs.frozen
class Workload:
    """One seed: what is called when, on a host with this much memory by device."""

    seed: int
    seconds: float
    max_hold: float
    limits: Mapping[str, int]
    models: tuple[Model, ...]
    calls: tuple[Call, ...]
    squeezes: tuple[Squeeze, ...]


def generate(seed: int) -> Workload:
    """Return the workload of a seed."""
    rng = random.Random(seed)
    seconds = round(rng.uniform(*HOURS) * 3600, 3)
    models, limits = _models(rng)
    exponent = rng.uniform(*POPULARITY)
    weights = [1 / (at + 1) ** exponent for at in range(MODELS)]
    rng.shuffle(weights)
    expected = rng.uniform(*CALLS)
    calls = []
    for model, weight in zip(models, weights, strict=True):
        calls += _calls(rng, model.name, expected * weight / sum(weights), seconds, [each.name for each in models])
    calls.sort(key=lambda call: (call.at, call.model))
    squeezes = tuple(_squeezes(rng, limits["host"], seconds))
    return Workload(seed, seconds, rng.choice(MAX_HOLD), limits, tuple(models), tuple(calls), squeezes)


def _models(rng: random.Random) -> tuple[list[Model], dict[str, int]]:
    devices = _pick(rng, DEVICES)
    read, ranked = _log_uniform(rng, READ_MIB), rng.random() < RANKS[0]
    models = []
    for number in range(MODELS):
        size = int(_log_uniform(rng, SIZE_MIB))
        needs = {"host": size * MIB}
        if devices:
            inside = int(size * rng.uniform(0.05, 0.30))
            needs = {"host": inside * MIB, f"gpu{rng.randrange(devices)}": (size - inside) * MIB}
        load = size / read * rng.lognormvariate(0, 0.5) + rng.uniform(1, 4)
        rank = rng.choice(RANKS[1]) if ranked else 2
        models.append(Model(f"m{number:02}", needs, round(load, 3), rank))
    staying = set(rng.sample(range(MODELS), rng.randint(1, 2)) if rng.random() < ALWAYS else ())
    models = [attrs.evolve(each, always=at in staying) for at, each in enumerate(models)]
    if rng.random() < PINNED:
        at = rng.choice([at for at in range(MODELS) if at not in staying])
        models[at] = attrs.evolve(models[at], pinned=True)
    share, limits = rng.uniform(*SHARE), {}
    for device in sorted({device for each in models for device in each.bytes}):
        fixed = sum(each.bytes.get(device, 0) for each in models if each.always or each.pinned)
        others = [each.bytes.get(device, 0) for each in models if not (each.always or each.pinned)]
        limits[device] = max(int(share * (sum(others) + fixed)), fixed + max(others))
    return models, limits


def _calls(rng: random.Random, model: str, count: float, seconds: float, names: list[str]) -> Iterator[Call]:
    """Yield about `count` calls of a model by the pattern that is drawn for it."""
    pattern = _pick(rng, PATTERNS)
    size = {"bursts": BURST[0], "agent": sum(AGENT_STEPS) / 2}.get(pattern, 1)
    period, shift = rng.uniform(*DAY_SECONDS), rng.uniform(0, 2 * math.pi)
    others = rng.sample([name for name in names if name != model], 2)
    at = 0.0
    while True:
        at += rng.expovariate(count / size / seconds * (2 if pattern == "diurnal" else 1))
        if at >= seconds:
            return
        if pattern == "diurnal" and rng.random() * 2 > 1 + math.sin(2 * math.pi * at / period + shift):
            continue
        if pattern == "agent":
            yield _loop(rng, round(at, 3), model, others, rng.randint(*AGENT_STEPS))
            continue
        yield Call(round(at, 3), model, _answer(rng))
        again = at
        while pattern == "bursts" and rng.random() > 1 / BURST[0]:
            again += rng.expovariate(1 / BURST[1])
            yield Call(round(again, 3), model, _answer(rng))


def _loop(rng: random.Random, at: float, model: str, others: list[str], steps: int) -> Call:
    third = Call(1.0, others[1], _answer(rng)) if rng.random() < 0.2 else None
    sub = Call(round(rng.uniform(0, 3), 3), others[0], _answer(rng), third) if rng.random() < 0.8 else None
    then = _loop(rng, round(rng.uniform(0, 30), 3), model, others, steps - 1) if steps > 1 else None
    return Call(at, model, _answer(rng), sub, then)


def _squeezes(rng: random.Random, limit: int, seconds: float) -> Iterator[Squeeze]:
    share, times, length, part = SQUEEZES
    for _ in range(rng.randint(*times) if rng.random() < share else 0):
        at = round(rng.uniform(0, seconds), 3)
        yield Squeeze(at, round(at + rng.uniform(*length), 3), int(limit * rng.uniform(*part)))


def _answer(rng: random.Random) -> float:
    median, sigma, low, high = ANSWER_SECONDS
    if rng.random() < STREAMS[0]:
        return round(rng.uniform(*STREAMS[1:]), 3)
    return round(min(high, max(low, median * rng.lognormvariate(0, sigma))), 3)


def _log_uniform(rng: random.Random, limits: tuple[float, float]) -> float:
    return math.exp(rng.uniform(math.log(limits[0]), math.log(limits[1])))


def _pick(rng: random.Random, table: tuple[tuple[object, float], ...]):
    return rng.choices([row[0] for row in table], [row[1] for row in table])[0]
