"""Build the images of a node offline: the project's own Dockerfile on a Debian with Python, and pause.

Needs root, the programs of `build.py`, Debian's packages and PyPI; no registry. Each image is an OCI archive whose name
ends with a digest of what went into it, so what has not changed is not built again:

    <cache>/images/{pause,llmkube,llmkube-llama}-<hash>.tar

    localhost/llmkube:test          the Dockerfile as it is: controller, agents, pods that fetch
    localhost/llmkube-llama:test    its target llama-server, with EXTRAS=llama: the bundled engine
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ is None or not __package__:  # run as a script: tests/ is where the shared modules are
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from go_programs import BuildError, Log, cache_root
from node.build import debian_dir, folder_of, log, modules, unpack_debian, with_debian

ROOT = Path(__file__).resolve().parents[2]
LOCKS = tuple(f"requirements/{name}.txt" for name in ("build", "llama", "runtime"))
CONTEXT = (".dockerignore", "Dockerfile", "LICENSE", "README.md", "pyproject.toml", *LOCKS, "src")
"""Files of the tree that a build reads: the Dockerfile, and what `.dockerignore` includes."""

BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "netbase", "tzdata")
"""Contents of the image python:slim, as Debian's packages."""

BASE = "localhost/python:slim"
VARIANTS: Mapping[str, Sequence[str]] = {
    "llmkube": (),
    "llmkube-llama": ("--build-arg", "EXTRAS=llama", "--target", "llama-server"),
}
"""The images of the Dockerfile, and how each is asked for."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SHORT = 16
KEPT = 4
"""Archives of each image that stay: other trees on this machine use theirs."""


@dataclass(frozen=True)
class Image:
    """An archive that is there.

    Attributes:
        name: The name in pods.
        archive: An OCI archive.
    """

    name: str
    archive: Path


def reference(name: str) -> str:
    """Return what pods ask for."""
    return f"localhost/{name}:test"


def pinned(image: Image) -> str:
    """Return the image's name with its digest, as a chart wants it."""
    with tarfile.open(image.archive) as archive:
        index = archive.extractfile("index.json")
        assert index is not None
        return f"{image.name.rpartition(':')[0]}@{json.load(index)['manifests'][0]['digest']}"


def images(environ: Mapping[str, str] = os.environ) -> tuple[Image, ...]:
    """Return the images that this tree makes, built or not."""
    base = _digest(*_base_words())
    tree = _digest(*_tree_words())
    pause = Image(reference("pause"), _archive(environ, "pause", modules()[0].source_hash))
    ours = (
        Image(reference(name), _archive(environ, name, _digest(base, tree, *asked))) for name, asked in VARIANTS.items()
    )
    return (pause, *ours)


def build(log: Log, environ: Mapping[str, str] = os.environ) -> tuple[Image, ...]:
    """Build the images that are not there yet, and return all.

    Raises:
        BuildError: A package is not available, or a step failed; its output is on stderr.
    """
    wanted = images(environ)
    absent = [image for image in wanted if not image.archive.is_file()]
    if not absent:
        return wanted
    unpack_debian(log, environ)
    store = _Store(environ)
    store.folder.mkdir(parents=True, exist_ok=True)
    for image in absent:
        start = time.monotonic()
        name = image.archive.name.rpartition("-")[0]
        if name == "pause":
            _build_pause(store, image, environ)
        else:
            _build_ours(store, image, VARIANTS[name], log)
        made = sorted(image.archive.parent.glob(f"{name}-{'?' * SHORT}.tar"), key=lambda path: path.stat().st_mtime)
        for old in made[:-KEPT]:
            old.unlink()
        mebibytes = image.archive.stat().st_size / 2**20
        log(f"image {image.name}: {mebibytes:.0f} MiB, {time.monotonic() - start:.1f} s")
    return wanted


@dataclass(frozen=True)
class _Store:
    """buildah with a storage of its own."""

    environ: Mapping[str, str]

    @property
    def folder(self) -> Path:
        return cache_root(self.environ) / "images"

    def run(self, command: str, *words: str) -> str:
        """Run a command of buildah, and return what it printed."""
        configuration = debian_dir(self.environ) / "etc" / "containers"
        storage = ("--root", str(self.folder / "storage"), "--runroot", str(self.folder / "run"))
        policy = () if command in {"config", "inspect", "rm", "images"} else (
            "--signature-policy", str(configuration / "policy.json"),
        )  # fmt: skip
        return _run(
            with_debian(
                ["buildah", *storage, "--storage-driver", "overlay",
                 "--registries-conf", str(configuration / "registries.conf"), command, *policy, *words],
                self.environ,
            )
        )  # fmt: skip

    def push(self, image: Image) -> None:
        with tempfile.TemporaryDirectory(prefix=".push-", dir=self.folder) as scratch:
            archive = Path(scratch) / "image.tar"
            # what a node on the same machine reads: unpacking again would take longer than reading more
            self.run("push", "--quiet", "--disable-compression", image.name, f"oci-archive:{archive}:{image.name}")
            archive.replace(image.archive)


def _build_pause(store: _Store, image: Image, environ: Mapping[str, str]) -> None:
    container = store.run("from", "scratch").strip()
    store.run("copy", "--quiet", container, str(folder_of(modules()[0], environ) / "pause"), "/pause")
    store.run("config", "--entrypoint", '["/pause"]', "--user", "65535:65535", container)
    store.run("commit", "--quiet", "--rm", container, image.name)
    store.push(image)


def _build_ours(store: _Store, image: Image, asked: Sequence[str], log: Log) -> None:
    base = _base(store, log)
    # where a proxy of this machine signs for the world, pip has to believe it; the image does not keep it
    trust = ("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro") if CERTIFICATES.is_file() else ()
    arguments = ("--build-arg", f"BASE={base}", *asked)
    isolation = ("--layers", "--pull-never", "--isolation", "chroot", "--network", "host")
    store.run("build", *isolation, *trust, *arguments, "--tag", image.name, str(ROOT))
    store.push(image)


def _base(store: _Store, log: Log) -> str:
    """Return the base image's name and digest; it is built where the storage does not hold it."""
    tagged = f"{BASE}-{_digest(*_base_words())}"
    found = json.loads(store.run("images", "--json", "--filter", f"reference={tagged}") or "[]")
    if not found:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".base-", dir=store.folder) as scratch:
            archive = str(Path(scratch) / "base.tar")
            _run(with_debian(["mmdebstrap", *_mmdebstrap_options(), _suite(), archive], store.environ))
            container = store.run("from", "scratch").strip()
            store.run("add", "--quiet", container, archive, "/")
            store.run(
                "config", "--cmd", "python3", "--env", "PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", container
            )
            store.run("commit", "--quiet", "--rm", container, tagged)
        log(f"image {tagged}: {time.monotonic() - start:.1f} s")
        found = json.loads(store.run("images", "--json", "--filter", f"reference={tagged}"))
    return f"{tagged}@{found[0]['digest']}"


def _mmdebstrap_options() -> tuple[str, ...]:
    unread = (f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man"))
    python = '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python"'
    return ("--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", *unread, python)


def _suite() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")


# -- names ------------------------------------------------------------------------------------------------------------


def _archive(environ: Mapping[str, str], name: str, digest: str) -> Path:
    return cache_root(environ) / "images" / f"{name}-{digest}.tar"


def _base_words() -> tuple[str, ...]:
    return (_suite(), platform.machine(), *_mmdebstrap_options())


def _tree_words() -> Iterator[str]:
    for name in CONTEXT:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{file.relative_to(ROOT).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:SHORT]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: exit status {done.returncode}, see above\n{done.stdout[-2000:]}")
    return done.stdout


def main() -> int:
    """Build what is missing, and print each archive's path."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    try:
        built = build(log)
    except BuildError as error:
        log(str(error))
        return 1
    sys.stdout.writelines(f"{image.archive}\n" for image in built)
    return 0


if __name__ == "__main__":
    sys.exit(main())
