"""How many tokens an answer has taken, by as many engines as wrote it. Pure.

A later engine reads the prompt and the text before its own: its prompt is longer, and its answer shorter, than those of
the request. What the client is told is of the whole answer.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.router.budgets.usage import Usage, usage_of


class JoinError(Exception):
    """What an engine says does not continue what was said; the message says why."""


USAGE_FIELDS: Final = ("completion_tokens", "prompt_tokens", "total_tokens", "prompt_tokens_details")


@attrs.define(eq=False)
class _EngineCount:
    """What the engine that answers now has counted.

    Attributes:
        pieces: Events with text.
        usage: By its words, up to the last of them.
        final: By its words, at its end.
        is_checked: Whether it is known that it has read the text, and no more.
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
        """Of the text that the client has; what is held back is none of it."""
        return self.usage.completion if self.usage is not None and self.pieces else self.pieces


class TokenCount:
    """The tokens of one answer."""

    def __init__(self) -> None:
        self._before = 0  # of the text, by the engines before
        self._is_counted = True  # by them
        self._prompt: int | None = None  # of the request itself, by the first
        self._cached = 0  # of these
        self._current = _EngineCount()

    def begin_engine(self) -> None:
        """Count what the next engine says from here on."""
        self._current = _EngineCount()

    def take(self, chunk: Mapping[str, Any], *, at_end: bool) -> None:
        """Read what an event says of tokens."""
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
        """Whether every engine has counted its own."""
        return self._is_counted and self._current.is_counted

    @property
    def total(self) -> Usage | None:
        """Tokens of the prompt and of the whole text; None where an engine has not counted its own."""
        current, prompt = self._current, self._first_prompt()
        if prompt is None or not self._is_counted or not (current.is_counted or current.final is not None):
            return None
        return Usage(prompt=prompt, completion=self._completion(), cached=self._first_cached())

    def totals(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tokens of the whole answer, in the place of those of its last engine."""
        prompt, completion = self._first_prompt() or 0, self._completion()
        totals: dict[str, Any] = {"completion_tokens": completion, "prompt_tokens": prompt}
        totals["total_tokens"] = prompt + completion
        if "prompt_tokens_details" in usage:
            totals["prompt_tokens_details"] = {"cached_tokens": self._first_cached()}
        return {**usage, **totals}

    def close(self, usage: Usage) -> None:
        """Take what the client has for all that the engine wrote: it died before it said so."""
        self._current.final = attrs.evolve(usage, completion=self._current.tokens)

    def next_engine(self, *, has_text: bool) -> int:
        """Have another engine go on, or begin anew where there is no text yet; return the tokens of the text."""
        self._cached, self._prompt = self._first_cached(), self._first_prompt()
        self._is_counted = self.is_counted
        self._before = self.text_tokens if has_text else 0
        self._current = _EngineCount()
        return self._before

    def check_prompt(self, *, is_greedy: bool) -> None:
        """Refuse an engine that has read more than the prompt and the text: it has ended them, and begun anew.

        One that has read less takes the text for other tokens, or its template begins another way: what it says next is
        not what the first engine would have said, which a request at temperature 0 (`is_greedy`) relies on.

        Raises:
            JoinError: It has read something else.
        """
        counted = self._current.last
        if self._current.is_checked or counted is None or self._prompt is None or not self._is_counted:
            return
        self._current.is_checked = True
        expected = self._prompt + self._before
        if counted.prompt > expected or (is_greedy and counted.prompt < expected):
            raise JoinError(f"the engine has read {counted.prompt} tokens; prompt and text have {expected}")

    def _completion(self) -> int:
        return self._before + (self._current.last.completion if self._current.last is not None else 0)

    def _first_prompt(self) -> int | None:
        """Return the tokens of the request's own prompt: a later engine has read the text before its own, too."""
        if self._prompt is not None:
            return self._prompt
        return max(self._current.last.prompt - self._before, 0) if self._current.last is not None else None

    def _first_cached(self) -> int:
        """Return how many tokens of the request's own prompt its first engine had read before."""
        if self._prompt is not None or self._current.last is None:
            return self._cached
        return min(self._current.last.cached, self._first_prompt() or 0)
