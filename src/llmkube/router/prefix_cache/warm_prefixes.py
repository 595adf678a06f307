"""Which backend has computed which prompts, so that what begins like one of them goes there. Pure.

A prompt is taken to be warm where it was answered, until its engine has computed as many others since as it keeps. How
many that is begins with its slots, and is learned from what it reports: less of a prompt in its cache than was expected
means that it keeps fewer, and that this prompt and all that go on from it are gone; more means that it keeps more. An
engine that never has anything in its cache, or never says so, is expected to have nothing.

A tenant's prompts are marked by a key of its own. Which backend answers can be seen by a client, so with common marks a
client could try out what others have asked. What tenants share is how many prompts an engine keeps and which was used
last: that much `cached` in each answer tells anyway.

A prompt becomes a few hashes, its marks, each of everything up to a place in it. Places are 256 bytes apart at first,
then each a sixteenth further than the one before: 128 KiB have about 70 of them. What comes after is not looked at, so
that a long prompt costs no more than that.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from llmkube.router.config.routing_config import Backend
from llmkube.router.policy.decision import Warmth

FIRST_BYTES: Final = 256
"""Up to the first place; a shorter prompt has no mark, for it costs nothing to compute it anew."""

MAX_PROMPT_BYTES: Final = 128 << 10
MAX_PIECES: Final = 1024
"""Of a long body: one that is cut finer than that is not looked at further."""

SMALL_BODY_BYTES: Final = 512 << 10
"""A body up to this is written down as a whole, in less than a millisecond; of a longer one only the beginning."""

_GROWTH: Final = 16
_MARK_BYTES: Final = 8
_MAX_DEPTH: Final = 64
_TEMPLATE_FIELDS: Final = ("lora", "chat_template_kwargs", "reasoning_effort", "tools", "functions")
"""What a chat template writes before the messages, and what changes how each of them is computed."""

_FIELDS_OF_PATH: Final[Mapping[str, tuple[str, ...]]] = {
    "/chat/completions": (*_TEMPLATE_FIELDS, "messages"),
    "/completions": ("lora", "prompt"),
}


def _mark_offsets() -> Iterator[int]:
    at = FIRST_BYTES
    while at <= MAX_PROMPT_BYTES:
        yield at
        at += max(FIRST_BYTES, at // _GROWTH)


MARK_OFFSETS: Final = tuple(_mark_offsets())
"""Where marks are, in bytes from the beginning."""


def prompt_text(path: str, body: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the beginning of what a model reads, in the order in which it reads it; b"" where nothing is kept of it.

    Args:
        path: Below `/v1`.
        body: The request.
        body_bytes: Its length.
    """
    names = _FIELDS_OF_PATH.get(path)
    if names is None or body.get("cache_prompt") is False:
        return b""
    parts = [body[name] for name in names if name in body]
    if body_bytes > SMALL_BODY_BYTES:
        parts = _Truncation().list(parts, 0)
    try:
        text = orjson.dumps(parts)
    except orjson.JSONEncodeError:
        return b""  # nested too deeply: no engine gets it either
    # Where this prompt ends another one goes on: what closes it is no part of it
    return text.rstrip(b'"}]')[:MAX_PROMPT_BYTES]


def marks_of(seed: bytes, text: bytes) -> tuple[int, ...]:
    """Return a hash of all that comes before each of `MARK_OFFSETS` that the text reaches.

    Args:
        seed: Texts with different seeds have no mark in common; at most 64 bytes.
        text: As `prompt_text` returns it.
    """
    digest = hashlib.blake2b(digest_size=_MARK_BYTES, key=seed)
    view, before, marks = memoryview(text), 0, []
    for offset in MARK_OFFSETS:
        if offset > len(text):
            break
        digest.update(view[before:offset])
        marks.append(int.from_bytes(digest.copy().digest()))
        before = offset
    return tuple(marks)


@attrs.define
class _Truncation:
    """Copies a JSON value up to as many characters as count; what it copies is written in the same bytes.

    Attributes:
        characters: That are left.
        pieces: Values that are left.
    """

    characters: int = MAX_PROMPT_BYTES
    pieces: int = MAX_PIECES

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
        return self.characters > 0 and self.pieces > 0 and depth < _MAX_DEPTH


INITIAL_CAPACITY: Final = 8
"""Prompts that an engine is taken to keep whose slots are not known."""

MAX_PROMPTS: Final = 256
"""That are remembered of one backend."""

MAX_MISSES: Final = 3
"""In a row without a byte from the cache: after that a backend is expected to keep nothing."""

HIT: Final = "hit"
MISS: Final = "miss"
COLD: Final = "cold"


@attrs.frozen(kw_only=True)
class Prompt:
    """A prompt as engines' caches know it.

    Attributes:
        marks: Hashes of its beginnings.
        size: Its length in bytes, as far as it is known.
        text: Its beginning, as `prompt_text` returns it.
        scope: A hash of tenant, path and model, of 8 bytes.
    """

    marks: tuple[int, ...] = attrs.field(repr=False)
    size: int
    text: bytes = attrs.field(repr=False)
    scope: bytes = attrs.field(repr=False)


@attrs.frozen
class _CachedPrompt:
    """One prompt.

    Attributes:
        marks: Its own.
        used_at: Counted in answers of all backends.
    """

    marks: tuple[int, ...]
    used_at: int


@attrs.define(eq=False)
class _BackendCache:
    """What one backend is believed to hold.

    Attributes:
        capacity: How many prompts it keeps.
        prompts: Those that it has, by their last marks; the one used longest ago first.
        evicted: Those that it probably has no more.
        owner: The last mark of the prompt that a mark was last seen in.
        misses: In a row.
    """

    capacity: int
    prompts: OrderedDict[int, _CachedPrompt] = attrs.field(factory=OrderedDict)
    evicted: OrderedDict[int, _CachedPrompt] = attrs.field(factory=OrderedDict)
    owner: dict[int, int] = attrs.field(factory=dict)
    misses: int = 0

    @property
    def oldest(self) -> int:
        """When what it would give up for another prompt was used; 0 while it has room."""
        return 0 if len(self.prompts) < self.capacity else next(iter(self.prompts.values())).used_at

    def matched(self, marks: tuple[int, ...], among: Mapping[int, _CachedPrompt]) -> int:
        """Return how many of a prompt's marks the engine has among these: its `prompts`, or `evicted`."""
        for at in range(len(marks) - 1, -1, -1):
            if self.owner.get(marks[at]) in among:
                return at + 1
        return 0

    def add(self, marks: tuple[int, ...], used_at: int) -> None:
        """Hold a prompt in place of those that it goes on from."""
        for mark in marks:
            self._drop(mark)
        self.prompts[marks[-1]] = _CachedPrompt(marks, used_at)
        self.owner.update(dict.fromkeys(marks, marks[-1]))
        while len(self.prompts) > self.capacity:
            last, oldest = self.prompts.popitem(last=False)
            self.evicted[last] = oldest
        while len(self.prompts) + len(self.evicted) > MAX_PROMPTS:
            self._drop(next(iter(self.evicted or self.prompts)))

    def drop_from(self, mark: int) -> None:
        """Let each prompt go that has this mark."""
        dropped = [last for cache in (self.prompts, self.evicted) for last, one in cache.items() if mark in one.marks]
        for last in dropped:
            self._drop(last)

    def _drop(self, last: int) -> None:
        found = self.prompts.pop(last, None) or self.evicted.pop(last, None)
        for mark in found.marks if found is not None else ():
            if self.owner.get(mark) == last:
                del self.owner[mark]


@attrs.define(eq=False)
class WarmPrefixes:
    """What is believed of the caches of one router's backends.

    Attributes:
        secret: Makes marks that no client can make; at most 64 bytes.
    """

    secret: bytes = attrs.field(repr=False)
    _caches: dict[str, _BackendCache] = attrs.field(factory=dict)
    _answers: int = 0

    @property
    def prompts(self) -> int:
        """How many prompts are remembered."""
        return sum(len(each.prompts) + len(each.evicted) for each in self._caches.values())

    def prompt(self, tenant: str, path: str, body: Mapping[str, Any], body_bytes: int) -> Prompt | None:
        """Return what to remember of a request; None where no engine has anything of it in its cache.

        Args:
            tenant: Whose it is.
            path: Below `/v1`.
            body: The request.
            body_bytes: Its length.
        """
        text = prompt_text(path, body, body_bytes)
        seed = hashlib.blake2b(f"{tenant}\0{path}\0{body.get('model')}".encode("utf-8", "replace"), key=self.secret)
        scope = seed.digest()
        marks = marks_of(scope, text)
        if not marks:
            return None
        # One that is cut off is taken to be as long as its body, of which the rest of the fields is a small part
        size = len(text) if len(text) < MAX_PROMPT_BYTES else max(body_bytes, MAX_PROMPT_BYTES)
        return Prompt(marks=marks, size=size, text=text, scope=scope[:8])

    def warmth(self, prompt: Prompt, backends: Iterable[Backend]) -> dict[str, Warmth]:
        """Return what each backend is believed to have of a prompt, by its name."""
        found = {}
        for backend in backends:
            cache = self._cache_of(backend)
            warm = cache.matched(prompt.marks, cache.prompts) if cache.misses < MAX_MISSES else 0
            found[backend.name] = Warmth(_bytes(warm), cache.oldest)
        return found

    def answered(self, prompt: Prompt, backend: Backend, *, cached: int, tokens: int) -> str:
        """Learn from an answer; return `hit`, `miss`, or `cold` where nothing was expected of the cache, "" of neither.

        Args:
            prompt: What was asked.
            backend: Who answered.
            cached: Tokens of the prompt that the engine had in its cache.
            tokens: All of the prompt; 0 where the engine does not say.
        """
        if tokens <= 0:
            return ""
        cache = self._cache_of(backend)
        warm, doubtful = cache.matched(prompt.marks, cache.prompts), cache.matched(prompt.marks, cache.evicted)
        reported = min(cached / tokens, 1.0) * prompt.size
        is_found = 2 * reported >= _bytes(max(warm, doubtful))
        is_trusted = cache.misses < MAX_MISSES
        if reported >= MARK_OFFSETS[0]:
            cache.misses = 0
        elif warm:
            cache.misses += 1
        if doubtful > warm and is_found:
            cache.capacity = min(cache.capacity + 1, MAX_PROMPTS)
        elif warm and not is_found:
            cache.capacity = max(cache.capacity - 1, backend.slots, 1)
        if (warm or doubtful) and not is_found:
            at = next(at for at, offset in enumerate(MARK_OFFSETS) if offset > reported)
            cache.drop_from(prompt.marks[min(at, max(warm, doubtful) - 1)])
        self._answers += 1
        cache.add(prompt.marks, self._answers)
        return COLD if not warm or not is_trusted else HIT if is_found else MISS

    def forget(self, backend: str) -> None:
        """Expect nothing of a backend: its engine has ended, or is another."""
        self._caches.pop(backend, None)

    def keep_only(self, backends: frozenset[str]) -> None:
        """Forget all other backends."""
        for name in self._caches.keys() - backends:
            del self._caches[name]

    def _cache_of(self, backend: Backend) -> _BackendCache:
        return self._caches.setdefault(backend.name, _BackendCache(backend.slots or INITIAL_CAPACITY))


def _bytes(marks: int) -> int:
    """Return the length of as many marks."""
    return MARK_OFFSETS[marks - 1] if marks else 0
