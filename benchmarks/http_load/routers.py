"""The routers that are compared, running: ours, bare and with everything on, and others; and proxies."""

import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import psutil
import trio
import yaml

from http_load import envoy, nginx, tools
from http_load.processes import BARE, DIRECT, HERE, NGINX, Contender, end, launch, launch_nginx

START_SECONDS: Final = 120.0
ROUTER, FULL, LITELLM, PORTKEY, ENVOY = "router", "full", "litellm", "portkey", "envoy"

KEY: Final = "none"
"""The key of the load's requests."""

_BUDGETS: Final = (
    {"name": "tokens", "scope": "team", "maxTokens": 10**15},
    {"name": "dollars", "scope": "router", "maxUSD": "1000000000"},
)
"""Those of everything on: none is ever exhausted, each is reserved in and settled in the file."""


@attrs.frozen
class Family:
    """A contender of several processes: their costs are summed. `headers` are lines that its requests need."""

    port: int
    process: psutil.Process
    headers: tuple[str, ...] = ()
    model: str = "plain"

    @property
    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    @property
    def processor(self) -> float:
        """Seconds of processor time so far."""
        times = [each.cpu_times() for each in self._all]
        return sum(each.user + each.system for each in times)

    @property
    def memory(self) -> int:
        """Bytes that their exit would free."""
        return sum(int(each.memory_full_info().uss) for each in self._all)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def model_router(backend: int, *, full: bool) -> dict[str, Any]:
    """Return the ModelRouter of a contender."""
    local = {
        "name": "plain",
        "external": {"provider": "litellm", "model": "bench", "url": f"http://127.0.0.1:{backend}/v1"},
        "tier": "local",
    }
    spec: dict[str, Any] = {"backends": [local], "defaultRoute": "plain"}
    if full:
        local["costPerMillionTokens"] = {"promptUSD": "1.5", "completionUSD": "6"}
        away = {"name": "away", "external": {"provider": "openai", "model": "gpt"}, "tier": "cloud"}
        away["costPerMillionTokens"] = local["costPerMillionTokens"]
        spec["backends"] = [local, away]
        spec["rules"] = [
            {"name": f"rule-{number}", "match": {"headers": {"x-team": f"t{number}"}}, "route": {"backends": ["away"]}}
            for number in range(10)
        ]
        spec["rules"] += [
            {
                "name": "private",
                "match": {"dataClassification": ["pii"]},
                "route": {"backends": ["plain"]},
                "failClosed": True,
            },
            {"name": "rest", "match": {"models": ["plain*"]}, "route": {"backends": ["plain"]}},
        ]
        spec["policy"] = {"auth": {"keysSecretRef": {"name": "clients"}}, "budgets": list(_BUDGETS)}
    meta = {"name": "bench", "namespace": "default"}
    return {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": "ModelRouter", "metadata": meta, "spec": spec}


async def answers(port: int) -> float:
    """Return after how many seconds a port accepts a connection."""
    began = trio.current_time()
    with trio.fail_after(START_SECONDS):
        while True:
            with suppress(OSError):
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                return trio.current_time() - began
            await trio.sleep(0.02)


async def launch_envoy(stack: AsyncExitStack, program: Sequence[str], folder: Path, backend: int) -> Contender:
    """Start Envoy as a reverse proxy; it cannot choose a port and say which."""
    port = free_port()
    process, _ = await launch(stack, envoy.proxy_command(program, folder, port, backend), prints_port=False)
    await answers(port)
    return Contender(port, "plain", process)


async def launch_router(stack: AsyncExitStack, home: Path, backend: int, name: str) -> tuple[Family, float]:
    """Start `llmkube router`, bare or with everything on; return it, and how many seconds it took to start."""
    full = name != ROUTER
    (home / "router-keys" / "teams").mkdir(parents=True)
    (home / "router-keys" / "teams" / "bench").write_text(KEY)
    manifest = model_router(backend, full=full)
    if not full:
        manifest["spec"]["policy"] = {"auditLog": {"sink": "file", "filePath": "/dev/null"}}
    else:
        manifest["spec"]["policy"]["auditLog"] = {"sink": "file", "filePath": str(home / "audit.log")}
    (home / "router.yaml").write_text(yaml.safe_dump(manifest))
    port = free_port()
    ports = ["--port", str(port), "--admin-port", "0"]
    command = [sys.executable, "-m", "llmkube", "router", "-f", str(home / "router.yaml"), *ports]
    command += ["--state-dir", str(home), "--log-level", "error"]
    process, _ = await launch(stack, command, prints_port=False)
    return Family(port, process), await answers(port)


async def launch_litellm(stack: AsyncExitStack, folder: Path, backend: int) -> tuple[Family, float] | None:
    """Start LiteLLM's proxy, if it is available."""
    python = tools.litellm_python()
    if not python:
        return None
    model = {"model": "openai/bench", "api_base": f"http://127.0.0.1:{backend}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "plain", "litellm_params": model}]}
    (folder / "litellm.yaml").write_text(yaml.safe_dump(config))
    port, workers = free_port(), str(os.cpu_count() or 1)
    program = str(Path(python).with_name("litellm"))
    flags = ["--config", str(folder / "litellm.yaml"), "--port", str(port), "--host", "127.0.0.1"]
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_DOCS": "True"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # it is without keys, as our bare router is
    opened = partial(trio.lowlevel.open_process, env=env, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    process = await opened([program, *flags, "--num_workers", workers, "--telemetry", "False"])
    stack.push_async_callback(end_family, process)
    return Family(port, psutil.Process(process.pid)), await answers(port)


ON_LOOPBACK: Final = """
const net = require("node:net");
const { listen } = net.Server.prototype;
net.Server.prototype.listen = function (port, host, ...rest) { return listen.call(this, port, "127.0.0.1", ...rest); };
"""
"""Portkey's gateway passes requests on to any address that they name, and has no option for its own."""


async def launch_portkey(stack: AsyncExitStack, folder: Path, backend: int) -> tuple[Family, float] | None:
    """Start Portkey's gateway, if it is available: one process, as its authors start it."""
    program = tools.portkey_program()
    if not program:
        return None
    (folder / "loopback.cjs").write_text(ON_LOOPBACK, "utf-8")
    port = free_port()
    node, *script = program
    command = [node, "--require", str(folder / "loopback.cjs"), *script, f"--port={port}", "--headless"]
    process = await trio.lowlevel.open_process(command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    stack.push_async_callback(end_family, process)
    headers = ("x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{backend}/v1")
    return Family(port, psutil.Process(process.pid), headers), await answers(port)


async def end_family(process: trio.Process) -> None:
    """End a process and those that it has started."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    await end(process)


@asynccontextmanager
async def open_contenders(
    program: Sequence[str], *, streams: bool = False
) -> AsyncIterator[tuple[dict[str, Any], dict[str, float]]]:
    """Start the backend, of streams or of whole answers, and everything that is available; with the seconds of each."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="llmkube-bench-")))
        if streams:
            command = [sys.executable, str(HERE / "sse.py"), "backend", "127.0.0.1", "0"]
            process, port = await launch(stack, command, prints_port=True)
            direct = Contender(port, "plain", process)
        else:
            direct = await launch_nginx(stack, partial(nginx.backend_command, program))
        proxy = partial(nginx.proxy_command, program, backend=direct.port, streams=streams)
        found: dict[str, Any] = {DIRECT: direct, NGINX: await launch_nginx(stack, proxy)}
        if envoy_program := tools.envoy_program():
            found[ENVOY] = await launch_envoy(stack, envoy_program, folder, direct.port)
        command = [sys.executable, str(HERE / "contenders.py"), BARE, str(direct.port)]
        process, port = await launch(stack, command, prints_port=True)
        found[BARE] = Contender(port, "plain", process)
        starts: dict[str, float] = {}
        for name in (ROUTER, FULL):
            found[name], starts[name] = await launch_router(stack, folder / name, direct.port, name)
        if not streams:
            for name, launch_peer in ((LITELLM, launch_litellm), (PORTKEY, launch_portkey)):
                if (made := await launch_peer(stack, folder, direct.port)) is not None:
                    found[name], starts[name] = made
        yield found, starts
