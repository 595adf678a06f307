"""Record which services a front door needs, so that the controller starts their pods and does not stop them.

A service is needed from the arrival of a request to `LINGER_SECONDS` after its end. A change is written at once, but at
most once in `INTERVAL_SECONDS` for a namespace, however many requests there are; while any service is needed, the
record is renewed. Writes are merge patches of one annotation, which no other front door writes: none is lost, and none
needs a resourceVersion.
"""

import datetime
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.hold import Hold
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.errors import AlreadyExistsError, NotFoundError
from llmkube.k8s.leases.wanted_services import DURATION_SECONDS, GATEWAY_LABEL, LEASE_NAME, RECORD_PREFIX, encode_record
from llmkube.k8s.rbac import Permission
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.times import micro_timestamp

log = structlog.get_logger()

PERMISSIONS: Final = (
    Permission(Lease, frozenset({"create"})),
    Permission(Lease, frozenset({"patch"}), names=frozenset({LEASE_NAME})),
)

INTERVAL_SECONDS: Final = 1.0
"""Least time between two writes for one namespace."""

RENEW_SECONDS: Final = 10.0
"""Interval of the renewals of a record that names services."""

LINGER_SECONDS: Final = 10.0
"""Time for which a service is still needed after its last request, so that a busy one causes no writes but renewals."""

WRITE_SECONDS: Final = 5.0
"""Timeout of a write; the next one has everything that it had."""

DEAD_SECONDS: Final = 10.0 * DURATION_SECONDS
"""Time without a change after which the record of another front door is removed: it was killed."""


@attrs.define(eq=False)
class _Namespace:
    """The services of one namespace.

    Attributes:
        uses: Number of requests of each service.
        used_at: End of the last request of each service that has none.
        changed: Set when the set of needed services may have grown.
        others: Records of other front doors, and when each was first seen.
        problem: Why the last write failed; empty if it did not.
    """

    uses: dict[str, int] = attrs.field(factory=dict)
    used_at: dict[str, float] = attrs.field(factory=dict)
    changed: trio.Event = attrs.field(factory=trio.Event)
    written: frozenset[str] = frozenset()
    others: dict[str, tuple[str, float]] = attrs.field(factory=dict)
    problem: str = ""

    def needed(self, now: float) -> frozenset[str]:
        """Return the services to record."""
        self.used_at = {name: at for name, at in self.used_at.items() if now < at + LINGER_SECONDS}
        return frozenset((*self.uses, *self.used_at))


@attrs.define(eq=False)
class ScaleUpRequests:
    """The `Waker` of a front door in a cluster.

    Attributes:
        client: The API server.
        gateway: Name of this front door; shown to people.
        gateway_id: Id of this process, unique among all front doors, of letters and digits.
        utcnow: The wall clock, only for the times in the Lease.
        is_on_request: Whether requests start the pods of a service; others are not recorded.
        wait_directory_changed: Returns once the directory's answer for any service may have changed since the call.
    """

    client: Client
    gateway: str
    gateway_id: str
    utcnow: Callable[[], datetime.datetime]
    is_on_request: Callable[[Key], bool]
    wait_directory_changed: Callable[[], Awaitable[object]]
    _namespaces: dict[str, _Namespace] = attrs.field(factory=dict, init=False)
    _appeared: trio.Event = attrs.field(factory=trio.Event, init=False)
    _number: int = attrs.field(default=0, init=False)

    def using(self, service: str, tenant: str) -> AbstractContextManager[Hold]:
        """Record that a service is needed while a request waits or runs; `tenant` makes no difference in a cluster."""
        del tenant
        key = Key.parse(service)
        return self._using(key) if self.is_on_request(key) else nullcontext(nullcontext)

    async def wait_changed(self, service: str) -> None:
        """Return once the directory's answer for a service may have changed since the call."""
        del service
        await self.wait_directory_changed()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Write the records until cancelled, and then remove them."""
        running = set[str]()
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    self._appeared = trio.Event()
                    for name in self._namespaces.keys() - running:
                        running.add(name)
                        nursery.start_soon(self._run_namespace, name)
                    await self._appeared.wait()
        finally:
            with trio.move_on_after(WRITE_SECONDS, shield=True):
                async with trio.open_nursery() as nursery:
                    for name, namespace in self._namespaces.items():
                        if namespace.written:
                            nursery.start_soon(self._write, name, namespace, frozenset())
        raise AssertionError("the nursery never ends by itself")

    @contextmanager
    def _using(self, key: Key) -> Iterator[Hold]:
        namespace = self._namespaces.get(key.namespace)
        if namespace is None:
            namespace = self._namespaces[key.namespace] = _Namespace()
            self._appeared.set()
        namespace.uses[key.name] = namespace.uses.get(key.name, 0) + 1
        if key.name not in namespace.written:
            namespace.changed.set()
        try:
            yield nullcontext
        finally:
            namespace.uses[key.name] -= 1
            if not namespace.uses[key.name]:
                del namespace.uses[key.name]
                namespace.used_at[key.name] = trio.current_time()

    async def _run_namespace(self, name: str) -> NoReturn:
        namespace = self._namespaces[name]
        renew_at = 0.0
        while True:
            namespace.changed = trio.Event()
            now = trio.current_time()
            needed = namespace.needed(now)
            if needed != namespace.written or (needed and now >= renew_at):
                if await self._write(name, namespace, needed):
                    renew_at = now + RENEW_SECONDS
                await trio.sleep(INTERVAL_SECONDS)
                continue
            ends = [at + LINGER_SECONDS for at in namespace.used_at.values()]
            with trio.move_on_at(min([renew_at, *ends]) if needed else float("inf")):
                await namespace.changed.wait()

    async def _write(self, name: str, namespace: _Namespace, needed: frozenset[str]) -> bool:
        """Write the record of a namespace; return whether the API server has it."""
        self._number += 1
        own = f"{RECORD_PREFIX}{self.gateway_id}"
        dead = [each for each, (_, since) in namespace.others.items() if trio.current_time() >= since + DEAD_SECONDS]
        annotations = dict.fromkeys(dead) | {own: encode_record(self.gateway, self._number, needed) if needed else None}
        moment = micro_timestamp(self.utcnow())
        spec = {"holderIdentity": self.gateway, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": moment}
        labels = {GATEWAY_LABEL: "true"}
        patch: dict[str, Any] = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
        key = Key(name, LEASE_NAME)
        try:
            with trio.fail_after(WRITE_SECONDS):
                try:
                    lease = await self.client.patch(Lease, key, patch)
                except NotFoundError:
                    if not needed:  # there is nothing to remove, and perhaps no namespace any more
                        namespace.written, namespace.problem = needed, ""
                        return True
                    lease = await self._create(key, patch)
        except (LLMKubeError, trio.TooSlowError) as error:
            problem = str(error) or "no answer"
            if problem != namespace.problem:
                log.warning("scale-up request not recorded", lease=str(key), error=problem)
            namespace.problem = problem
            return False
        namespace.problem = ""
        now, before = trio.current_time(), namespace.others
        namespace.others = {
            each: before[each] if each in before and before[each][0] == text else (text, now)
            for each, text in lease.metadata.annotations.items()
            if each.startswith(RECORD_PREFIX) and each != own
        }
        namespace.written = needed
        return True

    async def _create(self, key: Key, patch: dict[str, Any]) -> Lease:
        annotations = {name: text for name, text in patch["metadata"]["annotations"].items() if text is not None}
        metadata = {**patch["metadata"], "name": key.name, "namespace": key.namespace, "annotations": annotations}
        try:
            return await self.client.create(decode(Lease, {**patch, "metadata": metadata}))
        except AlreadyExistsError:
            return await self.client.patch(Lease, key, patch)
