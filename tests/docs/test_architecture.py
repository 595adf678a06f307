"""The page on the architecture speaks of this tree: its rooms, its walks, its words."""

import ast
import re
from pathlib import Path

import pytest

from docs.pages import ROOT

SOURCE = ROOT / "src" / "llmkube"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_FILES = (14, 16, 8)  # watch to exec, watch to Deployment, request to engine
WALKS = {
    title: re.findall(r"`([\w/]+\.py)`", files)
    for title, files in re.findall(r"^### (From [^\n]+)\n.*?^\d+ files: (.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
}


def _imports(file: str) -> set[str]:
    """Return the files of this package that a file imports from."""
    names = set[str]()
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("llmkube."):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {f"{module.removeprefix('llmkube.').replace('.', '/')}.py" for module in names}


def test_the_table_of_rooms_lists_exactly_the_packages():
    """Each package has its row in the table of rooms, and each row its package."""
    rows = re.findall(r"^\| `([\w/]+)` \|", PAGE.partition("| room |")[2].partition("\n\n")[0], re.MULTILINE)
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    assert sorted(rows) == sorted(packages)


def test_the_page_has_three_walks():
    """The page describes three walks, and none is longer than what was promised of it."""
    assert len(WALKS) == len(MOST_FILES)
    assert all(len(files) <= most for files, most in zip(WALKS.values(), MOST_FILES, strict=True))


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_counts_its_files(title):
    """The number before a walk is the number of different files that it names, and each of them is there."""
    files = WALKS[title]
    said = re.search(rf"^### {re.escape(title)}\n.*?^(\d+) files: ", PAGE, re.MULTILINE | re.DOTALL)
    assert said is not None
    assert int(said[1]) == len(files) == len(set(files))
    assert [file for file in files if not Path(SOURCE, file).is_file()] == []


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_does_not_leave_the_code(title):
    """Each file of a walk imports or is imported by another one of it, unless the page says to what it is handed."""
    files = set(WALKS[title])
    imports = {file: (_imports(file) & files) - {file} for file in files}
    imported = set().union(*imports.values())
    alone = {file for file in files if not imports[file] and file not in imported}
    assert sorted(file for file in alone if f"`{file}` is handed to " not in PAGE) == []


def test_the_glossary_has_at_most_forty_words():
    """The glossary explains at least one word, and at most forty."""
    table = PAGE.partition("## Glossary")[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    assert 1 <= len(table.splitlines()) <= 40
