"""Whether there is a newer release: asked of the package index that pip is set to, and only when a user asks."""

import importlib.util
import re
import subprocess
import sys
from typing import Final

from llmkube import __version__
from llmkube.programs.failures import CommandError

_SECONDS: Final = 30.0
_VERSIONS: Final = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")


def told() -> str:
    """Return a sentence about the newest release.

    Raises:
        CommandError: The index does not say; the sentence has pip's words.
    """
    versions = released(_asked())
    newest = max(versions, key=as_numbers, default="")
    if newest and as_numbers(newest) > as_numbers(__version__):
        return (
            f"the index has {newest} of a package named llmkube; this project publishes none itself so far: see whose "
            "it is, and upgrade the way you have installed this one"
        )
    return "no newer release is in the index that pip is set to"


def released(text: str) -> list[str]:
    """Return the final releases in what `pip index versions` prints."""
    found = _VERSIONS.search(text)
    return [each for each in found[1].split(", ") if _NUMBERS.fullmatch(each)] if found else []


def as_numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, which compare as releases follow each other: 0.10.0 is after 0.9.19."""
    return tuple(int(part) for part in version.split("."))


def _asked() -> str:
    if importlib.util.find_spec("pip") is None:
        raise CommandError("there is no pip beside this program: ask `pipx list` or `uv tool list --outdated`")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "llmkube"]
    try:
        done = subprocess.run(  # noqa: S603 - this Python's pip
            command, check=False, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as exc:
        raise CommandError(f"the package index did not answer within {_SECONDS:g} s") from exc
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise CommandError(f"the package index does not say: {said[-1] if said else 'pip printed nothing'}")
    return done.stdout
