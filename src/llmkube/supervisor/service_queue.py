"""Which services are to be reconciled: each once, however often it is added."""

import attrs
import trio

from llmkube.k8s.resource import Key


@attrs.define(eq=False)
class ServiceQueue:
    """Hold the keys of services that may have changed until one task takes them."""

    _keys: set[Key] = attrs.field(factory=set)
    _all: bool = False
    _added: trio.Event = attrs.field(factory=trio.Event)

    def add(self, key: Key) -> None:
        """Have a service reconciled."""
        self._keys.add(key)
        self._added.set()

    def add_all(self) -> None:
        """Have every service reconciled."""
        self._all = True
        self._added.set()

    async def take(self) -> tuple[frozenset[Key], bool]:
        """Wait for an addition; return the keys that were added by name, and whether all were."""
        await self._added.wait()
        taken = frozenset(self._keys), self._all
        self._keys.clear()
        self._all, self._added = False, trio.Event()
        return taken
