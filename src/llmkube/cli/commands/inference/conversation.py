"""One conversation with one model: what was said so far, and the next answer as it comes."""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.dial import Connect, dial
from llmkube.base.http.errors import BrokenOffError, ConnectError, HttpError
from llmkube.base.http.message import Headers, netloc
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.cli.commands.inference.service_route import Way
from llmkube.cli.commands.inference.sse import Delta, EventReader, StreamError, error_text
from llmkube.k8s.client import Client
from llmkube.k8s.errors import ForbiddenError, root_words
from llmkube.k8s.port_forward import connect_to_pod
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError

CONNECT_SECONDS: Final = 10.0
STRAIGHT_SECONDS: Final = 3.0
"""How long the address of a pod may take to answer: from outside its network, nothing ever does."""
_MAX_ERROR_BYTES: Final = 64 * 1024

_FULL: Final = ("exceed_context_size", "context_length_exceeded", "maximum context length")
"""How llama.cpp's server, OpenAI's API and vLLM say that what was asked is longer than the context."""

Tell = Callable[[Delta], None]


class ContextFullError(CommandError):
    """What was asked, with what was said before, is longer than the model's context."""


@attrs.frozen
class Sampling:
    """What the user says about how answers are made; None leaves it to the engine."""

    temperature: float | None = None
    max_tokens: int | None = None


@attrs.define(eq=False)
class Conversation:
    """What was said so far, ready to be sent with the next question."""

    sampling: Sampling
    system: str = ""
    _turns: list[dict[str, str]] = attrs.field(factory=list)

    def body(self, model_id: str, question: str) -> bytes:
        """Return the request that asks a question after everything that was said before."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        asked: dict[str, Any] = {
            "model": model_id,
            "stream": True,
            "messages": [*first, *self._turns, {"role": "user", "content": question}],
        }
        if self.sampling.temperature is not None:
            asked["temperature"] = self.sampling.temperature
        if self.sampling.max_tokens is not None:
            asked["max_tokens"] = self.sampling.max_tokens
        return json.dumps(asked).encode()

    def keep(self, question: str, answer: str) -> None:
        """Remember a question and what came as its answer, also when that was cut short."""
        self._turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def forget_oldest(self) -> int:
        """Leave out the older half of what was said, at least one question with its answer; return how many."""
        exchanges = len(self._turns) // 2
        dropped = -(-exchanges // 2)
        del self._turns[: 2 * dropped]
        return dropped

    def forget(self) -> None:
        """Begin anew; the system's words stay."""
        self._turns.clear()

    @property
    def turns(self) -> Sequence[dict[str, str]]:
        """What was said so far, without the system's words."""
        return tuple(self._turns)


async def stream_answer(client: HttpClient, way: Way, body: bytes, tell: Tell) -> str:
    """Send a request and tell every piece of its answer as it comes; return why the model stopped.

    There is no deadline after the connection: a long prompt may take minutes before the first word.

    Raises:
        CommandError: The model cannot be reached, refuses, is not ready, or broke off; the sentence says which.
    """
    url = f"{way.url}/v1/chat/completions"
    headers = Headers.of({"Content-Type": "application/json", "Accept": "text/event-stream"})
    if way.api_key:
        headers = headers.with_("Authorization", f"Bearer {way.api_key}")
    try:
        async with client.open_stream("POST", url, headers=headers, body=body) as answer:
            if answer.status != 200:
                raise await _refusal(answer, way)
            return await _read(answer, way, tell)
    except ConnectError as exc:
        raise CommandError(
            f"{way.name} cannot be reached ({exc}); check that it runs, and that this machine can reach it"
        ) from exc
    except BrokenOffError as exc:
        raise CommandError(
            f"the answer is incomplete: {root_words(exc)}; `llmkube status` shows the state of the engine"
        ) from exc
    except HttpError as exc:
        raise CommandError(f"the answer of {way.name} cannot be read: {exc}") from exc


async def _read(answer: StreamedResponse, way: Way, tell: Tell) -> str:
    reader, finish_reason = EventReader(), ""
    while not reader.done:
        piece = await answer.receive_some()
        if not piece:
            break
        try:
            deltas = reader.feed(piece)
        except StreamError as exc:
            raise CommandError(f"the answer ended with an error: {exc}") from exc
        for delta in deltas:
            finish_reason = delta.finish_reason or finish_reason
            tell(delta)
    if not reader.done and not finish_reason:
        raise CommandError(f"the answer is incomplete: {way.name} closed the connection; ask again")
    return finish_reason


async def _refusal(answer: StreamedResponse, way: Way) -> CommandError:
    body = bytearray()
    while len(body) < _MAX_ERROR_BYTES and (piece := await answer.receive_some()):
        body += piece
    text = body.decode("utf-8", "replace")
    words = error_text(text)
    if answer.status == 400 and any(word in text for word in _FULL):
        longer = "a service with a larger spec.contextSize takes more, or ask for less"
        return ContextFullError(f"this is more than the model's context holds: {words}; {longer}")
    return CommandError(_refused(answer.status, words, way))


def _refused(status: int, words: str, way: Way) -> str:
    if status == 503:
        wait = "it is on its way: `llmkube status --watch` shows how far, then ask again"
        return f"the model does not answer yet: {words}; {wait}"
    if status == 401:
        ways = "the one that was shown counts no more" if way.api_key else "--api-key-file FILE shows one"
        return f"{way.name} asks for a key; {ways}: {words}"
    return f"{way.name} refused the question ({status}): {words}"


def connect_in_time(dial: Connect = dial) -> Connect:
    """Return a way to open connections that gives up after `CONNECT_SECONDS`."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        with trio.move_on_after(CONNECT_SECONDS):
            return await dial(host, port)
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} s")

    return connect


def to_pod(client: Client, pod: Key) -> Connect:
    """Return a way to open connections to a pod through the API server; from inside its network, straight as well.

    Who may not forward ports but sits in the cluster's network reaches the pod all the same.
    """

    async def connect(host: str, port: int) -> trio.abc.Stream:
        try:
            return await connect_to_pod(client, pod, port)
        except ForbiddenError as error:
            missing = error
        with trio.move_on_after(STRAIGHT_SECONDS), contextlib.suppress(OSError):
            return await dial(host, port)
        raise CommandError(
            f"you may not reach pod {pod} through the API server, which takes the verbs get and create on "
            f"pods/portforward in namespace {pod.namespace} ({missing}), and its address {netloc((host, port))} is in "
            "the cluster's own network"
        ) from missing

    return connect
