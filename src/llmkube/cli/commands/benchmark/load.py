"""Requests with streamed answers in a closed or an open loop, and their prompts.

In a closed loop each of N clients sends its next request when the last one has ended. In an open loop requests arrive
at random times (Poisson) that do not depend on the answers. Every prompt is different from its first word on, between
runs too, so that no cache of the server has it; with a shared prefix, the rest of the prompt is.
"""

import itertools
import random
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import orjson
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import ConnectError, ConnectionLostError, HttpError
from llmkube.base.http.message import Headers
from llmkube.base.package_data import read_text
from llmkube.cli.commands.benchmark.results import Answer, summarize
from llmkube.cli.commands.inference.conversation import EventReader, StreamError, error_text
from llmkube.programs.failures import CommandError

_WORDS: Final = read_text(__package__, "words.txt").split()
_KINDS: Final[Mapping[type[Exception], str]] = {
    trio.TooSlowError: "timeout",
    StreamError: "error in the answer",
    ConnectError: "cannot connect",
    ConnectionLostError: "connection lost",
    HttpError: "invalid HTTP",
}
_FEW, _MANY = 8, 40


@attrs.frozen
class Prompts:
    """Prompts of random words, and the bodies of their requests.

    Attributes:
        model: Value of `model`.
        answer_tokens: Longest answer.
        shared_tokens: Length of the prefix that all prompts share.
        is_full: Whether each answer has the maximum length, which only some servers support.
        seed: Seed of the words and of arrivals.
        run: Random text of this run, so that its prompts are new to the server.
        tokens_per_word: Tokens of a word, as measured.
        extra_tokens: Tokens of the chat template, as measured.
    """

    model: str
    answer_tokens: int
    shared_tokens: int = 0
    is_full: bool = False
    seed: int = 0
    run: str = attrs.field(factory=lambda: secrets.token_hex(4))
    tokens_per_word: float = 1.0
    extra_tokens: float = 0.0

    def body(self, tokens: int, number: int) -> bytes:
        """Return the body of a request with a prompt of about so many tokens."""
        words = max(1, round((tokens - self.extra_tokens) / self.tokens_per_word))
        shared = min(words, round(self.shared_tokens / self.tokens_per_word))
        parts = ((f"{self.seed}", shared), (f"{self.seed} {self.run} {number}", words - shared))
        text = " ".join(word for seed, count in parts for word in random.Random(seed).choices(_WORDS, k=count))  # noqa: S311
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return orjson.dumps(request | ({"ignore_eos": True} if self.is_full else {}))


@attrs.define(eq=False)
class Target:
    """An address with OpenAI's API.

    Attributes:
        http: The client.
        url: URL of the chat completions.
        headers: Headers of each request.
        timeout: Longest time of a request, in seconds.
        in_flight: Requests that run.
        most: Largest number of these.
    """

    http: HttpClient
    url: str
    headers: Headers = attrs.field(repr=False)
    timeout: float
    in_flight: int = 0
    most: int = 0

    async def ask(self, body: bytes, intended: float) -> Answer:
        """Send a request that was intended for a time, by Trio's clock; never raises for a failed one."""
        late = trio.current_time() - intended
        times: list[float] = []
        usage: Mapping[str, Any] = {}
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            with trio.fail_after(self.timeout):
                times, usage, failure = await self._receive(body)
        except tuple(_KINDS) as error:
            failure = next(_KINDS[kind] for kind in _KINDS if isinstance(error, kind)), str(error)
        finally:
            self.in_flight -= 1
        latency = trio.current_time() - intended
        if failure[0]:
            return Answer(late, latency, error=failure[0], detail=failure[1] or f"no end within {self.timeout:g} s")
        gaps = tuple(after - before for before, after in itertools.pairwise(times))
        prompt, counted = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        return Answer(late, latency, times[0] - intended, gaps, prompt, counted or len(times), bool(counted))

    async def _receive(self, body: bytes) -> tuple[list[float], Mapping[str, Any], tuple[str, str]]:
        """Return the time of each chunk with text, the usage, and the kind and the message of a failure."""
        times: list[float] = []
        usage: Mapping[str, Any] = {}
        reader, piece, is_finished = EventReader(), b"-", False
        async with self.http.open_stream("POST", self.url, headers=self.headers, body=body) as answer:
            if answer.status != 200:
                refusal = await answer.receive_some()
                return times, usage, (f"HTTP {answer.status}", error_text(refusal.decode("utf-8", "replace")))
            while piece:  # to the end, so that the connection can be used again
                piece = await answer.receive_some()
                now = trio.current_time()
                for delta in reader.feed(piece):
                    times += [now] if delta.text or delta.reasoning else []
                    usage, is_finished = delta.usage or usage, is_finished or bool(delta.finish_reason)
        ended = ("", "") if times else ("no text", "the answer has no text")
        return times, usage, ended if reader.done or is_finished else ("cut off", "the answer has no end")


async def calibrate(target: Target, prompts: Prompts) -> Prompts:
    """Return prompts whose length in tokens is known from two requests, which also load the model.

    Raises:
        CommandError: A request failed.
    """
    found = []
    for words in (_FEW, _MANY):
        answer = await target.ask(prompts.body(words, -words), trio.current_time())
        if answer.error:
            raise CommandError(f"{target.url}: {answer.error}: {answer.detail}")
        found.append(answer.prompt_tokens)
    if not found[0]:
        return prompts  # a word is taken for a token
    per_word = max(0.1, (found[1] - found[0]) / (_MANY - _FEW))
    return attrs.evolve(prompts, tokens_per_word=per_word, extra_tokens=found[0] - _FEW * per_word)


@attrs.frozen
class Load:
    """One load.

    Attributes:
        prompt_tokens: Length of the prompts.
        requests: Number of requests, if there is no `seconds`.
        concurrency: Clients of a closed loop; 0 for an open loop.
        rate: Requests per second of an open loop.
        seconds: Time in which requests start; 0 if their number is given.
    """

    prompt_tokens: int
    requests: int
    concurrency: int = 0
    rate: float = 0.0
    seconds: float = 0.0

    def arrivals(self, seed: int) -> Iterator[float]:
        """Yield the times of an open loop's requests, in seconds after its start: always the same for a seed."""
        rng, at = random.Random(seed), 0.0  # noqa: S311 - no secret
        for _ in itertools.count() if self.seconds else range(self.requests):
            at += rng.expovariate(self.rate)
            if self.seconds and at > self.seconds:
                return
            yield at


async def run_load(target: Target, prompts: Prompts, load: Load) -> Any:
    """Return the figures of one load, as JSON data."""
    answers: list[Answer] = []
    start, cpu, target.most = trio.current_time(), time.process_time(), 0
    numbers = itertools.count() if load.seconds else iter(range(load.requests))

    async def send(body: bytes, intended: float) -> None:
        answers.append(await target.ask(body, intended))

    async def client() -> None:
        for number in numbers:  # all clients share it
            body = prompts.body(load.prompt_tokens, number)
            if load.seconds and trio.current_time() >= start + load.seconds:
                return
            await send(body, trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(load.concurrency):
            nursery.start_soon(client)
        for number, at in enumerate(() if load.concurrency else load.arrivals(prompts.seed)):
            body = prompts.body(load.prompt_tokens, number)
            await trio.sleep_until(start + at)
            nursery.start_soon(send, body, start + at)
    seconds = max(1e-9, trio.current_time() - start)
    kind = {"concurrency": load.concurrency} if load.concurrency else {"rate": load.rate}
    facts = {"mostInFlight": target.most, "cpuShare": (time.process_time() - cpu) / seconds}
    return summarize({**kind, "promptTokens": load.prompt_tokens}, answers, seconds, facts)
