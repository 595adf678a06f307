"""Eight models with memory for three: one trace of requests through each local server that loads on request.

The models are the demo with 8 to 160 layers of zeros, 7 to 121 MiB; each answers with its own name, so that an answer
of a wrong model is found. The trace has streams of 16 tokens at Poisson's times, one each 1.5 s on average; their
models follow Zipf's law with exponent 1, in an order that is drawn. A client sends its request at its time whether or
not others have been answered, does not retry, and leaves after two minutes.

`llmkube up` gets 620 MiB for models; the others count models: llama-server as a router `--models-max 3`, Ollama
`OLLAMA_MAX_LOADED_MODELS=3`. Each engine has one thread and two requests at a time. Before the trace, `llmkube up` has
loaded each model once, as a deployment does. The time to the first token is that of the first piece of text at the
client; a request without an answer has infinitely much. Memory is the proportional set size of all processes of a
server, sampled twice a second, and a load is a new process with a model.

A cold answer is the first token of a model that is not loaded, when nothing else runs. It is compared with the same
engine started by hand with the same command line and asked when its `/health` answers: load time and answer.
"""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import psutil
import trio

from harness import Aim, Run, Table, begin, median, percentile
from http_load import tools

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from e2e import ollama_program
from e2e.many_models import JSON_BODY, MEMORY, MODELS, Answer, Verdict, ask, manifests
from e2e.up_process import command_line
from free_ports import free_port
from go_programs import GoModule, cache_root, missing, pinned_version
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.supervisor.host.procfs import read_pss_bytes
from padded_models import PaddedModel

REQUESTS, MEAN_SECONDS, ZIPF, LIMIT_SECONDS = 300, 1.5, 1.0, 120.0
LOADED: Final = 3
START_SECONDS: Final = 300.0
SAMPLE_SECONDS, SAMPLES_EACH = 0.1, 5
COLD_ROUNDS, COLD_MILLISECONDS = 5, 150.0
MIB: Final = 1 << 20

OURS, LLAMA_ROUTER, OLLAMA = "`llmkube up`", "llama-server as a router", "Ollama"

Trace = list[tuple[float, PaddedModel]]


@attrs.define(eq=False)
class Server:
    """A server that loads models on request: its address, its process, and what was seen of its processes."""

    url: str
    process: psutil.Process
    loads: set[tuple[int, float]] = attrs.field(factory=set)
    peak_bytes: int = 0

    def all_processes(self) -> list[psutil.Process]:
        """Return the program and its engines."""
        return [self.process, *self.process.children(recursive=True)]

    def engines(self) -> list[psutil.Process]:
        """Return its processes that hold a model."""
        return [each for each in self.all_processes()[1:] if {"--model", "-m", "runner"} & {*command_line(each)}]

    def sample(self, *, memory: bool) -> None:
        """Look at its processes."""
        self.loads |= {(each.pid, each.create_time()) for each in self.engines()}
        if memory:
            self.peak_bytes = max(self.peak_bytes, sum(map(_memory, self.all_processes())))

    async def watch(self) -> None:
        """Look at its processes for ever."""
        count = 0
        while True:
            with suppress(psutil.NoSuchProcess):
                await trio.to_thread.run_sync(lambda: self.sample(memory=count % SAMPLES_EACH == 0))  # noqa: B023
            count += 1
            await trio.sleep(SAMPLE_SECONDS)


def _memory(process: psutil.Process) -> int:
    return read_pss_bytes(process.pid) or 0


def generate(run: Run, count: int) -> Trace:
    """Return the trace."""
    order = run.rng.sample(MODELS, len(MODELS))
    weights, at, trace = [1 / (rank + 1) ** ZIPF for rank in range(len(order))], 0.0, []
    for model in run.rng.choices(order, weights, k=count):
        at += run.rng.expovariate(1 / MEAN_SECONDS)
        trace.append((at, model))
    return trace


@asynccontextmanager
async def running(folder: Path, command: Sequence[str | Path], url: str, **variables: str) -> AsyncIterator[Server]:
    """Run a server for as long as the block, and end it with all that it has started."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OLLAMA_", "LLAMA_"))}
    with (folder / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            list(map(str, command)),
            env=env | variables | {"HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    server = Server(url, psutil.Process(process.pid))
    try:
        yield server
    finally:
        left = server.all_processes()[1:] if process.poll() is None else []
        with trio.move_on_after(60.0, shield=True):
            process.send_signal(signal.SIGTERM)
            await process.wait()
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()


@asynccontextmanager
async def open_ours(folder: Path, files: dict[str, Path]) -> AsyncIterator[Server]:
    """Run `llmkube up`; each model has been loaded once."""
    port, state = free_port(), folder / "state"
    (folder / "all.yaml").write_text("---".join(manifests(model, files[model.name]) for model in MODELS), "utf-8")
    command = [sys.executable, "-m", "llmkube", "up", "--state-dir", str(state), "--gateway-port", str(port)]
    command += ["--api-port", "0", "--probe-port", "0", "-f", str(folder / "all.yaml")]
    command += ["--memory-fraction", f"{MEMORY / psutil.virtual_memory().total:.6f}"]
    command += ["--allow-local-sources", str(files[MODELS[0].name].parent)]
    async with running(folder, command, f"http://127.0.0.1:{port}") as server, open_http_client() as http:

        async def is_answering(model: PaddedModel) -> bool:
            return (await ask(http, server.url, model, stream=True)).verdict is Verdict.RIGHT

        for model in MODELS:
            await _until(is_answering, model)
        yield server


@asynccontextmanager
async def open_llama_router(folder: Path, files: dict[str, Path], program: str) -> AsyncIterator[Server]:
    """Run llama.cpp's server with several models."""
    port, preset = free_port(), folder / "models.ini"
    head = "version = 1\n[*]\nc = 1024\nparallel = 2\nthreads = 1\nload-on-startup = false\n"
    preset.write_text(head + "".join(f"[{name}]\nmodel = {path}\n" for name, path in files.items()), "utf-8")
    command: list[str | Path] = [program, "--models-preset", preset, "--models-max", str(LOADED), "--port", str(port)]
    async with running(folder, command, f"http://127.0.0.1:{port}") as server, open_http_client() as http:
        await _until(_is_found, http, f"{server.url}/health")
        yield server


@asynccontextmanager
async def open_ollama(folder: Path, files: dict[str, Path], program: Path) -> AsyncIterator[Server]:
    """Run Ollama with the models in a store of its own."""
    address = f"127.0.0.1:{free_port()}"
    own = {"OLLAMA_HOST": address, "OLLAMA_MODELS": str(folder / "store"), "OLLAMA_MAX_LOADED_MODELS": str(LOADED)}
    own |= {"OLLAMA_NUM_PARALLEL": "2"}
    async with running(folder, [program, "serve"], f"http://{address}", **own) as server, open_http_client() as http:
        await _until(_is_found, http, f"{server.url}/api/version")
        for name, path in files.items():
            template = "<|user|>{{ .Prompt }}<|end|><|assistant|>"
            text = f'FROM {path}\nTEMPLATE "{template}"\nPARAMETER num_ctx 512\nPARAMETER num_thread 1\n'
            (folder / name).write_text(text, "utf-8")
            command = [str(program), "create", name, "-f", str(folder / name)]
            await trio.run_process(command, env=os.environ | own | {"HOME": str(folder)}, capture_stderr=True)
        yield server


async def _until(check: Callable[..., Any], *args: Any) -> None:
    with trio.fail_after(START_SECONDS):
        while not await check(*args):  # noqa: ASYNC110 (another process)
            await trio.sleep(0.1)


async def _is_found(http: HttpClient, url: str) -> bool:
    with suppress(HttpError):
        return (await http.request("GET", url)).status == 200
    return False


async def play(server: Server, trace: Trace) -> list[Answer | None]:
    """Send each request at its time; return the answers, None for those whose client has left."""
    answers: list[Answer | None] = [None] * len(trace)
    before = {(each.pid, each.create_time()) for each in server.engines()}  # loaded by a deployment, not by a request
    begun = trio.current_time()
    async with open_http_client() as http, trio.open_nursery() as watched:
        watched.start_soon(server.watch)

        async def send(number: int, model: PaddedModel) -> None:
            with trio.move_on_after(LIMIT_SECONDS):
                answers[number] = await ask(http, server.url, model, stream=True)

        async with trio.open_nursery() as clients:
            for number, (at, model) in enumerate(trace):
                await trio.sleep_until(begun + at)
                clients.start_soon(send, number, model)
        watched.cancel_scope.cancel(reason="the trace has ended")
    server.loads -= before
    return answers


async def first_token_of(command: Sequence[str], model: PaddedModel, port: int, key: str) -> float:
    """Start an engine by hand; return the seconds until the first token of an answer."""
    begun = trio.current_time()
    process = await trio.lowlevel.open_process(
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with open_http_client() as http:
            with trio.fail_after(START_SECONDS):
                while not await _is_found(http, f"http://127.0.0.1:{port}/health"):  # noqa: ASYNC110 (another process)
                    await trio.sleep(0.005)
            answer = await ask(http, f"http://127.0.0.1:{port}", model, stream=True, key=key)
    finally:
        process.kill()
        with trio.move_on_after(60.0, shield=True):
            await process.wait()
    if answer.verdict is not Verdict.RIGHT:
        raise RuntimeError(f"an engine that was started by hand: {answer}")
    return float(answer.first) - begun


async def measure_cold(server: Server, folder: Path, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds to the first token of cold answers, and those of an engine started by hand, in turns."""
    found = []
    async with open_http_client() as http:

        async def unload() -> bool:
            for model in MODELS:
                body = json.dumps({"model": model.name}).encode()
                await http.request("POST", f"{server.url}/models/unload", headers=JSON_BODY, body=body)
            return not server.engines()

        for _ in range(rounds):
            for model in MODELS:
                await _until(unload)
                answer = await ask(http, server.url, model, stream=True)
                words = command_line(next(each for each in server.engines() if model.name in command_line(each)))
                key = Path(words[words.index("--api-key-file") + 1]).read_text("utf-8").strip()
                port, own = free_port(), folder / "key"  # the engine's own file goes with it
                own.write_text(f"{key}\n", "utf-8")
                words[words.index("--port") + 1] = str(port)
                words[words.index("--api-key-file") + 1] = str(own)
                await _until(unload)
                found.append((answer.first_seconds, await first_token_of(words, model, port, key)))
    return found


def _contenders() -> dict[str, Callable[[Path, dict[str, Path]], Any]]:
    """Return the servers that this machine has."""
    found: dict[str, Callable[[Path, dict[str, Path]], Any]] = {OURS: open_ours}
    if program := tools.llama_server_program():
        found[LLAMA_ROUTER] = lambda folder, files: open_llama_router(folder, files, program)
    if ollama := _built_ollama():
        found[OLLAMA] = lambda folder, files: open_ollama(folder, files, ollama)
    return found


def _built_ollama() -> Path | None:
    """Return the Ollama that the soak has built; None if it has not."""
    name, module = ollama_program.OLLAMA, ollama_program.MODULE
    version = pinned_version(module, name).removeprefix("v")
    folder = (
        cache_root(os.environ) / GoModule(module, {"ollama": name}, {f"{name}/version.Version": version}).source_hash
    )
    return None if missing(folder, ("ollama",)) else folder / "ollama"


async def measure(run: Run, trace: Trace, rounds: int) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Play the trace to every server, in random order; measure cold answers of ours."""
    found: dict[str, Any] = {}
    cold: list[tuple[float, float]] = []
    contenders = _contenders()
    for name in run.rng.sample(list(contenders), len(contenders)):
        print(name, file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix="llmkube-bench-") as text:
            (Path(text) / "models").mkdir()
            files = {model.name: model.write(Path(text) / "models") for model in MODELS}
            async with contenders[name](Path(text), files) as server:
                answers = await play(server, trace)
                found[name] = (answers, len(server.loads), server.peak_bytes)
                if name == OURS:
                    cold = await measure_cold(server, Path(text), rounds)
    return found, cold


def row(name: str, answers: Sequence[Answer | None], loads: int, peak: int) -> list[str]:
    """Return a line of the table."""
    right = [each for each in answers if each is not None and each.verdict is Verdict.RIGHT]
    wrong = sum(each is not None and each.verdict is Verdict.WRONG for each in answers)
    first = [each.first_seconds for each in right] + [math.inf] * (len(answers) - len(right))
    times = [f"{found:.2f}" if (found := percentile(first, at)) < math.inf else "none" for at in (50, 95)]
    failed = len(answers) - len(right) - wrong
    return [name, str(len(right)), str(failed), str(wrong), *times, str(loads), f"{peak / MIB:,.0f}"]


def _sample(answer: Answer | None) -> list[Any]:
    return [] if answer is None else [answer.model, answer.verdict.value, str(answer.first_seconds), answer.text]


def main() -> None:
    """Measure, print, keep."""
    run = begin("swap", "trio", "xllamacpp")
    count, rounds = (20, 1) if run.quick else (REQUESTS, COLD_ROUNDS)
    trace = generate(run, count)
    found, cold = trio.run(measure, run, trace, rounds)
    columns = ["server", "answered", "failed", "wrong", "p50 s", "p95 s", "loads", "peak MiB"]
    names = [name for name in (OURS, LLAMA_ROUTER, OLLAMA) if name in found]
    tables = [Table(columns, [row(name, *found[name]) for name in names])]
    beyond = [1000 * (ours - direct) for ours, direct in cold]
    tables.append(
        Table(
            ["cold answers, ms", "p50", "p95", "longest"],
            [
                [what, f"{median(each):,.0f}", f"{percentile(each, 95):,.0f}", f"{max(each):,.0f}"]
                for what, each in (
                    ("through the gateway", [1000 * ours for ours, _ in cold]),
                    ("the engine by hand", [1000 * direct for _, direct in cold]),
                    ("difference", beyond),
                )
            ],
        )
    )
    right = sum(each is not None and each.verdict is Verdict.RIGHT for each in found[OURS][0])
    late = percentile(beyond, 95)
    missing_ones = [name for name in (LLAMA_ROUTER, OLLAMA) if name not in found]
    run.finish(
        "Swap",
        __doc__ or "",
        tables,
        {
            "trace": [(at, model.name) for at, model in trace],
            "answers": {name: [*map(_sample, answers)] for name, (answers, _, _) in found.items()},
            "cold": cold,
        },
        aims=[
            Aim("requests that `llmkube up` answers", f"{count}", f"{right}", right == count),
            Aim(
                "cold answers beyond load and answer, p95",
                f"at most {COLD_MILLISECONDS:.0f} ms",
                f"{late:.0f} ms",
                late <= COLD_MILLISECONDS,
            ),
        ],
        notes=[f"{name} was not available on this machine." for name in missing_ones],
    )


if __name__ == "__main__":
    main()
