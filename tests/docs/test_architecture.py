"""The walks of the page on the architecture are in this tree."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from docs.pages import ROOT

SOURCE = ROOT / "src" / "llmkube"
PAGE = (ROOT / "docs" / "explanations" / "architecture.md").read_text()
MAX_FILES = (20, 15, 9, 20)  # watch to exec, watch to Deployment, request to engine, request to provider
WALKS = {
    title: re.findall(r"`([\w/]+\.py)`", files)
    for title, files in re.findall(r"^### (From [^\n]+)\n.*?^\d+ files: (.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
}

HANDED_OVER = {
    ("controller/event_handlers.py", "k8s/workqueue.py"): "controller/reconciler.py, one queue per kind",
    ("controller/reconciler.py", "controller/reconcile/inference_services.py"): "a function of controller/operator.py",
    (
        "router/model_field.py",
        "programs/one_machine.py",
    ): "a look-up that `up` hands to the gateway",
    ("router/front_door.py", "router/proxy/handler.py"): "the listed fields that router/proxy/router.py hands in",
}
"""The steps of a walk that no import shows, and what carries them."""


def _imports(file: str) -> set[str]:
    """Return the files of this package that a file imports from."""
    names = set[str]()
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("llmkube."):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {f"{module.removeprefix('llmkube.').replace('.', '/')}.py" for module in names}


def test_the_page_has_four_walks():
    """The page describes four walks, and none is longer than what was promised of it."""
    assert len(WALKS) == len(MAX_FILES)
    assert all(len(files) <= most for files, most in zip(WALKS.values(), MAX_FILES, strict=True))


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_counts_its_files(title):
    """The number before a walk is the number of different files that it names, and each of them is there."""
    files = WALKS[title]
    stated = re.search(rf"^### {re.escape(title)}\n.*?^(\d+) files: ", PAGE, re.MULTILINE | re.DOTALL)
    assert stated is not None
    assert int(stated[1]) == len(files) == len(set(files))
    assert [file for file in files if not Path(SOURCE, file).is_file()] == []


@pytest.mark.parametrize("title", WALKS)
def test_each_step_of_a_walk_is_in_the_code(title):
    """A file of a walk is imported by one before it, or imports the last: only what `HANDED_OVER` lists goes else."""
    files = WALKS[title]
    unseen = {
        (before, after)
        for number, (before, after) in enumerate(pairwise(files), 1)
        if not any(after in _imports(file) for file in files[:number]) and before not in _imports(after)
    }
    assert unseen == {step for step in HANDED_OVER if step in set(pairwise(files))}


def test_what_is_handed_over_is_a_step():
    """The list of steps without an import names only steps of the page."""
    steps = {step for files in WALKS.values() for step in pairwise(files)}
    assert set(HANDED_OVER) <= steps
