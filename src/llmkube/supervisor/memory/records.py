"""The services of one host with their reservations and requests: entered, changed, found and added up. Pure."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.memory.reservation import Need, Request, Reservation, Role
from llmkube.supervisor.memory.service_record import ServiceRecord


@attrs.define(eq=False)
class Records:
    """One record per service, and a number for each new reservation."""

    _by_key: dict[Key, ServiceRecord] = attrs.field(factory=dict)
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1))

    # -- services -------------------------------------------------------------------------------------------------

    def of(self, key: Key) -> ServiceRecord:
        """Return the record of a service; a new one if there is none."""
        return self._by_key.setdefault(key, ServiceRecord())

    def get(self, key: Key) -> ServiceRecord | None:
        """Return the record of a service."""
        return self._by_key.get(key)

    def pop(self, key: Key) -> ServiceRecord | None:
        """Take out the record of a service."""
        return self._by_key.pop(key, None)

    def waiting(self) -> Mapping[Key, ServiceRecord]:
        """The records of the services that wait for memory."""
        return {key: record for key, record in self._by_key.items() if record.request is not None}

    def requests(self) -> tuple[Request, ...]:
        """What services wait for."""
        return tuple(record.request for record in self._by_key.values() if record.request is not None)

    # -- reservations ---------------------------------------------------------------------------------------------

    def promise(
        self,
        key: Key,
        need: Need,
        now: float,
        *,
        role: Role = Role.SERVING,
        held: bool = True,
        returns: bool = False,
        granted_bytes: int = 0,
        spare_bytes: int = 0,
    ) -> Reservation:
        """Enter a reservation for an engine of a service."""
        reservation = Reservation(
            next(self._numbers),
            key,
            need,
            role=role,
            since=now,
            held=held,
            returns=returns,
            busy_at=now,
            granted_bytes=granted_bytes,
            spare_bytes=spare_bytes,
        )
        return self.of(key).promise(reservation)

    def newest(self, reservation: Reservation) -> Reservation:
        """Return a reservation as it is now; as it is given when it has been released."""
        record = self._by_key.get(reservation.key)
        return record.reservations.get(reservation.number, reservation) if record else reservation

    def update(self, reservation: Reservation, **changes: Any) -> Reservation:
        """Change a reservation as it is now, and return it."""
        record, after = self._by_key.get(reservation.key), attrs.evolve(self.newest(reservation), **changes)
        if record is not None and reservation.number in record.reservations:
            record.reservations[reservation.number] = after
        return after

    def serving(self, key: Key) -> Reservation | None:
        """The reservation of the engine that serves, or is to serve, a service."""
        return record.engine(Role.SERVING) if (record := self._by_key.get(key)) else None

    def reservations(self) -> tuple[Reservation, ...]:
        """What every engine has been promised."""
        return tuple(each for record in self._by_key.values() for each in record.reservations.values())

    # -- sums -----------------------------------------------------------------------------------------------------

    @property
    def is_moving(self) -> bool:
        """Whether an engine loads or is on the way out: figures change from one second to the next."""
        return any(each.loaded_at is None or each.is_leaving for each in self.reservations())

    @property
    def is_unmeasured(self) -> bool:
        """Whether an engine has loaded and was not measured since."""
        return any(each.pid and each.loaded_at is not None and not each.measured for each in self.reservations())

    @property
    def is_awaited(self) -> bool:
        """Whether a service waits for memory."""
        return any(record.request is not None for record in self._by_key.values())

    @property
    def is_adopting(self) -> bool:
        """Whether an adopted engine cannot be told to end yet, since no task runs it: a matter of milliseconds."""
        return any(not each.held for each in self.reservations())

    def pids(self) -> tuple[int, ...]:
        """The processes whose memory counts."""
        return tuple(each.pid for each in self.reservations() if each.pid)

    def held_bytes(self) -> int:
        """What all engines hold."""
        return sum(each.held_bytes for each in self.reservations())

    def device_bytes(self) -> int:
        """What all engines have been promised on the device."""
        return sum(each.need.device_bytes for each in self.reservations())

    def over_bytes(self, budget: Budget) -> int:
        """How much more than a budget the engines hold that stay; a fiftieth of it is not worth a restart."""
        staying = [each for each in self.reservations() if not each.is_leaving]
        limit_bytes = max((budget.for_model(each.spec.hardware).limit_bytes for each in staying), default=0)
        limit_bytes = max(limit_bytes, 0, *(min(each.granted_bytes, budget.total_bytes) for each in staying))
        over = sum(each.total_bytes for each in staying) - limit_bytes
        if budget.device_limit_bytes is not None:
            over = max(over, sum(each.need.device_bytes for each in staying) - budget.device_limit_bytes)
        return over if over > limit_bytes // 50 else 0
