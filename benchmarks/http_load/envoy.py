"""Envoy, one thread, no log: as a reverse proxy that passes all requests on to one backend."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_TYPES: Final = "type.googleapis.com/envoy.extensions.filters"
_MOST: Final = 65_536
"""Requests and connections towards the backend; Envoy's own limit of 1,024 is for what may break."""


def proxy_command(envoy: Sequence[str], folder: Path, port: int, backend: int) -> list[str]:
    """Return the command of a reverse proxy; Envoy passes each piece of an answer on as it comes."""
    (folder / "envoy.json").write_text(json.dumps(_config(port, backend)), "utf-8")
    flags = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "off"]
    return [*envoy, "--config-path", str(folder / "envoy.json"), *flags]


def _config(port: int, backend: int) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_TYPES}.http.router.v3.Router"}}
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoint = {"endpoint": {"address": _address(backend)}}
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "circuit_breakers": {
            "thresholds": [{"max_connections": _MOST, "max_pending_requests": _MOST, "max_requests": _MOST}]
        },
        "load_assignment": {"cluster_name": "engine", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    listener = {"address": _address(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
