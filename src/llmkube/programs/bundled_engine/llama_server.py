"""Bundled llama-server: llama-server's command line for the llama.cpp in the `xllamacpp` wheel.

Every served model is a process of this program, so it imports nothing but argparse and the engine. It supports the
flags in `llama_params.FLAGS`, which `--help` lists; any other flag is rejected by name.
"""

import argparse
import functools
import importlib.metadata
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import llmkube
from llmkube.programs.bundled_engine.llama_params import FLAGS, Settings, Switch, Value, apply, record

PROGRAM: Final = "llmkube-llama-server"
SMALL_MODEL_BYTES: Final = 16 * 1024**2
"""Size below which a model runs on one thread. Its layers take so little time that further threads only spin while they
wait for each other: a response of the demo model takes 7 s of CPU time on a busy machine instead of 0.03 s."""


_LIST: Final = "list_devices"


def parse(argv: Sequence[str]) -> Settings:
    """Parse the command line; on an error, print one line and exit with 2."""
    parser = argparse.ArgumentParser(
        PROGRAM,
        usage=f"{PROGRAM} --model FILE [flags]",
        description="llama.cpp's HTTP server, from the xllamacpp wheel. It supports only these flags.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("--list-devices", action="store_true", help="print the GPUs that it can use, and exit")
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
    chosen, unknown = parser.parse_known_args(argv)
    if unknown:
        name = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        parser.error(f"{name} is not honoured by the engine that comes with LLMKube; --help lists the flags that are")
    settings |= {_LIST: True} if chosen.list_devices else {}
    if "model.path" not in settings and not chosen.list_devices:
        parser.error("no model file: set it with --model")
    return settings


def _store_action(settings: Settings, flag: Value | Switch) -> type[argparse.Action]:
    """Return an argparse action that records a flag in the settings; argparse expects a class."""

    class StoreAction(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            record(settings, flag, values)

    return StoreAction


def remedy(error: ImportError) -> str:
    """Return what to install: the package, or a system library that it needs and a minimal Linux lacks."""
    if "libgomp.so.1" in str(error):
        return "install the system's OpenMP library (Debian: apt-get install libgomp1; Fedora: dnf install libgomp)"
    return "pip install xllamacpp"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and return 0; return 1 with one line on stderr if serving is impossible."""
    settings = parse(sys.argv[1:] if argv is None else argv)
    try:
        import xllamacpp as engine  # noqa: PLC0415 (100 MB that --help and --version do not need)
    except ImportError as exc:
        return _fail(f"the bundled engine cannot be loaded ({exc}): {remedy(exc)}")
    if _LIST in settings:
        print(device_list(engine.get_device_info()))
        return 0
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
    # Loading holds the GIL, so that no Python handler would run until it is finished; the default action does not wait
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        server = engine.Server(params)
    except (RuntimeError, ValueError):
        return _fail(f"the engine could not serve {model}; see its output above")
    wait_for_signal = _catch_signals()
    print(f"{PROGRAM}: serving {model} on {server.listening_address}", flush=True)
    wait_for_signal()
    print(f"{PROGRAM}: stopping", flush=True)
    # Skip the engine's destructor: with a stream in flight it waits for that stream's next ping, 30 seconds
    # (measured). The agent drains before it sends the signal, and the kernel closes remaining connections.
    os._exit(0)


def device_list(devices: Iterable[Mapping[str, Any]]) -> str:
    """Format devices like llama-server's `--list-devices`, without the CPU and libraries for it."""
    gpus = [each for each in devices if each["type"].name.endswith("GPU")]
    rows = (
        f"  {each['name']}: {each['description']} "
        f"({each['memory_total'] >> 20} MiB, {each['memory_free'] >> 20} MiB free)"
        for each in gpus
    )
    return "\n".join(("Available devices:", *rows))


def _catch_signals() -> Callable[[], object]:
    """Catch SIGTERM and SIGINT, and return a function that waits for one of them.

    The kernel may deliver a signal to any of the engine's threads, which would not wake the main thread; the wake-up
    file descriptor does.
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
        raise ValueError(f"the model {path} is not a GGUF file: it does not start with GGUF")


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
