"""Tracks the answer so far, and joins the output of several engines into the one stream that the client reads. Pure.

Until an answer is continued, its events are forwarded unchanged. The last event, with the `finish_reason`, is held back
until the end of the stream: an engine that dies in between has not finished, and the next one counts its tokens.

Among the permitted backends of the request, engines of the same model may continue its answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.router.budgets.meter import LIMIT_FIELDS, with_max_tokens, with_most_tokens
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Backend
from llmkube.router.continuation.continuable import CHAT, is_limit, obstacle
from llmkube.router.continuation.token_count import USAGE_FIELDS, JoinError, TokenCount
from llmkube.router.dialects.dialect import data_event
from llmkube.router.policy.permits import Permit

_BUILD: Final = re.compile(r"b[0-9]+-\S+")
"""Build of llama.cpp's server, as in `system_fingerprint`."""


def continuation_targets(order: Sequence[Permit], broken: Permit) -> tuple[Permit, ...]:
    """Return the backends that may continue an answer, best first: those with the same model, and last the broken one.

    Args:
        order: Permits of the decision; no others are returned.
        broken: Permit of the backend whose stream broke off.
    """
    backend = broken.backend
    twins = [each for each in order if each.backend.name != backend.name and is_twin(each.backend, backend)]
    return (*twins, broken)


def can_continue(backend: Backend, fingerprint: object) -> bool:
    """Return whether an engine can continue a given text: llama.cpp's server, by its config or its own fingerprint.

    Args:
        backend: Backend of the engine.
        fingerprint: `system_fingerprint` of its answer.
    """
    if backend.provider:
        return False
    return bool(backend.model_digest) or (isinstance(fingerprint, str) and _BUILD.fullmatch(fingerprint) is not None)


def is_twin(one: Backend, other: Backend) -> bool:
    """Return whether two engines of ours have the same model."""
    return bool(one.model_digest) and one.model_digest == other.model_digest and not one.provider


def next_request(path: str, body: Mapping[str, Any], text: str, tokens: int) -> dict[str, Any]:
    """Return the request that makes the next engine continue the text; the first request if there is no text yet.

    llama.cpp's server continues a final assistant message. The request also sets the mode explicitly, because a server
    with `--no-prefill-assistant` would otherwise start a second answer.

    Args:
        path: Path below `/v1`.
        body: First request.
        text: Answer so far.
        tokens: Tokens of the text.
    """
    if not text:
        return dict(body)
    limits = {name: body[name] - tokens for name in LIMIT_FIELDS if is_limit(body.get(name))}
    if path != CHAT:
        return {**body, **limits, "prompt": body["prompt"] + text}
    mode = {"continue_final_message": True, "add_generation_prompt": False}
    return {**body, **limits, **mode, "messages": _with_text(body["messages"], text)}


def _with_text(messages: list[Any], text: str) -> list[Any]:
    """Return the messages with the text at the end, appended to a final assistant message of the client if any."""
    last = messages[-1]
    if last.get("role") != "assistant":
        return [*messages, {"role": "assistant", "content": text}]
    prefix = last["content"]
    content = prefix + text if isinstance(prefix, str) else [*prefix, {"type": "text", "text": text}]
    return [*messages[:-1], {**last, "content": content}]


_DELTA: Final = frozenset({"role", "content"})
_CHOICE: Final = frozenset({"index", "delta", "text", "finish_reason"})
_NOT_TEXT: Final = {
    "tool_calls": "the answer calls a tool",
    "function_call": "the answer calls a tool",
    "reasoning_content": "the answer has thoughts (reasoning_content)",
    "logprobs": "the answer has logprobs",
}


def choice_of(chunk: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the only choice of an event, None without one, and why it cannot be joined as text; "" if it can."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return None, ""
    choice = choices[0]
    if len(choices) > 1 or not isinstance(choice, dict) or choice.get("index") not in (0, None):
        return None, "the answer has several choices"
    parts = [(name, each) for name, each in choice.items() if name not in _CHOICE]
    if isinstance(delta := choice.get("delta"), dict):
        parts += [(name, each) for name, each in delta.items() if name not in _DELTA]
    extra = next((name for name, each in parts if each), "")
    return choice, _NOT_TEXT.get(extra, f"the answer has {extra!r:.40}") if extra else ""


def text_of(choice: Mapping[str, Any] | None) -> str:
    """Return the text that an event adds."""
    if choice is None:
        return ""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def has_role(choice: Mapping[str, Any] | None) -> bool:
    """Return whether an event has a role."""
    delta = choice.get("delta") if choice is not None else None
    return isinstance(delta, dict) and "role" in delta


MAX_CONTINUATIONS: Final = 3
"""Limits the damage of a request that kills engines: it would otherwise kill one after the other."""

MAX_TEXT_BYTES: Final = 256 << 10
"""Limit for the text of one answer: about 64,000 tokens."""

_SHARED_FIELDS: Final = frozenset({"id", "created", "model", "system_fingerprint", "object"})
"""Fields with the same value in all events of a stream."""


@attrs.define(eq=False)
class _Piece:
    """Output of one engine.

    Attributes:
        backend: Backend of the engine; None before its stream has started.
        model: Model that it reports; its events have the name of the client's request.
        is_started: Whether an event was received.
        held: Last events, held back, as the client will read them.
        has_usage: Whether the last events include the usage.
    """

    backend: Backend | None = None
    model: str = ""
    is_started: bool = False
    held: bytes = b""
    has_usage: bool = False


class JoinedAnswer:
    """One answer, written by one or more engines.

    Attributes:
        broken: Names of the backends whose streams broke off.
        continuations: Number of continuations that were started.
        obstacle: Why the answer cannot be continued, for the operator; "" if it can.
    """

    def __init__(self, path: str, body: Mapping[str, Any]) -> None:
        self.broken: set[str] = set()
        self.continuations = 0
        self.obstacle = obstacle(path, body)
        self._can_begin = not self.obstacle
        self._path = path
        self._body = body
        self._limit = next((body[name] for name in LIMIT_FIELDS if is_limit(body.get(name))), None)
        self._is_greedy = body.get("temperature") == 0
        self._shows_timings = body.get("timings_per_token") is True
        self._shared_fields: dict[str, Any] = {}
        self._model_at: dict[str, str] = {}
        self._has_role = False
        self._text = bytearray()
        self._tokens = TokenCount()
        self._piece = _Piece()

    # -- output of one engine ----------------------------------------------------------------------------------------

    def begin(self, backend: Backend, model: str) -> None:
        """Start to process the events of this backend, which reports this model; the first one limits the answer."""
        if not self.continuations and (most := backend.max_answer_tokens):
            self._body = (with_most_tokens if self._limit else with_max_tokens)(self._body, most)
            self._limit = min(self._limit or most, most)
        self._piece = _Piece(backend, model)
        self._tokens.begin_engine()

    def take(self, chunk: dict[str, Any], event: bytes, *, hidden: bool = False) -> bytes:
        """Process the next event, and return the bytes for the client; empty while the event is held back.

        Args:
            chunk: Data of the event.
            event: Whole event.
            hidden: Whether to hide the event: it has only the usage, which the client did not request.

        Raises:
            JoinError: The event does not continue the answer so far.
        """
        piece = self._piece
        if not piece.is_started:
            piece.is_started = True
            self._record_shared_fields(chunk)
        choice = self._choice(chunk)
        finish = choice is not None and bool(choice.get("finish_reason"))
        self._tokens.take(chunk, at_end=finish or bool(piece.held))
        if finish or piece.held:
            piece.has_usage = piece.has_usage or isinstance(chunk.get("usage"), dict)
        else:
            self._append_text(text_of(choice))
        if self.continuations:
            self._tokens.check_prompt(is_greedy=self._is_greedy)
        passed = self._rewritten(chunk, choice) if self.continuations else self._stripped(chunk, event)
        passed = b"" if hidden else passed
        if (finish or piece.held) and not self.obstacle:
            piece.held += passed
            return b""
        self._has_role = self._has_role or has_role(choice)
        return self.release() + passed

    @property
    def is_passthrough(self) -> bool:
        """Whether the answer cannot be continued, and its events need no changes."""
        return bool(self.obstacle) and not self.continuations and not self._adds_timings

    def release(self) -> bytes:
        """Return the events held back, once the answer is complete."""
        held, self._piece.held = self._piece.held, b""
        return held

    @property
    def is_finished(self) -> bool:
        """Whether only `[DONE]` is missing: the last event and the usage were received."""
        return bool(self._piece.held) and self._piece.has_usage

    @property
    def usage(self) -> Usage | None:
        """Tokens of the prompt and of the whole text; None if an engine has not counted its own."""
        return self._tokens.total

    # -- continuation ------------------------------------------------------------------------------------------------

    def mark_interrupted(self) -> str:
        """Record that the engine failed; return why the answer cannot be continued, "" if it can."""
        piece = self._piece
        if piece.backend is not None:
            self.broken.add(piece.backend.name)
        if self.continuations >= MAX_CONTINUATIONS:
            self.obstacle = self.obstacle or f"the answer was already continued {MAX_CONTINUATIONS} times"
        if self._limit is not None and self._text and not self._tokens.is_counted:
            self.obstacle = self.obstacle or "its tokens are limited, but the engine has not counted them"
        return self.obstacle

    def closing_events(self) -> bytes:
        """Return the last events of an answer that has reached its token limit; empty for other answers.

        Its engine failed before it sent them.
        """
        usage = self.usage
        if self.obstacle or usage is None or self._limit is None or self._tokens.text_tokens < self._limit:
            return b""
        self._tokens.close(usage)
        is_chat = self._path == CHAT
        choice: dict[str, Any] = {"finish_reason": "length", "index": 0, "delta": {}}
        if not is_chat:
            choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
        last = {"choices": [choice], **self._shared_fields}
        totals = {"usage": self._tokens.totals(dict.fromkeys(USAGE_FIELDS))}
        if not is_chat:
            return data_event(last | totals)
        options = self._body.get("stream_options")
        wants = isinstance(options, Mapping) and options.get("include_usage") is True
        return data_event(last) + (data_event({**last, "choices": []} | totals) if wants else b"")

    def next_body(self) -> dict[str, Any]:
        """Return the request for the next engine; `begin` and `take` then get its answer."""
        before = self._tokens.next_engine(has_text=bool(self._text))
        self.continuations += 1
        self._piece = _Piece()
        return next_request(self._path, self._body, self._text.decode(), before)

    # -- input -------------------------------------------------------------------------------------------------------

    @property
    def _adds_timings(self) -> bool:
        """Whether events may have timings that only the router requested."""
        backend = self._piece.backend
        return self._can_begin and backend is not None and bool(backend.model_digest) and not self._shows_timings

    def _record_shared_fields(self, chunk: Mapping[str, Any]) -> None:
        """Store the fields that all events share; refuse a backend that answers as another model."""
        backend, model = self._piece.backend, self._piece.model
        name = backend.name if backend is not None else ""
        if not self._shared_fields:
            self._shared_fields = {name: each for name, each in chunk.items() if name in _SHARED_FIELDS}
        if not self.continuations:
            if backend is None or not can_continue(backend, chunk.get("system_fingerprint")):
                self.obstacle = self.obstacle or "its engine is not known to be llama.cpp's server"
        elif self._model_at.get(name, model) != model:
            raise JoinError(f"the model of {name} has changed")
        self._model_at[name] = model

    def _choice(self, chunk: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the only choice of an event; record an obstacle if it cannot be joined as text."""
        choice, why = choice_of(chunk)
        if why and self.continuations:
            raise JoinError(f"the engine did not continue the answer: {why}")
        if why:
            self.obstacle = self.obstacle or why
            self._text = bytearray()
        return choice

    def _append_text(self, text: str) -> None:
        if not text or self.obstacle:
            return
        self._tokens.add_piece()
        self._text += text.encode()
        if len(self._text) > MAX_TEXT_BYTES:
            self.obstacle = f"the text is longer than {MAX_TEXT_BYTES} bytes"
            self._text = bytearray()

    # -- output for the client ---------------------------------------------------------------------------------------

    def _stripped(self, chunk: Mapping[str, Any], event: bytes) -> bytes:
        """Return an event without timings that only the router requested; the last event always has them."""
        if self._shows_timings or "timings" not in chunk or isinstance(chunk.get("usage"), dict):
            return event
        return data_event({name: each for name, each in chunk.items() if name != "timings"})

    def _rewritten(self, chunk: dict[str, Any], choice: Mapping[str, Any] | None) -> bytes:
        """Return an event of a later engine as one of the first stream, without a repeated role."""
        if choice is not None and self._has_role and has_role(choice):
            delta = {name: each for name, each in choice["delta"].items() if name != "role"}
            if not any(delta.values()) and not choice.get("finish_reason"):
                return b""
            chunk["choices"] = [{**choice, "delta": delta}]
        chunk.pop("timings", None)  # those of one engine only
        if isinstance(usage := chunk.get("usage"), dict):
            chunk["usage"] = self._tokens.totals(usage)
        return data_event(chunk | {name: each for name, each in self._shared_fields.items() if name in chunk})
