"""Build a real Kubernetes control plane from published Go modules, once, into a cache outside the tree.

Standard library only, as `go_programs.py`, whose cache it is. `KUBEBUILDER_ASSETS` names a folder of programs that
already exist; then nothing is built here.
"""

import argparse
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__ is None or not __package__:  # run as a script: tests/ is where the shared modules are
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from go_programs import BuildError, GoModule, Log, cache_root, kubernetes_stamps, missing, pinned_version

MODULE = Path(__file__).resolve().parent
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
ESSENTIAL = ("etcd", "kube-apiserver")
"""Programs that `KUBEBUILDER_ASSETS` must hold; tests that need more fail with their names."""


@functools.cache
def control_plane() -> GoModule:
    """Return the module that pins the programs."""
    stamps = kubernetes_stamps(pinned_version(MODULE, "k8s.io/kubernetes"))
    return GoModule(MODULE, {name: f"./cmd/{name}" for name in PROGRAMS}, stamps)


def assets_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which the programs are, or will be once they are built."""
    if environ.get("KUBEBUILDER_ASSETS"):
        return Path(environ["KUBEBUILDER_ASSETS"]).expanduser().absolute()
    return cache_root(environ) / control_plane().source_hash


def build(programs: Sequence[str], log: Log, environ: Mapping[str, str] = os.environ) -> Path:
    """Build what the cache lacks, and return the folder that holds the programs.

    Args:
        programs: Some of `PROGRAMS`.
        log: Told of each step and its seconds.
        environ: The environment.

    Raises:
        BuildError: There is no Go and none can be installed, a build failed, or `KUBEBUILDER_ASSETS` lacks a program.
    """
    target = assets_dir(environ)
    if environ.get("KUBEBUILDER_ASSETS"):
        if lacking := missing(target, programs):
            raise BuildError(f"KUBEBUILDER_ASSETS={target} lacks {', '.join(lacking)}; unset it to build our own")
        log(f"KUBEBUILDER_ASSETS={target}: nothing is built")
        return target
    control_plane().build(programs, target, log, environ)
    return target


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
        folder = assets_dir() if arguments.where else build(arguments.programs or everything, _log)
    except BuildError as error:
        _log(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"envtest: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
