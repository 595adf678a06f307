"""The page of `llmkube up`: its state from the agent and the objects, and what its owner can do there."""

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube import __version__
from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.http.connection import StreamHandler
from llmkube.base.log import RecentLog
from llmkube.base.private_files import ensure_token, write_private
from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import RESTARTED_AT
from llmkube.k8s.wire.times import micro_timestamp
from llmkube.programs.informer import ObjectCaches
from llmkube.programs.page.captures import CAPTURE_SECONDS
from llmkube.programs.page.feed import Feed
from llmkube.programs.page.handler import TOKEN_FILE, Action, Control, Page, load_files
from llmkube.programs.page.requests import RecentRequests
from llmkube.programs.page.state import Rates, State, engine_state, memory_state
from llmkube.supervisor.agent import AgentView
from llmkube.supervisor.engine.logfile import log_path
from llmkube.supervisor.memory.budget import Budget
from llmkube.supervisor.values.ports import Ports
from llmkube.supervisor.values.settings import AgentSettings

FIELD_MANAGER: Final = "llmkube-page"
UP_LOG: Final = "up.log"
"""File in the state directory for the output of `llmkube up` in the background."""
OPENER_FILE: Final = "page.html"
"""Name in the state directory of a file that opens the page with its token: a browser's command line is public."""
OPENER: Final = """<!doctype html><meta charset="utf-8"><title>LLMKube</title>
<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Open the page</a>
"""
STEP: Final = 25
"""Services after which other tasks run: a few milliseconds of work."""

Describe = Callable[[InferenceService, Model | None], State]


@attrs.frozen
class Commands:
    """The commands that the page carries out.

    Attributes:
        describe: Returns the figures of a service that `llmkube list`, `ps` and `status` show.
        catalog: Returns the models of `llmkube catalog list`; blocks.
        fit: Returns the verdict of `llmkube fit` for a deployment and a budget.
        deploy: Deploys as `llmkube deploy`, for the user of a state directory, and returns what was changed.
        recent: The log of this program.
    """

    describe: Describe
    catalog: Callable[[], Sequence[State]]
    fit: Callable[[Mapping[str, Any], Budget], Awaitable[State]]
    deploy: Callable[[Mapping[str, Any], Client, Path], Awaitable[str]]
    recent: RecentLog


@attrs.define(eq=False)
class Machine:
    """The services of one machine.

    Attributes:
        view: The agent.
        caches: The objects.
        client: Client of the API server.
        settings: Settings of the agent.
        ports: Its clock.
        commands: Commands that the page carries out.
        requests: The last requests.
    """

    view: AgentView
    caches: ObjectCaches
    client: Client
    settings: AgentSettings
    ports: Ports
    commands: Commands
    requests: RecentRequests
    _known: dict[Key, tuple[tuple[Any, ...], State]] = attrs.field(factory=dict)

    async def collect(self, rates: Rates) -> State:
        """Return the state of the page; what has not changed is not computed again."""
        models, known = self.caches.model_of, self._known
        services: dict[str, State] = {}
        self._known = {}
        for number, service in enumerate(self.caches.services.values()):
            if number % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            key, model, view = service.key, models(service), self.view.service(service.key)
            facts = (service, model, view)
            before, state = known.get(key, (None, {}))
            if before != facts:
                state = {**self.commands.describe(service, model), **engine_state(view)}
            self._known[key] = facts, state
            services[str(key)] = state | rates.state_of(str(key))
        left = self.requests.captures.seconds_left
        return {
            "version": __version__,
            "host": self.settings.host_name,
            "cordoned": self.view.cordon.current is not None,
            "captureMinutes": math.ceil(left / 60),
            "memory": memory_state(self.view.memory(), trio.current_time()),
            "services": services,
        }

    def log_path(self, service: str) -> Path | None:
        """Return the log of a service's engine; None if the service does not exist."""
        found = self._get(service)
        return log_path(self.settings.state_dir, found.key) if found is not None else None

    @property
    def actions(self) -> Mapping[str, Action]:
        """The actions by name."""
        of_services: Mapping[str, Callable[[str], Awaitable[str]]] = {
            "load": self._load,
            "unload": self._unload,
            "pin": self._pin,
            "restart": self._restart,
            "start": partial(self._scale, replicas=1),
            "stop": partial(self._scale, replicas=0),
        }
        return {name: partial(_about_service, action) for name, action in of_services.items()} | {
            "catalog": self._catalog,
            "fit": self._fit,
            "deploy": self._deploy,
            "capture": self._capture,
            "body": self._body,
        }

    async def _catalog(self, _wanted: Mapping[str, Any]) -> State:
        return {"models": await trio.to_thread.run_sync(self.commands.catalog)}

    async def _fit(self, wanted: Mapping[str, Any]) -> State:
        memory = self.view.memory()
        if memory is None:
            raise LLMKubeError("the memory of this machine is not watched")
        return {**await self.commands.fit(wanted, memory.budget), "freeBytes": memory.free_bytes}

    async def _deploy(self, wanted: Mapping[str, Any]) -> State:
        return {"message": await self.commands.deploy(wanted, self.client, self.settings.state_dir)}

    async def _capture(self, wanted: Mapping[str, Any]) -> State:
        minutes = wanted.get("minutes")
        if type(minutes) is not int or not 0 <= minutes <= CAPTURE_SECONDS // 60:
            raise UserError(f"{minutes!r} is not a number from 0 to {CAPTURE_SECONDS // 60}", field="minutes")
        await trio.lowlevel.checkpoint()
        self.requests.captures.turn_on(60 * minutes)
        text = f"are kept for {minutes} min, in memory only" if minutes else "are no longer kept, and were deleted"
        return {"message": f"Bodies of requests {text}"}

    async def _body(self, wanted: Mapping[str, Any]) -> State:
        found = self.requests.captures.of(wanted.get("number", 0))
        if found is None:
            raise LLMKubeError("the bodies of this request are no longer kept")
        return await trio.to_thread.run_sync(found.texts)

    async def _load(self, name: str) -> str:
        service = self._find(name)
        self.view.activator.load(name)
        await trio.lowlevel.checkpoint()
        return f"{service.key.name} is being loaded"

    async def _unload(self, name: str) -> str:
        service = self._find(name)
        await trio.lowlevel.checkpoint()
        if not self.view.activator.unload(name):
            raise LLMKubeError(f"{service.key.name} is not loaded, or not loaded on request; stop it instead")
        return f"{service.key.name} is unloaded once its requests have ended; the next request loads it"

    async def _pin(self, name: str) -> str:
        service = self._find(name)
        self.view.activator.pin(name, None)
        await trio.lowlevel.checkpoint()
        return f"{service.key.name} stays loaded until it is unloaded"

    async def _restart(self, name: str) -> str:
        now = micro_timestamp(self.ports.utcnow())
        key = await self._change(name, {"podAnnotations": {RESTARTED_AT: now}})
        return f"{key.name} is restarted"

    async def _scale(self, name: str, replicas: int) -> str:
        key = await self._change(name, {"replicas": replicas})
        return f"{key.name} is {'started' if replicas else 'stopped; its objects and files are kept'}"

    async def _change(self, name: str, spec: Mapping[str, Any]) -> Key:
        key = self._find(name).key
        await self.client.patch(InferenceService, key, {"spec": spec}, field_manager=FIELD_MANAGER)
        return key

    def _find(self, name: str) -> InferenceService:
        """Return a service by namespace and name.

        Raises:
            LLMKubeError: It does not exist.
        """
        service = self._get(name)
        if service is None:
            raise LLMKubeError(f"there is no InferenceService {name}")
        return service

    def _get(self, name: str) -> InferenceService | None:
        return next((each for each in self.caches.services.values() if str(each.key) == name), None)


async def _about_service(action: Callable[[str], Awaitable[str]], wanted: Mapping[str, Any]) -> State:
    return {"message": await action(wanted["service"])}


async def open_pages(
    machine: Machine, state_dir: Path, url: str, nursery: trio.Nursery
) -> Callable[[StreamHandler, bool], Page]:
    """Start the feed; return a function that adds the page to a listener, with control if its argument is True.

    Args:
        machine: The services.
        state_dir: Folder of the page's token, and of the file that opens the page with it.
        url: Address of the listener with control.
        nursery: Runs the feed.
    """
    files = await trio.to_thread.run_sync(load_files)
    token = await trio.to_thread.run_sync(ensure_token, state_dir / TOKEN_FILE)
    opener = OPENER.format(address=f"{url}/#token={token}")
    await trio.to_thread.run_sync(write_private, state_dir / OPENER_FILE, opener)
    requests = machine.requests
    feed = Feed(machine.collect, secrets.token_hex(4), requests.rates, requests.captures.expire)
    nursery.start_soon(feed.run)
    control = Control(token, machine.actions, machine.log_path, machine.commands.recent)
    return lambda other, controls: Page(feed, files, other, requests, control if controls else None)
