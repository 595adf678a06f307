"""A module whose docstring, or whose package's docstring, has the word "Pure." loads neither Trio nor psutil nor httpx.

Modules are imported alone, each in a new interpreter, so that an import through a library or an `__init__` is found as
well. So is an import by another module of the list; `make soak` imports each module first, which also finds cycles of
imports.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lengths import SOAK

ROOT = Path(__file__).parents[1]

FORK_SERVER = """
import gc, importlib, json, os, sys
import attrs, cattrs, structlog, yaml  # the libraries that most modules share are loaded once, before the forks
gc.disable()
modules, forbidden, each = json.loads(sys.argv[1])
assert not set(forbidden) & set(sys.modules)
shown = set()
for module in modules:
    if module in shown:
        continue
    answers, answer = os.pipe()
    if not os.fork():
        importlib.import_module(module)
        with open(answer, "w") as file:
            json.dump([sorted(set(forbidden) & set(sys.modules)), sorted(sys.modules)], file)
        os._exit(0)
    os.close(answer)
    with open(answers) as file:
        found, loaded = json.load(file)
    os.wait()
    for one in [module] if each or found else set(loaded).intersection(modules):
        shown.add(one)
        print(json.dumps([one, found]))
"""


SOURCES = ROOT / "src"
FORBIDDEN = ["httpx", "psutil", "trio"]


def pure_modules():
    """Return the modules whose docstring has the word "Pure.", and all modules of a package whose docstring has it."""
    for file in sorted((SOURCES / "llmkube").rglob("*.py")):
        about = [file, *(parent / "__init__.py" for parent in file.parents if SOURCES / "llmkube" in parent.parents)]
        if any("Pure." in (ast.get_docstring(ast.parse(each.read_text())) or "") for each in about):
            yield ".".join(file.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


def imported_alone(modules, forbidden, *, each=SOAK):
    """Import modules in forks of a new interpreter; return the forbidden modules that each has loaded.

    Unless `each` is set, a module is skipped that another one has loaded without loading a forbidden one.
    """
    server = [sys.executable, "-c", FORK_SERVER, json.dumps([modules, forbidden, each])]
    done = subprocess.run(server, stdout=subprocess.PIPE, text=True, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.ci
def test_a_pure_module_loads_nothing_forbidden():
    """Neither directly nor through other modules; every module of the list can be imported first."""
    pure = list(pure_modules())
    assert imported_alone(pure, FORBIDDEN) == {module: [] for module in pure}


def test_an_impure_module_is_found():
    """The check finds a library that is imported by another module of ours."""
    assert imported_alone(["llmkube.k8s.reflector"], ["trio", "httpx", "psutil"]) == {
        "llmkube.k8s.reflector": ["httpx", "trio"]
    }
