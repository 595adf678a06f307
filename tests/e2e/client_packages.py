"""Third-party client packages, pinned by digest and installed into the tests' cache."""

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from envtest.build import cache_root

PINS = Path(__file__).parents[2] / "requirements" / "clients.txt"
SPEECH = Path(__file__).with_name("speech.txt")
BROWSER = Path(__file__).with_name("page_browser.txt")
AGENTS = Path(__file__).parent / "agents"
"""Folder of the pinned npm packages, for which npm must be on PATH."""


def find_client_packages() -> Path:
    """Return the folder; the first call for these pins and this Python downloads them, by digest. Blocks.

    They are large and no other test needs them, so no lock that `make .venv/.installed` installs has them.
    """
    return _cached(PINS, f"py{sys.version_info.major}.{sys.version_info.minor}", _install)


def find_speech_package() -> Path:
    """Return the folder with pocketsphinx and its English model. Blocks; skips the test where there is no wheel."""
    if sys.version_info[:2] not in ((3, 11), (3, 13)):
        pytest.skip("pocketsphinx has no wheel for this Python")
    return _cached(SPEECH, f"py{sys.version_info.major}.{sys.version_info.minor}", partial(_install, pins=SPEECH))


def find_browser_driver() -> Path:
    """Return the folder with Playwright, which drives a browser, and axe, which checks accessibility. Blocks."""
    return _cached(BROWSER, f"py{sys.version_info.major}.{sys.version_info.minor}", partial(_install, pins=BROWSER))


def find_agents() -> Path:
    """Return the `node_modules` with the agents and a Node for the AI SDK. Blocks.

    Skips the test where their programs, which are those for Linux on x86-64, cannot be installed or run.
    """
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the pinned agents are those for Linux on x86-64")
    return _cached(AGENTS / "package-lock.json", "npm", _install_agents) / "node_modules"


def _cached(pins: Path, variant: str, install: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:16]
    folder = cache_root() / f"clients-{digest}-{variant}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be installing them
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=".clients-", dir=folder.parent) as scratch:
                target = Path(scratch, "packages")
                install(target)
                target.rename(folder)
    return folder


def _install(target: Path, pins: Path = PINS) -> None:
    uv = shutil.which("uv")  # an environment that uv has made is without pip
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    pinned = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--requirement", str(pins)]
    subprocess.run(
        [*pip, "--quiet", "--no-compile", "--target", str(target), *pinned], check=True, stdin=subprocess.DEVNULL
    )


def _install_agents(target: Path) -> None:
    target.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(AGENTS / name, target)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=target, check=True, stdin=subprocess.DEVNULL)
