"""Get the programs of a one-node cluster, once, into a cache outside the tree.

Standard library only, as `go_programs.py`, whose cache this shares. Beside the control plane of `envtest/build.py` come
kubelet, kube-proxy, kube-scheduler, containerd, CNI plugins and CoreDNS from their published Go modules, and runc, nft
and what builds images from Debian's packages, which are unpacked and never installed.
"""

import argparse
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__ is None or not __package__:  # run as a script: tests/ is where the shared modules are
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from debian_packages import PackageError, unpack
from envtest import build as envtest
from go_programs import BuildError, GoModule, Log, cache_root, kubernetes_stamps, missing, pinned_version

MODULES = Path(__file__).resolve().parent / "modules"
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
PLUGINS = "github.com/containernetworking/plugins/plugins"
PACKAGES = ("buildah", "mmdebstrap", "nftables", "runc")


@functools.cache
def modules() -> tuple[GoModule, ...]:
    """Return the modules, the one with the pods' first process first."""
    kubernetes = MODULES / "kubernetes"
    programs = ("pause", "kubelet", "kube-proxy", "kube-scheduler")
    return (
        GoModule(
            kubernetes,
            {name: f"./cmd/{name}" for name in programs},
            kubernetes_stamps(pinned_version(kubernetes, "k8s.io/kubernetes")),
        ),
        GoModule(
            MODULES / "containerd",
            {name: f"{CONTAINERD}/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")}
            | {
                path.rpartition("/")[2]: f"{PLUGINS}/{path}"
                for path in ("main/bridge", "main/loopback", "ipam/host-local")
            },
            {},
        ),
        GoModule(MODULES / "coredns", {"coredns": "./cmd/coredns"}, {}),
    )


def folder_of(module: GoModule, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where the programs of a module are, or will be."""
    return cache_root(environ) / module.source_hash


def debian_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with `usr/` of the unpacked packages."""
    release = platform.freedesktop_os_release() if sys.platform == "linux" else {}
    words = (*PACKAGES, release.get("ID", ""), release.get("VERSION_ID", ""), platform.machine())
    return cache_root(environ) / f"debian-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:16]}"


def program_dirs(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders that precede PATH inside a node; the second holds the CNI plugins."""
    return (*(folder_of(module, environ) for module in modules()), envtest.assets_dir(environ))


def lacking(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the programs that are not there yet."""
    found = [name for each in modules() for name in missing(folder_of(each, environ), tuple(each.packages))]
    return (
        *found,
        *missing(envtest.assets_dir(environ), envtest.PROGRAMS),
        *(() if debian_dir(environ).is_dir() else PACKAGES),
    )


def build(log: Log, environ: Mapping[str, str] = os.environ) -> None:
    """Build and unpack what the cache lacks.

    Raises:
        BuildError: Go or a package is not available here; the message says why.
    """
    unpack_debian(log, environ)
    envtest.build(envtest.PROGRAMS, log, environ)
    for module in modules():
        module.build(tuple(module.packages), folder_of(module, environ), log, environ)


def unpack_debian(log: Log, environ: Mapping[str, str] = os.environ) -> Path:
    """Unpack the packages if they are not there yet, and return their folder.

    Raises:
        BuildError: There is no apt, or it cannot fetch one of them.
    """
    target = debian_dir(environ)
    if target.is_dir():
        return target
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    try:
        for package in PACKAGES:
            log(f"unpack Debian's {package} ...")
            unpack(package, scratch, environ, dependencies=True)
    except PackageError as error:
        raise BuildError(f"a node needs Debian's packages {', '.join(PACKAGES)}: {error}") from error
    scratch.replace(target)  # a rename: what was not finished is never taken for whole
    return target


def with_debian(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a command that runs another one, as root, as if the packages were installed: in mounts of its own."""
    script = 'mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr && exec "$@"'
    folder = str(debian_dir(environ))
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, folder, *command]


def main() -> int:
    """Get everything; what is said goes to stderr."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    os.nice(10)  # a build of minutes is never urgent
    try:
        build(log)
    except BuildError as error:
        log(str(error))
        return 1
    return 0


def log(text: str) -> None:
    """Tell the user what is done."""
    sys.stderr.write(f"node: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
