"""Watch the Leases of hosts to know which hosts are alive; an overdue Lease is read again before its host is gone.

During an outage of the API server no host can renew its Lease, and our own watch may be broken. While a Lease cannot be
read, its host is not declared gone; afterwards it has the full duration of its Lease to renew. The controller and every
agent run this, each with its own clock.
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
"""The timeout of the read of an overdue Lease, and the pause before the next one if it fails."""


@attrs.define(eq=False)
class HostMonitor:
    """The hosts of one cluster.

    Attributes:
        client: The API server.
        namespace: The namespace of the hosts' Leases.
        changed: Called when the set of live hosts, or what a host serves, has changed; it must not block.
        leases: The Leases as last seen.
        tracker: The times at which they were seen to change.
        updates: Its version grows when a host appears or is gone, or when the next deadline becomes earlier.
    """

    client: Client
    namespace: str
    changed: Callable[[], None]
    leases: Cache[Lease] = attrs.field(factory=Cache)
    tracker: LeaseTracker = attrs.field(factory=LeaseTracker)
    updates: Mailbox[None] = attrs.field(factory=lambda: Mailbox(None))
    _unconfirmed: set[Key] = attrs.field(factory=set)

    async def run_reflector(self, rng: random.Random) -> Never:
        """Watch the Leases; never return."""
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
        """Declare a host gone when its Lease has not changed for its duration and a read confirms it; never return."""
        while True:
            version = self.updates.version
            overdue = self.tracker.overdue(trio.current_time())
            for key in overdue:
                await self._confirm_gone(key)
            if not overdue:
                with trio.move_on_at(self.tracker.next_deadline):
                    await self.updates.wait_newer(version)

    async def check_gone(self, host: str) -> bool:
        """Read a host's Lease now and return whether it is missing or has not been renewed in time.

        Raises:
            ExternalError: The Lease could not be read.
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
            log.warning("host lease not read", lease=str(key), error=str(error) or "no answer")
            self._unconfirmed.add(key)
            self.tracker.postpone(key, trio.current_time() + READ_SECONDS)
            return
        else:
            now = trio.current_time()
            before = self.tracker.hosts
            self.tracker.observe(lease, now, renewed=key in self._unconfirmed)
            if key in self.tracker.overdue(now):
                self.tracker.mark_gone(key)
                log.warning("host lost: its lease was not renewed", lease=str(key))
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
        if changed or self.tracker.next_deadline < deadline:  # false for most events: renewals wake no task
            self.updates.put_nowait(None)
        if changed:
            self.changed()
