"""Two scripted engines whose slots keep their latest prompts, with conversations of several tenants.

Time is counted in tokens read, without a clock. An engine works like llama.cpp's server: a request takes the idle slot
with most of its prompt, else the least recently used one, and reports the cached tokens.
"""

import heapq
import itertools
import random

import attrs

from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.policy.decision import Warmth, least_loaded
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from llmkube.router.prefix_cache.warm_prefixes import WarmPrefixes

PATH = "/chat/completions"
NAMES = ("a", "b")
WRITES = 20
"""Tokens that are read in the time of writing one."""


@attrs.define(eq=False)
class Slot:
    tokens: tuple = ()
    used_at: float = -1.0
    busy: bool = False


def common(left, right):
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return min(len(left), len(right))


@attrs.define(eq=False)
class Engine:
    slots: list
    overwrites: bool = True
    waiting: list = attrs.field(factory=list)
    load: int = 0

    def best(self, tokens):
        """Return the idle slot for a request, and how much of the prompt it has."""
        idle = [slot for slot in self.slots if not slot.busy]
        if not idle:
            return None, 0
        slot = max(idle, key=lambda each: common(each.tokens, tokens))
        warm = common(slot.tokens, tokens)
        if self.overwrites:
            if warm * 10 < len(tokens):  # --slot-prompt-similarity 0.1
                slot = min(idle, key=lambda each: each.used_at)
                warm = common(slot.tokens, tokens)
        elif warm < len(slot.tokens):
            slot = min(idle, key=lambda each: each.used_at)
        return slot, warm


@attrs.frozen
class ScriptedRequest:
    tenant: str
    tokens: tuple
    answer: tuple
    conversation: int


@attrs.define
class Tally:
    """Result of a run: tokens of prompts, and cached ones."""

    prompt: int = 0
    cached: int = 0
    requests: int = 0
    of_engine: dict = attrs.field(factory=lambda: dict.fromkeys(NAMES, 0))
    results: dict = attrs.field(factory=lambda: {"hit": 0, "miss": 0, "cold": 0, "": 0})

    @property
    def rate(self):
        return self.cached / self.prompt


def word(token):
    return f"{token:016x}"


def body_of(tokens):
    return {"model": "m", "messages": [{"role": "user", "content": "".join(map(word, tokens))}]}


class Conversations:
    """Tenants with a system prompt each, and conversations that grow by turns, some with branches."""

    def __init__(self, seed, *, tenants=4, conversations=80, active=8, turns=12, think=3000):
        self.dice = random.Random(seed)
        self.turns, self.think = turns, think
        self.systems = {f"t{at}": self.draw(self.dice.randrange(50, 250)) for at in range(tenants)}
        self.left = {}
        self.first = []
        # The length of a conversation, such that `active` of them run at a time
        span = conversations * turns / 2 * (think + 900) / active
        for at in range(conversations):
            tenant = f"t{at % tenants}"
            self.left[at] = self.dice.randrange(2, turns)
            tokens = self.systems[tenant] + self.draw(self.dice.randrange(30, 500))
            self.first.append((self.dice.uniform(0, span), self.asked(tenant, tokens, at)))

    def draw(self, count):
        return tuple(self.dice.randrange(65536) for _ in range(count))

    def asked(self, tenant, tokens, conversation):
        return ScriptedRequest(tenant, tokens, self.draw(self.dice.randrange(10, 60)), conversation)

    def next(self, asked):
        """Return the next turn of a conversation, after a while; None at its end."""
        self.left[asked.conversation] -= 1
        if self.left[asked.conversation] <= 0:
            return None
        tokens = asked.tokens + asked.answer + self.draw(self.dice.randrange(10, 80))
        return self.dice.expovariate(1 / self.think), self.asked(asked.tenant, tokens, asked.conversation)


class Router:
    """Chooses like the router, from reported cache use."""

    def __init__(self, slots, learns=True):
        self.backends = {
            name: Backend(name=name, model_id=name, base_url=f"http://{name}/v1", local=True, slots=slots)
            for name in NAMES
        }
        config = RoutingConfig(name="ml/front", backends=self.backends)
        self.permits = list(permits_for(config, RequestFacts(model="m")).allowed.values())
        self.prefixes = WarmPrefixes(b"secret")
        self.learns = learns

    def choose(self, asked, engines):
        load = {name: engine.load for name, engine in engines.items()}
        prompt = self._prompt(asked)
        warmth = self.prefixes.warmth(prompt, self.backends.values()) if self.learns and prompt else {}
        return least_loaded(self.permits, load, warmth)[0].backend.name

    def record_answer(self, asked, name, cached):
        prompt = self._prompt(asked)
        return (
            self.prefixes.record_answer(prompt, self.backends[name], cached=cached, tokens=len(asked.tokens))
            if prompt
            else ""
        )

    def _prompt(self, asked):
        body = body_of(asked.tokens)
        return self.prefixes.prompt(asked.tenant, PATH, body, 16 * len(asked.tokens) + 60)


class Oracle:
    """Knows each slot: chooses most cached tokens, then the shortest queue, then the least recently used slot."""

    def choose(self, asked, engines):
        least = min(engine.load for engine in engines.values())

        def worth(name):
            engine = engines[name]
            slot, warm = engine.best(asked.tokens)
            crowded = slot is None and engine.load > least
            oldest = min((each.used_at for each in engine.slots if not each.busy), default=float("inf"))
            return not crowded, warm, -engine.load, -oldest

        return max(NAMES, key=worth)

    def record_answer(self, asked, name, cached):
        return ""


def play(chooser, seed, *, slots=4, overwrites=True, reports=lambda cached: cached, restarts=(), **load):
    """Run conversations to their ends; return the cached tokens.

    Args:
        chooser: Chooses the engine.
        seed: Seed of the conversations: except for their times they do not depend on the chooser.
        slots: Slots of each engine.
        overwrites: Whether a slot with a tenth of a prompt is taken for it, and the rest of its cache lost.
        reports: Function of the cached tokens that returns the reported number.
        restarts: Numbers of requests after which engine `a` loses its cache.
        load: Parameters of the conversations.
    """
    talks, tally, order = Conversations(seed, **load), Tally(), itertools.count()
    engines = {name: Engine([Slot() for _ in range(slots)], overwrites) for name in NAMES}
    events = [(at, next(order), "ask", asked, None, None, 0) for at, asked in talks.first]
    heapq.heapify(events)

    def start(name, now):
        engine = engines[name]
        while engine.waiting and any(not slot.busy for slot in engine.slots):
            asked = engine.waiting.pop(0)
            slot, cached = engine.best(asked.tokens)
            slot.busy = True
            took = len(asked.tokens) - cached + WRITES * len(asked.answer)
            heapq.heappush(events, (now + took, next(order), "end", asked, name, slot, cached))

    while events:
        now, _, kind, asked, name, slot, cached = heapq.heappop(events)
        if kind == "ask":
            name = chooser.choose(asked, engines)
            engines[name].load += 1
            engines[name].waiting.append(asked)
        else:
            slot.busy, slot.tokens, slot.used_at = False, asked.tokens + asked.answer, now
            engines[name].load -= 1
            tally.requests += 1
            tally.of_engine[name] += 1
            tally.prompt += len(asked.tokens)
            tally.cached += cached
            tally.results[chooser.record_answer(asked, name, reports(cached))] += 1
            if tally.requests in restarts:
                for each in engines["a"].slots:
                    each.tokens = ()
            if (following := talks.next(asked)) is not None:
                heapq.heappush(events, (now + following[0], next(order), "ask", following[1], None, None, 0))
        start(name, now)
    return tally


__all__ = ["Oracle", "Router", "Tally", "Warmth", "play"]
