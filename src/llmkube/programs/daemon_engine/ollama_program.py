"""The program that an agent starts for a service on Ollama.

python -m llmkube.programs.daemon_engine.ollama_program --help

It borrows the server that answers at OLLAMA_HOST, and never ends that one.
"""

import hashlib
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs

from llmkube.base.http.client import open_http_client
from llmkube.base.http.hub import open_sockets
from llmkube.programs.daemon_engine.model_lock import locks_in
from llmkube.programs.daemon_engine.ollama_api import DaemonApi
from llmkube.programs.daemon_engine.ollama_model import OllamaModel, Witness
from llmkube.programs.daemon_engine.ollama_weights import LibraryModel, ModelFile, Weights
from llmkube.programs.daemon_engine.process_table import ThisMachine
from llmkube.programs.daemon_engine.server import Server, ServerCommand, borrowed_or_own
from llmkube.programs.daemon_engine.serving import (
    FrontOptions,
    Outside,
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

_ALLOWED: Final = re.compile(r"[^a-z0-9._-]+")
_LONGEST: Final = 80
"""What a part of a name may have (`types/model/name.go` of Ollama, 0.17.4)."""


def store_name(namespace: str, name: str, *what: object) -> str:
    """Return what a service's model is called in Ollama's store.

    While a service is given other weights or another context, the models of both have to have names.

    Args:
        namespace: The service's.
        name: The service's.
        what: The weights, and what they are served with.
    """
    tag = hashlib.sha256(repr(what).encode()).hexdigest()[:8]
    return f"{OWN_NAMESPACE}/{_ALLOWED.sub('-', f'{namespace}_{name}'.lower())[:_LONGEST]}:{tag}"


DEFAULT_PORT: Final = 11434
_SCHEME: Final = "ollama://"
_WILDCARDS: Final = ("", "0.0.0.0", "[::]", "::")  # noqa: S104 - compared, not bound
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class DaemonAddressError(Exception):
    """OLLAMA_HOST names a server that cannot be used from here; says which and why."""


@attrs.frozen(kw_only=True)
class Options(FrontOptions):
    """What to serve, and how.

    Attributes:
        model: A file in GGUF, or `ollama://name:tag`.
        store_name: The name in Ollama's store.
        gpu_layers: Layers on the GPU; None for what Ollama takes.
        program: Ollama's own program, which is started where no server answers.
        daemon: Where the server is that is borrowed.
    """

    model: str
    store_name: str
    gpu_layers: int | None = None
    program: str = "ollama"
    daemon: str = f"http://127.0.0.1:{DEFAULT_PORT}"

    @property
    def library_name(self) -> str:
        """The name in Ollama's library; "" of a file."""
        return self.model.removeprefix(_SCHEME) if self.model.startswith(_SCHEME) else ""

    @property
    def parameters(self) -> dict[str, int]:
        """What the model in the store is created with."""
        given = {"num_ctx": self.context or None, "num_gpu": self.gpu_layers}
        return {name: value for name, value in given.items() if value is not None}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the command line and OLLAMA_HOST; exits with 2 and one line when that cannot be honoured."""
    parser = front_parser("ollama-engine", "One model of an Ollama, served as llama-server serves one.")
    parser.add_argument("--model", required=True, help="file in GGUF, or ollama://NAME:TAG", metavar="MODEL")
    parser.add_argument("--n-gpu-layers", type=int, help="layers on the GPU (default: Ollama's own)")
    parser.add_argument("--ollama", default="ollama", help="program to start where no server answers")
    said = parser.parse_args(argv)
    namespace, name = service_of(parser, said)
    if not said.model.removeprefix(_SCHEME):
        parser.error("--model ollama://: name a model of Ollama's library, as ollama://NAME:TAG")
    try:
        daemon = daemon_url(environ)
        refuse_elsewhere(daemon)
    except DaemonAddressError as error:
        parser.error(str(error))
    return Options(
        **front_fields(said),
        model=said.model,
        store_name=store_name(namespace, name, said.model, said.ctx_size, said.n_gpu_layers),
        gpu_layers=said.n_gpu_layers,
        program=said.ollama,
        daemon=daemon,
    )


def daemon_url(environ: Mapping[str, str]) -> str:
    """Return where Ollama's server is asked, by its own variable; where it listens on all addresses, on loopback."""
    said = environ.get("OLLAMA_HOST", "").strip().removeprefix("http://").rstrip("/")
    host, colon, port = said.rpartition(":")
    if not colon or said.endswith("]"):
        host, port = said, ""
    host = "127.0.0.1" if host in _WILDCARDS else host
    return f"http://{host}:{port if port.isdecimal() else DEFAULT_PORT}"


def refuse_elsewhere(url: str) -> None:
    """Refuse a server on another machine.

    Raises:
        DaemonAddressError: It is one, and its memory is not this host's.
    """
    if urlsplit(url).hostname not in _LOOPBACK:
        raise DaemonAddressError(
            f"OLLAMA_HOST names {url}, which is not on this machine: the memory of a model there is not this host's; "
            "unset it, or name 127.0.0.1:PORT"
        )


START_SECONDS: Final = 60.0
"""Until it answers: it looks for GPUs first."""


def weights_of(options: Options) -> Weights:
    """Return where the model comes from."""
    if options.library_name:
        return LibraryModel(options.library_name, options.store_name, options.parameters)
    return ModelFile(Path(options.model), options.store_name, options.parameters)


@attrs.frozen
class OllamaProgram:
    """Starts Ollama's own program.

    Attributes:
        program: Its name or path.
        api: The way to servers.
        port: A free one on loopback.
        environ: The environment that it inherits.
    """

    program: str
    api: DaemonApi
    port: int
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Server]:
        """Run one during the block, and end it afterwards.

        Raises:
            NoDaemonError: It does not start.
        """
        where = f"127.0.0.1:{self.port}"
        # NOPRUNE: at its start it would remove blobs that no model names yet, and its store may be shared.
        # NUM_PARALLEL: each further one would take a context's memory more than the agent has promised.
        ours = {"OLLAMA_HOST": where, "OLLAMA_NOPRUNE": "1", "OLLAMA_NUM_PARALLEL": "1"}
        command = ServerCommand(
            name="Ollama",
            argv=(self.program, "serve"),
            environ={**self.environ, **ours},
            server=Server(f"http://{where}"),
            answers=attrs.evolve(self.api, url=f"http://{where}").version,
            start_seconds=START_SECONDS,
        )
        async with command.running() as server:
            yield server


@asynccontextmanager
async def opened_model(options: Options, outside: Outside) -> AsyncIterator[OllamaModel]:
    """Have a server during the block, and the model in it.

    Raises:
        NoDaemonError: There is none, and none can be started.
    """
    api = DaemonApi(outside.client, options.daemon)
    async with borrowed_or_own("Ollama", api.url, api.version, outside.starter) as server:
        api = DaemonApi(outside.client, server.url)
        witness = Witness(api, server.port, options.store_name, outside.table, server.pid)
        yield OllamaModel(witness, weights_of(options), options.embeds)


serve: Final = partial(serve_model, opened_model)
"""Serves the model until a stop (`serve_model`)."""


async def _run(options: Options, keys: frozenset[str], stop: Stop) -> bool:
    async with open_sockets() as sockets, open_http_client(sockets.connect, max_idle_per_origin=64) as client:
        starter = OllamaProgram(options.program, DaemonApi(client, options.daemon), await free_port())
        locks = locks_in(os.environ.get(OWNER_VARIABLE, ""))
        return await serve(options, keys, Outside(client, ThisMachine(), starter, open_lock=locks), stop)


def main() -> None:
    """Serve what the command line says."""
    options = parse(sys.argv[1:], os.environ)
    run_program("ollama", options, partial(_run, options))


if __name__ == "__main__":
    main()
