"""What tenants were answered of late, so that each is told where its prompt leaves its own earlier ones. Pure.

What a tenant is told is made of its own prompts, and of the tokens that its answer reports, which it reads anyway.
Other tenants' prompts are not looked at: they change neither what is said, nor whether, nor how much is done for it.
All that tenants share is how many of them are remembered: those that were answered last.
"""

from array import array
from collections import OrderedDict
from typing import Final

import attrs

from llmkube.router.prefix_cache.divergence import Divergence, Earlier, nearest
from llmkube.router.prefix_cache.prompt_marks import PLACES
from llmkube.router.prefix_cache.warm_prefixes import Prompt

MOST_PROMPTS: Final = 16
"""That are remembered of one tenant."""

MOST_TENANTS: Final = 512
"""With the most that a prompt has marks of: 7 MiB."""

MOST_TEXT_BYTES: Final = 256 << 10
"""Of one tenant's prompts; a prompt whose text is dropped is known by its marks."""

MOST_TENANTS_WITH_TEXT: Final = 32
"""All texts: 8 MiB. A bound that tenants shared by bytes would tell each how much the others ask."""


@attrs.define(eq=False)
class OwnPrompts:
    """The prompts that tenants were answered of late; those of the fewer tenants that came last with their texts."""

    _of: OrderedDict[str, "_Tenant"] = attrs.field(factory=OrderedDict, repr=False)
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
        found = self._newest(tenant).add(prompt)
        # A byte is not a token: only twice as much is more
        if not isinstance(found, Divergence) or tokens <= 0 or cached / tokens * prompt.size >= 2 * found.differs:
            return None
        return found

    def _newest(self, tenant: str) -> "_Tenant":
        own = self._of.setdefault(tenant, _Tenant())
        for held, most in ((self._of, MOST_TENANTS), (self._with_text, MOST_TENANTS_WITH_TEXT)):
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

    prompts: OrderedDict[tuple[bytes, int], Earlier] = attrs.field(factory=OrderedDict)
    text_bytes: int = 0

    def add(self, prompt: Prompt) -> Divergence | Earlier | None:
        """Remember a prompt, and return what `nearest` says of it."""
        text = prompt.text
        new = Earlier(marks=prompt.scope + array("Q", prompt.marks).tobytes(), size=len(text), text=text)
        key = new.marks, hash(text[PLACES[len(prompt.marks) - 1] :])
        found = self.prompts.get(key) or nearest(new, self.prompts.values())
        self._keep(new, text, found.text if isinstance(found, Earlier) else None)
        self.prompts[key] = new
        self.prompts.move_to_end(key)
        if len(self.prompts) > MOST_PROMPTS:
            self.prompts.popitem(last=False)
        if self.text_bytes > MOST_TEXT_BYTES:
            self._drop_oldest()
        return found

    def _keep(self, new: Earlier, text: bytes, before: bytes | None) -> None:
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
        kept: dict[int, int] = {}
        size = 0
        for each in reversed(self.prompts.values()):
            text = each.text
            if text is None or id(text) in kept:
                continue
            size += len(text)
            if size > MOST_TEXT_BYTES:
                each.text = None
            else:
                kept[id(text)] = len(text)
        self.text_bytes = sum(kept.values())

    def drop_texts(self) -> None:
        """Know prompts by their marks alone."""
        for each in self.prompts.values():
            each.text = None
        self.text_bytes = 0
