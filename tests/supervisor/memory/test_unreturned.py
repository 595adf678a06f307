"""When wired memory of an engine that has ended counts as kept, as tables."""

import pytest

from llmkube.supervisor.memory.unreturned import Unreturned

GIB = 1 << 30


def kept(*looks, suspected=40):
    """What is kept after looks at what others have wired, in GiB; the engine's 40 GiB are suspected after the first."""
    seen = Unreturned(GIB)
    for number, (others, settled) in enumerate(looks):
        if number == 1:
            seen.suspect(suspected * GIB)
        seen.note(int(others * GIB), settled=settled)
    return seen.size_bytes / GIB


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        ([(3, True), (3, True)], 0),  # it came back, and other programs have taken what was free
        ([(3, True), (43, True)], 40),
        ([(3, True), (23, True)], 20),
        ([(3, True), (3.5, True)], 0),  # not worth telling
        ([(3, True), (90, True)], 40),  # never more than the engine had
        ([(3, True), (43, True), (13, True)], 10),
        ([(3, True), (43, True), (13, True), (43, True)], 10),  # what others wire later is theirs
        ([(3, True), (43, True), (3, True), (43, True)], 0),
        ([(3, True), (43, False), (13, False)], 40),  # an engine loads, and has not wired yet what it was promised
        ([(3, True), (-7, False), (43, True)], 40),
        ([(43, True), (43, True)], 0),
    ],
)
def test_what_is_wired_for_nobody(looks, wanted):
    """It is what others have wired more than before, up to what the engine had, and it only becomes less."""
    assert kept(*looks) == wanted


def test_without_a_look_before_nothing_is_known():
    """An agent that starts on a Mac which keeps memory has nothing to compare with."""
    seen = Unreturned(GIB)
    seen.suspect(40 * GIB)
    seen.note(43 * GIB, settled=True)
    assert seen.size_bytes == 0
