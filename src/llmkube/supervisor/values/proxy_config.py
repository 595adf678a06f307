"""Configuration of the proxy of one engine, as a value and as the text of a private file."""

import json
from typing import Any, Final

import attrs

IN_FLIGHT_PATH: Final = "/llmkube/in-flight"
"""Path on a proxy that returns the number of requests in flight; it requires the engine's key."""


@attrs.frozen
class ProxyConfig:
    """Complete configuration of one proxy.

    Attributes:
        listen: Address and port that it listens on.
        backend: Address and port of its engine.
        api_key: Key of the engine, which clients may use, too.
        allowed: Networks (CIDR) whose requests need no key.
        networks: File with the networks of the cluster's nodes, "" for none; with it, the host itself needs no key.
        keys: Keys of clients.
        engine: The engine's pid and start (`processes.start_of`); the proxy exits with that process.
    """

    listen: tuple[str, int]
    backend: tuple[str, int]
    api_key: str = attrs.field(repr=False)
    allowed: tuple[str, ...] = ()
    keys: tuple[str, ...] = attrs.field(default=(), repr=False, kw_only=True)
    engine: tuple[int, str] = (0, "")
    networks: str = attrs.field(default="", kw_only=True)

    def dump(self) -> str:
        """Return the text of the file."""
        data = attrs.asdict(self)
        for absent in ("keys", "networks"):
            if not data[absent]:
                del data[absent]  # as releases without these fields wrote it, so that an upgrade restarts no proxy
        return json.dumps(data)

    @classmethod
    def load(cls, text: str) -> "ProxyConfig":
        """Read what `dump` wrote.

        Raises:
            ValueError: The text is not such a file.
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
