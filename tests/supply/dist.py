"""Implement `make dist`: write all files of a release, made from the last commit and the same bytes each time.

    dist/llmkube-VERSION-py3-none-any.whl     the wheel
    dist/llmkube-VERSION.tar.gz               the sources
    dist/llmkube-VERSION-requirements.txt     what it needs, pinned by digest: requirements/llama.txt
    dist/llmkube-VERSION-shell.tar.gz         manual pages (man/man1), and completions for bash, zsh and fish
    dist/llmkube.rb                           Homebrew's formula, where URL names the folder of the release
    dist/llmkube-VERSION.cdx.json             the same as an SBOM, with licences and who needs whom (CycloneDX)
    dist/SHA256SUMS                           their digests, as `sha256sum --check` reads them

Nothing is written before the wheel has been installed with exactly the pinned packages, and has run. Nothing is
signed: `make sign` does that.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"

TEMPLATE = "packaging/homebrew/llmkube.rb"

_SLOT = re.compile(r"@([A-Z0-9]+)@")
_COMMENT = re.compile(r"\A(?:#.*\n)+")

_PIN = re.compile(r"^([a-z0-9-]+)==([^\s;]+)", re.MULTILINE)


class DistError(Exception):
    """The release cannot be built; the message says why."""


def sums(files: Mapping[str, bytes]) -> str:
    """Return the lines of SHA256SUMS, sorted by name."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items()))


def sbom_faults(sbom: Mapping[str, Any], lock: str, needed: Sequence[str]) -> list[str]:
    """Say where an SBOM and the lock that it was made from disagree; empty if they do not.

    Args:
        sbom: CycloneDX, as JSON.
        lock: The text of the lock.
        needed: Packages that the project itself names; each has to hang from the SBOM's own component.
    """
    pinned: dict[str, set[str]] = {}
    for name, version in _PIN.findall(lock):
        pinned.setdefault(name, set()).add(version)
    listed = {_plain(each["name"]): each["version"] for each in sbom.get("components", ())}
    faults = [f"{name} {version} is not what the lock pins" for name, version in listed.items() if version not in
              pinned.get(name, ())]  # fmt: skip
    faults += [f"{name} is missing" for name in map(_plain, needed) if name not in listed]
    refs = {each["bom-ref"]: _plain(each["name"]) for each in sbom.get("components", ())}
    root = sbom.get("metadata", {}).get("component", {}).get("bom-ref")
    direct = {
        refs.get(ref)
        for each in sbom.get("dependencies", ())
        if each["ref"] == root
        for ref in each.get("dependsOn", ())
    }
    faults += [f"{name} does not hang from the root" for name in map(_plain, needed) if name not in direct]
    return faults


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def formula(template: str, project: Mapping[str, Any], sdist: tuple[str, bytes], base_url: str) -> str:
    """Return Homebrew's formula of a release. Pure.

    Args:
        template: The file with slots.
        project: The table of that name in pyproject.toml.
        sdist: The name and the content of the sources.
        base_url: The folder in which the release is published.

    Raises:
        ValueError: The address is none that Homebrew fetches from, or the template has a slot that nothing fills.
    """
    url = urlsplit(base_url)
    if url.scheme != "https" or not url.hostname or set(base_url) & set("\"'#\\ \n"):
        raise ValueError(f"URL={base_url}: give the https:// address of the folder in which the release is published")
    name, content = sdist
    values = {
        "HOMEPAGE": f"https://{url.netloc}",
        "URL": f"{base_url.rstrip('/')}/{name}",
        "VERSION": str(project["version"]),
        "SHA256": hashlib.sha256(content).hexdigest(),
        "LICENSE": str(project["license"]),
    }
    body = _COMMENT.sub("", template)
    unknown = set(_SLOT.findall(body)) - set(values)
    if unknown:
        raise ValueError(f"{TEMPLATE} has @{'@, @'.join(sorted(unknown))}@, which nothing fills")
    return _SLOT.sub(lambda found: values[found[1]], body)


def build_packages(source: Path, folder: Path, epoch: int) -> None:
    """Build the sdist and the wheel of a source tree; the time, in seconds since 1970, is that of every file in them.

    Raises:
        DistError: The build failed.
    """
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=source, env=env)


def export(repository: Path, folder: Path) -> int:
    """Write the files of the last commit into a folder, and return when it was made, in seconds since 1970.

    Raises:
        DistError: This is no clone.
    """
    epoch = int(_run(["git", "log", "-1", "--format=%ct"], cwd=repository))
    with tarfile.open(fileobj=io.BytesIO(_run(["git", "archive", "--format=tar", "HEAD"], cwd=repository))) as archive:
        archive.extractall(folder, filter="data")
    return epoch


def build(target: Path, say: Callable[[str], None], repository: Path = ROOT, url: str = "") -> None:
    """Build everything and write it into a folder.

    Raises:
        DistError: A step failed, or the SBOM is not what the lock says.
    """
    if _run(["git", "status", "--porcelain"], cwd=repository):
        say("what is not committed is not in it")
    with tempfile.TemporaryDirectory(prefix="llmkube-dist-") as scratch:
        place = Path(scratch)
        source, built = place / "source", place / "built"
        source.mkdir()
        built.mkdir()
        epoch = export(repository, source)
        say("wheel and sources ...")
        build_packages(source, built, epoch)
        (wheel,) = built.glob("*.whl")
        name = "-".join(wheel.name.split("-")[:2])
        lock = source / "requirements" / "llama.txt"
        shutil.copyfile(lock, built / f"{name}-requirements.txt")
        say("what the lock pins ...")
        installed = _environment(place / "installed", lock)
        say("SBOM ...")
        _write_sbom(place, installed, built / f"{name}.cdx.json", epoch)
        say("a run of the wheel ...")
        _install(installed, "--no-deps", "--no-index", str(wheel))
        output = _run([str(installed.with_name("llmkube")), "version"], cwd=place).decode()
        if output.split() != name.split("-"):
            raise DistError(f"the wheel of {name} says that it is {output.strip()}")
        say("manual pages and completions ...")
        (built / f"{name}-shell.tar.gz").write_bytes(
            _shell_files(installed.with_name("llmkube"), place / "shell", epoch)
        )
        if url:
            _write_formula(source, built, name, url)
        files = {path.name: path.read_bytes() for path in built.iterdir()}
        target.mkdir(parents=True, exist_ok=True)
        for each, content in {**files, SUMS: sums(files).encode()}.items():
            (target / each).write_bytes(content)


def _write_formula(source: Path, built: Path, name: str, url: str) -> None:
    sdist = built / f"{name}.tar.gz"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    try:
        text = formula((source / TEMPLATE).read_text(), project, (sdist.name, sdist.read_bytes()), url)
    except ValueError as error:
        raise DistError(str(error)) from error
    (built / "llmkube.rb").write_text(text)


def _shell_files(program: Path, folder: Path, epoch: int) -> bytes:
    """Return what a shell needs, as the installed program writes it: the same bytes each time."""
    completions = folder / "completions"
    completions.mkdir(parents=True)
    _run([str(program), "man", str(folder / "man" / "man1")], cwd=folder)
    for shell in ("bash", "zsh", "fish"):
        (completions / f"llmkube.{shell}").write_bytes(_run([str(program), "completion", shell], cwd=folder))
    return packed(folder, epoch)


def packed(folder: Path, epoch: int) -> bytes:
    """Return a folder's files as a .tar.gz that depends on their names and contents alone."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch, 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return out.getvalue()


def _write_sbom(place: Path, installed: Path, file: Path, epoch: int) -> None:
    tools = _environment(place / "tools", place / "source" / "requirements" / "release.txt")
    project = place / "source" / "pyproject.toml"
    options = ["--pyproject", str(project), "--output-reproducible", "--validate", "--output-file", str(file)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _run([str(tools.with_name("cyclonedx-py")), "environment", *options, str(installed)], cwd=place, env=env)
    asked = tomllib.loads(project.read_text())["project"]["dependencies"]
    needed = [re.split(r"[<>=!~;\[ ]", each, maxsplit=1)[0] for each in asked]
    lock = (place / "source" / "requirements" / "llama.txt").read_text()
    if faults := sbom_faults(json.loads(file.read_text()), lock, needed):
        raise DistError(f"the SBOM and the lock disagree: {'; '.join(faults)}")


def _environment(folder: Path, lock: Path) -> Path:
    """Make an environment with what a lock pins and nothing else, not even pip, and return its Python."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], cwd=folder.parent)
    python = folder / "bin" / "python"
    _install(python, "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock))
    return python


def _install(python: Path, *what: str) -> None:
    uv = shutil.which("uv")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
    command = [uv, "pip", "install", "--python", str(python)] if uv else pip
    _run([*command, "--quiet", *what], cwd=python.parent)


def _run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> bytes:
    # without our own PYTHONPATH: what runs here is what was installed
    clean = {name: value for name, value in (env or os.environ).items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, cwd=cwd, env=clean, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        raise DistError(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        output = (done.stdout + done.stderr).decode(errors="replace")
        raise DistError(f"{' '.join(command)}: exit status {done.returncode}\n{output}")
    return done.stdout


def main() -> int:
    """Build the release; 1 if that cannot be, with the reason on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path, help="folder that gets the files")
    parser.add_argument("--url", default="", help="folder in which the release is published; writes llmkube.rb too")
    arguments = parser.parse_args()
    try:
        build(arguments.target, _log, url=arguments.url)
    except DistError as error:
        _log(str(error))
        return 1
    sys.stdout.write((arguments.target / SUMS).read_text())
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"dist: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
