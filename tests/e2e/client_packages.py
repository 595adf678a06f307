"""The packages of other people's clients, as `requirements/clients.txt` pins them, in a folder of the tests' cache."""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from envtest.build import cache_root

PINS = Path(__file__).parents[2] / "requirements" / "clients.txt"


def find_client_packages() -> Path:
    """Return the folder; the first call for these pins and this Python fetches them, by digest. Blocks.

    They are heavy, and no other test needs them: so they are in no lock that `make .venv/.installed` installs.
    """
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]
    folder = cache_root() / f"clients-{digest}-py{sys.version_info.major}.{sys.version_info.minor}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".clients-", dir=folder.parent) as made:
            target = Path(made, "packages")
            pinned = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--requirement", str(PINS)]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target), *pinned]
            subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
            target.rename(folder)
    return folder
