"""Where a prompt leaves the nearest of others: at which byte if their texts are there, else between two marks. Pure.

What prompts share, their marks share (`prompt_marks`): they find the nearest ones, and texts are compared only between
the last mark that is alike and the first that is not, 256 bytes or a sixteenth of a prompt apart.
"""

from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.router.prefix_cache.prompt_marks import MOST_BYTES, PLACES

MARK_BYTES: Final = 8


@attrs.frozen
class Divergence:
    """Where two prompts part.

    Attributes:
        same: As many bytes of their text are alike.
        differs: They differ before this byte.
    """

    same: int
    differs: int

    def said(self, text: bytes) -> str:
        """Return how many characters of the text are alike: `COUNT`, or `FROM-TO` where that is not known exactly."""
        first = len(text[: self.same].decode("utf-8", "ignore"))
        if self.differs == self.same + 1:
            return f"{first}"
        # A character that is cut here may be the one that differs
        return f"{first}-{len(text[: self.differs].decode('utf-8', 'replace'))}"


@attrs.define(eq=False)
class Earlier:
    """A prompt that others are compared with.

    Attributes:
        marks: Of its beginnings, one after the other; the first, of none of it, says which model it is for.
        size: The length of its text.
        text: Begins with it, and may go on; None where it is not kept.
    """

    marks: bytes = attrs.field(repr=False)
    size: int
    text: bytes | None = attrs.field(repr=False)


def nearest(prompt: Earlier, earlier: Iterable[Earlier]) -> Divergence | Earlier | None:
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
    low, high = PLACES[at - 1] if at else 0, PLACES[at] if at < len(PLACES) else MOST_BYTES
    text, size, same, is_exact = prompt.text, prompt.size, low, False
    assert text is not None, "it is new"
    for each in found:
        other = each.text
        if other is None:
            if alike in (len(prompt.marks), len(each.marks)):
                return each  # as far as marks tell
            continue
        is_exact = True
        if same < size and same < each.size and text[same] != other[same]:
            continue  # most of them: it shares no more than another one
        end = min(size, each.size, high)
        common = _common(text, other, low, end)
        if common == end:
            return each
        same = max(same, common)
    return Divergence(same, same + 1) if is_exact else Divergence(low, high)


def _most_alike(marks: bytes, earlier: Iterable[Earlier]) -> tuple[list[Earlier], int]:
    """Return those that share the most marks, and how many bytes of marks; one that is alike tells of all before it."""
    found: list[Earlier] = []
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
