"""Implement `make lock`: write `requirements/*.txt`, every package pinned to a version and the SHA-256 of its files.

The files are requirements as pip reads them, for every Python and platform that the project supports. They name no
index, so any mirror serves them, and pip and uv refuse a file of another digest (`--require-hashes`). Each package has
to have a wheel on every supported platform: an installation compiles nothing and runs no package's build script.

Pins that pyproject.toml still allows are kept with `--keep`, otherwise everything is renewed. Standard library and uv:
the one on PATH, or the one that `requirements/lock.txt` pins, installed for the time of the run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "requirements"
PROJECT = ROOT / "pyproject.toml"

LOCKS: Mapping[str, tuple[str, ...]] = {
    "dev": (str(PROJECT), "--extra", "llama", "--extra", "traces", "--group", "dev"),
    "runtime": (str(PROJECT), "--extra", "traces"),  # the image's
    "llama": (str(PROJECT), "--extra", "llama", "--extra", "traces"),
    "nvidia": (str(PROJECT), "--extra", "nvidia"),
    "traces": (str(PROJECT), "--extra", "traces"),
    "build": ("--group", "build"),
    "release": ("--group", "release"),
    "clients": ("--group", "clients"),
    "lock": ("--group", "lock"),
    "site": ("--group", "site"),
}
"""Files, by what of pyproject.toml uv resolves for them.

The first one's pins hold in all others, as far as these can have them: `clients` runs in an environment without
LLMKube, and may need newer packages.
"""

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin")
"""Where every pinned package has to have a wheel, as uv calls the platforms."""

_PIN = re.compile(r"([a-z0-9-]+)==([^\s;]+)")


class LockError(Exception):
    """The locks cannot be written; the message says why."""


def pins(text: str) -> dict[str, set[str]]:
    """Return the versions that a lock pins by package; two where another Python or platform gets another one."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if pin := _PIN.match(line):
            found.setdefault(pin[1], set()).add(pin[2])
    return found


def entries(text: str) -> list[str]:
    """Return a lock's entries, each with its hashes and with what asks for it, in the order of the file."""
    return re.findall(r"^[a-z0-9].*(?:\n +.*)*", text, re.MULTILINE)


def merged(first: str, second: str) -> str:
    """Return the entries of the first text, and those of the second about packages that the first does not pin."""
    known = pins(first)
    others = [each for each in entries(second) if not pins(each).keys() & known.keys()]
    return "\n".join([*entries(first), *others]) + "\n"


def write(uv: str, folder: Path, *, keep: bool, say: Callable[[str], None]) -> None:
    """Resolve every lock, try each for every Python and platform, and replace the files when all are good.

    Raises:
        LockError: A package has no wheel somewhere, or the text would name an index.
    """
    with tempfile.TemporaryDirectory(prefix=".locks-", dir=folder) as scratch:
        leading = ""
        for name, what in LOCKS.items():
            say(f"{name} ...")
            file, old = Path(scratch) / f"{name}.txt", folder / f"{name}.txt"
            # uv prefers what its output file pins already
            kept = old.read_text() if keep and old.exists() else ""
            file.write_text(merged(leading, kept) if leading or kept else "")
            options = ["--universal", "--python-version", PYTHONS[0], "--generate-hashes", "--only-binary", ":all:"]
            header = ["--custom-compile-command", "make lock", "--quiet", "--output-file", str(file)]
            _run([uv, "pip", "compile", *what, *options, *header])
            if "://" in file.read_text():
                raise LockError(f"{name}: the text names an address; no index belongs into it")
            if not pins(file.read_text()).keys() <= pins(leading).keys():
                _try_everywhere(uv, file)
            leading = leading or file.read_text()
        for name in LOCKS:
            (Path(scratch) / f"{name}.txt").replace(folder / f"{name}.txt")


def _try_everywhere(uv: str, file: Path) -> None:
    for platform in PLATFORMS:
        for python in PYTHONS:
            where = ["--python-platform", platform, "--python-version", python, "--only-binary", ":all:"]
            command = [uv, "pip", "compile", str(file), *where, "--quiet", "--output-file", os.devnull]
            try:
                _run([*command, "--offline"])  # most of it has just been fetched, and is not asked for again
            except LockError:
                _run(command)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LockError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def _find_uv(scratch: Path) -> str:
    found = shutil.which("uv")
    if found:
        return found
    _run([sys.executable, "-m", "venv", str(scratch)])
    pip = [str(scratch / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    _run([*pip, "--require-hashes", "-r", str(FOLDER / "lock.txt")])
    return str(scratch / "bin" / "uv")


def main() -> int:
    """Write the locks; 1 if they cannot be written, with the reason on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="keep every pin that pyproject.toml still allows")
    arguments = parser.parse_args()
    supported = tomllib.loads(PROJECT.read_text())["project"]["requires-python"]
    try:
        if supported != f">={PYTHONS[0]}":
            raise LockError(f"pyproject.toml supports Python {supported}, and the locks begin at {PYTHONS[0]}")
        with tempfile.TemporaryDirectory(prefix="llmkube-uv-") as scratch:
            write(_find_uv(Path(scratch)), FOLDER, keep=arguments.keep, say=_log)
    except LockError as error:
        _log(str(error))
        return 1
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"lock: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
