"""Remember each tenant's recent prompts, and report to it where a new prompt diverges from them. Pure.

The report depends only on the tenant's own prompts and on the token counts of its answer, which it sees anyway. Other
tenants' prompts affect neither its content, nor whether there is one, nor the work for it. Tenants share only the
limit on the number of tenants that are remembered: the most recent ones.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.router.prefix_cache.warm_prefixes import MARK_OFFSETS, MAX_PROMPT_BYTES, Prompt

MARK_BYTES: Final = 8


@attrs.frozen
class Divergence:
    """The position at which two prompts diverge.

    Attributes:
        common_bytes: Length of the common start of their texts, at least.
        differs_before: The first difference is before this byte.
    """

    common_bytes: int
    differs_before: int

    def position(self, text: bytes) -> str:
        """Return the number of common characters: `COUNT`, or `FROM-TO` if it is not known exactly."""
        first = len(text[: self.common_bytes].decode("utf-8", "ignore"))
        if self.differs_before == self.common_bytes + 1:
            return f"{first}"
        # A character that is cut here may be the first that differs
        return f"{first}-{len(text[: self.differs_before].decode('utf-8', 'replace'))}"


@attrs.define(eq=False)
class EarlierPrompt:
    """A prompt with which later ones are compared.

    Attributes:
        marks: Concatenated marks of its starts; the first one is the scope (tenant, path and model).
        size: Length of its text.
        text: A text that starts with this prompt's text and may be longer; None if it is not stored.
    """

    marks: bytes = attrs.field(repr=False)
    size: int
    text: bytes | None = attrs.field(repr=False)


def nearest(prompt: EarlierPrompt, earlier: Iterable[EarlierPrompt]) -> Divergence | EarlierPrompt | None:
    """Return where a prompt diverges from the most similar of earlier ones.

    The result is exact if at least one of the earlier prompts with the most marks in common has its text.

    Args:
        prompt: A prompt with its text.
        earlier: Earlier prompts; those of other models are ignored.

    Returns:
        The divergence; the earlier prompt itself if one of the two starts with the other; None if there is none.
    """
    found, marks_end = _most_similar(prompt.marks, earlier)
    if not marks_end:
        return None
    at = marks_end // MARK_BYTES - 1
    low, high = MARK_OFFSETS[at - 1] if at else 0, MARK_OFFSETS[at] if at < len(MARK_OFFSETS) else MAX_PROMPT_BYTES
    text, size, common_bytes, is_exact = prompt.text, prompt.size, low, False
    assert text is not None, "it is new"
    for each in found:
        other = each.text
        if other is None:
            if marks_end in (len(prompt.marks), len(each.marks)):
                return each  # as far as the marks show
            continue
        is_exact = True
        if common_bytes < size and common_bytes < each.size and text[common_bytes] != other[common_bytes]:
            continue  # the usual case: it has no longer common start than an earlier candidate
        end = min(size, each.size, high)
        common = _common(text, other, low, end)
        if common == end:
            return each
        common_bytes = max(common_bytes, common)
    return Divergence(common_bytes, common_bytes + 1) if is_exact else Divergence(low, high)


def _most_similar(marks: bytes, earlier: Iterable[EarlierPrompt]) -> tuple[list[EarlierPrompt], int]:
    """Return the prompts with the most marks in common, and the bytes of these; an equal mark implies all before it."""
    found: list[EarlierPrompt] = []
    marks_end, last, after = 0, slice(0), slice(MARK_BYTES)
    for each in earlier:
        other = each.marks
        if other[last] != marks[last]:
            continue
        if other[after] == marks[after] != b"":
            marks_end = _common(marks, other, marks_end, min(len(marks), len(other))) // MARK_BYTES * MARK_BYTES
            last, after = slice(marks_end - MARK_BYTES, marks_end), slice(marks_end, marks_end + MARK_BYTES)
            found = []
        found.append(each)
    return found, marks_end


def _common(one: bytes, other: bytes, low: int, high: int) -> int:
    """Return the length of the common start, up to `high`; at least `low` bytes are known to be equal."""
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


MAX_PROMPTS: Final = 16
"""Prompts remembered for one tenant."""

MAX_TENANTS: Final = 512
"""Tenants that are remembered; if every prompt has the maximum of marks, they take 7 MiB."""

MAX_TEXT_BYTES: Final = 256 << 10
"""Texts stored for one tenant; a prompt whose text is dropped still has its marks."""

MAX_TENANTS_WITH_TEXT: Final = 32
"""All texts take 8 MiB at most. A shared limit in bytes would reveal to each tenant how much the others send."""


@attrs.define(eq=False)
class TenantPrompts:
    """The recent prompts of tenants; only the most recent tenants' prompts are stored with their texts."""

    _tenants: OrderedDict[str, "_Tenant"] = attrs.field(factory=OrderedDict, repr=False)
    _with_text: OrderedDict[str, "_Tenant"] = attrs.field(factory=OrderedDict, repr=False)

    def record_answer(self, tenant: str, prompt: Prompt, *, cached: int, tokens: int) -> Divergence | None:
        """Remember a prompt; return where it diverges from the most similar earlier one.

        None if one of the two starts with the other; if the tenant has no earlier prompt for the same model; if the
        engine reports more cached tokens than the earlier prompt can explain, or no tokens at all.

        Args:
            tenant: The tenant.
            prompt: The prompt that was answered.
            cached: Tokens of the prompt that the engine had in its cache.
            tokens: All tokens of the prompt.
        """
        found = self._touch(tenant).add(prompt)
        # Bytes per token vary: only a factor of two is significant
        if not isinstance(found, Divergence) or tokens <= 0:
            return None
        return found if cached / tokens * prompt.size < 2 * found.differs_before else None

    def _touch(self, tenant: str) -> "_Tenant":
        own = self._tenants.setdefault(tenant, _Tenant())
        for held, most in ((self._tenants, MAX_TENANTS), (self._with_text, MAX_TENANTS_WITH_TEXT)):
            held[tenant] = own
            held.move_to_end(tenant)
            if len(held) > most:
                held.popitem(last=False)[1].drop_texts()
        return own


@attrs.define(eq=False)
class _Tenant:
    """One tenant's prompts.

    Attributes:
        prompts: By their marks and a hash of the text after the last mark; newest last.
        text_bytes: Upper bound of the bytes of stored texts.
    """

    prompts: OrderedDict[tuple[bytes, int], EarlierPrompt] = attrs.field(factory=OrderedDict)
    text_bytes: int = 0

    def add(self, prompt: Prompt) -> Divergence | EarlierPrompt | None:
        """Remember a prompt, and return the result of `nearest`."""
        text = prompt.text
        new = EarlierPrompt(marks=prompt.scope + array("Q", prompt.marks).tobytes(), size=len(text), text=text)
        key = new.marks, hash(text[MARK_OFFSETS[len(prompt.marks) - 1] :])
        found = self.prompts.get(key) or nearest(new, self.prompts.values())
        self._add_text(new, text, found.text if isinstance(found, EarlierPrompt) else None)
        self.prompts[key] = new
        self.prompts.move_to_end(key)
        if len(self.prompts) > MAX_PROMPTS:
            self.prompts.popitem(last=False)
        if self.text_bytes > MAX_TEXT_BYTES:
            self._drop_oldest()
        return found

    def _add_text(self, new: EarlierPrompt, text: bytes, before: bytes | None) -> None:
        """Store a text; if it or the earlier prompt's text is a prefix of the other, the longer one serves both."""
        if before is not None and before.startswith(text):
            new.text = before
            return
        self.text_bytes += len(text)
        if before is not None and text.startswith(before):
            for each in self.prompts.values():
                if each.text is before:
                    each.text = text
            self.text_bytes -= len(before)

    def _drop_oldest(self) -> None:
        """Drop the oldest texts until the others fit."""
        retained: dict[int, int] = {}
        size = 0
        for each in reversed(self.prompts.values()):
            text = each.text
            if text is None or id(text) in retained:
                continue
            size += len(text)
            if size > MAX_TEXT_BYTES:
                each.text = None
            else:
                retained[id(text)] = len(text)
        self.text_bytes = sum(retained.values())

    def drop_texts(self) -> None:
        """Drop all texts and retain only the marks."""
        for each in self.prompts.values():
            each.text = None
        self.text_bytes = 0
