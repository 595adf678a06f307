"""Conversations of many users with three replicas of one model: which replica gets a turn decides what it has cached.

Three processes of llama.cpp (the bundled engine with the demo model) are the pods of one InferenceService of an
embedded API server, and the same replay of conversations runs through a real `llmkube gateway` under three policies:
the front door's own, which learns what each engine has computed; consistent hashing with bounded loads (factor 1.25,
256 points for each engine, the key is the first hundred characters of the first message of the user, as gateways that
hash prompts do); and random. For these two the client picks the engine and asks for a service that has only this,
so that all requests take the same way. Users of one application share a long system prompt. Each round starts with
engines that have cached nothing.
"""

import bisect
import collections
import hashlib
import json
import math
import os
import random
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import trio

from harness import Aim, Table, begin, percentile
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.http.message import Headers
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import EndpointSlice, Namespace
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.names import SERVICE_LABEL, SERVICE_NAME_LABEL
from llmkube.supervisor.network import own_addresses

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from free_ports import free_port

ENGINES: Final = 3
SLOTS: Final = 2
CONTEXT: Final = 3072
"""Tokens of one slot: more than the demo model was trained for, so its words make no sense, but they cost the same."""

USERS: Final = 12
APPLICATIONS: Final = 3
TURNS: Final = 5
SYSTEM_WORDS: Final = 120
USER_WORDS: Final = 25
ANSWER_TOKENS: Final = 16
THINKING_SECONDS: Final = 2.0
ROUNDS: Final = 2

LOAD_FACTOR: Final = 1.25
POINTS: Final = 256
KEY_CHARACTERS: Final = 100

OURS, HASHED, RANDOM = "llmkube gateway", "consistent hashing, bounded loads", "random"
NAMESPACE: Final = "bench"
WORDS: Final = ("model", "engine", "cache", "request", "answer", "token", "prompt", "slot", "host", "pod", "service")


@attrs.frozen
class Turn:
    """One answer: seconds to its first token, tokens of its prompt, and how many the engine had cached."""

    seconds: float
    tokens: int
    cached: int


@attrs.frozen
class User:
    """A conversation: when it starts, and its texts, the system prompt first."""

    start: float
    texts: tuple[str, ...]
    pauses: tuple[float, ...]


def replay(rng: random.Random, turns: int) -> list[User]:
    """Return the conversations."""

    def text(words: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(words))

    systems = [text(SYSTEM_WORDS) for _ in range(APPLICATIONS)]
    users = []
    for number in range(USERS):
        texts = (
            systems[number % APPLICATIONS],
            *(text(rng.randint(USER_WORDS // 2, USER_WORDS * 2)) for _ in range(turns)),
        )
        pauses = tuple(rng.expovariate(1 / THINKING_SECONDS) for _ in range(turns))
        users.append(User(rng.uniform(0, 2), texts, pauses))
    return users


class BoundedHashing:
    """Consistent hashing with bounded loads: the next engine of the ring whose load is below the bound."""

    def __init__(self, engines: int) -> None:
        self.loads = collections.Counter(dict.fromkeys(range(engines), 0))
        self.ring = sorted(
            (self._hash(f"{engine}-{point}"), engine) for engine in range(engines) for point in range(POINTS)
        )

    @staticmethod
    def _hash(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())

    def __call__(self, messages: list[dict[str, str]]) -> int:
        """Return the engine of a request."""
        bound = math.ceil(LOAD_FACTOR * (self.loads.total() + 1) / len(self.loads))
        at = bisect.bisect(self.ring, (self._hash(messages[1]["content"][:KEY_CHARACTERS]), 0))
        for step in range(len(self.ring)):
            engine = self.ring[(at + step) % len(self.ring)][1]
            if self.loads[engine] < bound:
                return engine
        raise AssertionError("the bound is above the average")


@attrs.frozen
class Session:
    """One run of the replay."""

    client: HttpClient
    gateway: str
    loads: collections.Counter[int]
    choose: Callable[[list[dict[str, str]]], int] | None
    turns: list[Turn]

    async def talk(self, user: User) -> None:
        """Hold one conversation."""
        system, *texts = user.texts
        messages = [{"role": "system", "content": system}]
        await trio.sleep(user.start)
        for text, pause in zip(texts, user.pauses, strict=True):
            messages.append({"role": "user", "content": text})
            engine = self.choose(messages) if self.choose is not None else None
            if engine is not None:
                self.loads[engine] += 1
            try:
                answer = await self.ask("all" if engine is None else f"one-{engine}", messages)
            finally:
                if engine is not None:
                    self.loads[engine] -= 1
            messages.append({"role": "assistant", "content": answer})
            await trio.sleep(pause)

    async def ask(self, model: str, messages: list[dict[str, str]]) -> str:
        """Send one request; record its first token and its cached tokens."""
        body = {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "stream": True, "temperature": 0}
        body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
        began, first, received = trio.current_time(), 0.0, b""
        words: list[str] = []
        usage: dict[str, Any] = {}
        headers = Headers.of({"Content-Type": "application/json"})
        url = f"{self.gateway}/v1/chat/completions"
        async with self.client.open_stream("POST", url, headers=headers, body=json.dumps(body).encode()) as answer:
            while piece := await answer.receive_some():
                received += piece
                *lines, received = received.split(b"\n")
                for line in lines:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    usage = event.get("usage") or usage
                    for choice in event.get("choices", ()):
                        if content := choice["delta"].get("content"):
                            first = first or trio.current_time() - began
                            words.append(content)
            assert answer.status == 200, received
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.turns.append(Turn(first or trio.current_time() - began, usage["prompt_tokens"], cached))
        return "".join(words)


@contextmanager
def process(*argv: str, log: Path, **env: str) -> Any:
    """Run a program until the block is left."""
    with log.open("ab") as output:
        running = subprocess.Popen(argv, stdout=output, stderr=output, env={**os.environ, **env})
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)


async def until_ready(client: HttpClient, url: str) -> None:
    """Wait until a program answers with 200."""
    with trio.fail_after(60):
        while True:
            try:
                if (await client.request("GET", url)).status == 200:
                    return
            except Exception:  # noqa: BLE001, S110 (it is not there yet)
                pass
            await trio.sleep(0.1)


async def apply(client: Client, kind: type[Any], name: str, **body: Any) -> None:
    """Create or change an object."""
    metadata = {"name": name, **({"namespace": NAMESPACE} if kind is not Namespace else {}), **body.pop("metadata", {})}
    await client.apply(kind, {**kind.RESOURCE.type_meta, "metadata": metadata, **body}, field_manager="bench")


async def publish(client: Client, address: str, ports: list[int]) -> None:
    """Create the services, and the slices of their pods."""
    await apply(client, Namespace, NAMESPACE)
    await apply(client, Model, "demo", spec={"source": "builtin://demo"})
    for service in ("all", *(f"one-{number}" for number in range(ENGINES))):
        await apply(client, InferenceService, service, spec={"modelRef": "demo", "parallelSlots": SLOTS})
        for number, port in enumerate(ports):
            if service in ("all", f"one-{number}"):
                await apply(
                    client,
                    EndpointSlice,
                    f"{service}-{number}",
                    metadata={"labels": {SERVICE_LABEL: service, SERVICE_NAME_LABEL: service}},
                    addressType="IPv4",
                    endpoints=[{"addresses": [address], "targetRef": {"kind": "Pod", "name": f"pod-{number}"}}],
                    ports=[{"name": "http", "port": port}],
                )


@asynccontextmanager
async def door(folder: Path, address: str, ports: list[int]) -> AsyncIterator[str]:
    """Run the API server and the front door; the value is its URL."""
    gateway, admin, api = (free_port() for _ in range(3))
    program = str(Path(sys.executable).with_name("llmkube"))
    kubeconfig = folder / "api" / "kubeconfig"
    with ExitStack() as stack:
        start = stack.enter_context
        server = ("apiserver", "--state-dir", str(folder / "api"), "--port", str(api))
        start(process(program, *server, log=folder / "api.log"))
        with trio.fail_after(60):
            while not kubeconfig.exists():  # noqa: ASYNC110 (another process writes it)
                await trio.sleep(0.1)
        async with open_client(load_config(kubeconfig, None)) as client:
            await publish(client, address, ports)
        flags = (
            "--kubeconfig",
            str(kubeconfig),
            "--port",
            str(gateway),
            "--admin-port",
            str(admin),
            "--allow-anonymous",
        )
        start(
            process(program, "gateway", *flags, "--log-level", "warning", log=folder / "gateway.log", HOME=str(folder))
        )
        async with open_http_client() as http:
            await until_ready(http, f"http://127.0.0.1:{admin}/readyz")
        yield f"http://127.0.0.1:{gateway}"


def stretched(folder: Path) -> str:
    """Write the demo model with a larger limit of the context, which llama.cpp would enforce; return its path."""
    content = (files("llmkube") / "weights" / "builtin" / "demo.gguf").read_bytes()
    field = b"llama.context_length" + struct.pack("<I", 4)  # GGUF's type for 32 bits without a sign
    at = content.index(field) + len(field)
    path = folder / "demo.gguf"
    path.write_bytes(content[:at] + struct.pack("<I", CONTEXT) + content[at + 4 :])
    return str(path)


async def measure(policy: str, users: list[User], folder: Path, rng: random.Random) -> list[Turn]:
    """Run the replay once, with new engines and a new front door."""
    address, ports = min(own_addresses(), key=lambda one: (":" in one, one)), [free_port() for _ in range(ENGINES)]
    model = stretched(folder)
    context = ("--ctx-size", str(CONTEXT * SLOTS), "--parallel", str(SLOTS), "--threads", "1")
    hashing = BoundedHashing(ENGINES)
    choose = {OURS: None, HASHED: hashing, RANDOM: lambda _: rng.randrange(ENGINES)}[policy]
    with ExitStack() as stack:
        for port in ports:
            at = ("--model", model, "--host", address, "--port", str(port), "--alias", "all")
            program = str(Path(sys.executable).with_name("llmkube-llama-server"))
            stack.enter_context(process(program, *at, *context, log=folder / "engine.log"))
        async with open_http_client(max_idle_per_origin=64) as client:
            for port in ports:
                await until_ready(client, f"http://{address}:{port}/health")
            async with door(folder, address, ports) as gateway, trio.open_nursery() as nursery:
                session = Session(client, gateway, hashing.loads, choose, [])
                for user in users:
                    nursery.start_soon(session.talk, user)
    return session.turns


def main() -> None:
    """Measure, print, keep."""
    run = begin("affinity", "xllamacpp", "trio")
    users = replay(run.rng, 2 if run.quick else TURNS)
    samples: dict[str, list[Turn]] = {OURS: [], HASHED: [], RANDOM: []}
    for number in range(1 if run.quick else ROUNDS):
        for policy in run.rng.sample(list(samples), len(samples)):
            with TemporaryDirectory(prefix="llmkube-bench-") as folder:
                samples[policy] += trio.run(measure, policy, users, Path(folder), random.Random(number))
            print(policy, len(samples[policy]), os.getloadavg()[0], file=sys.stderr)
    rows, hits, slow = [], {}, {}
    for policy, turns in samples.items():
        seconds = [each.seconds for each in turns]
        hits[policy] = sum(each.cached for each in turns) / sum(each.tokens for each in turns)
        slow[policy] = percentile(seconds, 95)
        computed = sum(each.tokens - each.cached for each in turns) / len(turns)
        times = [f"{1000 * percentile(seconds, at):.0f} ms" for at in (50, 95)]
        rows.append([policy, f"{len(turns)}", f"{hits[policy]:.1%}", f"{computed:.0f}", *times])
    columns = ["policy", "requests", "prompt tokens from a cache", "computed per request", "first token p50", "p95"]
    others = (HASHED, RANDOM)
    run.finish(
        "Prefix affinity among the pods of one service",
        __doc__ or "",
        [Table(columns, rows)],
        {policy: [attrs.astuple(each) for each in turns] for policy, turns in samples.items()},
        aims=[
            Aim(
                "prompt tokens from a cache, against both others",
                f"more than {max(hits[each] for each in others):.1%}",
                f"{hits[OURS]:.1%}",
                hits[OURS] > max(hits[each] for each in others),
            ),
            Aim(
                "p95 to the first token, against both others",
                f"less than {1000 * min(slow[each] for each in others):.0f} ms",
                f"{1000 * slow[OURS]:.0f} ms",
                slow[OURS] < min(slow[each] for each in others),
            ),
        ],
        notes=[
            f"{USERS} users of {APPLICATIONS} applications, {TURNS} turns each, {ROUNDS} rounds in a random order.",
            f"{ENGINES} engines with {SLOTS} slots and one thread each, and llama.cpp's default prompt cache.",
            "Other work ran on this machine at the same time, as its load shows, under every policy.",
        ],
    )


if __name__ == "__main__":
    main()
