"""`llmkube router` beside other ways from a client to an engine: nginx as the floor, LiteLLM's proxy as the peer.

All pass chats of 200 to 2,000 bytes on to one backend, nginx, which answers at once; wrk asks. "Bare" is a router with
one backend and nothing else. "All on" has keys for its clients, twelve rules of which the last one fits, a sensitive
class, prices, an audit log in a file, metrics, and a circuit for each backend. LiteLLM runs with as many workers as
there are cores, without a database and without its logs. Contenders take turns in random order; each round begins with
a second that is not counted. Where a contender loses requests, the table says so.
"""

import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
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

from harness import Aim, Run, Table, begin, median
from http_load import nginx, tools, wrk
from http_load.processes import BARE, DIRECT, HERE, NGINX, Contender, end, launch, launch_nginx

ROUNDS, SECONDS, CONNECTIONS = 3, 1, (1, 10, 32, 64, 256)
START_SECONDS: Final = 120.0
ROUTER, FULL, LITELLM = "router", "full", "litellm"
NAMES: Final[Mapping[str, str]] = {
    DIRECT: "no proxy",
    NGINX: "nginx",
    BARE: "our server and client",
    ROUTER: "router, bare",
    FULL: "router, all on",
    LITELLM: "LiteLLM",
}
KEY: Final = "none"
"""What wrk's requests show."""

OF_NGINX, OF_LITELLM, ADDED_MICROSECONDS, MEMORY_MIB = 0.25, 60.0, 150.0, 64.0
AT: Final = 32
LOST: Final = "lost requests"


@attrs.frozen
class Round:
    """One contender's requests; microseconds, and bytes."""

    per_second: float
    p50: float
    p99: float
    processor: float
    memory: int


@attrs.frozen
class Family:
    """A contender of several processes: all of them are charged."""

    port: int
    process: psutil.Process

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
        """Bytes that ending them would give back."""
        return sum(int(each.memory_full_info().uss) for each in self._all)


@attrs.define(eq=False)
class Found:
    """All samples: rounds by connections and contender, None of a round that lost requests; seconds to start."""

    rounds: dict[int, dict[str, list[Round | None]]]
    starts: dict[str, float]
    idle: dict[str, int]


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
        spec["policy"] = {"auth": {"keysSecretRef": {"name": "clients"}}}
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


async def launch_router(stack: AsyncExitStack, folder: Path, backend: int, *, full: bool) -> tuple[Contender, float]:
    """Start `llmkube router`; return it, and how long that took."""
    home = folder / (FULL if full else ROUTER)
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
    process, _ = await launch(stack, command, tells_port=False)
    return Contender(port, "plain", process), await answers(port)


async def launch_litellm(stack: AsyncExitStack, folder: Path, backend: int) -> tuple[Family, float] | None:
    """Start LiteLLM's proxy, if it can be had."""
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


async def end_family(process: trio.Process) -> None:
    """End a process and those that it has started."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
    await end(process)


@asynccontextmanager
async def open_contenders(program: Sequence[str]) -> AsyncIterator[tuple[dict[str, Any], dict[str, float]]]:
    """Start the backend and everything that can be had; with the seconds that each took."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="llmkube-bench-")))
        direct = await launch_nginx(stack, partial(nginx.backend_command, program))
        proxy = partial(nginx.proxy_command, program, backend=direct.port, streams=False)
        found: dict[str, Any] = {DIRECT: direct, NGINX: await launch_nginx(stack, proxy)}
        command = [sys.executable, str(HERE / "contenders.py"), BARE, str(direct.port)]
        process, port = await launch(stack, command, tells_port=True)
        found[BARE] = Contender(port, "plain", process)
        starts: dict[str, float] = {}
        for name in (ROUTER, FULL):
            found[name], starts[name] = await launch_router(stack, folder, direct.port, full=name == FULL)
        if (made := await launch_litellm(stack, folder, direct.port)) is not None:
            found[LITELLM], starts[LITELLM] = made
        yield found, starts


async def measure(run: Run, wrk_command: Sequence[str], nginx_command: Sequence[str]) -> Found:
    """Measure all, in turns."""
    rounds, seconds = (1, 1) if run.quick else (ROUNDS, SECONDS)
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        script = Path(name) / "chats.lua"
        wrk.write_script(script, "plain", run.rng)
        async with open_contenders(nginx_command) as (contenders, starts):
            idle = {who: each.memory for who, each in contenders.items()}
            found = Found({count: {who: [] for who in contenders} for count in CONNECTIONS}, starts, idle)
            for who in run.rng.sample([*contenders] * rounds, len(contenders) * rounds):
                for count, samples in found.rounds.items():
                    samples[who].append(await one_round(wrk_command, script, contenders[who], count, seconds))
            return found


async def one_round(
    command: Sequence[str], script: Path, contender: Contender | Family, count: int, seconds: float
) -> Round | None:
    """Return one round; None of one in which requests were lost."""
    try:
        await wrk.load(command, script, contender.port, connections=count, seconds=1)
        before = contender.processor
        seen = await wrk.load(command, script, contender.port, connections=count, seconds=seconds)
    except RuntimeError as error:
        print(f"not counted: {error}", file=sys.stderr)
        return None
    if not seen.requests:
        return None  # it has answered none within the round
    used = 1e6 * (contender.processor - before) / seen.requests
    return Round(seen.per_second, seen.p50, seen.p99, used, contender.memory)


def middle(rounds: Sequence[Round | None], field: str) -> float | None:
    """Return the median of one figure; None where a round is missing."""
    whole = [each for each in rounds if each is not None]
    return median([getattr(each, field) for each in whole]) if len(whole) == len(rounds) else None


def table(count: int, found: Found) -> Table:
    """Return requests at so many connections."""
    columns = ["proxy", "requests/s", "of nginx", "added p50, µs", "added p99, µs", "processor, µs", "memory, MiB"]
    samples, rows = found.rounds[count], []
    floor = middle(samples[NGINX], "per_second") or float("nan")
    for who, name in NAMES.items():
        if who not in samples:
            rows.append([name, "not had here", *[""] * (len(columns) - 2)])
            continue
        rate = middle(samples[who], "per_second")
        if rate is None:
            rows.append([name, LOST, *[""] * (len(columns) - 2)])
            continue
        added = []
        for field in ("p50", "p99"):
            mine, least = middle(samples[who], field), middle(samples[DIRECT], field)
            added.append(f"{mine - least:.0f}" if mine is not None and least is not None else "")
        used, memory = middle(samples[who], "processor") or 0.0, (middle(samples[who], "memory") or 0.0) / (1 << 20)
        rows.append([name, f"{rate:.0f}", f"{rate / floor:.3f}", *added, f"{used:.0f}", f"{memory:.0f}"])
    return Table(columns, rows, f"{count} connection{'s' * (count > 1)}:")


def aims(found: Found) -> list[Aim]:
    """Return what was wanted of a router with everything on."""
    many, single = found.rounds[AT], found.rounds[1]
    rate = middle(many[FULL], "per_second") or 0.0
    of_nginx = rate / (middle(many[NGINX], "per_second") or float("nan"))
    added = (middle(single[FULL], "p50") or float("nan")) - (middle(single[DIRECT], "p50") or 0.0)
    memory = max((each.memory for rounds in found.rounds.values() for each in rounds[FULL] if each), default=0)
    peak = memory / (1 << 20)
    wanted = [
        Aim(
            f"all on, requests/s of nginx, {AT} connections", f"{OF_NGINX:.2f}", f"{of_nginx:.2f}", of_nginx >= OF_NGINX
        ),
        Aim(
            "all on, added p50, 1 connection",
            f"under {ADDED_MICROSECONDS:.0f} µs",
            f"{added:.0f} µs",
            added < ADDED_MICROSECONDS,
        ),
        Aim("all on, most memory", f"under {MEMORY_MIB:.0f} MiB", f"{peak:.0f} MiB", peak < MEMORY_MIB),
    ]
    peer = middle(many[LITELLM], "per_second") if LITELLM in many else None
    if peer:
        wanted.insert(
            1,
            Aim("all on, requests/s of LiteLLM", f"{OF_LITELLM:.0f}", f"{rate / peer:.0f}", rate / peer >= OF_LITELLM),
        )
    return wanted


def main() -> None:
    """Measure, print, keep."""
    run = begin("router", "trio", "httptools")
    wrk_command, nginx_command = tools.find_program("wrk"), tools.find_program("nginx")
    if not wrk_command or not nginx_command:
        raise SystemExit("wrk and nginx cannot be had here: install both, or let apt-get fetch them")
    found = trio.run(measure, run, wrk_command, nginx_command)
    idle = ", ".join(f"{NAMES[who]} {size / (1 << 20):.0f} MiB" for who, size in found.idle.items())
    starts = ", ".join(f"{NAMES[who]} {seconds:.1f} s" for who, seconds in found.starts.items())
    run.finish(
        "The router as a proxy",
        __doc__ or "",
        [table(count, found) for count in CONNECTIONS],
        attrs.asdict(found),
        aims=aims(found),
        notes=[
            f"Medians of {ROUNDS} rounds of {SECONDS} s.",
            "Processor time and memory (USS) are the proxy's own, of all its processes.",
            f"Memory before the first request: {idle}.",
            f"From the start of the program to the first connection: {starts}.",
            f"Other programs: {tools.peer_versions()}{tools.litellm_version()}.",
        ],
    )


if __name__ == "__main__":
    main()
