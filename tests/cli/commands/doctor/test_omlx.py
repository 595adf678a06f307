"""What an oMLX beside our engines has in memory."""

import attrs
import pytest

from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.judge import judge
from llmkube.cli.commands.doctor.omlx import EMPTY_BYTES, Omlx

GIB = 1 << 30
FINE = Omlx(url="http://127.0.0.1:8000", loaded=1, said_bytes=4 * GIB, pid=7, held_bytes=5 * GIB)
EMPTY = attrs.evolve(FINE, loaded=0, said_bytes=0)


@pytest.mark.parametrize(
    ("fact", "verdict", "words"),
    [
        (FINE, "pass", "1 model loaded, 4.0 GiB by its own word; its process holds 5.0 GiB"),
        (attrs.evolve(EMPTY, held_bytes=GIB), "pass", "0 models loaded; its process holds 1.0 GiB"),
        (attrs.evolve(EMPTY, held_bytes=EMPTY_BYTES), "pass", "0 models loaded"),
        (attrs.evolve(FINE, loaded=2, pid=None), "pass", "2 models loaded, 4.0 GiB by its own word"),
        (EMPTY, "warn", "no model is loaded, and its process holds 5.0 GiB (pid 7)"),
        (EMPTY, "warn", "quit oMLX and start it again"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """What is well names what is loaded; what is not names the process and what helps."""
    (finding,) = judge([fact])
    assert finding.verdict is Verdict(verdict)
    assert words in f"{finding.found} {finding.why} {finding.fix}"


def test_a_machine_without_omlx_has_no_line():
    """Nobody is told of a program that he does not have."""
    assert judge([Omlx(url="http://127.0.0.1:8000")]) == ()
