"""A prompt becomes a few hashes, each of everything up to a place in it: what prompts share, their marks share. Pure.

Places are 256 bytes apart at first, then each a sixteenth further than the one before: 128 KiB have about 70 of them.
What comes after is not looked at, so that a long prompt costs no more than that.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

FIRST_BYTES: Final = 256
"""Up to the first place; a shorter prompt has no mark, for it costs nothing to compute it anew."""

MOST_BYTES: Final = 128 << 10
MOST_PIECES: Final = 1024
"""Of a long body: one that is cut finer than that is not looked at further."""

SMALL_BODY_BYTES: Final = 512 << 10
"""A body up to this is written down as a whole, in less than a millisecond; of a longer one only the beginning."""

_GROWTH: Final = 16
_SIZE_OF_MARK: Final = 8
_MOST_NESTED: Final = 64
_FIRST_IN_PROMPT: Final = ("lora", "chat_template_kwargs", "reasoning_effort", "tools", "functions")
"""What a chat template writes before the messages, and what changes how each of them is computed."""

_OF_PATH: Final[Mapping[str, tuple[str, ...]]] = {
    "/chat/completions": (*_FIRST_IN_PROMPT, "messages"),
    "/completions": ("lora", "prompt"),
}


def _places() -> Iterator[int]:
    at = FIRST_BYTES
    while at <= MOST_BYTES:
        yield at
        at += max(FIRST_BYTES, at // _GROWTH)


PLACES: Final = tuple(_places())
"""Where marks are, in bytes from the beginning."""


def prompt_text(path: str, body: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the beginning of what a model reads, in the order in which it reads it; b"" where nothing is kept of it.

    Args:
        path: Below `/v1`.
        body: The request.
        body_bytes: Its length.
    """
    names = _OF_PATH.get(path)
    if names is None or body.get("cache_prompt") is False:
        return b""
    parts = [body[name] for name in names if name in body]
    if body_bytes > SMALL_BODY_BYTES:
        parts = _Cut().list(parts, 0)
    try:
        text = orjson.dumps(parts)
    except orjson.JSONEncodeError:
        return b""  # nested too deeply: no engine gets it either
    # Where this prompt ends another one goes on: what closes it is no part of it
    return text.rstrip(b'"}]')[:MOST_BYTES]


def marks_of(seed: bytes, text: bytes) -> tuple[int, ...]:
    """Return a hash of all that comes before each of `PLACES` that the text reaches.

    Args:
        seed: Texts with different seeds have no mark in common; at most 64 bytes.
        text: As `prompt_text` returns it.
    """
    digest = hashlib.blake2b(digest_size=_SIZE_OF_MARK, key=seed)
    view, before, marks = memoryview(text), 0, []
    for place in PLACES:
        if place > len(text):
            break
        digest.update(view[before:place])
        marks.append(int.from_bytes(digest.copy().digest()))
        before = place
    return tuple(marks)


@attrs.define
class _Cut:
    """Copies a JSON value up to as many characters as count; what it copies is written in the same bytes.

    Attributes:
        characters: That are left.
        pieces: Values that are left.
    """

    characters: int = MOST_BYTES
    pieces: int = MOST_PIECES

    def list(self, values: list[Any], depth: int) -> list[Any]:
        found = []
        for each in values:
            if not self._has_more(depth):
                break
            found.append(self._value(each, depth))
        return found

    def _value(self, value: Any, depth: int) -> Any:
        self.pieces -= 1
        if isinstance(value, str):
            cut = value[: self.characters]
            self.characters -= len(cut)
            return cut
        if isinstance(value, list):
            return self.list(value, depth + 1)
        if isinstance(value, dict):
            found = {}
            for name, each in value.items():
                if not self._has_more(depth):
                    break
                cut = self._value(name, depth)  # first: both take from the same count
                found[cut] = self._value(each, depth + 1)
            return found
        return value

    def _has_more(self, depth: int) -> bool:
        return self.characters > 0 and self.pieces > 0 and depth < _MOST_NESTED
