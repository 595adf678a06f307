"""libomp as this machine has it: the library that Homebrew's ggml is linked with."""

import re
import shutil
import subprocess
from pathlib import Path

INSTALLED = (
    "usr/lib/llvm-*/lib/libomp.so*",
    "usr/lib/*/libomp.so*",
    "usr/lib64/libomp.so*",
    "opt/homebrew/opt/libomp/lib/libomp.dylib",
    "usr/local/opt/libomp/lib/libomp.dylib",
)
HOW = "no libomp here: install libomp5 (Debian) or libomp (Homebrew)"


def find_libomp(folder: Path) -> Path | None:
    """Return the path of libomp: an installed one, else Debian's own package, unpacked into `folder`."""
    for pattern in INSTALLED:
        if found := sorted(Path("/").glob(pattern)):
            return found[0]
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    lists = ("-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache")
    for options in ((), lists):  # where a machine has no lists of packages, lists of our own, which need no root
        if options:
            _run("apt-get", *options, "update", cwd=folder)
        known = _run("apt-cache", *options, "depends", "--important", "libomp5", cwd=folder)
        if (package := re.search(r"Depends: (libomp5-\d+)", known)) is not None:
            _run("apt-get", *options, "download", package.group(1), cwd=folder)
            break
    for archive in folder.glob("libomp5*.deb"):
        _run("dpkg-deb", "-x", str(archive), "unpacked", cwd=folder)
    return next((path for path in sorted(folder.rglob("libomp*.so.5")) if path.is_file()), None)


def _run(*command: str, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False).stdout
