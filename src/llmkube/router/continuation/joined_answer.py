"""What was said of an answer so far, and the pieces of several engines as the one stream that the client reads. Pure.

Until an answer goes on elsewhere, its events pass as they came. The last piece, which says why it is finished, is held
back until the end of the stream: an engine that dies in between has not finished, and the next one counts its tokens.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from llmkube.router.budgets.usage import Usage, usage_of
from llmkube.router.config.routing_config import Backend
from llmkube.router.continuation.continuable import CHAT, LIMITS, is_limit, why_not
from llmkube.router.continuation.next_request import next_request
from llmkube.router.continuation.places import goes_on

MOST_CONTINUATIONS: Final = 3
"""A request of which engines die would else end one after the other."""

MAX_KEPT_BYTES: Final = 256 << 10
"""Of the text of one answer: about 64,000 tokens."""

_NAMES: Final = frozenset({"id", "created", "model", "system_fingerprint", "object"})
"""What is the same in all events of a stream."""

_USAGE: Final = ("completion_tokens", "prompt_tokens", "total_tokens", "prompt_tokens_details")
_DELTA: Final = frozenset({"role", "content"})
_CHOICE: Final = frozenset({"index", "delta", "text", "finish_reason"})
_NOT_TEXT: Final = {
    "tool_calls": "the answer calls a tool",
    "function_call": "the answer calls a tool",
    "reasoning_content": "the answer has thoughts (reasoning_content)",
    "logprobs": "the answer has logprobs",
}


class JoinError(Exception):
    """What an engine says does not continue what was said; the message says why."""


@attrs.define(eq=False)
class _Run:
    """What one engine has said.

    Attributes:
        backend: Where it is; None before it has begun.
        has_begun: Whether an event of it has come.
        is_checked: Whether it is known that it has read the text, and no more.
        pieces: Events with text.
        usage: What it has counted, up to the last of them.
        final: What it has counted at its end.
        held: Its end, as the client reads it.
        is_told: Whether the end says how many tokens it took.
    """

    backend: Backend | None = None
    has_begun: bool = False
    is_checked: bool = False
    pieces: int = 0
    usage: Usage | None = None
    final: Usage | None = None
    held: bytes = b""
    is_told: bool = False

    @property
    def is_counted(self) -> bool:
        return self.usage is not None or not self.pieces

    @property
    def tokens(self) -> int:
        """Of the text that the client has; what is held back is none of it."""
        return self.usage.completion if self.usage is not None and self.pieces else self.pieces


class JoinedAnswer:
    """One answer, by as many engines as it takes.

    Attributes:
        broken: Backends at which it broke off, by their names.
        continuations: How often it was to go on.
        why_not: Why it cannot go on, for the operator; "" if it can.
    """

    def __init__(self, path: str, body: Mapping[str, Any]) -> None:
        self.broken: set[str] = set()
        self.continuations = 0
        self.why_not = why_not(path, body)
        self._can_begin = not self.why_not
        self._path = path
        self._body = body
        self._limit = next((body[name] for name in LIMITS if is_limit(body.get(name))), None)
        self._is_greedy = body.get("temperature") == 0
        self._shows_timings = body.get("timings_per_token") is True
        self._names: dict[str, Any] = {}
        self._model_at: dict[str, object] = {}
        self._has_role = False
        self._text = bytearray()
        self._before = 0  # tokens of the text, by the engines before
        self._is_counted = True
        self._prompt: int | None = None
        self._cached = 0
        self._run = _Run()

    # -- what one engine says ----------------------------------------------------------------------------------------

    def begin(self, backend: Backend) -> None:
        """Read what this backend says from here on."""
        self._run = _Run(backend)

    def take(self, data: bytes, event: bytes, *, hidden: bool = False) -> bytes:
        """Read the next event, and return what the client gets of it; nothing while it has to wait.

        Args:
            data: Of the event.
            event: All of it.
            hidden: Whether the client gets nothing of it: it did not ask for the usage.

        Raises:
            JoinError: It does not continue what was said.
        """
        said = orjson.loads(data)  # the judge has read it: it is an object
        run = self._run
        if not run.has_begun:
            run.has_begun = True
            self._note_names(said)
        choice = self._choice(said)
        finish = choice is not None and bool(choice.get("finish_reason"))
        if finish or run.held:
            run.final = usage_of(said, run.final or run.usage)
            run.is_told = run.is_told or isinstance(said.get("usage"), dict)
        else:
            run.usage = usage_of(said, run.usage)
            self._keep(_text_of(choice))
        self._check_prompt()
        passed = self._rewritten(said, choice) if self.continuations else self._stripped(said, event)
        passed = b"" if hidden else passed
        if (finish or run.held) and not self.why_not:
            run.held += passed
            return b""
        self._has_role = self._has_role or _has_role(choice)
        return self.release() + passed

    @property
    def passes(self) -> bool:
        """Whether the answer cannot go on, and nothing of its events is kept from the client."""
        return bool(self.why_not) and not self.continuations and not self._is_timed

    def release(self) -> bytes:
        """Return what was held back, once the answer has come to its end."""
        held, self._run.held = self._run.held, b""
        return held

    @property
    def is_finished(self) -> bool:
        """Whether all has come but the mark of the end: the last piece, and how many tokens it all took."""
        return bool(self._run.held) and self._run.is_told

    @property
    def usage(self) -> Usage | None:
        """Tokens of the prompt and of the whole text; None where an engine has not counted its own."""
        run = self._run
        last = run.final or run.usage
        prompt = self._first_prompt()
        if prompt is None or not self._is_counted or not (run.is_counted or run.final is not None):
            return None
        completion = self._before + (last.completion if last is not None else 0)
        return Usage(prompt=prompt, completion=completion, cached=self._first_cached())

    # -- going on ----------------------------------------------------------------------------------------------------

    def broke_off(self) -> str:
        """Note that the engine has died; return why the answer cannot go on, "" if it can."""
        run = self._run
        if run.backend is not None:
            self.broken.add(run.backend.name)
        if self.continuations >= MOST_CONTINUATIONS:
            self.why_not = self.why_not or f"the answer has gone on {MOST_CONTINUATIONS} times"
        if self._limit is not None and self._text and not (self._is_counted and run.is_counted):
            self.why_not = self.why_not or "the request limits tokens, and the engine has not counted them"
        return self.why_not

    def closing(self) -> bytes:
        """Return the end of an answer that has all the tokens that it may have; nothing of one that has not.

        Its engine died before it said so.
        """
        run, usage = self._run, self.usage
        if self.why_not or usage is None or self._limit is None or self._before + run.tokens < self._limit:
            return b""
        run.final = attrs.evolve(usage, completion=run.tokens)
        is_chat = self._path == CHAT
        choice: dict[str, Any] = {"finish_reason": "length", "index": 0, "delta": {}}
        if not is_chat:
            choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
        last = {"choices": [choice], **self._names}
        told = {"usage": self._told(dict.fromkeys(_USAGE))}
        if not is_chat:
            return _event(last | told)
        options = self._body.get("stream_options")
        wants = isinstance(options, Mapping) and options.get("include_usage") is True
        return _event(last) + (_event({**last, "choices": []} | told) if wants else b"")

    def next_body(self) -> dict[str, Any]:
        """Return the request for the engine that goes on; what `begin` and `take` get from now on is its answer."""
        run = self._run
        self._cached, self._prompt = self._first_cached(), self._first_prompt()
        self._is_counted = self._is_counted and run.is_counted
        self._before = self._before + run.tokens if self._text else 0
        self.continuations += 1
        self._run = _Run()
        return next_request(self._path, self._body, self._text.decode(), self._before)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def _is_timed(self) -> bool:
        """Whether events may have what only the router asked for."""
        backend = self._run.backend
        return self._can_begin and backend is not None and bool(backend.model_digest) and not self._shows_timings

    def _note_names(self, said: Mapping[str, Any]) -> None:
        """Keep what all events of a stream have alike; a backend that answers as another model cannot go on."""
        backend, model = self._run.backend, said.get("model")
        name = backend.name if backend is not None else ""
        if not self._names:
            self._names = {name: each for name, each in said.items() if name in _NAMES}
        if not self.continuations:
            if backend is None or not goes_on(backend, said.get("system_fingerprint")):
                self.why_not = self.why_not or "its engine is not known to be llama.cpp's server"
        elif self._model_at.get(name, model) != model:
            raise JoinError(f"{name} has another model than before")
        self._model_at[name] = model

    def _choice(self, said: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the one choice of an event; what cannot be joined by its text is noted."""
        choices = said.get("choices")
        if not isinstance(choices, list) or not choices:
            return None
        choice = choices[0]
        if len(choices) > 1 or not isinstance(choice, dict) or choice.get("index") not in (0, None):
            self._cannot("the answer has several choices")
            return None
        delta = choice.get("delta")
        parts = [*((name, each) for name, each in choice.items() if name not in _CHOICE)]
        if isinstance(delta, dict):
            parts += [(name, each) for name, each in delta.items() if name not in _DELTA]
        for name, each in parts:
            if each:
                self._cannot(_NOT_TEXT.get(name, f"the answer has {name!r:.40}"))
        return choice

    def _cannot(self, why: str) -> None:
        if self.continuations:
            raise JoinError(f"the engine that was to go on says something else: {why}")
        self.why_not = self.why_not or why
        self._text = bytearray()

    def _keep(self, text: str) -> None:
        if not text or self.why_not:
            return
        self._run.pieces += 1
        self._text += text.encode()
        if len(self._text) > MAX_KEPT_BYTES:
            self.why_not = f"the text is longer than {MAX_KEPT_BYTES} bytes"
            self._text = bytearray()

    def _first_prompt(self) -> int | None:
        """Return the tokens of the request's own prompt: a later engine has read the text before its own, too."""
        if self._prompt is not None:
            return self._prompt
        last = self._run.final or self._run.usage
        return max(last.prompt - self._before, 0) if last is not None else None

    def _first_cached(self) -> int:
        """Return how many tokens of the request's own prompt its first engine had read before."""
        last = self._run.final or self._run.usage
        if self._prompt is not None or last is None:
            return self._cached
        return min(last.cached, self._first_prompt() or 0)

    def _check_prompt(self) -> None:
        """Refuse an engine that has read more than the prompt and the text: it has ended them, and begun anew.

        One that has read less takes the text for other tokens, or its template begins another way: what it says next is
        not what the first engine would have said, which a request at temperature 0 relies on.
        """
        run = self._run
        known = run.final or run.usage
        if not self.continuations or run.is_checked or known is None or self._prompt is None or not self._is_counted:
            return
        run.is_checked = True
        most = self._prompt + self._before
        if known.prompt > most or (self._is_greedy and known.prompt < most):
            raise JoinError(f"the engine has read {known.prompt} tokens; prompt and text have {most}")

    # -- what the client reads ---------------------------------------------------------------------------------------

    def _stripped(self, said: Mapping[str, Any], event: bytes) -> bytes:
        """Return an event without what only the router asked for; the end of an answer has it anyway."""
        if self._shows_timings or "timings" not in said or isinstance(said.get("usage"), dict):
            return event
        return _event({name: each for name, each in said.items() if name != "timings"})

    def _rewritten(self, said: dict[str, Any], choice: Mapping[str, Any] | None) -> bytes:
        """Return an event of a later engine as one of the first stream, without what the client has."""
        if choice is not None and self._has_role and _has_role(choice):
            delta = {name: each for name, each in choice["delta"].items() if name != "role"}
            if not any(delta.values()) and not choice.get("finish_reason"):
                return b""
            said["choices"] = [{**choice, "delta": delta}]
        said.pop("timings", None)  # of one engine alone
        if isinstance(usage := said.get("usage"), dict):
            said["usage"] = self._told(usage)
        return _event(said | {name: each for name, each in self._names.items() if name in said})

    def _told(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tokens of the whole answer, in the place of those of its last engine."""
        run = self._run
        last = run.final or run.usage
        prompt, completion = self._first_prompt() or 0, self._before + (last.completion if last is not None else 0)
        told: dict[str, Any] = {"completion_tokens": completion, "prompt_tokens": prompt}
        told["total_tokens"] = prompt + completion
        if "prompt_tokens_details" in usage:
            told["prompt_tokens_details"] = {"cached_tokens": self._first_cached()}
        return {**usage, **told}


def _text_of(choice: Mapping[str, Any] | None) -> str:
    if choice is None:
        return ""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _has_role(choice: Mapping[str, Any] | None) -> bool:
    delta = choice.get("delta") if choice is not None else None
    return isinstance(delta, dict) and "role" in delta


def _event(said: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(said)
