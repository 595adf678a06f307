"""A light tenant and twelve busy ones, at engines whose batches speed up or slow down with each used slot.

No clock and no sockets: times are computed from one end to the next. The same on llama.cpp:
`make bench BENCH=fairness`.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import attrs
import pytest

from llmkube.router.fair_queue import FairQueue

FLOODERS, QUIET, SECONDS = 12, "quiet", 4000.0
LONG, SHORT, PAUSE_SECONDS = range(100, 801), range(4, 41), 7.0
WAIT_TIMES, THROUGHPUT = 1.25, 0.95

ENGINES: Final[Mapping[str, Callable[[int], float]]] = {
    "a batch costs nothing": lambda taken: 50.0,
    "a batch gains": lambda taken: 50.0 * taken**0.6 / taken,
    "a batch gains nothing": lambda taken: 50.0 / taken,
    "a batch loses": lambda taken: 50.0 / taken * 0.85 ** (taken - 1),
}
"""Tokens per second of each request, by the number of concurrent requests."""


@attrs.frozen
class Request:
    tenant: str
    number: int
    tokens: int


class Queue(Protocol):
    """Chooses the next request."""

    def offer(self, tenant: str, ticket: Request, tokens: int) -> object: ...
    def admit(self) -> list[Request]: ...
    def ended(self, tenant: str, tokens: int, took: int) -> None: ...


@attrs.define
class FirstComeFirstServed:
    """An engine's own queue."""

    slots: int
    waiting: deque[Request] = attrs.field(factory=deque)
    running: int = 0

    def offer(self, _tenant, ticket, _tokens):
        self.waiting.append(ticket)

    def admit(self):
        admitted = [self.waiting.popleft() for _ in range(min(self.slots - self.running, len(self.waiting)))]
        self.running += len(admitted)
        return admitted

    def ended(self, _tenant, _tokens, _took):
        self.running -= 1


@attrs.define
class Played:
    """The result: waits of the light tenant in seconds, the shortest possible ones, and all tokens."""

    waits: list[float] = attrs.field(factory=list)
    shortest: list[float] = attrs.field(factory=list)
    tokens: float = 0.0


def play(queue: Queue, slots: int, speed: Callable[[int], float], seed: int = 22) -> Played:
    """Play twelve tenants that always have a request, and a light one with occasional short requests."""
    rng, played, now, count = random.Random(seed), Played(), 0.0, 0
    running: dict[Request, float] = {}
    quiet_at, asked_at = PAUSE_SECONDS, 0.0

    def ask(tenant, lengths):
        nonlocal count
        count += 1
        request = Request(tenant, count, rng.choice(lengths))
        queue.offer(tenant, request, request.tokens)

    def admit():
        for request in queue.admit():
            running[request] = float(request.tokens)
            if request.tenant == QUIET:
                played.waits.append(now - asked_at)

    for flooder in range(FLOODERS):
        ask(f"flooder{flooder}", LONG)
    admit()
    while now < SECONDS:
        assert len(running) == slots, "a slot is free while requests wait"
        rate = speed(len(running))
        request, left = min(running.items(), key=lambda each: each[1])
        step = min(left / rate, max(0.0, quiet_at - now))
        now += step
        played.tokens += step * rate * len(running)
        running = {each: tokens - step * rate for each, tokens in running.items()}
        if now >= quiet_at and step < left / rate:
            asked_at, quiet_at = now, float("inf")
            played.shortest.append(min(running.values()) / rate)
            ask(QUIET, SHORT)
        else:
            del running[request]
            queue.ended(request.tenant, request.tokens, request.tokens)
            if request.tenant == QUIET:
                quiet_at = now + rng.expovariate(1 / PAUSE_SECONDS)
            else:
                ask(request.tenant, LONG)
        admit()
    return played


def p99(values):
    return sorted(values)[int(0.99 * len(values))]


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_light_tenant_waits_for_the_first_end_at_equal_throughput(engine, slots):
    """The references are a schedule that knows all ends without preemption, and the engine's own queue."""
    speed = ENGINES[engine]
    ours, alone = play(FairQueue(slots), slots, speed), play(FirstComeFirstServed(slots), slots, speed)
    assert len(ours.waits) > 100
    assert p99(ours.waits) <= WAIT_TIMES * p99(ours.shortest)
    assert ours.tokens >= THROUGHPUT * alone.tokens


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_queue_the_light_tenant_waits_for_all(engine):
    """If this failed, the test above would prove nothing."""
    alone = play(FirstComeFirstServed(2), 2, ENGINES[engine])
    assert p99(alone.waits) > 3 * p99(alone.shortest)


def test_a_slot_that_stays_free_is_seen():
    """A deliberate bug: one slot fewer than the engine has."""
    with pytest.raises(AssertionError, match="a slot is free"):
        play(FairQueue(1), 2, ENGINES["a batch gains"])
