"""Each package says what it is, has nothing else in its `__init__`, and names only modules that it has."""

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "llmkube"
PACKAGES = [path.parent for path in sorted(SOURCES.rglob("__init__.py")) if path.parent != SOURCES]
_ROW = re.compile(r"^    ([\w*]+(?:, [\w*]+)*)(?:  |$)", re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_package_is_described(package):
    """Its docstring is a sentence of its own and, where there is a table, each name in it is a module or a package."""
    tree = ast.parse((package / "__init__.py").read_text())
    about = ast.get_docstring(tree, clean=False) or ""
    assert [type(node) for node in tree.body] == [ast.Expr]
    assert " " in about.partition("\n")[0]
    assert len(about.splitlines()) <= 14
    named = [name for row in _ROW.findall(about) for name in row.split(", ")]
    assert [name for name in named if not any(package.glob(f"{name}.py")) and not (package / name).is_dir()] == []


@pytest.mark.parametrize("package", [SOURCES, *PACKAGES], ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_package_can_be_taken_in_at_a_glance(package):
    """A folder has at most twenty modules."""
    assert len([path for path in package.glob("*.py") if path.name != "__init__.py"]) <= 20
