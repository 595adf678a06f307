"""The command line of the program, and OLLAMA_HOST."""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import attrs

from llmkube.programs.daemon_engine.front_options import FrontOptions, front_fields, front_parser, service_of
from llmkube.programs.daemon_engine.ollama.store_names import store_name

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
