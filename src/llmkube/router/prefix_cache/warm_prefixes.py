"""Estimate which backend has computed which prompts, so that similar prompts are sent to it. Pure.

* A prompt is warm at the backend that answered it, until its engine has computed as many others as it caches. This
  capacity starts with the number of slots, and is corrected by what the engine reports: less cached than expected
  means a smaller capacity, and that this prompt and all its continuations are gone; more means a larger one. An engine
  that never reports cached tokens is expected to cache nothing; one that repeatedly had prompts that were evicted by
  this estimate is expected to have others of them, too.
* Marks are keyed by tenant. A client can see which backend answers, so with common marks it could find out what others
  have sent. Tenants share only an engine's capacity and the order of use, which `cached` in each answer reveals anyway.
* A prompt is represented by its marks, which are hashes of its starts of certain lengths. The lengths grow by 256
  bytes, later by a sixteenth: there are about 70 up to 128 KiB. The rest of a longer prompt is ignored, to bound the
  cost.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from llmkube.router.config.routing_config import Backend
from llmkube.router.dialects.engine_form import engine_body
from llmkube.router.policy.decision import Warmth

FIRST_BYTES: Final = 256
"""Length of the first mark. A shorter prompt has none: computing it again costs next to nothing."""

MAX_PROMPT_BYTES: Final = 128 << 10
MAX_PIECES: Final = 1024
"""JSON values of a long body that are read; further ones are ignored."""

SMALL_BODY_BYTES: Final = 512 << 10
"""A body up to this length is serialised as a whole, in less than a millisecond; of a longer one only the start."""

_GROWTH: Final = 16
_MARK_BYTES: Final = 8
_MAX_DEPTH: Final = 64
_TEMPLATE_FIELDS: Final = ("lora", "chat_template_kwargs", "reasoning_effort", "tools", "functions")
"""Fields that a chat template renders before the messages, or that change how each message is computed."""

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
"""Lengths of the hashed starts, in bytes."""


def prompt_text(path: str, body: Mapping[str, Any], body_bytes: int) -> bytes:
    """Return the start of the prompt in the order in which the model reads it; b"" if engines do not cache it.

    Args:
        path: Path of the request below `/v1`.
        body: Body of the request.
        body_bytes: Length of the body.
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
        return b""  # nested too deeply to be sent to any engine
    # Without the closing brackets, so that the prompt is a prefix of its continuations
    return text.rstrip(b'"}]')[:MAX_PROMPT_BYTES]


def marks_of(seed: bytes, text: bytes) -> tuple[int, ...]:
    """Return a hash of the text up to each of `MARK_OFFSETS` that it reaches.

    Args:
        seed: Texts with different seeds have no marks in common; at most 64 bytes.
        text: Result of `prompt_text`.
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
    """Copies the start of a JSON value, so that its serialisation is a prefix of the whole one.

    Attributes:
        characters: Characters that may still be copied.
        pieces: Values that may still be copied.
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
                cut = self._value(name, depth)  # before its value: both use up the same limits
                found[cut] = self._value(each, depth + 1)
            return found
        return value

    def _has_more(self, depth: int) -> bool:
        return self.characters > 0 and self.pieces > 0 and depth < _MAX_DEPTH


INITIAL_CAPACITY: Final = 8
"""Prompts that an engine is initially assumed to cache if its slots are unknown."""

MAX_PROMPTS: Final = 256
"""Prompts remembered for one backend."""

MAX_MISSES: Final = 3
"""Consecutive answers without cached tokens after which a backend is expected to cache nothing."""

MIN_FINDS: Final = 3
"""Consecutive prompts that a backend had although its slots were taken by others since, after which it is expected to
have a second cache, as llama.cpp's server has in memory (`--cache-ram`)."""


@attrs.frozen(kw_only=True)
class Prompt:
    """A prompt for comparison with cached ones.

    Attributes:
        marks: Hashes of its starts.
        size: Length in bytes; an estimate if the text is cut off.
        text: Its start, from `prompt_text`.
        scope: 8-byte hash of tenant, path and model.
    """

    marks: tuple[int, ...] = attrs.field(repr=False)
    size: int
    text: bytes = attrs.field(repr=False)
    scope: bytes = attrs.field(repr=False)


@attrs.frozen
class _CachedPrompt:
    """A prompt in a backend's cache; `used_at` counts answers of all backends."""

    marks: tuple[int, ...]
    used_at: int


@attrs.define(eq=False)
class _BackendCache:
    """Estimated content of one backend's cache.

    Attributes:
        capacity: Number of prompts that it can hold.
        prompts: Cached prompts by their last marks, least recently used first.
        evicted: Prompts that are probably no longer cached.
        owner: For each mark, the last mark of the newest prompt with it.
        misses: Consecutive misses.
        finds: Consecutive prompts that it had although they were probably evicted.
    """

    capacity: int
    prompts: OrderedDict[int, _CachedPrompt] = attrs.field(factory=OrderedDict)
    evicted: OrderedDict[int, _CachedPrompt] = attrs.field(factory=OrderedDict)
    owner: dict[int, int] = attrs.field(factory=dict)
    misses: int = 0
    finds: int = 0

    @property
    def oldest(self) -> int:
        """Last use of the prompt that would be evicted next; 0 if there is room."""
        return 0 if len(self.prompts) < self.capacity else next(iter(self.prompts.values())).used_at

    def matched(self, marks: tuple[int, ...], among: Mapping[int, _CachedPrompt]) -> int:
        """Return how many of a prompt's marks are in `among`, which is `prompts` or `evicted`."""
        for at in range(len(marks) - 1, -1, -1):
            if self.owner.get(marks[at]) in among:
                return at + 1
        return 0

    def add(self, marks: tuple[int, ...], used_at: int) -> None:
        """Add a prompt in place of those that it continues."""
        for mark in marks:
            self._drop(mark)
        self.prompts[marks[-1]] = _CachedPrompt(marks, used_at)
        self.owner.update(dict.fromkeys(marks, marks[-1]))
        while len(self.prompts) > self.capacity:
            last_mark, oldest = self.prompts.popitem(last=False)
            self.evicted[last_mark] = oldest
        while len(self.prompts) + len(self.evicted) > MAX_PROMPTS:
            self._drop(next(iter(self.evicted or self.prompts)))

    def drop_from(self, mark: int) -> None:
        """Drop every prompt with this mark."""
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
    """Estimates of the caches of one router's backends.

    Attributes:
        secret: Key of the marks, so that no client can compute them; at most 64 bytes.
    """

    secret: bytes = attrs.field(repr=False)
    _caches: dict[str, _BackendCache] = attrs.field(factory=dict)
    _answers: int = 0

    def prompt(self, tenant: str, path: str, body: Mapping[str, Any], body_bytes: int) -> Prompt | None:
        """Return the prompt of a request; None if it is too short, or engines do not cache it.

        Args:
            tenant: The tenant.
            path: Path of the request below `/v1`.
            body: Body of the request, of which engines get `engine_body`.
            body_bytes: Length of the body.
        """
        text = prompt_text(path, engine_body(body, [], is_llama_cpp=False), body_bytes)
        seed = hashlib.blake2b(f"{tenant}\0{path}\0{body.get('model')}".encode("utf-8", "replace"), key=self.secret)
        scope = seed.digest()
        marks = marks_of(scope, text)
        if not marks:
            return None
        # A truncated prompt is assumed to be as long as its body: the other fields are a small part of it
        size = len(text) if len(text) < MAX_PROMPT_BYTES else max(body_bytes, MAX_PROMPT_BYTES)
        return Prompt(marks=marks, size=size, text=text, scope=scope[:8])

    def warmth(self, prompt: Prompt, backends: Iterable[Backend]) -> dict[str, Warmth]:
        """Return how much of a prompt each backend is estimated to have cached, by its name."""
        found = {}
        for backend in backends:
            cache = self._cache_of(backend)
            warm = cache.matched(prompt.marks, cache.prompts) if cache.misses < MAX_MISSES else 0
            doubtful = cache.matched(prompt.marks, cache.evicted) if cache.finds >= MIN_FINDS else 0
            found[backend.name] = Warmth(_bytes(warm), cache.oldest, _bytes(doubtful))
        return found

    def record_answer(self, prompt: Prompt, backend: Backend, *, cached: int, tokens: int) -> str:
        """Learn from an answer; return `hit`, `miss`, or `cold` if nothing was expected, and "" without token counts.

        Args:
            prompt: The prompt that was answered.
            backend: The backend that answered.
            cached: Tokens of the prompt that the engine had in its cache.
            tokens: All tokens of the prompt; 0 if the engine does not report them.
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
        if doubtful > warm:
            cache.finds = cache.finds + 1 if is_found else 0
        if doubtful > warm and is_found:
            cache.capacity = min(cache.capacity + 1, MAX_PROMPTS)
        elif warm and not is_found:
            cache.capacity = max(cache.capacity - 1, backend.slots, 1)
        if (warm or doubtful) and not is_found:
            at = next(at for at, offset in enumerate(MARK_OFFSETS) if offset > reported)
            cache.drop_from(prompt.marks[min(at, max(warm, doubtful) - 1)])
        self._answers += 1
        cache.add(prompt.marks, self._answers)
        return "cold" if not warm or not is_trusted else "hit" if is_found else "miss"

    def forget(self, backend: str) -> None:
        """Discard the estimate of a backend whose engine has exited or was replaced."""
        self._caches.pop(backend, None)

    def keep_only(self, backends: frozenset[str]) -> None:
        """Forget all other backends."""
        for name in self._caches.keys() - backends:
            del self._caches[name]

    def _cache_of(self, backend: Backend) -> _BackendCache:
        return self._caches.setdefault(backend.name, _BackendCache(backend.slots or INITIAL_CAPACITY))


def _bytes(marks: int) -> int:
    """Return the bytes that a number of marks covers."""
    return MARK_OFFSETS[marks - 1] if marks else 0
