"""flake8-async over each file that uses Trio, except files that passed before.

A file passes again without a check if its bytes, its path, the configuration, the Python version and every installed
package are the same. Only passes are kept, as empty files in the cache of `go_programs.py`; after a finding none is.

    python tests/async_rules.py FOLDER…
"""

import hashlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from go_programs import cache_root

USES_TRIO = re.compile(rb"async |trio")


def passes(folders: list[str], root: Path, kept: Path, checker: list[str]) -> dict[str, Path]:
    """Return the path of each file that has to be checked, with the file that will say that it passed."""
    installed = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    common = repr((sys.version, checker, installed, (root / ".flake8").read_bytes()))
    found = {}
    for path in sorted(each for folder in folders for each in (root / folder).rglob("*.py")):
        text, name = path.read_bytes(), str(path.relative_to(root))
        mark = kept / hashlib.sha256(repr((common, name, text)).encode()).hexdigest()
        if USES_TRIO.search(text) and not mark.exists():
            found[name] = mark
    return found


def check(folders: list[str], root: Path, kept: Path, checker: list[str]) -> int:
    """Check the files that changed, and return the checker's exit status."""
    if not (changed := passes(folders, root, kept, checker)):
        return 0
    if status := subprocess.run([*checker, *changed], cwd=root, check=False).returncode:
        return status
    kept.mkdir(parents=True, exist_ok=True)
    for mark in changed.values():
        mark.touch()
    return 0


if __name__ == "__main__":
    PROGRAM = [sys.executable, "-m", "flake8"]
    sys.exit(check(sys.argv[1:], Path(__file__).resolve().parents[1], cache_root() / "flake8-async", PROGRAM))
