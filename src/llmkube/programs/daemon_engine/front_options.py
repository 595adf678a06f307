"""The part of the command line that is the same for every daemon, with llama-server's names for its flags."""

import argparse
from pathlib import Path
from typing import Any

import attrs

from llmkube.runtimes.process.daemon_front import UNLOAD_LEFT


@attrs.frozen(kw_only=True)
class FrontOptions:
    """What clients reach.

    Attributes:
        alias: The name that they know.
        host: Where to listen.
        port: The port.
        keys: The file with the keys that clients show; None when none is asked for.
        embeds: Whether it serves embeddings, and nothing else.
        context: Tokens that a prompt and its answer may have; 0 for what the daemon has by itself.
        only_unloads: Whether nothing is served: what a killed one has left is unloaded, and that is all.
    """

    alias: str
    host: str = "127.0.0.1"
    port: int
    keys: Path | None = None
    embeds: bool = False
    context: int = 0
    only_unloads: bool = False


def front_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser that knows these options, `--service`, and the context."""
    parser = argparse.ArgumentParser(name, description=description, allow_abbrev=False)
    parser.add_argument("--alias", required=True, help="name that clients know")
    parser.add_argument("--service", required=True, help="whose model it is", metavar="NAMESPACE/NAME")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--api-key-file", type=Path, help="keys that clients must show, one per line", metavar="FILE")
    parser.add_argument("--embedding", action="store_true", help="serve embeddings and nothing else")
    parser.add_argument("--ctx-size", type=int, default=0, help="context in tokens (0: the daemon's own default)")
    parser.add_argument(UNLOAD_LEFT, action="store_true", help="only unload what a killed one has left, and end")
    return parser


def front_fields(said: argparse.Namespace) -> dict[str, Any]:
    """Return what was said of `FrontOptions`, as its keywords."""
    return {
        "alias": said.alias,
        "host": said.host,
        "port": said.port,
        "keys": said.api_key_file,
        "embeds": said.embedding,
        "context": said.ctx_size,
        "only_unloads": said.unload_left,
    }


def service_of(parser: argparse.ArgumentParser, said: argparse.Namespace) -> tuple[str, str]:
    """Return namespace and name of `--service`; exits with 2 and one line when it has not both."""
    namespace, slash, name = said.service.partition("/")
    if not (namespace and slash and name):
        parser.error(f"--service {said.service}: write NAMESPACE/NAME")
    return namespace, name


def read_keys(path: Path) -> frozenset[str]:
    """Return the keys of a file, as llama-server's flag reads them; blocks.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds no key: an engine with an empty list would let all in.
    """
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    keys = frozenset(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ValueError(f"{path} holds no key")
    return keys
