"""An unmodified kubectl prints the same about the embedded server as about a real one, command by command."""

import difflib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import yaml

from envtest.build import assets_dir
from envtest.kubectl_script import SCRIPT
from envtest.kubectl_text import Allowed, Row, Session
from llmkube.apiserver.server import open_api_server

pytestmark = [pytest.mark.envtest, pytest.mark.kubectl]

_ALLOWED_FILE = Path(__file__).with_name("kubectl_allowed.yaml")
ALLOWED = [Allowed(**row) for row in yaml.safe_load(_ALLOWED_FILE.read_text(encoding="utf-8"))]


_CONDITION_MET = re.compile(r"^\S+ condition met\n", re.MULTILINE)


@attrs.define(eq=False)
class Comparison:
    """The result of the rows."""

    rows: int = 0
    equal: int = 0
    used: set[Allowed] = attrs.Factory(set)
    differences: list[str] = attrs.Factory(list)

    def add(self, row: Row, real: str, ours: str) -> None:
        """Judge one row."""
        self.rows += 1
        if "--for=delete" in row.title:  # printed only if the object still exists when kubectl looks first
            real, ours = (_CONDITION_MET.sub("", each) for each in (real, ours))
        if real == ours:
            self.equal += 1
            return
        for allowed in (each for each in ALLOWED if each.applies(row)):
            shorter = allowed.without(real), allowed.without(ours)
            if shorter != (real, ours):
                self.used.add(allowed)
            real, ours = shorter
        if real != ours:
            lines = difflib.unified_diff(real.splitlines(), ours.splitlines(), "real", "embedded", lineterm="", n=2)
            self.differences.append("\n".join([f"$ kubectl {row.title}", *lines]))

    def summary(self) -> str:
        """Return the counts in one line."""
        unequal = len(self.differences)
        return f"{self.rows} rows: {self.equal} equal, {self.rows - self.equal - unequal} allowed, {unequal} different"


def _programs() -> Iterator[Any]:
    built = str(assets_dir() / "kubectl")
    yield built
    installed = shutil.which("kubectl")
    if installed is not None and os.path.realpath(installed) != os.path.realpath(built):
        yield pytest.param(installed, marks=pytest.mark.soak)


@pytest.fixture(params=_programs(), ids=str)
def kubectl(request: pytest.FixtureRequest) -> str:
    """The kubectl built with the control plane, and in the soak the machine's own."""
    if not os.access(request.param, os.X_OK):
        pytest.skip(f"needs {request.param}: run `make envtest`")
    return request.param


async def _play(session: Session, rows: Sequence[Row], outputs: list[str]) -> None:
    outputs.extend([await session.run(row) for row in rows])


async def test_kubectl_prints_the_same_about_both_servers(kubectl: str, real_kubeconfig: Path, tmp_path: Path) -> None:
    """Every command of the script prints the same text, apart from the differences that are allowed by name."""
    namespace = f"llmkube-text-{uuid.uuid4().hex[:6]}"
    real_outputs: list[str] = []
    our_outputs: list[str] = []
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    async with open_api_server(state, port=0) as handle, trio.open_nursery() as nursery:
        real = Session.open(kubectl, real_kubeconfig, tmp_path / "real", namespace)
        ours = Session.open(kubectl, handle.kubeconfig, tmp_path / "ours", namespace)
        nursery.start_soon(_play, real, SCRIPT, real_outputs)
        nursery.start_soon(_play, ours, SCRIPT, our_outputs)
    comparison = Comparison()
    for row, theirs, mine in zip(SCRIPT, real_outputs, our_outputs, strict=True):
        comparison.add(row, theirs, mine)
    assert not comparison.differences, "\n\n".join([*comparison.differences, comparison.summary()])
    stale = [each.reason for each in ALLOWED if each not in comparison.used]
    assert not stale, f"no longer needed: {stale}"


def test_no_two_rows_have_one_title() -> None:
    """A report names each row in one way."""
    titles = [row.title for row in SCRIPT]
    assert sorted(set(titles)) == sorted(titles)
