"""Counts the tokens of an answer written by one or more engines. Pure.

The prompt of a later engine includes the text so far: its prompt is longer, and its answer shorter, than those of the
request. The client gets the totals of the whole answer.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.budgets.usage import Usage, usage_of


class JoinError(Exception):
    """The output of an engine does not continue the answer so far; the message has the reason."""


USAGE_FIELDS: Final = ("completion_tokens", "prompt_tokens", "total_tokens", "prompt_tokens_details")


@attrs.define(eq=False)
class _EngineCount:
    """Count of the current engine.

    Attributes:
        pieces: Events with text.
        usage: Usage that it reported up to the last of these events.
        final: Usage that it reported at the end of its answer.
        is_checked: Whether its prompt was checked to be the request's prompt and the text so far.
    """

    pieces: int = 0
    usage: Usage | None = None
    final: Usage | None = None
    is_checked: bool = False

    @property
    def last(self) -> Usage | None:
        return self.final or self.usage

    @property
    def is_counted(self) -> bool:
        return self.usage is not None or not self.pieces

    @property
    def tokens(self) -> int:
        """Tokens of the text that the client has, without events that are held back."""
        return self.usage.completion if self.usage is not None and self.pieces else self.pieces


class TokenCount:
    """Tokens of one answer."""

    def __init__(self) -> None:
        self._before = 0  # tokens of the text, by earlier engines
        self._is_counted = True  # whether earlier engines counted their tokens
        self._prompt: int | None = None  # tokens of the request's own prompt, by the first engine
        self._cached = 0  # cached ones of these
        self._current = _EngineCount()

    def begin_engine(self) -> None:
        """Start to count for the next engine."""
        self._current = _EngineCount()

    def take(self, chunk: Mapping[str, Any], *, at_end: bool) -> None:
        """Process the usage in an event."""
        if at_end:
            self._current.final = usage_of(chunk, self._current.last)
        else:
            self._current.usage = usage_of(chunk, self._current.usage)

    def add_piece(self) -> None:
        """Count an event with text."""
        self._current.pieces += 1

    @property
    def text_tokens(self) -> int:
        """Tokens of the text that the client has."""
        return self._before + self._current.tokens

    @property
    def is_counted(self) -> bool:
        """Whether every engine has counted its tokens."""
        return self._is_counted and self._current.is_counted

    @property
    def total(self) -> Usage | None:
        """Tokens of the prompt and of the whole text; None if an engine has not counted its own."""
        current, prompt = self._current, self._first_prompt()
        if prompt is None or not self._is_counted or not (current.is_counted or current.final is not None):
            return None
        return Usage(prompt=prompt, completion=self._completion(), cached=self._first_cached())

    def totals(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return a usage with the tokens of the whole answer instead of those of its last engine."""
        prompt, completion = self._first_prompt() or 0, self._completion()
        totals: dict[str, Any] = {"completion_tokens": completion, "prompt_tokens": prompt}
        totals["total_tokens"] = prompt + completion
        if "prompt_tokens_details" in usage:
            totals["prompt_tokens_details"] = {"cached_tokens": self._first_cached()}
        return {**usage, **totals}

    def close(self, usage: Usage) -> None:
        """Set the final usage from the client's text: the engine failed before it reported the usage."""
        self._current.final = attrs.evolve(usage, completion=self._current.tokens)

    def next_engine(self, *, has_text: bool) -> int:
        """Switch to another engine, which starts over if there is no text yet; return the tokens of the text."""
        self._cached, self._prompt = self._first_cached(), self._first_prompt()
        self._is_counted = self.is_counted
        self._before = self.text_tokens if has_text else 0
        self._current = _EngineCount()
        return self._before

    def check_prompt(self, *, is_greedy: bool) -> None:
        """Refuse an engine whose prompt is longer than the request's prompt and the text: it started a new message.

        An engine whose prompt is shorter tokenizes the text differently, or its template starts differently: its output
        is not what the first engine would have written, which a request at temperature 0 (`is_greedy`) relies on.

        Raises:
            JoinError: Its prompt has another length.
        """
        counted = self._current.last
        if self._current.is_checked or counted is None or self._prompt is None or not self._is_counted:
            return
        self._current.is_checked = True
        expected = self._prompt + self._before
        if counted.prompt > expected or (is_greedy and counted.prompt < expected):
            raise JoinError(f"the engine read {counted.prompt} tokens; prompt and text have {expected}")

    def _completion(self) -> int:
        return self._before + (self._current.last.completion if self._current.last is not None else 0)

    def _first_prompt(self) -> int | None:
        """Return the tokens of the request's own prompt, without the text that is in a later engine's prompt."""
        if self._prompt is not None:
            return self._prompt
        return max(self._current.last.prompt - self._before, 0) if self._current.last is not None else None

    def _first_cached(self) -> int:
        """Return how many tokens of the request's own prompt were in the cache of its first engine."""
        if self._prompt is not None or self._current.last is None:
            return self._cached
        return min(self._current.last.cached, self._first_prompt() or 0)
