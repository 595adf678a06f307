"""Live config of a router: its file is polled, and reloaded as a whole when it changes.

A request keeps the config that it started with. If a file is invalid, the previous config stays in use; the log, a
metric and `/readyz` report the problem until the file is fixed.
"""

import random
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path
from typing import Final, NoReturn

import attrs
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.router.auth.key_files import ClientKeys, Stamp
from llmkube.router.auth.principals import ClientAuth
from llmkube.router.auth.token_checker import TokenChecker
from llmkube.router.auth.token_keys import TokenKeys
from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.policy.decision import Decision
from llmkube.router.proxy.metrics import known_classes

POLL_SECONDS: Final = 1.0
MAX_DECISIONS: Final = 256
_STEADY: Final = ("primary-fallback", "shadow")
"""Strategies that depend only on the facts of a request."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


@attrs.define(eq=False)
class Routing:
    """Config in use; a reload replaces it as a whole, and requests in flight keep theirs.

    Attributes:
        clients: Client authentication; None if none is required.
        matched_headers: Names of the headers that rules match.
        decisions: Decisions by the facts that they depend on; None if they also depend on load, time or chance.
    """

    config: RoutingConfig
    clients: ClientAuth | None
    classes: frozenset[str] = attrs.field(init=False)
    balances: bool = attrs.field(init=False)
    matched_headers: tuple[str, ...] = attrs.field(init=False)
    decisions: dict[Hashable, Decision] | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.classes = known_classes(self.config)
        rules, has_engines = self.config.rules, bool(self.config.engines)
        self.balances = has_engines or any(each.strategy == "least-loaded" and len(each.backends) > 1 for each in rules)
        self.matched_headers = tuple({name for each in self.config.rules for name in each.match.headers})
        steady = all(each.strategy in _STEADY and each.match.latency_seconds is None for each in rules)
        self.decisions = {} if steady and not has_engines else None


@attrs.frozen
class Source:
    """Source of a config.

    Attributes:
        load: Reads the config; blocks, and raises UserError if it is invalid.
        stamp: Returns a value that changes with the source, such as a file's stat.
    """

    load: Callable[[], RoutingConfig]
    stamp: Callable[[], Stamp]


@attrs.define(eq=False)
class LiveConfig:
    """Config that is reloaded when its source changes.

    Attributes:
        routing: Config in use.
        on_change: Called with the previous and the new config after each reload.
        wall_clock: Returns the seconds since 1970.
        rng: Jitter of fetches of token keys.
        problem: Reason why the current file is invalid; "" if it is in use.
    """

    source: Source
    routing: Routing
    on_change: Callable[[RoutingConfig, RoutingConfig], Awaitable[None]]
    wall_clock: Callable[[], float]
    rng: random.Random
    problem: str = ""
    _stamp: Stamp = (0, 0, 0)
    _limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    _check_lock: trio.Lock = attrs.field(factory=trio.Lock)

    def token_keys(self) -> TokenKeys | None:
        """Return the keys that verify tokens; None if no tokens are accepted."""
        clients = self.routing.clients
        return clients.tokens.keys if clients is not None and clients.tokens is not None else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Poll the file and the client keys until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(POLL_SECONDS)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Reload what has changed; concurrent callers wait until the reload is in effect."""
        async with self._check_lock:
            stamp = self.source.stamp()
            if stamp != self._stamp:
                self._stamp = stamp
                await self._reload()
        clients = self.routing.clients
        if clients is not None and isinstance(keys := clients.keys, ClientKeys):
            await trio.to_thread.run_sync(_refresh_keys, keys, limiter=self._limiter)

    async def _reload(self) -> None:
        try:
            config = await trio.to_thread.run_sync(self.source.load, limiter=self._limiter)
            keys = await trio.to_thread.run_sync(keys_for, config, self.wall_clock, limiter=self._limiter)
        except UserError as exc:
            if self.problem != str(exc):
                _log.error("config reload failed, previous config kept", error=str(exc))
            self.problem = str(exc)
            return
        self.problem = ""
        before = self.routing.config
        if config == before:
            return
        self.routing = Routing(config, _clients(config, keys, self.routing.clients, self.wall_clock, self.rng))
        _log.info("config reloaded", router=config.name, backends=len(config.backends), rules=len(config.rules))
        await self.on_change(before, config)


def load_routing(source: Source, wall_clock: Callable[[], float], rng: random.Random) -> tuple[Routing, Stamp]:
    """Load the config for the first time. Blocks.

    Raises:
        UserError: It is invalid.
    """
    stamp = source.stamp()
    config = source.load()
    return Routing(config, _clients(config, keys_for(config, wall_clock), None, wall_clock, rng)), stamp


def keys_for(config: RoutingConfig, wall_clock: Callable[[], float]) -> ClientKeys | None:
    """Read the client keys; None if none are configured. Blocks.

    Raises:
        UserError: They cannot be read.
    """
    if not config.auth.keys_folder:
        return None
    keys = ClientKeys(wall_clock, folder=Path(config.auth.keys_folder))
    try:
        keys.refresh()
    except OSError as exc:
        message = f"{config.auth.keys_folder!r} cannot be read ({exc.strerror}); set a folder with a file per team"
        raise UserError(message, field="auth.keysFolder") from exc
    return keys


def _clients(
    config: RoutingConfig,
    keys: ClientKeys | None,
    before: ClientAuth | None,
    wall_clock: Callable[[], float],
    rng: random.Random,
) -> ClientAuth | None:
    """Return the client authentication; token keys are reused while their source is the same."""
    tokens = config.auth.tokens
    if tokens is None:
        return ClientAuth(keys) if keys is not None else None
    old = before.tokens if before is not None else None
    if old is not None and old.tokens == tokens:
        return ClientAuth(keys, old)
    source = tokens.jwks_uri, tokens.jwks_file
    is_same = old is not None and (old.keys.uri, old.keys.file) == source
    token_keys = old.keys if old is not None and is_same else TokenKeys(*source, rng)
    return ClientAuth(keys, TokenChecker(tokens, token_keys, wall_clock, trio.current_time))


def _refresh_keys(keys: ClientKeys) -> None:
    try:
        keys.refresh()
    except OSError as exc:
        _log.warning("client keys not read, previous keys kept", folder=str(keys.folder), error=str(exc))
