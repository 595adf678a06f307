"""The programs that the benchmarks of HTTP compare with; what cannot be had here is left out of the tables.

    <the cache of tests/envtest>/bench/{wrk,nginx,…}     unpacked from Debian's packages, not installed
    <the cache of tests/envtest>/bench/python            a venv with the contenders that are written in Python

What is on PATH already is taken as it is.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from go_programs import cache_root

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {"wrk": ("wrk", "libluajit-5.1-2"), "nginx": ("nginx",)}
PEERS: Final = ("aiohttp", "uvicorn[standard]", "httpx")
LITELLM: Final = ("litellm[proxy]",)


def cache_dir() -> Path:
    """Return the folder of everything that is fetched here."""
    return Path(cache_root(os.environ)) / "bench"


def find_program(name: str) -> list[str]:
    """Return the command that starts a program of Debian; it is fetched if it is missing, empty if it cannot be had."""
    if found := shutil.which(name):
        return [found]
    folder = cache_dir() / name
    if not folder.exists() and not _unpack(folder, PACKAGES[name]):
        return []
    program = next((path for path in folder.rglob(f"*bin/{name}")), None)
    libraries = ":".join({str(path.parent) for path in folder.rglob("*.so*")})
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(program)] if program else []


def _unpack(folder: Path, packages: tuple[str, ...]) -> bool:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch = Path(name)
        try:
            _run("apt-get", "download", *packages, cwd=scratch)
            for package in scratch.glob("*.deb"):
                _run("dpkg-deb", "--extract", str(package), str(scratch / "root"), cwd=scratch)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{packages[0]} cannot be had: {error}", file=sys.stderr)
            return False
        (scratch / "root").rename(folder)
    return True


def peer_python() -> str:
    """Return an interpreter that has the contenders written in Python; empty if they cannot be had."""
    return _python_with("python", PEERS)


def litellm_python() -> str:
    """Return an interpreter that has LiteLLM's proxy; empty if it cannot be had."""
    return _python_with("litellm", LITELLM)


def litellm_version() -> str:
    """Return which LiteLLM it is, to stand behind other programs; empty without one."""
    python = litellm_python()
    frozen = _said(python, "-m", "pip", "freeze").split() if python else []
    return "".join(f", {line.replace('==', ' ')}" for line in frozen if line.startswith("litellm=="))


def _python_with(name: str, packages: tuple[str, ...]) -> str:
    folder = cache_dir() / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        try:
            venv.create(folder, with_pip=True, clear=True)
            _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, cwd=folder)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{', '.join(packages)} cannot be had: {error}", file=sys.stderr)
            return ""
        (folder / "complete").touch()
    return str(python)


def peer_versions() -> str:
    """Return what the contenders are, for people."""
    lines = [] if not (nginx := find_program("nginx")) else _said(*nginx, "-v").split()[-1:]
    if python := peer_python():
        wanted = {"aiohttp", "uvicorn", "httpx", "uvloop", "httptools"}
        frozen = _said(python, "-m", "pip", "freeze").split()
        lines += [line for line in frozen if line.partition("==")[0] in wanted]
    return ", ".join(line.replace("==", " ").replace("/", " ") for line in lines)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def _run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
