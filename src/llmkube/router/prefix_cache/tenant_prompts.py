"""What tenants were answered of late, so that each is told where its prompt leaves its own earlier ones. Pure.

What a tenant is told is made of its own prompts, and of the tokens that its answer reports, which it reads anyway.
Other tenants' prompts are not looked at: they change neither what is said, nor whether, nor how much is done for it.
All that tenants share is how many of them are remembered: those that were answered last.
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
    """Where two prompts part.

    Attributes:
        common_bytes: As many bytes of their text are alike.
        differs_before: They differ before this byte.
    """

    common_bytes: int
    differs_before: int

    def position(self, text: bytes) -> str:
        """Return how many characters of the text are alike: `COUNT`, or `FROM-TO` where that is not known exactly."""
        first = len(text[: self.common_bytes].decode("utf-8", "ignore"))
        if self.differs_before == self.common_bytes + 1:
            return f"{first}"
        # A character that is cut here may be the one that differs
        return f"{first}-{len(text[: self.differs_before].decode('utf-8', 'replace'))}"


@attrs.define(eq=False)
class EarlierPrompt:
    """A prompt that others are compared with.

    Attributes:
        marks: Of its beginnings, one after the other; the first, of none of it, says which model it is for.
        size: The length of its text.
        text: Begins with it, and may go on; None where it is not kept.
    """

    marks: bytes = attrs.field(repr=False)
    size: int
    text: bytes | None = attrs.field(repr=False)


def nearest(prompt: EarlierPrompt, earlier: Iterable[EarlierPrompt]) -> Divergence | EarlierPrompt | None:
    """Return where a prompt leaves the nearest of earlier ones.

    Of those that have as many marks in common with it, one whose text is kept is enough to be exact.

    Args:
        prompt: With its text.
        earlier: Only those of the same model count.

    Returns:
        The earlier one itself where the prompt goes on from it, or is its beginning; None where there is none.
    """
    found, alike = _most_alike(prompt.marks, earlier)
    if not alike:
        return None
    at = alike // MARK_BYTES - 1
    low, high = MARK_OFFSETS[at - 1] if at else 0, MARK_OFFSETS[at] if at < len(MARK_OFFSETS) else MAX_PROMPT_BYTES
    text, size, common_bytes, is_exact = prompt.text, prompt.size, low, False
    assert text is not None, "it is new"
    for each in found:
        other = each.text
        if other is None:
            if alike in (len(prompt.marks), len(each.marks)):
                return each  # as far as marks tell
            continue
        is_exact = True
        if common_bytes < size and common_bytes < each.size and text[common_bytes] != other[common_bytes]:
            continue  # most of them: it shares no more than another one
        end = min(size, each.size, high)
        common = _common(text, other, low, end)
        if common == end:
            return each
        common_bytes = max(common_bytes, common)
    return Divergence(common_bytes, common_bytes + 1) if is_exact else Divergence(low, high)


def _most_alike(marks: bytes, earlier: Iterable[EarlierPrompt]) -> tuple[list[EarlierPrompt], int]:
    """Return those that share the most marks, and how many bytes of marks; one that is alike tells of all before it."""
    found: list[EarlierPrompt] = []
    alike, last, after = 0, slice(0), slice(MARK_BYTES)
    for each in earlier:
        other = each.marks
        if other[last] != marks[last]:
            continue
        if other[after] == marks[after] != b"":
            alike = _common(marks, other, alike, min(len(marks), len(other))) // MARK_BYTES * MARK_BYTES
            last, after = slice(alike - MARK_BYTES, alike), slice(alike, alike + MARK_BYTES)
            found = []
        found.append(each)
    return found, alike


def _common(one: bytes, other: bytes, low: int, high: int) -> int:
    """Return how many bytes two have in common, at most `high` of them; that they have `low` is known."""
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


MAX_PROMPTS: Final = 16
"""That are remembered of one tenant."""

MAX_TENANTS: Final = 512
"""With the most that a prompt has marks of: 7 MiB."""

MAX_TEXT_BYTES: Final = 256 << 10
"""Of one tenant's prompts; a prompt whose text is dropped is known by its marks."""

MAX_TENANTS_WITH_TEXT: Final = 32
"""All texts: 8 MiB. A bound that tenants shared by bytes would tell each how much the others ask."""


@attrs.define(eq=False)
class TenantPrompts:
    """The prompts that tenants were answered of late; those of the fewer tenants that came last with their texts."""

    _tenants: OrderedDict[str, "_Tenant"] = attrs.field(factory=OrderedDict, repr=False)
    _with_text: OrderedDict[str, "_Tenant"] = attrs.field(factory=OrderedDict, repr=False)

    def answered(self, tenant: str, prompt: Prompt, *, cached: int, tokens: int) -> Divergence | None:
        """Remember a prompt; return where it leaves the earlier one that it has most in common with.

        None where it goes on from that one, or is its beginning; where the tenant had none for the same model; where
        the engine reports more in its cache than that one can have left there, or no tokens at all.

        Args:
            tenant: Whose it is.
            prompt: What was asked.
            cached: Tokens of the prompt that the engine had in its cache.
            tokens: All of the prompt.
        """
        found = self._touch(tenant).add(prompt)
        # A byte is not a token: only twice as much is more
        if (
            not isinstance(found, Divergence)
            or tokens <= 0
            or cached / tokens * prompt.size >= 2 * found.differs_before
        ):
            return None
        return found

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
        prompts: The newest last, by their marks and a hash of what comes after the last one.
        text_bytes: As much is kept of texts, or less.
    """

    prompts: OrderedDict[tuple[bytes, int], EarlierPrompt] = attrs.field(factory=OrderedDict)
    text_bytes: int = 0

    def add(self, prompt: Prompt) -> Divergence | EarlierPrompt | None:
        """Remember a prompt, and return what `nearest` says of it."""
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
        """Count a text; where it or that of the prompt before is the other's beginning, both are kept as one."""
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
        """Drop the oldest texts, until the others fit."""
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
        """Know prompts by their marks alone."""
        for each in self.prompts.values():
            each.text = None
        self.text_bytes = 0
