"""Services that front doors need now, as recorded in one Lease of each namespace. Pure.

All front doors share the Lease `llmkube-gateway` of a namespace, and each writes one annotation of its own in it: the
services that have requests, and a number that grows with every write. The record is about now, not about a change: a
reader that has missed any number of writes needs only the last one.

A record expires when it has not changed for the duration of the Lease since *we* saw it change, by our own monotonic
clock. The times in the Lease are for people.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import attrs
import orjson

from llmkube.k8s.builtins import Lease
from llmkube.k8s.resource import Key

LEASE_NAME: Final = "llmkube-gateway"
"""Name of the Lease in each namespace with services that front doors have needed."""

GATEWAY_LABEL: Final = "inference.llmkube.dev/gateway"
"""Label of these Leases, by which the controller selects them."""

RECORD_PREFIX: Final = "wanted.inference.llmkube.dev/"
"""Prefix of the annotations; the rest is the id of a front door."""

DURATION_SECONDS: Final = 30
"""The `leaseDurationSeconds` of the Lease."""


def encode_record(gateway: str, number: int, services: Iterable[str]) -> str:
    """Return the value of a front door's annotation.

    Args:
        gateway: Name of the front door, for people.
        number: A number that differs from that of its last record.
        services: Names of the services that it needs, in the namespace of the Lease.
    """
    return orjson.dumps({"gateway": gateway, "number": number, "services": sorted(services)}).decode()


def decode_record(text: str) -> frozenset[str]:
    """Return the services of a record; none if it is malformed: any writer of Leases can create one."""
    try:
        services = orjson.loads(text)["services"]
        return frozenset(name for name in services if isinstance(name, str))
    except (ValueError, TypeError, KeyError):
        return frozenset()


@attrs.frozen
class _Seen:
    text: str
    services: frozenset[str]
    deadline: float


@attrs.define(eq=False)
class WantedServices:
    """The records of all namespaces, and when each was last seen to change; times are of one monotonic clock."""

    _seen: dict[str, Mapping[str, _Seen]] = attrs.field(factory=dict, init=False)

    def observe(self, key: Key, lease: Lease | None, now: float) -> list[Key]:
        """Note a Lease, or that it is gone; return the services that its unexpired records name or have named."""
        if key.name != LEASE_NAME:
            return []
        before, found = self._seen.get(key.namespace, {}), dict[str, _Seen]()
        for name, text in (lease.metadata.annotations if lease is not None else {}).items():
            last = before.get(name)
            if not name.startswith(RECORD_PREFIX):
                continue
            unchanged = last is not None and last.text == text
            found[name] = last if last and unchanged else _Seen(text, decode_record(text), now + DURATION_SECONDS)
        self._seen[key.namespace] = found
        records = (*before.values(), *found.values())
        names = {name for seen in records if seen.deadline > now for name in seen.services}
        return [Key(key.namespace, name) for name in sorted(names)]

    def wants(self, service: Key, now: float) -> bool:
        """Return whether a front door needs a service."""
        records = self._seen.get(service.namespace, {}).values()
        return any(seen.deadline > now and service.name in seen.services for seen in records)
