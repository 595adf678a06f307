"""What people ran into is held by tests: each number stands at the beginning of the docstring of one that fails for it.

U is what newcomers met, D what the first guides promise and did not hold, G what people met who came from the
implementation in Go.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from docs.pages import ROOT

FINDINGS: Final = {
    "U1": "a page in a browser could not use the gateway",
    "U2": "a context beyond the trained one was told as honoured",
    "U3": "the first commands went to a cluster that the user had not named",
    "U4": "a stopped model made clients wait for two minutes",
    "U5": "a memory cap set while a model runs was told as in force",
    "U6": "what can never fit counted as waiting",
    "U7": "a refused edit was told as a model that cannot be served",
    "U8": "a full disk was a traceback",
    "U9": "paths with spaces were refused",
    "U10": "the demo installed linters, said nothing for a minute and named no next command",
    "U11": "Ctrl-C in a deploy printed nothing",
    "U12": "a deleted Model left its file without a word",
    "U13": "no other machine could reach the gateway",
    "U14": "a wait for the network read like a time that is left",
    "U15": "a deploy began with the words of the failure before it",
    "U16": "a chat ended for ever at the end of its context",
    "U17": "a port that was forwarded to one model reached all of them",
    "U18": "hints led nowhere",
    "U19": "sources as people write them were refused, and a wrong digest cost three downloads",
    "U20": "tables and sentences broke at 80 columns",
    "U21": "status said one sentence three times, in an order that changed",
    "U22": "the shell completed no files",
    "U23": "help showed empty defaults",
    "U24": "`agent stop` ended a running `up`",
    "U25": "pages were missing",
    "D1": "a deploy of pods could never succeed",
    "D2": "one kind that cannot be listed stopped everything, and the controller called itself ready",
    "D3": "a Model's memoryBudget could not raise what a host gives by default",
    "D4": "the metrics of a generic engine were out of reach",
    "D5": "log lines and healthz were not those of the guides",
    "D6": "one name could not be served by pods and hosts together",
    "D7": "no quantization was shown where no header tells it",
    "D8": "a list had another reason than its wide form",
    "D9": "no page said what an unset context means",
    "D10": "metrics and offline use stood in several places",
    "D11": "no page said that PersonaPlex serves https alone",
    "D12": "a hint on a Mac named runtimes that no Mac has",
    "D13": "`--runtime generic` chose a Mac",
    "D14": "a bare controller named no PriorityClass",
    "D15": "no model could be deployed by its name from the catalog",
    "G1": "the arguments that people write were refused",
    "G2": "another agent took every service of a Mac out",
    "G3": "objects that were taken over kept half of the former",
    "G4": "kinds and fields since August were unknown",
    "G5": "defaults differed in silence",
    "G6": "clients that write protobuf were refused",
    "G7": "a stored ModelRouter was refused when it was applied again",
    "G8": "figures of two situations stood side by side",
}
"""Every number, and what people met."""

_NUMBERS: Final = re.compile(r"((?:[UDG]\d+(?:, )?)+): ")


def claimed(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each number that a test begins with, and the test; a file's own docstring stands for all of its tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tests = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    for node in (tree, *tests):
        found = _NUMBERS.match(ast.get_docstring(node) or "")
        where = path.name if isinstance(node, ast.Module) else f"{path.name}::{node.name}"
        for number in found[1].split(", ") if found and tests else ():
            yield number, where


def held(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return the tests of each number."""
    found = defaultdict(list)
    for path in paths:
        for number, test in claimed(path):
            found[number].append(test)
    return dict(found)


def test_every_finding_is_held_by_a_test():
    """Each number has a test that begins with it, and no test begins with a number that is none."""
    assert set(held((ROOT / "tests").rglob("test_*.py"))) == set(FINDINGS)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ('def test_a():\n    """U3: so."""', {"U3": ["test_x.py::test_a"]}),
        ('async def test_a():\n    """U3, D4: so."""', {"U3": ["test_x.py::test_a"], "D4": ["test_x.py::test_a"]}),
        ('"""U20: all of it."""\ndef test_a():\n    pass', {"U20": ["test_x.py"]}),
        ('"""U20: a page without tests."""', {}),
        ('def test_a():\n    """So, as in U3: no."""', {}),
        ('def helper():\n    """U3: no test."""\ndef test_a():\n    pass', {}),
    ],
)
def test_a_number_counts_at_the_beginning_of_a_test(tmp_path, text, numbers):
    (tmp_path / "test_x.py").write_text(text)
    assert held([tmp_path / "test_x.py"]) == numbers
