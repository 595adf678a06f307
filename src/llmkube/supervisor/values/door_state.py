"""Lines of JSON between an agent and the door of its host: the states of services, and the requests for them."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar
from zlib import crc32

import attrs

from llmkube.k8s.resource import Key
from llmkube.supervisor.values.lifecycle import ServiceView

Listen = tuple[str, int] | tuple[()]
"""The address and port on which the door accepts the requests of a service; empty while it does not."""

FIRST_PORT: Final = 20_000
"""Below the ports that Linux and macOS give to outgoing connections (32768 and 49152)."""


def port_of(key: Key, tries: int) -> int:
    """Return the port of a service at the door, or the next one if other programs have that many.

    It depends on the name only, so that a new door, also after a restart of the machine, listens on the same port.
    """
    return FIRST_PORT + (crc32(str(key).encode()) + tries) % 10_000


def _tuple(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(items)


@attrs.frozen
class DoorConfig:
    """Settings of a door; a door with other settings is replaced.

    Attributes:
        socket: Path of the Unix socket on which it accepts its agent.
        allowed: Networks (CIDR) whose requests need no key, for services without client keys.
        networks: File with the networks of the cluster's nodes, "" for none; with it, the host itself needs no key.
    """

    socket: str
    allowed: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    networks: str = ""

    def dump(self) -> str:
        """Return the text of its file."""
        return json.dumps(attrs.asdict(self))


def _view(data: ServiceView | Mapping[str, Any]) -> ServiceView:
    # Without what a door does not use: each service has an address of its own, where every name leads to it, and a
    # router selects the adapters of a request by their numbers.
    unused = {"aliases": (), "given_up": (), "adapters": (), "offload": None}
    return data if isinstance(data, ServiceView) else ServiceView(**_known(ServiceView, data) | unused)


@attrs.frozen
class DoorEntry:
    """One service at the door.

    Attributes:
        view: Its newest snapshot.
        host: The address on which the door accepts its requests.
        keys: API keys of its clients; with them, requests without one are refused.
        retry_at: When a request may load it again after a failed load; -inf if no load has failed. By the clock of
            the process, and in lines, as all times, in seconds from now.
        moved_to: Where another host accepts its requests, which has it now; the rest stays as it was then. Empty while
            this host serves it.
    """

    view: ServiceView = attrs.field(converter=_view)
    host: str
    keys: tuple[str, ...] = attrs.field(default=(), converter=_tuple, repr=False)
    retry_at: float = -math.inf
    moved_to: Listen = attrs.field(default=(), converter=_tuple)

    def shifted(self, seconds: float) -> "DoorEntry":
        """Return it by another clock."""
        view = attrs.evolve(self.view, delayed_until=self.view.delayed_until + seconds)
        return attrs.evolve(self, view=view, retry_at=self.retry_at + seconds)


@attrs.frozen
class DoorReport:
    """The requests for one service at the door.

    Attributes:
        requests: Number of requests that wait or run.
        arrived: Number of requests that have ever arrived.
        running: Number of those that do not wait, and may be in an engine.
        engine: Port of the engine to which it sends them; 0 while it holds them.
        listen: Where it accepts them; empty while it does not.
    """

    requests: int = 0
    arrived: int = 0
    running: int = 0
    engine: int = 0
    listen: Listen = attrs.field(default=(), converter=_tuple)


T = TypeVar("T", DoorEntry, DoorReport)


def dump_line(key: Key, value: DoorEntry | DoorReport | None) -> bytes:
    """Return the line about a service; with None, the other side forgets it."""
    return json.dumps([str(key), value and attrs.asdict(value)]).encode() + b"\n"


def load_line(kind: type[T], line: bytes) -> tuple[Key, T | None]:
    """Read what `dump_line` returned; fields that only another version knows are left out."""
    service, data = json.loads(line)
    return Key.parse(service), None if data is None else kind(**_known(kind, data))


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in attrs.fields_dict(kind) if name in data}
