"""What the proxy of one engine is told, as a value and as the text of a private file."""

import json
from typing import Any, Final

import attrs

IN_FLIGHT_PATH: Final = "/llmkube/in-flight"
"""GET it from a proxy, with the engine's key, for the number of requests that it has passed on and not answered."""


@attrs.frozen
class ProxyConfig:
    """One proxy, fully decided.

    Attributes:
        listen: Where it listens.
        backend: Where its engine listens.
        api_key: What the engine asks for; a client that shows the same one is let in, too.
        allowed: The networks (CIDR) whose requests need no key.
        networks: The file with those of the cluster's nodes, "" for none; with one, the host itself needs no key, too.
        keys: Keys of clients that let a request in as well.
        engine: The engine's pid, and what tells it from a later process (`processes.start_of`): the proxy ends with it.
    """

    listen: tuple[str, int]
    backend: tuple[str, int]
    api_key: str = attrs.field(repr=False)
    allowed: tuple[str, ...] = ()
    keys: tuple[str, ...] = attrs.field(default=(), repr=False, kw_only=True)
    engine: tuple[int, str] = (0, "")
    networks: str = attrs.field(default="", kw_only=True)

    def dump(self) -> str:
        """Return it as text for a private file."""
        data = attrs.asdict(self)
        for absent in ("keys", "networks"):
            if not data[absent]:
                del data[absent]  # as before there were any: an upgrade restarts no proxy
        return json.dumps(data)

    @classmethod
    def load(cls, text: str) -> "ProxyConfig":
        """Read what `dump` wrote.

        Raises:
            ValueError: It is none.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            listen, backend = ((str(host), int(port)) for host, port in (data["listen"], data["backend"]))
            pid, started = data["engine"]
            allowed = tuple(map(str, data["allowed"]))
            keys = tuple(map(str, data.get("keys", ())))
            networks = str(data.get("networks", ""))
            engine = (int(pid), str(started))
            return cls(listen, backend, str(data["api_key"]), allowed, engine, keys=keys, networks=networks)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the file of a proxy: {error!r}") from error
