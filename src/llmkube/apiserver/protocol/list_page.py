"""A page of a list is chosen in slices: however many objects there are, others have their turns in between."""

from typing import Final

import trio

from llmkube.apiserver.protocol.list_query import ListQuery, Page, candidates
from llmkube.apiserver.storage.revisions import Object, Store
from llmkube.apiserver.values.selectors import Predicate
from llmkube.k8s.resource import Key

SLICE: Final = 500
"""Objects that are looked at before other tasks have their turn: about a millisecond."""


async def read_page(store: Store, kind: str, namespace: str, query: ListQuery, chosen: Predicate) -> Page:
    """Return the page that the query asks for, of objects that are chosen, by namespace and name.

    Raises:
        RequestRefusedError: 410 when the moment asked for is forgotten, 504 when it has not come yet.
    """
    found = candidates(store, kind, namespace, query)
    matching: list[tuple[Key, Object]] = []
    for start in range(0, len(found.items), SLICE):
        matching += [(key, item) for key, item in found.items[start : start + SLICE] if chosen(item)]
        if query.limit and len(matching) > query.limit:
            break
        await trio.lowlevel.checkpoint()
    return found.page(matching, query)
