"""What a router runs by, the same in a router alone, in the parent of workers and in each of these."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from llmkube.base.errors import UserError
from llmkube.cli.commands.router.routing_file import load_routing
from llmkube.programs.config.router_config import RouterConfig
from llmkube.router.auth.key_files import stamp_of
from llmkube.router.config.compile_router import ResolvedService
from llmkube.router.config.local_address import stays_here
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.proxy.live_config import Source

_KEYS_DIR: Final = "router-keys"
_NAMESPACE: Final = "default"

log = structlog.get_logger()


def source_of(filename: str, settings: RouterConfig, *, tells: bool = True) -> Source:
    """Return where the config of a router comes from.

    Args:
        filename: A ModelRouter, or a compiled config.
        settings: Of the program.
        tells: Whether its warnings are logged: of several processes that read it, one says them.

    Raises:
        UserError: A service is no NAME=URL.
    """
    assert settings.state_dir is not None, "load() decides it"
    keys_dir = settings.keys_dir or settings.state_dir / _KEYS_DIR
    services = _services(settings.service)
    said: set[str] = set()

    def resolve(namespace: str, name: str) -> ResolvedService | None:
        return services.get(f"{namespace}/{name}") or services.get(name)

    def read() -> RoutingConfig:
        file = load_routing(filename, resolve, keys_folder=str(keys_dir), namespace=_NAMESPACE)
        for each in (*file.warnings, *(f"{path} has no effect" for path in file.not_honoured)):
            if each not in said and tells:
                log.warning(each)
                said.add(each)
        return file.config

    return Source(read, lambda: stamp_of(Path(filename)))


def _services(given: tuple[str, ...]) -> Mapping[str, ResolvedService]:
    """Read what is written as NAME=URL.

    Raises:
        UserError: One is not.
    """
    found = {}
    for each in given:
        name, _, url = each.partition("=")
        parts = urlsplit(url)
        if not name or parts.scheme not in ("http", "https") or not parts.hostname:
            words = f"{each!r} is no service; write NAME=URL, such as phi-4-mini=http://127.0.0.1:8081/v1"
            raise UserError(words, field="--service")
        if not stays_here(url):
            words = f"{each!r}: an InferenceService is local, and {url} may be outside of this network"
            raise UserError(f"{words}; give its private address, or name it as an external backend", field="--service")
        found[name] = ResolvedService(base_url=url.rstrip("/"))
    return found
