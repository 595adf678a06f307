"""What `.importlinter` calls pure really loads none of what it forbids, whatever the import graph says of it.

import-linter reads our own sources only. Here each module of the list is imported alone, in an interpreter that has
loaded nothing before, so that an import through a library or an `__init__` shows as well.
"""

import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACT = "importlinter:contract:pure"

FORK_SERVER = """
import gc, importlib, json, os, sys
import attrs, cattrs, structlog, yaml  # the libraries that most modules share are loaded once, before the forks
gc.disable()
modules, forbidden = json.loads(sys.argv[1])
assert not set(forbidden) & set(sys.modules)
for module in modules:
    if not os.fork():
        importlib.import_module(module)
        loaded = sorted(set(forbidden) & set(sys.modules))
        os.write(1, json.dumps([module, loaded]).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def contract(option):
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return parser[CONTRACT][option].split()


def modules_of(entry):
    """Name the modules of an entry of the list: one module, or a package and everything in it."""
    path = ROOT / "src" / entry.replace(".", "/")
    if not path.is_dir():
        return [entry]
    files = (file.relative_to(ROOT / "src").with_suffix("") for file in sorted(path.rglob("*.py")))
    return [".".join(file.parts).removesuffix(".__init__") for file in files]


PURE = [module for entry in contract("source_modules") for module in modules_of(entry)]


def imported_alone(modules, forbidden):
    """Import each module in a fork of a fresh interpreter; return what each has loaded of the forbidden ones."""
    halves = [modules[0::2], modules[1::2]]  # on a processor each
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", FORK_SERVER, json.dumps([half, forbidden])], stdout=subprocess.PIPE, text=True
        )
        for half in halves
    ]
    lines = [line for server in servers for line in server.communicate()[0].splitlines()]
    assert [server.returncode for server in servers] == [0, 0]
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def loaded():
    forbidden = [name for name in contract("forbidden_modules") if name not in sys.stdlib_module_names]
    return imported_alone(PURE, forbidden)


def test_a_pure_module_loads_nothing_forbidden(loaded):
    """Neither Trio nor psutil nor httpx, by whatever way; every module of the list can be imported first."""
    assert loaded == {module: [] for module in PURE}


def test_an_impure_module_is_found():
    """The check sees a library that comes through another module of ours."""
    assert imported_alone(["llmkube.k8s.reflector"], ["trio", "httpx", "psutil"]) == {
        "llmkube.k8s.reflector": ["httpx", "trio"]
    }
