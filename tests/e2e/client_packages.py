"""Third-party client packages, pinned by `requirements/clients.txt` and installed into the tests' cache."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from envtest.build import cache_root

PINS = Path(__file__).parents[2] / "requirements" / "clients.txt"


def find_client_packages() -> Path:
    """Return the folder; the first call for these pins and this Python downloads them, by digest. Blocks.

    They are large and no other test needs them, so no lock that `make .venv/.installed` installs has them.
    """
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]
    folder = cache_root() / f"clients-{digest}-py{sys.version_info.major}.{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be installing them
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=".clients-", dir=folder.parent) as scratch:
                target = Path(scratch, "packages")
                _install(target)
                target.rename(folder)
    return folder


def _install(target: Path) -> None:
    uv = shutil.which("uv")  # an environment that uv has made is without pip
    pip = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    pinned = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--requirement", str(PINS)]
    subprocess.run(
        [*pip, "--quiet", "--no-compile", "--target", str(target), *pinned], check=True, stdin=subprocess.DEVNULL
    )
