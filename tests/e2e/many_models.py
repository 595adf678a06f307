"""Clients of several models at one address: each answer is right, refused, cut off or wrong."""

import enum
import itertools
import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path

import attrs
import trio

from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Headers
from padded_models import QUESTION, TOKENS, PaddedModel

MODELS = tuple(PaddedModel(f"m{number}", layers) for number, layers in enumerate((8, 16, 32, 48, 64, 96, 128, 160)))
"""Eight models, of 7 to 121 MiB, which take different times to load."""

MEMORY = 620 << 20
"""Memory for three of them, of which at most one is large."""

JSON_BODY = Headers.of({"Content-Type": "application/json"})


_SEEDS = itertools.count()
_TOKEN = re.compile(rb'"content":"[^"]')


class Verdict(enum.Enum):
    """Kind of result that a client got."""

    RIGHT = "right"
    REFUSED = "refused"  # an error's status, or in a stream its event
    CUT = "cut off"  # no connection, or an answer without an end
    WRONG = "wrong"


@attrs.frozen
class Answer:
    """The result of one request, by Trio's clock."""

    model: str
    began: float
    first: float  # when the first token came; infinite if none did
    ended: float
    verdict: Verdict
    text: str

    @property
    def first_seconds(self) -> float:
        """Seconds to the first token."""
        return self.first - self.began


def manifests(model: PaddedModel, source: Path) -> str:
    """Return a Model and its service, which serves two requests at once, each on one thread."""
    return f"""
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {{name: {model.name}, namespace: default}}
spec: {{source: "{source}", hardware: {{accelerator: cpu}}}}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {{name: {model.name}, namespace: default}}
spec: {{modelRef: {model.name}, contextSize: 1024, parallelSlots: 2, extraArgs: ["--threads=1"]}}
"""


async def ask(http: HttpClient, url: str, model: PaddedModel, *, stream: bool, key: str = "") -> Answer:
    """Ask a model the demo's question, with all that OpenAI's API needs."""
    body = {"model": model.name, "messages": [{"role": "user", "content": QUESTION}], "stream": stream}
    # No request is another one's repetition: one that was in two killed engines would be refused for ten minutes.
    asked = json.dumps(body | {"temperature": 0, "max_tokens": TOKENS, "seed": next(_SEEDS)}).encode()
    headers = Headers([*JSON_BODY, ("Authorization", f"Bearer {key}")]) if key else JSON_BODY
    began, first, received, status = trio.current_time(), math.inf, b"", 0
    try:
        async with http.open_stream("POST", f"{url}/v1/chat/completions", headers=headers, body=asked) as answer:
            status = answer.status
            while piece := await answer.receive_some():
                received += piece
                if first == math.inf and _TOKEN.search(received):
                    first = trio.current_time()
    except HttpError as error:
        verdict, text = Verdict.CUT, f"{error} after {received[-200:]!r}"
    else:
        verdict, text = _read(status, received, stream=stream)
        if verdict is Verdict.RIGHT and text != model.answer:
            verdict = Verdict.WRONG
    return Answer(model.name, began, first, trio.current_time(), verdict, text)


def _read(status: int, received: bytes, *, stream: bool) -> tuple[Verdict, str]:
    if status != 200:
        return Verdict.REFUSED, f"{status} {received[:300]!r}"
    if not stream:
        return Verdict.RIGHT, json.loads(received)["choices"][0]["message"]["content"]
    lines = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: ")]
    done, events = b"[DONE]" in lines, [json.loads(line) for line in lines if line != b"[DONE]"]
    if any("error" in event for event in events):
        return (Verdict.WRONG if done else Verdict.REFUSED), repr(received[-300:])
    if not done:
        return Verdict.CUT, repr(received[-300:])
    deltas = [each["delta"] for event in events for each in event["choices"]]
    return Verdict.RIGHT, "".join(each.get("content") or "" for each in deltas)


async def keep_asking(urls: Mapping[PaddedModel, str], seed: int, answers: list[Answer]) -> None:
    """Be a client for ever: ask a few questions of one model, then of another, half of them as streams."""
    rng = random.Random(seed)
    async with open_http_client() as http:
        while True:
            model = rng.choice(MODELS)
            for _ in range(rng.randint(1, 4)):
                answers.append(await ask(http, urls[model], model, stream=rng.random() < 0.5))
                if answers[-1].verdict is not Verdict.RIGHT:
                    await trio.sleep(1)  # before its next attempt
