"""What other routers got wrong is held by tests: each number stands in the name of one that fails for it.

`test_defect_N_…` is about the implementation in Go, `test_failure_N_…` about gateways of 2026.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from docs.pages import ROOT

FINDINGS: Final = {
    "defect 1": "a provider without a tier was local",
    "defect 2": "the order of rules leaked",
    "defect 3": "two classes, or one in capitals, were none",
    "defect 4": "a request without a class could go anywhere",
    "defect 5": "clients' secrets went to providers",
    "defect 6": "redirects were followed, with body and key",
    "defect 7": "streams were cut at a limit, as if they were whole",
    "defect 8": "fields were accepted without effect",
    "defect 9": "the Service led to a closed port, and a base URL with /v1 was doubled",
    "defect 10": "a picture went to a backend that sees none",
    "defect 11": "`*` stopped at a slash",
    "defect 12": "429 led to no other backend",
    "defect 13": "one missing backend took the router down",
    "defect 14": "a model that was listed was not routable",
    "defect 15": "two keys of one provider were one",
    "defect 16": "one error shut a backend, and everyone probed it at once",
    "defect 17": "failures were in no metric, health was never 0, clients made up labels",
    "defect 18": "every change of the config was a restart",
    "defect 19": "keys were whole Secrets in the environment, and not rotated",
    "defect 21": "there were chat completions alone, and bodies were held back",
    "failure 1": "a client's token followed a fallback to other providers",
    "failure 2": "clients named addresses and keys",
    "failure 3": "the check of keys was an attack's way in",
    "failure 4": "a key was known by its beginning",
    "failure 5": "test and admin endpoints were open to other names",
    "failure 6": "what was installed was not what had been looked at",
    "failure 7": "a route had no meter",
    "failure 8": "budgets were charged afterwards",
    "failure 9": "a fallback went around what was permitted",
    "failure 10": "half an answer was sold as a whole one",
    "failure 11": "fields were accepted and inert",
    "failure 12": "a missing price was 0",
}
"""Every number, and what it is about. Defect 20 is about pools, which a router does not have; 22 about tests."""

_NUMBER: Final = re.compile(r"test_((?:defect|failure)_\d+)_\w+")


def held(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return the tests of each number."""
    found = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (named := _NUMBER.fullmatch(node.name)):
                found[named[1].replace("_", " ")].append(f"{path.name}::{node.name}")
    return dict(found)


def test_every_finding_is_held_by_a_test():
    """Each number has a test of its name, and no test names a number that is none."""
    assert set(held((ROOT / "tests").rglob("test_*.py"))) == set(FINDINGS)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("def test_defect_3_a():\n    pass", {"defect 3": ["test_x.py::test_defect_3_a"]}),
        ("async def test_failure_12_a():\n    pass", {"failure 12": ["test_x.py::test_failure_12_a"]}),
        ("def defect_3_a():\n    pass", {}),
        ("def test_a_defect_3():\n    pass", {}),
        ("if False:\n    def test_defect_3_a():\n        pass", {}),
    ],
)
def test_a_number_counts_in_the_name_of_a_test(tmp_path, text, numbers):
    """And nowhere else."""
    (tmp_path / "test_x.py").write_text(text)
    assert held([tmp_path / "test_x.py"]) == numbers
