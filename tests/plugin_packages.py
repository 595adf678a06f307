"""Packages with plug-ins, installed into a folder: the files that an installer writes, without an installer."""

import contextlib
import importlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmkube.runtimes.container import plugins

EXAMPLE = Path(__file__).parents[1] / "examples" / "runtime-plugin"


def forget() -> None:
    """Clear the cache of plug-ins."""
    plugins.installed.cache_clear()
    plugins.load.cache_clear()
    importlib.invalidate_caches()


def write_package(folder: Path, name: str, points: Mapping[str, str], version: str = "1.0") -> None:
    """Write the metadata that the installation of a package leaves."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}")


@contextlib.contextmanager
def imported_from(folder: Path) -> Iterator[None]:
    """Make the packages of a folder importable, and undo it afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
                del sys.modules[name]
        forget()


@contextlib.contextmanager
def example_installed(folder: Path) -> Iterator[None]:
    """Install examples/runtime-plugin as its pyproject.toml describes."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    write_package(folder, project["name"], project["entry-points"][plugins.GROUP], project["version"])
    (folder / "llmkube_echo").symlink_to(EXAMPLE / "src" / "llmkube_echo")
    with imported_from(folder):
        yield
