"""Find and inspect the engine programs on this machine, and start them with a minimal environment.

The program of a runtime is the configured one, else the one on PATH or in Homebrew's folders.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.errors import ExternalError
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.devices import Device, parse_listed
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.environment import FIXED_VARIABLES
from llmkube.runtimes.process.exits import SIGN_AGAIN
from llmkube.runtimes.process.host_runtime import HostRuntime, ProgramError
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.engine.child import OwnedProcess, Termination, adopt_child, open_child
from llmkube.supervisor.engine.door import HostDoor, door_cookie, socket_path
from llmkube.supervisor.engine.keep_awake import PowerAssertion, caffeinate, keeping_awake
from llmkube.supervisor.engine.key_file import key_path, read_keys, removed_after_exit
from llmkube.supervisor.engine.logfile import service_of
from llmkube.supervisor.engine.orphans import STUCK_FOLDER, StuckEngine, StuckEngines
from llmkube.supervisor.engine.process_stats import CookieScan, Sampler
from llmkube.supervisor.engine.proxy import EngineProxy, config_path, proxy_of
from llmkube.supervisor.host.processes import COOKIE_VARIABLE, OWNER_VARIABLE
from llmkube.supervisor.values.admitted_networks import networks_path
from llmkube.supervisor.values.door_state import DoorConfig
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.ports import Child, Command, Grace, Shutdown
from llmkube.supervisor.values.proxy_config import ProxyConfig
from llmkube.supervisor.values.settings import AgentSettings

HOMEBREW: Final = ("/opt/homebrew/bin", "/usr/local/bin")
"""Homebrew's folders; launchd starts agents with neither of them on PATH."""

_OLLAMA = ("OLLAMA_HOST", "OLLAMA_MODELS")
"""The address of this user's Ollama, and its store."""

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", *_OLLAMA)
"""The only variables that an engine inherits from the agent, so that it gets none of the agent's tokens and keys."""

_PYTHON = ("PYTHONPATH", "VIRTUAL_ENV")
"""Variables that a proxy needs in addition, since it is this program."""

HELP_SECONDS = 30.0
"""Time that `--help` may take; macOS checks the signature of a new binary online at its first start."""


class EngineNotFoundError(ExternalError):
    """The program of an engine is missing, or is not the expected one."""

    reason = Reason.ENGINE_NOT_FOUND


def find_program(settings: AgentSettings, runtime: HostRuntime, key: str = "") -> str:
    """Return the path of a runtime's program, as installed now.

    Args:
        settings: The host's settings.
        runtime: The runtime.
        key: That of `LaunchPlan.engine_key`; "" for the runtime's name.

    Raises:
        EngineNotFoundError: No program of that name is on PATH or in Homebrew's folders.
    """
    if runtime.name == DEFAULT_RUNTIME:
        return settings.llama_server  # found when the agent started; it may be the bundled one
    if chosen := settings.programs.get(key or runtime.name):
        return chosen
    command = runtime.program.command
    found = shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *HOMEBREW]))
    if found is None:
        raise EngineNotFoundError(f"no {command or key} on this machine; {runtime.program.remedy}")
    return str(Path(found).absolute())


def read_head(path: str) -> str:
    """Return the first lines of a script; blocks.

    Raises:
        EngineNotFoundError: It cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError as error:
        raise EngineNotFoundError(f"cannot read {path}: {error.strerror or error}") from error


def list_devices(program: str) -> tuple[Device, ...] | None:
    """Return the devices that a llama-server lists, in the environment of engines; None if it cannot; blocks."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(FIXED_VARIABLES)
    try:
        done = subprocess.run(  # noqa: S603 - the program that the owner of this machine has chosen
            [program, "--list-devices"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            env=environment,
            timeout=HELP_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_listed(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else None


class EngineStuckError(ExternalError):
    """The previous engine of the service cannot be stopped, and a second one must not be started."""

    reason = Reason.ENGINE_STUCK


class AddressMissingError(ExternalError):
    """This host does not have the address that engines should listen on now."""

    reason = Reason.ADDRESS_MISSING


def explain_early_kill(code: int, platform: str) -> str:
    """Return the likely cause if a program was killed before it printed anything; "" if there is none."""
    if platform == "darwin" and code == -signal.SIGKILL:
        return f"macOS kills a program whose code signature is not valid, as after a copy over the file; {SIGN_AGAIN}"
    return ""


@attrs.define(eq=False)
class _Inspection:
    """An inspection in progress, shared by all tasks that request the same program."""

    done: trio.Event = attrs.field(factory=trio.Event)
    error: EngineNotFoundError | None = None


@attrs.define(eq=False)
class LocalEngines:
    """Start engines on this machine.

    Attributes:
        awake: Keeps this machine awake until cancelled, or until this process exits; None where it is not used.
    """

    settings: AgentSettings
    awake: Callable[[], Awaitable[None]] | None = attrs.field()
    _known: dict[tuple[str, int, int, int], EngineInfo] = attrs.field(factory=dict)
    _inspections: dict[str, _Inspection] = attrs.field(factory=dict)  # by runtime
    _sampler: Sampler = attrs.field(factory=Sampler)
    # Separate from the sampler's: a proxy's scan has no deadline, and must not delay stopping engines.
    _scan: CookieScan = attrs.field(factory=CookieScan)

    @awake.default
    def _awake(self) -> Callable[[], Awaitable[None]] | None:
        return caffeinate if sys.platform == "darwin" or self.settings.keep_awake else None

    async def info(self, runtime: str = DEFAULT_RUNTIME) -> EngineInfo:
        """Inspect the program of a runtime, once per binary: a replaced file is inspected again.

        An engine of the owner's (`generic/NAME`) is not run to describe itself: its build is its name.
        """
        name, _, engine = runtime.partition("/")
        known = HOST_RUNTIMES.get(name)
        if known is None:
            raise EngineNotFoundError(f"this agent does not support {runtime}; a newer one may have started its engine")
        path = find_program(self.settings, known, runtime)
        try:
            found = Path(path).stat()
        except OSError as error:
            message = f"no {known.program.command or runtime} at {path} ({error.strerror}); {known.program.remedy}"
            raise EngineNotFoundError(message) from error
        # The time alone is not enough: some package managers give every file the same one.
        identity = (path, found.st_ino, found.st_size, found.st_mtime_ns)
        while identity not in self._known:
            if (inspection := self._inspections.get(runtime)) is not None:
                await inspection.done.wait()
                if inspection.error is not None:
                    raise EngineNotFoundError(str(inspection.error)) from inspection.error
                continue  # it has succeeded, or its task was cancelled
            self._inspections[runtime] = inspection = _Inspection()
            try:
                self._known[identity] = await self._query(path, known)
            except EngineNotFoundError as error:
                inspection.error = error
                raise
            finally:
                del self._inspections[runtime]
                inspection.done.set()
        return attrs.evolve(self._known[identity], version=engine) if engine else self._known[identity]

    async def _query(self, path: str, runtime: HostRuntime) -> EngineInfo:
        program = runtime.program
        try:
            executable = path
            if program.find_interpreter is not None:
                executable = program.find_interpreter(await trio.to_thread.run_sync(read_head, path))
            commands = [[word.replace("{program}", executable) for word in words] for words in program.queries]
            info = program.describe(executable, [await self._output(*words) for words in commands])
        except ProgramError as error:
            raise EngineNotFoundError(f"{path}: {error}") from error
        fronts, wrappers = self.settings.fronts, self.settings.wrappers
        return attrs.evolve(info, front=fronts.get(runtime.name, ()), wrapper=wrappers.get(runtime.name, ""))

    async def _output(self, program: str, *flags: str) -> str:
        invocation = " ".join((program, *flags))
        try:
            with trio.fail_after(HELP_SECONDS):
                done = await trio.run_process(
                    [program, *flags],
                    capture_stdout=True,
                    stderr=subprocess.STDOUT,
                    check=False,
                    env=self._environment({}),
                )
        except OSError as error:
            raise EngineNotFoundError(f"cannot run {program}: {error.strerror or error}") from error
        except trio.TooSlowError as error:
            raise EngineNotFoundError(f"{invocation} did not answer within {HELP_SECONDS:g} s") from error
        text: str = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            detail = text[-500:].strip() or explain_early_kill(done.returncode, sys.platform)
            raise EngineNotFoundError(f"{invocation} failed with exit code {done.returncode}: {detail}")
        return text

    def free_port(self, host: str) -> int:
        """Return a free port chosen by the kernel; if another process takes it first, the attempt is repeated."""
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.bind((host, 0))
                return int(probe.getsockname()[1])
        except OSError as error:
            raise AddressMissingError(f"engines cannot listen on {host}: {error.strerror}") from error

    def open_child(
        self, command: Command, shutdown: Shutdown, grace: Grace
    ) -> AbstractAsyncContextManager[OwnedProcess]:
        """Run a process with the minimal environment for engines.

        Raises:
            EngineStuckError: An earlier engine of this service has survived KILL.
            SpawnError: The process cannot be started.
        """
        service = service_of(command.log_path)
        child = open_child(
            attrs.evolve(command, env=self._environment(dict(command.env) | {COOKIE_VARIABLE: command.cookie})),
            self._termination(command.cookie, shutdown, grace, service),
            log_cap_bytes=self.settings.log_cap_bytes,
            sampler=self._sampler,
            check=partial(self._refuse_while_stuck, service),
        )
        return self._with_companions(child, command.cookie, command.proxy, shutdown)

    def adopt_child(
        self, record: EngineRecord, log_path: Path, shutdown: Shutdown, grace: Grace
    ) -> AbstractAsyncContextManager[OwnedProcess]:
        """Take over a process that an earlier agent started."""
        child = adopt_child(
            record,
            log_path,
            self._termination(record.cookie, shutdown, grace, service_of(log_path)),
            log_cap_bytes=self.settings.log_cap_bytes,
            sampler=self._sampler,
        )
        keys = read_keys(key_path(self.settings.state_dir, record.cookie)) if record.public_host else ()
        proxy = proxy_of(record, self.settings.keyless_networks, keys[1:])  # ours is the first
        return self._with_companions(child, record.cookie, proxy, shutdown)

    @asynccontextmanager
    async def _with_companions(
        self,
        child: AbstractAsyncContextManager[OwnedProcess],
        cookie: str,
        proxy: ProxyConfig | None,
        shutdown: Shutdown,
    ) -> AsyncIterator[OwnedProcess]:
        """Run a process with its key file, its proxy, and an assertion that keeps this machine awake."""
        with removed_after_exit(key_path(self.settings.state_dir, cookie), shutdown):
            async with child as process, self._proxied(proxy, process, cookie, shutdown), self._kept_awake(process):
                yield process

    def _kept_awake(self, child: OwnedProcess) -> AbstractAsyncContextManager[None]:
        if self.awake is None:
            return nullcontext()
        assertion = PowerAssertion(self.awake, always=self.settings.keep_awake)
        child.record_activity = assertion.record_activity
        assertion.record_activity()  # a started or adopted engine may be working
        return keeping_awake(assertion)

    def _proxied(
        self, config: ProxyConfig | None, child: Child, cookie: str, shutdown: Shutdown
    ) -> AbstractAsyncContextManager[None]:
        if config is None:
            return nullcontext()
        networks = "" if config.keys else self._networks
        config = attrs.evolve(config, engine=(child.pid, child.started), networks=networks)
        return self._proxy(self.settings.engine_proxy, config, cookie).running(shutdown)

    def door(self) -> HostDoor:
        """Return the door of this host, which is not started yet."""
        socket = socket_path(self.settings.state_dir)
        config = DoorConfig(str(socket), self.settings.keyless_networks, self._networks)
        return HostDoor(self._proxy(self.settings.door, config, door_cookie(self.settings.state_dir)), socket)

    @property
    def _networks(self) -> str:
        """The file with the networks of the cluster's nodes; "" if they are not watched."""
        return str(networks_path(self.settings.state_dir)) if self.settings.watches_nodes else ""

    def _proxy(self, program: tuple[str, ...], config: ProxyConfig | DoorConfig, cookie: str) -> EngineProxy:
        folder = self.settings.state_dir
        environment = self._environment({name: os.environ[name] for name in _PYTHON if name in os.environ})
        path, log_path = config_path(folder, cookie), folder / "logs" / "proxies.log"
        return EngineProxy(program, config, cookie, path, log_path, environment, self._scan)

    def _refuse_while_stuck(self, service: str) -> None:
        engine = self._stuck.of(service)
        if engine is not None:
            raise EngineStuckError(
                f"the previous engine of {service} (pid {engine.pid}) did not exit after SIGKILL: it is stuck in the "
                "kernel and holds its memory; a new engine starts when it is gone. If it stays, check the model's disk "
                "and the driver, or restart the machine"
            )

    def _termination(self, cookie: str, shutdown: Shutdown, grace: Grace, service: str) -> Termination:
        def on_survivor(pid: int, started: str) -> None:
            self._stuck.record(StuckEngine(pid, started, service))

        return Termination(cookie, grace, shutdown, on_survivor)

    @property
    def _stuck(self) -> StuckEngines:
        return StuckEngines(self.settings.state_dir / STUCK_FOLDER)

    def _environment(self, extra: dict[str, str]) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        configured = dict(self.settings.variables) | dict(FIXED_VARIABLES)
        return inherited | configured | extra | {OWNER_VARIABLE: str(self.settings.state_dir)}
