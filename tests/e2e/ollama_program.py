"""Ollama's own program, built once from its published Go module into the cache of `go_programs.py`.

The module lacks the files that it uses from llama.cpp's vendor folder: two libraries of headers come from Debian's
packages, which are unpacked and never installed, and a third, for audio, is a stub whose calls fail. The build takes
minutes and needs a C++ compiler.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from debian_packages import PackageError, unpack
from go_programs import BuildError, GoModule, cache_root, missing, pinned_version

MODULE = Path(__file__).resolve().parent / "ollama"
OLLAMA = "github.com/ollama/ollama"
PACKAGES = ("libstb-dev", "nlohmann-json3-dev")


def program(environ: Mapping[str, str] = os.environ) -> Path:
    """Return Ollama's program, and build it if it is missing.

    Raises:
        BuildError: This machine lacks a tool for the build, which the message names.
    """
    version = pinned_version(MODULE, OLLAMA)
    stamps = {f"{OLLAMA}/version.Version": version.removeprefix("v")}
    bare = GoModule(MODULE, {"ollama": OLLAMA}, stamps)
    target = cache_root(environ) / bare.source_hash
    if missing(target, ("ollama",)):
        if not (shutil.which("g++", path=environ.get("PATH")) or shutil.which("clang++", path=environ.get("PATH"))):
            raise BuildError("Ollama has parts in C++, and this machine has no g++ or clang++")
        headers = (MODULE / "include", _headers(target.with_name(f"{target.name}-headers"), environ))
        GoModule(MODULE, {"ollama": OLLAMA}, stamps, headers).build(("ollama",), target, _log, environ)
    return target / "ollama"


def _headers(folder: Path, environ: Mapping[str, str]) -> Path:
    if not folder.is_dir():
        scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
        scratch.mkdir(parents=True)
        try:
            for package in PACKAGES:
                unpack(package, scratch, environ)
        except PackageError as error:
            raise BuildError(f"Ollama is built with Debian's packages {', '.join(PACKAGES)}: {error}") from error
        scratch.replace(folder)  # a rename, so that an unfinished folder is never used
    return folder / "usr" / "include"


def _log(text: str) -> None:
    sys.stderr.write(f"ollama: {text}\n")
