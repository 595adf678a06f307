"""Renew this host's Lease: while it is renewed, others trust this host's reports and respect its claims.

Once per renewal one task checks whether the machine has slept and at which address it is reached, and renews the Lease.
When a renewal succeeds after a failed one, listeners are called, since other writers may have changed this host's
objects meanwhile.

Two machines of the same name would overwrite each other's slices and claims. The Lease is therefore read before
anything is written in this host's name: if another machine is in it and renews it, this agent exits with an error that
names the other machine. Each renewal has the resource version that it replaces, so two machines that were
disconnected from each other are detected.

Clocks show a sleep of the machine and a pause of the agent. The monotonic clock of Linux and macOS stops during sleep,
the wall clock does not: if one jumps against the other, the machine has slept, or the clock was set, which is treated
alike. After a pause of the agent itself (SIGSTOP, a paused virtual machine) both clocks are far beyond the time of the
next renewal.
"""

import datetime
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import structlog
import trio

from llmkube import __version__
from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, LLMKubeError, UserError
from llmkube.base.mailbox import Mailbox
from llmkube.base.waiting import skip_ticks, wait_tick
from llmkube.k8s.builtins import Lease
from llmkube.k8s.client import Client
from llmkube.k8s.crd.pairing import GENERIC
from llmkube.k8s.errors import ConflictError, ForbiddenError, NotFoundError, UnauthorizedError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import (
    ACCELERATORS_ANNOTATION,
    ADDRESS_ANNOTATION,
    ADDRESS_REASON_ANNOTATION,
    AGENT_VERSION_ANNOTATION,
    CORDON_ANNOTATION,
    CREDENTIAL_ANNOTATION,
    ENGINE_ANNOTATION,
    HOST_LABEL,
    MACHINE_ANNOTATION,
    MEMORY_BUDGET_ANNOTATION,
    MEMORY_FREE_ANNOTATION,
    MEMORY_TOTAL_ANNOTATION,
    RUNTIMES_ANNOTATION,
    SERVICES_ANNOTATION,
    host_id,
)
from llmkube.k8s.wire.times import micro_timestamp
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.credential_monitor import CredentialMonitor
from llmkube.supervisor.memory.capacity import CapacitySummary
from llmkube.supervisor.values.host_addresses import HostAddress, keep_last
from llmkube.supervisor.values.ports import HostFacts, Ports
from llmkube.supervisor.values.settings import AgentSettings

log = structlog.get_logger(__name__)

WAKE_SECONDS: Final = 10.0
"""Shortest sleep that is reported; connections and Leases survive shorter ones."""


EXPIRES_AFTER_RENEWALS = 4
"""Renewals that may be missed until the Lease expires: one lost packet or slow write must not make a host seem dead."""

RETRY = Backoff(base_seconds=5.0, cap_seconds=300.0)
"""Delays after missed renewals; the interval of renewals applies if it is shorter."""

NAME_CHECK_BACKOFF = Backoff(base_seconds=0.2, cap_seconds=5.0)
"""Delays between checks for another machine of this name while the API server does not answer."""

RIVAL_CHECK_SECONDS = 1.0
"""Interval of checks whether another machine in the Lease is alive."""

ENGINE_CHECK_SECONDS = 60.0
"""Interval of checks whether an engine program has been replaced; a multiple of the renewal interval."""


@attrs.frozen
class ClockReading:
    """Both clocks at one moment."""

    wall: datetime.datetime
    monotonic_seconds: float


def slept_seconds(before: ClockReading, now: ClockReading, planned_seconds: float) -> float:
    """Return how long the machine slept between two readings; 0.0 for less than `WAKE_SECONDS`.

    Args:
        before: The reading before the wait.
        now: The reading after it.
        planned_seconds: The intended duration of the wait.
    """
    wall = (now.wall - before.wall).total_seconds()
    monotonic = now.monotonic_seconds - before.monotonic_seconds
    lost = max(wall - monotonic, monotonic - planned_seconds)
    return lost if lost >= WAKE_SECONDS else 0.0


class HostNameTakenError(UserError):
    """Another machine uses this host's name."""


def lease_manifest(
    settings: AgentSettings, now: datetime.datetime, reported: Mapping[str, str] = {}, *, cordon: str = ""
) -> dict[str, Any]:
    """Return the host's Lease; empty annotations are left out.

    A host that is cordoned until `cordon` lists no accelerator.
    """
    host, accelerators = host_id(settings.host_name), "" if cordon else ",".join(sorted(settings.accelerators))
    known = {name: value for name, value in (dict(reported) | {CORDON_ANNOTATION: cordon}).items() if value}
    return {
        "metadata": {
            "name": host,
            "namespace": settings.lease_namespace,
            "labels": {HOST_LABEL: host},
            "annotations": {ACCELERATORS_ANNOTATION: accelerators, **known},
        },
        "spec": {
            "holderIdentity": settings.host_name,
            "leaseDurationSeconds": round(settings.lease_renew_seconds * EXPIRES_AFTER_RENEWALS),
            "renewTime": micro_timestamp(now),
        },
    }


async def delete_host_lease(client: Client, settings: AgentSettings) -> None:
    """Delete the Lease, so that no host has to wait for its expiry; best effort, and the caller sets a deadline."""
    try:
        await client.delete(Lease, Key(settings.lease_namespace, host_id(settings.host_name)))
    except LLMKubeError as error:
        log.info("lease not deleted; it will expire", host=settings.host_name, error=str(error))


@attrs.define(eq=False)
class HostLease:
    """Renews the Lease of one host.

    Attributes:
        host_address: Address of this host; updated when it changes.
        credential: Monitor that is notified whether the API server accepts this host's credential.
        services: Returns the number of services on this host.
        on_wake: Called after a sleep with its duration in seconds.
        on_renewed_again: Called when the Lease is renewed after a missed renewal.
        name_confirmed: Set once it is certain that no other machine uses this host's name.
        renewed: Set once the Lease exists.
        on_engine_upgrade: Called when an engine program has changed.
        memory: Returns the host's memory; None if it is not watched.
        closed: Returns why every request from elsewhere needs a key; "" if some need none.
        cordon: Returns the end of the cordon; "" while the host serves.
    """

    client: Client
    settings: AgentSettings
    ports: Ports
    host_address: Mailbox[HostAddress]
    credential: CredentialMonitor
    services: Callable[[], int]
    on_wake: Callable[[float], None]
    on_renewed_again: Callable[[], None]
    name_confirmed: trio.Event
    renewed: trio.Event
    on_engine_upgrade: Callable[[], None] = lambda: None
    memory: Callable[[], CapacitySummary | None] = lambda: None
    closed: Callable[[], str] = lambda: ""
    cordon: Callable[[], str] = lambda: ""
    _engine: str = ""
    _runtimes: str = ""  # unknown before the first check
    _version: str = ""  # of the Lease when it was last read or written
    _missed: int = 0  # renewals in a row that failed, or that the host slept through

    async def run(self) -> None:
        """Renew the Lease at its interval; never return. A failed renewal counts as missed, and the next one follows.

        Raises:
            HostNameTakenError: Another machine uses this host's name.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_engine_programs)
            nursery.start_soon(self._confirm_name)
            while True:
                await self._renew()
                before = self._reading()
                pause = self.settings.lease_renew_seconds
                if self._missed:
                    pause = min(pause, RETRY.delay(self._missed, self.ports.rng))
                await wait_tick(pause)
                slept = slept_seconds(before, self._reading(), pause)
                if slept:
                    log.info("sleep detected", seconds=round(slept))
                    self._missed += 1
                    self.on_wake(slept)
                    skip_ticks()
                await self.refresh_address()

    async def refresh_address(self) -> None:
        """Update this host's address."""
        if self.ports.address is None:
            return
        before, seen = self.host_address.value, await self.ports.address()
        if seen is None:
            return
        now = attrs.evolve(keep_last(before if before.why else None, seen), closed=self.closed())
        if now == before:
            return
        if now.problem and now.problem != before.problem:
            log.warning("host address not confirmed", problem=now.problem, hostIP=now.address or "")
        elif (now.address, now.why) != (before.address, before.why):
            log.info("host address changed", hostIP=now.address or "", why=now.why, before=before.address or "")
        self.host_address.put_nowait(now)

    async def _confirm_name(self) -> None:
        """Return once it is certain that no other machine uses this host's name, or its Lease has expired.

        Raises:
            HostNameTakenError: Another machine uses it.
        """
        failures, first, expired_at = 0, "", 0.0
        while not self.name_confirmed.is_set():
            try:
                with trio.fail_after(self.settings.lease_renew_seconds):
                    rival = await self._read_rival()
            except ForbiddenError:
                break  # the check is impossible; an agent that may not read the Lease may not write anything, either
            except (LLMKubeError, trio.TooSlowError) as error:
                failures += 1
                self._report_unauthorized(error)
                await trio.sleep(NAME_CHECK_BACKOFF.delay(failures, self.ports.rng))
                continue
            if rival is None:
                break
            if not first:
                first = rival.metadata.resource_version
                expired_at = trio.current_time() + float(rival.spec.lease_duration_seconds or 0)
                log.warning("host name used by another machine; checking if it is alive", machine=machine_in(rival))
            elif rival.metadata.resource_version != first:
                raise self._name_taken_error(rival)
            elif trio.current_time() >= expired_at:
                break
            await trio.sleep(RIVAL_CHECK_SECONDS)
        self.name_confirmed.set()

    async def _read_rival(self) -> Lease | None:
        """Read this host's Lease, and return it if another machine is in it."""
        try:
            lease = await self.client.get(Lease, Key(self.settings.lease_namespace, host_id(self.settings.host_name)))
        except NotFoundError:
            self._version = ""
            return None
        self._version = lease.metadata.resource_version
        other = machine_in(lease)
        return lease if other and not is_same_machine(other, self.ports.machine) else None

    def _name_taken_error(self, lease: Lease) -> HostNameTakenError:
        name = self.settings.host_name
        return HostNameTakenError(
            f"the host name {name} is taken: the machine {place_in(lease)} uses it, and this machine is "
            f"{self.ports.machine}; give this machine another name with --host-name"
        )

    async def _renew(self) -> None:
        try:
            with trio.fail_after(self.settings.lease_renew_seconds):
                await self.name_confirmed.wait()
                await self._write()
        except HostNameTakenError:
            raise
        except (LLMKubeError, trio.TooSlowError) as error:
            self._missed += 1
            self._report_unauthorized(error)
            if self._missed == 1:
                log.warning("lease not renewed", host=self.settings.host_name, error=str(error) or "no answer")
            return
        self.renewed.set()
        self.credential.mark_accepted()
        if self._missed:
            self._missed = 0
            log.info("lease renewed again", host=self.settings.host_name)
            self.on_renewed_again()

    def _report_unauthorized(self, error: Exception) -> None:
        if isinstance(error, UnauthorizedError):
            self.credential.mark_refused()

    async def _write(self) -> None:
        """Renew the Lease; if it has changed meanwhile, check whether another machine did that.

        Raises:
            HostNameTakenError: Another machine renewed it, so it is alive.
        """
        manifest = lease_manifest(self.settings, self.ports.utcnow(), self._annotations(), cordon=self.cordon())
        while True:
            if self._version:
                manifest["metadata"]["resourceVersion"] = self._version
            with suppress(ConflictError):
                lease = await self.client.apply(Lease, manifest, field_manager=self.settings.field_manager)
                self._version = lease.metadata.resource_version
                return
            rival = await self._read_rival()
            if rival is not None:
                raise self._name_taken_error(rival)
            manifest["metadata"].pop("resourceVersion", None)

    def _annotations(self) -> dict[str, str]:
        """Return the annotations of the Lease; there is no memory budget before the first memory sample."""
        memory, host_address = self.memory(), self.host_address.value
        facts = self.ports.facts() if memory is None else HostFacts(memory.total_bytes, memory.free_bytes)
        return {
            AGENT_VERSION_ANNOTATION: __version__,
            ENGINE_ANNOTATION: self._engine,
            RUNTIMES_ANNOTATION: self._runtimes,
            MACHINE_ANNOTATION: self.ports.machine,
            MEMORY_TOTAL_ANNOTATION: str(facts.total_bytes or ""),
            MEMORY_BUDGET_ANNOTATION: str((memory and memory.limit_bytes) or ""),
            MEMORY_FREE_ANNOTATION: str(facts.free_bytes or ""),
            SERVICES_ANNOTATION: str(self.services()),
            ADDRESS_ANNOTATION: host_address.address or "",
            ADDRESS_REASON_ANNOTATION: host_address.problem or host_address.why,
            CREDENTIAL_ANNOTATION: self.credential.value.value.advice,
        }

    async def _watch_engine_programs(self) -> None:
        known: dict[str, EngineInfo] = {}
        own_engines = [f"{GENERIC}/{name}" for name in self.settings.allowances.engines]
        while True:
            reported = dict[str, str]()
            for runtime in (*HOST_RUNTIMES, *own_engines):
                try:
                    engine = await self.ports.engines.info(runtime)
                except ExternalError:
                    continue  # the attempt that starts one reports why
                before = known.get(runtime)
                known[runtime] = engine
                if before not in (None, engine):
                    log.info("engine program changed", program=engine.program, version=engine.version)
                    self.on_engine_upgrade()
                name = HOST_RUNTIMES[runtime].program.command if engine.wrapper else Path(engine.program).name
                reported[runtime] = f"{name} {engine.version}".strip()
            self._engine, self._runtimes = ", ".join(reported.values()), ",".join(reported) or "none"
            await wait_tick(ENGINE_CHECK_SECONDS)

    def _reading(self) -> ClockReading:
        return ClockReading(self.ports.utcnow(), trio.current_time())


def machine_in(lease: Lease) -> str:
    """Return the machine in a host's Lease; "" if there is none."""
    return lease.metadata.annotations.get(MACHINE_ANNOTATION, "")


def place_in(lease: Lease) -> str:
    """Return the machine and address in a host's Lease, for people."""
    address = lease.metadata.annotations.get(ADDRESS_ANNOTATION, "")
    return f"{machine_in(lease)} at {address}" if address else machine_in(lease)


def is_same_machine(one: str, other: str) -> bool:
    """Whether two annotations `name (number)` are of the same machine; only the number matters."""
    # A Mac's name changes with its network.
    return one.rpartition(" (")[2] == other.rpartition(" (")[2]
