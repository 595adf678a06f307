"""What the agent reads of an engine: llama.cpp's series of requests and tokens, and what shows that work goes on.

A daemon counts for all of its clients, or for none. Requests are counted as they pass, tokens as answers name them
(`usage`), and pieces of a stream as decodes. The processor time of the process that computes stands among the slots:
through a long prompt nothing else moves.
"""

import re
from typing import Final

import attrs
import orjson

TYPE: Final = "text/plain; version=0.0.4"

_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens|input_tokens|output_tokens)":\s*(\d{1,12})')
_TAIL_BYTES: Final = 512


@attrs.define(eq=False)
class Counters:
    """The counts of one engine since it was started.

    Attributes:
        processing: Requests that are with the daemon.
        prompt_tokens: Tokens of prompts.
        predicted_tokens: Tokens of answers.
        decodes: Pieces of answers that have come.
        runner_cpu_seconds: What the process that holds the model has used.
    """

    processing: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    decodes: int = 0
    runner_cpu_seconds: float = 0.0

    def metrics(self) -> bytes:
        """Return them in Prometheus' format, under llama.cpp's names."""
        return (
            f"# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total {self.prompt_tokens}\n"
            f"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total {self.predicted_tokens}\n"
            f"# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total {self.decodes}\n"
            f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {self.processing}\n"
            "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 0\n"
        ).encode()

    def slots(self) -> bytes:
        """Return one slot per request, and no word of what it asks."""
        slot = {"is_processing": True, "runner_cpu_seconds": round(self.runner_cpu_seconds, 2)}
        return orjson.dumps([{"id": number, **slot} for number in range(self.processing)])


@attrs.define(eq=False)
class Usage:
    """Read how many tokens an answer says that it has taken; the last word in it counts."""

    _tail: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Take in a piece of the answer."""
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    def tokens(self) -> tuple[int, int]:
        """Return those of the prompt and those of the answer; 0 where it does not say."""
        said = {name: int(number) for name, number in _USAGE.findall(self._tail)}
        return (
            said.get(b"prompt_tokens", said.get(b"input_tokens", 0)),
            said.get(b"completion_tokens", said.get(b"output_tokens", 0)),
        )
