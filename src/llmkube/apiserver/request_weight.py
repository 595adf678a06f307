"""What a write may cost is judged before it is read: by its body, the object that it changes, the rules of its kind."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import attrs

from llmkube.apiserver.heavy_work import Work
from llmkube.apiserver.kinds.catalog import CRDS
from llmkube.apiserver.kinds.kind_info import KindInfo
from llmkube.apiserver.schema import cel
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import largest_pattern
from llmkube.apiserver.storage.encoding import fields_of
from llmkube.apiserver.storage.revisions import Store
from llmkube.apiserver.writes.request_target import Target
from llmkube.base.http.message import Request

LIGHT_VALUES: Final = 600
"""As many values as the event loop works on itself: about 10 ms."""

LIGHT_BYTES: Final = 64 * 1024

LIGHT_MATCHING: Final = 1_000_000
"""Characters of text times instructions of a pattern that the event loop matches itself: 10 ms at worst."""

_COPYING: Final = "json-patch"
_LIGHT_YAML_BYTES: Final = 512  # what is no JSON is read at 60 KB/s


@attrs.frozen
class KindCost:
    """What an object of a kind may cost beyond its size."""

    nested_macros: bool
    largest_pattern: int  # instructions


@attrs.frozen(eq=False)
class RequestWeights:
    """Knows what a write to each kind may cost; the first one to a kind compiles its rules, which takes long.

    Attributes:
        store: What is there.
        work: Where rules are compiled.
    """

    store: Store
    work: Work
    _known: WeakKeyDictionary[KindInfo, KindCost] = attrs.field(factory=WeakKeyDictionary, init=False)

    async def is_heavy(self, request: Request, target: Target) -> bool:
        """Whether a write may take longer than the event loop should be kept."""
        cost = self._known.get(target.kind)
        if cost is None:
            cost = self._known[target.kind] = await self.work(partial(_cost, target.kind.schema))
        if cost.nested_macros or cost.largest_pattern * len(request.body) > LIGHT_MATCHING:
            return True
        if target.ref.kind == CRDS or (request.method == "DELETE" and not target.ref.key.name):
            return True
        return has_heavy_body(request) or is_large(self.store.get(target.ref))


def _cost(schema: Schema) -> KindCost:
    cel.compile_rules(schema)
    return KindCost(cel.has_nested_macros(schema), largest_pattern(schema))


def has_heavy_body(request: Request) -> bool:
    """Whether a body takes long to read and to judge."""
    body = request.body
    if _COPYING in (request.headers.get("content-type") or "").lower():
        return True  # a few operations may copy megabytes
    if body[:1] not in {b"{", b"["} and len(body) > _LIGHT_YAML_BYTES:
        return True
    return _weighs(body)


def is_large(stored: Mapping[str, Any] | None) -> bool:
    """Whether a stored object is so large that even a small change to it takes long."""
    return stored is not None and _weighs(fields_of(stored))


def _weighs(text: bytes) -> bool:
    if len(text) > LIGHT_BYTES:
        return True
    return text.count(b",") + text.count(b"[") + text.count(b"{") > LIGHT_VALUES
