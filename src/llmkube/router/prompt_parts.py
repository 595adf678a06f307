"""Splits a request with many prompts, so that its engine computes some at a time, and joins the answers to one.

An engine computes requests in the order of their arrival: a list of more prompts than it has slots would keep all
later requests waiting until its last one is answered.
"""

from collections.abc import Iterator
from typing import Any, Final

import attrs
import orjson

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.forward import BodyEditor, ErrorEditor, whole_response
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.base.loop_shares import long_step
from llmkube.router.budgets.meter import prompt_count
from llmkube.router.dialects.dialect import DialectError, count_in, dumped, object_in, objects_in
from llmkube.router.model_field import asks_for_stream, find_members, parsed
from llmkube.router.refusals import refused

MAX_ANSWER_BYTES: Final = 32 << 20
"""Longest joined answer."""

_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


async def split_prompts(body: bytes, slots: int, answers: int) -> tuple[Iterator[bytes], int] | None:
    """Split a request with more prompts than its engine has slots; None if it has one.

    Each part leaves a slot for other requests, if the engine has several. Return the bodies, which differ only in
    `prompt`, and the slots that each of them takes.

    Args:
        body: The request.
        slots: Slots of the engine.
        answers: Answers to all prompts.

    Raises:
        RefusedError: It asks for a stream, which would be one of several answers at a time.
        DialectError: It is not JSON.
    """
    members = await find_members(body, ("prompt",))
    if not members:
        return None
    _, start, end = members[-1]
    async with long_step(len(body)):
        prompts = parsed(body[start:end])
    if (count := prompt_count({"prompt": prompts})) == 1:
        return None
    if await asks_for_stream(body):
        message = f"prompt has {count} prompts, and its engine computes {slots} at a time; send fewer, or omit stream"
        raise refused(400, message, "too_many_prompts")
    each = answers // count
    size = max(1, (slots - 1) // each)
    parts = (prompts[at : at + size] for at in range(0, count, size))
    return (b"".join((body[:start], orjson.dumps(part), body[end:])) for part in parts), size * each


@attrs.define(eq=False)
class PartAnswers:
    """The answers to the parts of one request.

    Attributes:
        left: Bytes that further answers may have.
    """

    exchange: StreamExchange
    editor: BodyEditor | None
    left: int = MAX_ANSWER_BYTES
    _kept: list[bytes] = attrs.field(factory=list)

    async def keep(self, edit_error: ErrorEditor, answer: StreamedResponse) -> None:
        """Keep an answer; respond with it if it is an error.

        Raises:
            RefusedError: The answers are too long.
        """
        response = await whole_response(answer, self.left + 1)
        self.left -= len(response.body)
        if response.status != 200:
            await self.exchange.respond(edit_error(response))
        elif self.left < 0:
            message = f"the answers are longer than {MAX_ANSWER_BYTES} bytes; send fewer prompts in a request"
            raise refused(502, message, "answer_too_long")
        else:
            self._kept.append(response.body)

    async def respond(self) -> None:
        """Respond with one answer.

        Raises:
            RefusedError: The engine's answers cannot be joined.
        """
        try:
            async with long_step(MAX_ANSWER_BYTES - self.left):
                body = dumped(_joined([orjson.loads(each) for each in self._kept])).encode()
        except (DialectError, orjson.JSONDecodeError) as exc:
            raise refused(502, f"the engine's answers to the prompts cannot be joined: {exc}", "engine_failed") from exc
        body = body if self.editor is None else self.editor(body) + self.editor(b"")
        await self.exchange.respond(Response(200, Headers.of({"Content-Type": "application/json"}), body))


def _joined(answers: list[Any]) -> Any:
    """Join answers as llama.cpp's server does: one list of choices, or of answers in its own format."""
    found: list[Any] = []
    for each in answers:
        found += objects_in(each if isinstance(each, list) else object_in(each, "it").get("choices", [each]), "choices")
    numbered = [each | {"index": at} for at, each in enumerate(found)]
    if isinstance(answers[0], list) or "choices" not in answers[0]:
        return numbered
    usages = [object_in(each.get("usage"), "usage") for each in answers]
    usage = {name: sum(count_in(each, name) for each in usages) for name in _COUNTS}
    return answers[0] | {"choices": numbered, "usage": usage}
