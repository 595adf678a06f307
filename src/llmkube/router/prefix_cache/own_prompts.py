"""Where a prompt leaves its tenant's own earlier ones: from there on no engine had it in its cache. Pure.

What a tenant is told is made of its own prompts, and of the tokens that its answer reports, which it reads anyway.
Other tenants' prompts are not looked at: they change neither what is said, nor whether, nor how much is done for it.
All that tenants share is how many of them are remembered.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.router.prefix_cache.prompt_marks import PLACES
from llmkube.router.prefix_cache.warm_prefixes import Prompt

MOST_PROMPTS: Final = 16
"""That are remembered of one tenant."""

MOST_TENANTS: Final = 512
"""With the most that a prompt has marks of: 5 MiB."""

_SIZE: Final = 8


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
        """Return it in characters of the text, `FROM-TO`."""
        first, last = (len(text[:at].decode("utf-8", "ignore")) for at in (self.same, self.differs))
        return f"{first}-{last}"


@attrs.define(eq=False)
class OwnPrompts:
    """The prompts that tenants were answered of late, by their marks."""

    _of: OrderedDict[str, OrderedDict[bytes, None]] = attrs.field(factory=OrderedDict)

    def answered(self, tenant: str, prompt: Prompt, *, cached: int, tokens: int) -> Divergence | None:
        """Remember a prompt; return where it leaves the earlier one that it has most in common with.

        None where it goes on from that one, or is its beginning; where the tenant had none; where the engine reports
        more in its cache than that one can have left there, or no tokens at all.

        Args:
            tenant: Whose it is.
            prompt: What was asked.
            cached: Tokens of the prompt that the engine had in its cache.
            tokens: All of the prompt.
        """
        marks = array("Q", prompt.marks).tobytes()
        own = self._of.setdefault(tenant, OrderedDict())
        self._of.move_to_end(tenant)
        found = _nearest(marks, own) if tokens > 0 else None
        own[marks] = None
        own.move_to_end(marks)
        if len(own) > MOST_PROMPTS:
            own.popitem(last=False)
        if len(self._of) > MOST_TENANTS:
            self._of.popitem(last=False)
        # A byte is not a token: only twice as much is more
        return None if found is None or cached / tokens * prompt.size >= 2 * found.differs else found


def _nearest(marks: bytes, earlier: Iterable[bytes]) -> Divergence | None:
    """Return where a prompt leaves the nearest of some others; None where it leaves none of the nearest."""
    alike = [(_common(marks, each), each) for each in earlier]
    most = max((common for common, _ in alike), default=0)
    if not alike or most == len(marks) or any(common == most == len(each) for common, each in alike):
        return None
    at = most // _SIZE
    return Divergence(PLACES[at - 1] if at else 0, PLACES[at])


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the marks that two prompts share: each is of all before it, so that they are the first."""
    low, high = 0, min(len(one), len(other)) // _SIZE
    while low < high:
        middle = (low + high + 1) // 2
        at = slice((middle - 1) * _SIZE, middle * _SIZE)
        low, high = (middle, high) if one[at] == other[at] else (low, middle - 1)
    return low * _SIZE
