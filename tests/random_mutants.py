"""Change one random line of a module with decisions, and run its tests: an undetected change is printed.

    python -m tests.random_mutants --count 120 --seed 7 [--jobs 2] [MODULE…]

Mutants are created in a copy of the tree. A survivor is a missing test, or a change without an effect; the reader
has to decide which. Exits with 1 if fewer than four of five were detected.
"""

import argparse
import ast
import copy
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "src" / "llmkube"

DECIDING: Final = (
    "supervisor/**/*.py",
    "router/policy/*.py",
    "router/budgets/*.py",
    "router/fair_queue.py",
    "router/dispatch/*verdict*.py",
    "k8s/wire/*.py",
    "k8s/reflector.py",
    "k8s/workqueue.py",
    "controller/status/*.py",
    "runtimes/process/*.py",
    "weights/store/*.py",
    "apiserver/fields/*.py",
    "programs/daemon_engine/decisions.py",
    "programs/daemon_engine/omlx_model.py",
)

FURTHER: Final = {"supervisor": ["tests/pressure", "tests/sim"], "k8s": ["tests/sim"], "programs": ["tests/mac"]}
"""Tests next to those of the mutant's package that play the whole program."""

SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip

CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutations(tree: ast.Module) -> Iterator[tuple[ast.AST, str, object]]:
    """Yield each possible change: a node, the name of its field, and the new value of that field."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[op]) if type(op) in SWAPS:
                yield node, "ops", [SWAPS[type(op)]()]
            case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in SWAPS:
                yield node, "op", SWAPS[type(node.op)]()
            case ast.If() | ast.IfExp() | ast.While():
                yield node, "test", ast.UnaryOp(ast.Not(), node.test)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield node, "value", ast.Constant(None)
            case ast.Constant(value=bool() as value):
                yield node, "value", not value
            case ast.Constant(value=int() | float() as value):
                yield node, "value", value + 1
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield node, "func", ast.Name(CALLS[name], ast.Load())
            case ast.Expr(value=ast.Call() | ast.Await() as value) if not ast.unparse(value).startswith("log."):
                yield node, "value", ast.Constant(None)


def mutant(path: Path, dice: random.Random) -> tuple[str, str] | None:
    """Return the text of a module with one change, and the change; None if nothing in the module can be changed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = ast.Module([node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)], [])
    places = [each for each in mutations(inside) if hasattr(each[0], "lineno")]
    if not places:
        return None
    node, field, value = dice.choice(places)
    before = ast.unparse(copy.deepcopy(node)).partition("\n")[0]
    setattr(node, field, value)
    ast.fix_missing_locations(tree)
    return ast.unparse(tree), f"{path.relative_to(SOURCES)}:{node.lineno}: {before}  ->  " + ast.unparse(
        node
    ).partition("\n")[0]


def suites(module: Path) -> list[list[str]]:
    """Return the test suites of a module, to be run until one fails: its own tests, its folder's, its package's."""
    mirrored = Path("tests") / module.relative_to(SOURCES)
    own = mirrored.with_name(f"test_{mirrored.name}")
    folder = next(each for each in mirrored.parents if any((ROOT / each).glob("test_*.py")))
    floor = module.relative_to(SOURCES).parts[0]
    return [[str(own)]] * (ROOT / own).exists() + [[str(folder)], [f"tests/{floor}", *FURTHER.get(floor, [])]]


def is_killed(tree: Path, module: Path, seconds: float) -> str:
    """Run the tests of a changed module in a copy of the tree; return the first suite that fails, or an empty text."""
    environment = os.environ | {
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'tests'}",
        "LLMKUBE_LENGTHS": "sample",
    }
    for suite in suites(module):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-xq",
            "-p",
            "no:cacheprovider",
            "-m",
            "not envtest and not node",
            *suite,
        ]
        try:
            done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return f"{suite[0]} (timeout)"
        if done.returncode not in {0, 5}:  # 5: no test was collected
            return suite[0]
    return ""


def main() -> None:
    """Run the sample, print each survivor, and at the end the number of killed mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="paths below src/llmkube; those that decide unless given")
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=900, help="after which a suite that still runs has noticed")
    given = parser.parse_args()
    dice = random.Random(given.seed)
    modules = sorted({path for each in given.modules or DECIDING for path in SOURCES.glob(each)})
    work: queue.Queue[tuple[Path, tuple[str, str]]] = queue.Queue()
    while work.qsize() < given.count:
        module = dice.choices(modules, [each.stat().st_size for each in modules])[0]
        if (made := mutant(module, dice)) is not None:
            work.put((module, made))
    survivors: list[str] = []

    def play() -> None:
        with tempfile.TemporaryDirectory(prefix="mutants") as folder:
            tree = Path(folder)
            for part in ("src", "tests", "pyproject.toml", "charts", "docs", "Makefile"):
                copied = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
                copied(ROOT / part, tree / part)
            while not work.empty():
                module, (text, change) = work.get()
                place = tree / module.relative_to(ROOT)
                original = place.read_text(encoding="utf-8")
                place.write_text(text, encoding="utf-8")
                by = is_killed(tree, module, given.seconds)
                place.write_text(original, encoding="utf-8")
                print(f"{f'killed by {by}' if by else 'SURVIVED'}: {change}", flush=True)
                survivors.extend([] if by else [change])

    threads = [threading.Thread(target=play) for _ in range(given.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"seed {given.seed}: {given.count - len(survivors)} of {given.count} killed", *survivors, sep="\n")
    sys.exit(len(survivors) * 5 > given.count)


if __name__ == "__main__":
    main()
