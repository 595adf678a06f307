"""Debian packages, unpacked and not installed, for tests; needs no root and the standard library alone."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


class PackageError(Exception):
    """A package is not available here; the message has the reason."""


def unpack(package: str, folder: Path, environ: Mapping[str, str] = os.environ, *, dependencies: bool = False) -> None:
    """Unpack a package into a folder; apt checks it against the distribution's signatures.

    Args:
        package: Its name in apt.
        folder: An existing folder, which gets `usr/` and the like.
        environ: The environment of apt, with its PATH.
        dependencies: Whether to unpack its dependencies too, except those installed on this machine.

    Raises:
        PackageError: There is no apt, or it does not know the package or cannot fetch it.
    """
    if not (shutil.which("apt-get", path=environ.get("PATH")) and shutil.which("dpkg-deb", path=environ.get("PATH"))):
        raise PackageError(f"no apt-get to take Debian's package {package} from")
    with tempfile.TemporaryDirectory(prefix=".apt-", dir=folder) as scratch:
        lists, archives = Path(scratch) / "lists", Path(scratch) / "archives"
        for made in (lists, archives):
            (made / "partial").mkdir(parents=True)
        options = ["-o", f"Dir::Cache={scratch}", "-o", "Debug::NoLocking=1"]
        wanted = ["install", "--download-only", "--no-install-recommends", "--yes"] if dependencies else ["download"]
        fetch = ["apt-get", *options, *wanted, package]
        try:
            _run(fetch, archives, environ)
        except PackageError:  # the machine's lists may be missing or old, and only root may renew them
            own = ["-o", f"Dir::State::lists={lists}"]
            _run(["apt-get", *options, *own, "update"], archives, environ)
            _run(["apt-get", *options, *own, *wanted, package], archives, environ)
        for archive in sorted(archives.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(folder)], archives, environ)


def _run(command: list[str], cwd: Path, environ: Mapping[str, str]) -> None:
    try:
        subprocess.run(command, cwd=cwd, env=environ, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise PackageError(f"{' '.join(command)}: exit status {error.returncode}, see above") from error
    except OSError as error:
        raise PackageError(f"{command[0]}: {error.strerror}") from error
