"""Know which hosts are alive: follow their Leases, and read a silent one once more before its host counts as gone.

The read matters: while the API server is away no host can renew its Lease, and our watch may be the one thing that is
broken. As long as a Lease cannot be read no host is declared gone, and after that each one gets a whole Lease's time to
renew. The controller and every agent judge by this, each with its own clock.
"""

import random
from collections.abc import Callable
from typing import Final, Never, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.mailbox import Mailbox
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.leases.live_hosts import LeaseTracker
from llmkube.k8s.rbac import LIST_AND_WATCH, Permission
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import HOST_LABEL

log = structlog.get_logger()

PERMISSIONS: Final = (Permission(Lease, LIST_AND_WATCH | {"get"}, place="system"),)

READ_SECONDS: Final = 5.0
"""How long the second look at a silent Lease may take, and the pause before the next one when it failed."""


@attrs.define(eq=False)
class HostMonitor:
    """The hosts of one cluster.

    Attributes:
        client: The API server.
        namespace: Where hosts keep their Leases.
        changed: Called when the set of live hosts, or what one of them serves, is another one; it must not block.
        leases: The Leases as last seen.
        book: When each of them was seen to change.
        updates: Its version grows when a host comes or goes, or one may be gone sooner than has been known.
    """

    client: Client
    namespace: str
    changed: Callable[[], None]
    leases: Cache[Lease] = attrs.field(factory=Cache)
    tracker: LeaseTracker = attrs.field(factory=LeaseTracker)
    updates: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    _unconfirmed: set[Key] = attrs.field(factory=set)

    async def run_reflector(self, rng: random.Random) -> Never:
        """Never return: follow the Leases."""
        await run_reflector(
            self.client,
            Lease,
            self.leases,
            self._on_lease,
            namespace=self.namespace,
            label_selector=HOST_LABEL,
            rng=rng,
        )

    async def run_expiry(self) -> NoReturn:
        """Never return: declare a host gone when its Lease has not changed for its duration and a read confirms it."""
        while True:
            version = self.updates.version
            overdue = self.tracker.overdue(trio.current_time())
            for key in overdue:
                await self._confirm_gone(key)
            if not overdue:
                with trio.move_on_at(self.tracker.next_deadline):
                    await self.updates.wait_newer(version)

    async def check_gone(self, host: str) -> bool:
        """Read a host's Lease now, and return whether there is none, or one that has been silent for too long.

        Raises:
            ExternalError: It is not known.
        """
        key = Key(self.namespace, host)
        try:
            lease: Lease | None = await self.client.get(Lease, key)
        except NotFoundError:
            lease = None
        self._observe(key, lease)
        return lease is None or not self.tracker.hosts.is_alive(host)

    def _on_lease(self, key: Key) -> None:
        self._observe(key, self.leases.get(key))

    async def _confirm_gone(self, key: Key) -> None:
        try:
            with trio.fail_after(READ_SECONDS):
                lease = await self.client.get(Lease, key)
        except NotFoundError:
            self._observe(key, None)
        except (LLMKubeError, trio.TooSlowError) as error:
            log.warning("cannot tell whether a host is alive", lease=str(key), error=str(error) or "no answer")
            self._unconfirmed.add(key)
            self.tracker.postpone(key, trio.current_time() + READ_SECONDS)
            return
        else:
            now = trio.current_time()
            before = self.tracker.hosts
            self.tracker.observe(lease, now, renewed=key in self._unconfirmed)
            if key in self.tracker.overdue(now):
                self.tracker.mark_gone(key)
                log.warning("host is gone: its lease was not renewed", lease=str(key))
            if self.tracker.hosts != before:
                self.updates.put_nowait(None)
                self.changed()
        self._unconfirmed.discard(key)

    def _observe(self, key: Key, lease: Lease | None) -> None:
        before, deadline = self.tracker.hosts, self.tracker.next_deadline
        if lease is None:
            self.tracker.forget(key)
        else:
            self.tracker.observe(lease, trio.current_time())
        changed = self.tracker.hosts != before
        if changed or self.tracker.next_deadline < deadline:  # most are renewals, which wake no task
            self.updates.put_nowait(None)
        if changed:
            self.changed()
