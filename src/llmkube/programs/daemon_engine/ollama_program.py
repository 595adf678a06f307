"""The program that an agent starts for a service on Ollama.

python -m llmkube.programs.daemon_engine.ollama_program --help

It borrows the server at OLLAMA_HOST if there is one, and never stops that server.
"""

import hashlib
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.programs.daemon_engine.decisions import DaemonSample, DaemonTexts
from llmkube.programs.daemon_engine.keeper import Adapter
from llmkube.programs.daemon_engine.model_lock import lock_opener
from llmkube.programs.daemon_engine.ollama_api import (
    DEFAULT_PORT,
    RENEW_SECONDS,
    OllamaApi,
    address_problem,
    daemon_url,
)
from llmkube.programs.daemon_engine.ollama_weights import LibraryModel, ModelFile, Weights
from llmkube.programs.daemon_engine.processes import Holders, holders_of, kind_of
from llmkube.programs.daemon_engine.server import (
    DaemonError,
    DaemonLateError,
    ProcessTable,
    Server,
    ServerCommand,
    borrow_or_start,
)
from llmkube.programs.daemon_engine.serving import (
    Dependencies,
    FrontOptions,
    free_port,
    front_fields,
    front_parser,
    run_program,
    serve_model,
    service_of,
)
from llmkube.programs.program import Stop
from llmkube.supervisor.host.processes import OWNER_VARIABLE
from llmkube.weights.ollama_model import OWN_NAMESPACE

SCAN_SECONDS: Final = 30.0
"""Interval between scans of all processes while nothing changes: checking only the known ones costs 1 % of that."""

TEXTS: Final = DaemonTexts(
    name="Ollama",
    moved="start the agent with OLLAMA_HOST=ADDRESS:PORT",
    search="looking for the model in Ollama's store",
)

_NO_BLOB: Final = "sha256-"
"""Blob of a model whose file is not known yet; no process holds it."""


@attrs.frozen
class _Scan:
    """Result of a scan of all processes, reused until `until` if the relevant ones are unchanged."""

    facts: tuple[str, tuple[str, ...]]
    holders: Holders
    server: int
    pids: tuple[int, ...]
    starts: tuple[str, ...]
    until: float


KEEP_ALIVE: Final = "5m"
"""Duration for which Ollama keeps the model loaded without a renewal, and so after this process was killed."""


@attrs.define(eq=False)
class OllamaModel(Adapter):
    """One model of one server.

    Attributes:
        api: API of the server.
        port: Port of the server.
        name: Name of the model in the store.
        table: The process table.
        weights: Imports the model into the store.
        embeds: Whether the model only computes embeddings.
        server: Process of our own server; None for a borrowed one, whose process is searched for.
        blob: File of the model; empty until it is known.
    """

    texts = TEXTS
    api: OllamaApi
    port: int
    name: str
    table: ProcessTable
    weights: Weights
    embeds: bool = False
    server: int | None = None
    blob: str = ""
    _borrowed: int | None = None
    _last_scan: "_Scan | None" = None

    @property
    def lock_key(self) -> str:
        """The server and the model's name, which two engines of one service may share while one replaces the other."""
        return "" if self.server is not None else f"{self.url} {self.name}"

    async def sample(self) -> DaemonSample:
        """Query the server and its processes."""
        version, names, answers = "", tuple[str, ...](), "yes"
        try:
            version = await self.api.version()
            names = await self.api.loaded()
        except DaemonLateError:
            answers = "late"
        except DaemonError as error:
            answers = "gone" if error.gone or not version else "late"
        found, server = await self.find_holders(names)
        ours = {self.name, f"{self.name}:latest"}
        listed = sum(name in ours for name in names)
        return DaemonSample(
            texts=self.texts,
            answers=answers,  # type: ignore[arg-type]  # one of three literals
            url=self.api.url,
            version=version,
            listed=listed > 0,
            others_listed=len(names) - listed,
            holders=found.served,
            others=found.others,
            orphans=found.orphans,
            visible=server is not None or bool(found.orphans),
            owned=self.server is not None,
        )

    async def find_holders(self, names: tuple[str, ...]) -> tuple[Holders, int | None]:
        """Return the processes that hold the model, and the server's pid; cached while all of them run."""
        last, facts = self._last_scan, (self.blob, names)
        recent = last is not None and last.facts == facts and trio.current_time() < last.until
        if last is not None and recent and await self.table.starts(last.pids) == last.starts:
            return last.holders, last.server
        holders, server = await self._scan()
        self._last_scan = None
        if server is not None and holders.served and not holders.orphans:
            pids = (server, *holders.served, *holders.others)
            starts = await self.table.starts(pids)
            if all(starts):
                until = trio.current_time() + SCAN_SECONDS
                self._last_scan = _Scan(facts, holders, server, pids, starts, until)
        return holders, server

    async def _scan(self) -> tuple[Holders, int | None]:
        processes = await self.table.read()
        servers = tuple(sorted(each.pid for each in processes if kind_of(each.argv) == "serve"))
        server = self.server
        if server is None:
            if self._borrowed not in servers:
                self._borrowed = await self.table.listener(servers, self.port)
            server = self._borrowed
        return holders_of(self.blob or _NO_BLOB, processes, server), server

    async def prepare(self) -> None:
        """Import the model into the store."""
        self.blob = await self.weights.prepare(self.api)

    async def load(self) -> None:
        """Load the model for `KEEP_ALIVE`."""
        await self.api.load(self.name, KEEP_ALIVE, embeds=self.embeds)

    async def renew(self) -> None:
        """Renew `KEEP_ALIVE` from now on."""
        await self.api.load(self.name, KEEP_ALIVE, embeds=self.embeds, seconds=RENEW_SECONDS)

    async def unload(self) -> None:
        """Unload the model, even if an earlier front has loaded it, whose file is found by the name."""
        if not self.blob:
            self.blob = await self.api.blob_of(self.name) or ""
        await self.api.unload(self.name)


_ALLOWED: Final = re.compile(r"[^a-z0-9._-]+")
_LONGEST: Final = 80
"""Maximum length of a part of a name (`types/model/name.go` of Ollama, 0.17.4)."""


def store_name(namespace: str, name: str, *parts: object) -> str:
    """Return the name of a service's model in Ollama's store.

    It depends on the weights and the context: when those of a service change, both models exist for a while.

    Args:
        namespace: Namespace of the service.
        name: Name of the service.
        parts: The weights, and the settings that they are served with.
    """
    tag = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
    return f"{OWN_NAMESPACE}/{_ALLOWED.sub('-', f'{namespace}_{name}'.lower())[:_LONGEST]}:{tag}"


_SCHEME: Final = "ollama://"


@attrs.frozen(kw_only=True)
class Options(FrontOptions):
    """Options of the program.

    Attributes:
        model: A GGUF file, or `ollama://name:tag`.
        store_name: Name of the model in Ollama's store.
        gpu_layers: Layers on the GPU; None for Ollama's default.
        program: Ollama's program, which is started if no server answers.
        daemon: URL of the server to borrow.
    """

    model: str
    store_name: str
    gpu_layers: int | None = None
    program: str = "ollama"
    daemon: str = f"http://127.0.0.1:{DEFAULT_PORT}"

    @property
    def library_name(self) -> str:
        """Name in Ollama's library; empty for a file."""
        return self.model.removeprefix(_SCHEME) if self.model.startswith(_SCHEME) else ""

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters with which the model in the store is created."""
        given = {"num_ctx": self.context or None, "num_gpu": self.gpu_layers}
        return {name: value for name, value in given.items() if value is not None}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Parse the command line and OLLAMA_HOST; on an error, print one line and exit with 2."""
    parser = front_parser("ollama-engine", "Serve one model of Ollama with llama-server's API.")
    parser.add_argument("--model", required=True, help="GGUF file, or ollama://NAME:TAG", metavar="MODEL")
    parser.add_argument("--n-gpu-layers", type=int, help="layers on the GPU (default: Ollama's own)")
    parser.add_argument("--ollama", default="ollama", help="program to start if no server answers")
    given = parser.parse_args(argv)
    namespace, name = service_of(parser, given)
    if not given.model.removeprefix(_SCHEME):
        parser.error("--model ollama://: name a model of Ollama's library, as ollama://NAME:TAG")
    daemon = daemon_url(environ)
    if problem := address_problem(daemon):
        parser.error(problem)
    return Options(
        **front_fields(given),
        model=given.model,
        store_name=store_name(namespace, name, given.model, given.context, given.n_gpu_layers),
        gpu_layers=given.n_gpu_layers,
        program=given.ollama,
        daemon=daemon,
    )


START_SECONDS: Final = 60.0
"""Limit until the server answers; it searches for GPUs first."""


def weights_of(options: Options) -> Weights:
    """Return the source of the model's weights."""
    if options.library_name:
        return LibraryModel(options.library_name, options.store_name, options.parameters)
    return ModelFile(Path(options.model), options.store_name, options.parameters)


def own_server(
    program: str, api: OllamaApi, port: int, environ: Mapping[str, str]
) -> AbstractAsyncContextManager[Server]:
    """Run Ollama's program during the block, and stop it afterwards.

    Args:
        program: Name or path of the program.
        api: API client, to be used with the server's URL.
        port: A free port on loopback.
        environ: The environment to inherit.

    Raises:
        NoDaemonError: The server does not start.
    """
    where = f"127.0.0.1:{port}"
    # NOPRUNE: at startup it would remove blobs that no model names yet, from a store that may be shared.
    # NUM_PARALLEL: each further request would take the memory of a context, which the agent has not reserved.
    ours = {"OLLAMA_HOST": where, "OLLAMA_NOPRUNE": "1", "OLLAMA_NUM_PARALLEL": "1"}
    return ServerCommand(
        name="Ollama",
        argv=(program, "serve"),
        environ={**environ, **ours},
        server=Server(f"http://{where}"),
        answers=attrs.evolve(api, url=f"http://{where}").version,
        start_seconds=START_SECONDS,
    ).running()


@asynccontextmanager
async def open_model(options: Options, deps: Dependencies) -> AsyncIterator[OllamaModel]:
    """Borrow or start a server for the block, and yield the model in it.

    Raises:
        NoDaemonError: No server answers, and none can be started.
    """
    api = OllamaApi(deps.client, options.daemon)
    async with borrow_or_start("Ollama", api.url, api.version, deps.starter) as server:
        api = OllamaApi(deps.client, server.url)
        weights = weights_of(options)
        yield OllamaModel(api, server.port, options.store_name, deps.table, weights, options.embeds, server=server.pid)


serve: Final = partial(serve_model, open_model)
"""Serve the model until a stop (`serve_model`)."""


async def _run(options: Options, keys: frozenset[str], stop: Stop) -> bool:
    async with open_sockets() as sockets, open_http_client(sockets.connect, max_idle_per_origin=64) as client:
        api = OllamaApi(client, options.daemon)
        starter = partial(own_server, options.program, api, await free_port(), os.environ)
        locks = lock_opener(os.environ.get(OWNER_VARIABLE, ""))
        return await serve(options, keys, Dependencies(client, ProcessTable(), starter, open_lock=locks), stop)


def main() -> None:
    """Serve the model of the command line."""
    options = parse(sys.argv[1:], os.environ)
    run_program("ollama", options, partial(_run, options))


if __name__ == "__main__":
    main()
