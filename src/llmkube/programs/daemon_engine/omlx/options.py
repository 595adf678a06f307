"""The command line of the program, and what the agent says to all engines of its host about oMLX."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from llmkube.programs.daemon_engine.front_options import FrontOptions, front_fields, front_parser, service_of

DEFAULT_PORT: Final = 8000
START_SECONDS: Final = 120.0
"""Until one of our own answers: it imports MLX, and macOS looks at each file of it once."""

PORT_VARIABLE: Final = "OMLX_PORT"
"""oMLX's own."""

KEY_FILE_VARIABLE: Final = "LLMKUBE_OMLX_KEY_FILE"
START_VARIABLE: Final = "LLMKUBE_OMLX_STARTUP_SECONDS"

_MOST_PORT: Final = 65535


@attrs.frozen(kw_only=True)
class Options(FrontOptions):
    """What to serve, and how.

    Attributes:
        model: The folder of the model.
        program: oMLX's own program.
        daemon: Where the owner's oMLX would be.
        key_file: Holds the key that that one asks for; None where it asks for none.
        start_seconds: Until one of our own has to answer.
    """

    model: Path
    program: str = "omlx"
    daemon: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    key_file: Path | None = None
    start_seconds: float = START_SECONDS


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the command line and the agent's variables; exits with 2 and one line when they cannot be honoured."""
    parser = front_parser("omlx-engine", "One model of an oMLX, served as llama-server serves one.")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model", metavar="FOLDER")
    parser.add_argument("--omlx", default="omlx", help="program to start where no oMLX has the model")
    said = parser.parse_args(argv)
    service_of(parser, said)
    port, seconds = environ.get(PORT_VARIABLE, "").strip(), environ.get(START_VARIABLE, "").strip()
    if port and not (port.isdecimal() and 0 < int(port) <= _MOST_PORT):
        parser.error(f"{PORT_VARIABLE}={port}: write a port, such as {DEFAULT_PORT}")
    try:
        start_seconds = float(seconds or START_SECONDS)
    except ValueError:
        parser.error(f"{START_VARIABLE}={seconds}: write seconds, such as {START_SECONDS:g}")
    key_file = environ.get(KEY_FILE_VARIABLE, "")
    return Options(
        **front_fields(said),
        model=said.model,
        program=said.omlx,
        daemon=f"http://127.0.0.1:{port or DEFAULT_PORT}",
        key_file=Path(key_file) if key_file else None,
        start_seconds=start_seconds,
    )
