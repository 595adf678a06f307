"""A llama-server for people who have none: its command line, over the llama.cpp in the `xllamacpp` wheel.

One process per served model starts here, so nothing but argparse and the engine is imported. What it honours is the
table `llama_params.FLAGS`: `--help` lists exactly that, and any other flag is refused by name.
"""

import argparse
import functools
import importlib.metadata
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import llmkube
from llmkube.programs.bundled_engine.llama_params import FLAGS, Settings, Switch, Value, apply, record

PROGRAM: Final = "llmkube-llama-server"
SMALL_MODEL_BYTES: Final = 16 * 1024**2
"""A model file below this is computed by one thread: a layer takes so little that each further thread spins while it
waits for the others, 7 s of processor instead of 0.03 s for an answer of the demo on a busy machine."""


def parse(argv: Sequence[str]) -> Settings:
    """Read the command line; says what is wrong in one line and exits with 2 when it cannot be honoured."""
    parser = argparse.ArgumentParser(
        PROGRAM,
        usage=f"{PROGRAM} --model FILE [flags]",
        description="llama.cpp's HTTP server, from the xllamacpp wheel. It honours these flags and no others.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    settings: Settings = {}
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            action = _store_action(settings, flag)
            if isinstance(flag, Value):
                metavar = getattr(flag.read, "metavar", flag.metavar)
                group.add_argument(*flag.names.split(), action=action, type=flag.read, metavar=metavar, help=flag.help)
            else:
                group.add_argument(*flag.names.split(), action=action, nargs=0, help=flag.help)
    _, unknown = parser.parse_known_args(argv)
    if unknown:
        name = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        parser.error(f"{name} is not honoured by the engine that comes with LLMKube; --help lists what is")
    if "model.path" not in settings:
        parser.error("name a model file with --model")
    return settings


def _store_action(settings: Settings, flag: Value | Switch) -> type[argparse.Action]:
    """Make the kind of action that notes a flag in the settings; argparse asks for a class."""

    class StoreAction(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            record(settings, flag, values)

    return StoreAction


def remedy(error: ImportError) -> str:
    """Return what to install: the package, or the library that it needs of the system and a minimal Linux lacks."""
    if "libgomp.so.1" in str(error):
        return "install the system's OpenMP library (Debian: apt-get install libgomp1; Fedora: dnf install libgomp)"
    return "pip install xllamacpp"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return 0 then, and 1 with one line on stderr when serving is impossible."""
    settings = parse(sys.argv[1:] if argv is None else argv)
    try:
        import xllamacpp as engine  # noqa: PLC0415 (100 MB that --help and --version do without)
    except ImportError as exc:
        return _fail(f"the bundled engine cannot be loaded ({exc}): {remedy(exc)}")
    model = Path(settings["model.path"])
    try:
        _check_model(model)
        if model.stat().st_size < SMALL_MODEL_BYTES:
            settings.setdefault("cpuparams.n_threads", 1)
        params = apply(settings, engine)
        if not params.reuse_port:
            for host in params.hostnames:
                _check_address(host, params.port)
    except (OSError, ValueError) as exc:
        return _fail(str(exc))
    # Loading holds the interpreter's lock, so no Python handler would run before its end: the kernel's default does
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        server = engine.Server(params)
    except (RuntimeError, ValueError):
        return _fail(f"the engine could not serve {model}; its own words are above")
    wait_for_signal = _catch_signals()
    print(f"{PROGRAM}: serving {model} on {server.listening_address}", flush=True)
    wait_for_signal()
    print(f"{PROGRAM}: stopping", flush=True)
    # Not by way of the engine's destructor: with a stream in flight it waits for that stream's next ping, 30
    # seconds (measured). The agent has drained before it sends the signal; the kernel closes what is left.
    os._exit(0)


def _catch_signals() -> Callable[[], object]:
    """Catch SIGTERM and SIGINT; the result waits for one of them.

    The kernel may hand a signal to any of the engine's threads, which would not wake a main thread that sleeps in
    Python: the wake-up descriptor works from all of them.
    """
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return functools.partial(os.read, read_fd, 1)


def _check_model(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as exc:
        raise OSError(f"cannot read the model {path}: {exc.strerror}") from exc
    if magic != b"GGUF":
        raise ValueError(f"the model {path} is not a GGUF file: it starts with {magic!r}")


def _check_address(host: str, port: int) -> None:
    if host.endswith(".sock"):
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as exc:
        raise OSError(f"cannot listen on {host} port {port}: {exc.strerror}") from exc


def _version() -> str:
    try:
        engine = f"xllamacpp {importlib.metadata.version('xllamacpp')}"
    except importlib.metadata.PackageNotFoundError:
        engine = "xllamacpp is not installed"
    return f"version: {PROGRAM} {llmkube.__version__} ({engine})"


def _fail(reason: str) -> int:
    print(f"{PROGRAM}: {reason}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
