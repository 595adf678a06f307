"""Where a call gives more than three values of one kind, the reader sees which is which: they are given by name."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import llmkube

SOURCES: Final = Path(llmkube.__file__).parent
MOST: Final = 3
EXCEPTIONS: Final = frozenset(
    {
        "Resource",  # group, version, kind, plural: as Kubernetes names a resource
    }
)
"""Callables whose order is given from outside."""

Signature = tuple[str, ...]
"""The kinds of the parameters that a call may give by position, in order."""


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    parameters = [each for each in (*node.args.posonlyargs, *node.args.args) if each.arg not in ("self", "cls")]
    return tuple(ast.unparse(each.annotation) if each.annotation else each.arg for each in parameters)


def _of_class(node: ast.ClassDef) -> Signature:
    decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
    if "attrs." not in decorators:
        initialiser = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
        return _of_function(initialiser) if isinstance(initialiser, ast.FunctionDef) else ()
    if "kw_only=True" in decorators:
        return ()
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    hidden = ("init=False", "kw_only=True")
    shown = [each for each in fields if not any(word in ast.unparse(each.value or each.target) for word in hidden)]
    kinds = [ast.unparse(each.annotation) for each in shown]
    return tuple(kind for kind in kinds if not kind.startswith("ClassVar"))


def signatures(trees: list[ast.Module]) -> dict[str, list[Signature]]:
    """What each public name of the package takes; a name that several modules define has several."""
    found: dict[str, list[Signature]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(_of_class(node))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).append(_of_function(node))
    return {name: several for name, several in found.items() if not name.startswith("_")}


def crowded(trees: list[ast.Module]) -> Iterator[str]:
    """The names of what is called with more than `MOST` values of one kind by position, whatever defines the name."""
    known = signatures(trees)
    for tree in trees:
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            given = len(call.args)
            several = known.get(name, [])
            if several and all(max(Counter(kinds[:given]).values(), default=0) > MOST for kinds in several):
                yield f"{name} (line {call.lineno})"


def test_values_of_one_kind_are_given_by_name():
    """No call of the package gives more than three values of one kind by position."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCES.rglob("*.py"))]
    found = sorted(set(crowded(trees)))
    assert [call for call in found if call.partition(" ")[0] not in EXCEPTIONS] == []


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("def f(a: int, b: int, c: int, d: int): ...\nf(1, 2, 3, 4)", ["f (line 2)"]),
        ("def f(a: int, b: int, c: int, d: int): ...\nf(1, 2, 3, d=4)", []),
        ("def f(a: int, b: int, c: int, d: str): ...\nf(1, 2, 3, '')", []),
        ("@attrs.frozen\nclass C:\n    a: int\n    b: int\n    c: int\n    d: int\nC(1, 2, 3, 4)", ["C (line 7)"]),
        ("class C:\n    def f(self, a: int, b: int, c: int, d: int): ...\nx.f(1, 2, 3, 4)", ["f (line 3)"]),
    ],
)
def test_the_rule_sees_what_it_shall(definition, expected):
    """Functions, methods and attrs classes are judged by what a call gives by position."""
    assert list(crowded([ast.parse(definition)])) == expected
