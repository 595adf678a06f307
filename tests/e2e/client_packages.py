"""Third-party client packages, pinned by `requirements/clients.txt` and installed into the tests' cache."""

import hashlib
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
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".clients-", dir=folder.parent) as scratch:
            target = Path(scratch, "packages")
            pinned = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--requirement", str(PINS)]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target), *pinned]
            subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
            target.rename(folder)
    return folder
