"""A chain that was changed, cut or added to is told, with the first line that does not follow."""

import json
import random

import pytest

from llmkube.router.receipts.chain import ReceiptChain
from llmkube.router.receipts.verify import verify

SHOWN = {"msg": "router.dispatch", "rule": "private", "backend": "mac"}


def written(count=5, *, name="c", ended=True):
    chain = ReceiptChain(chain=name)
    lines = [chain.start(config="sha256:1", fields={"router": "ml/front"})]
    lines += [chain.decision({**SHOWN, "number": number}) for number in range(count)]
    return lines + ([chain.end({})] if ended else [])


def checked(lines, **more):
    return verify(((f"line {number}", line) for number, line in enumerate(lines, 1)), **more)


def broken(lines):
    verdict = checked(lines)
    assert not verdict.intact
    return "\n".join(filter(None, [*(each.broken for each in verdict.chains), *verdict.unreadable]))


def test_what_a_router_wrote_is_whole():
    """With its count, its newest config and its end; lines of others between are counted."""
    lines = written()
    verdict = checked([b"other\n", *lines, b'{"level":"info"}\n'])
    assert verdict.intact
    assert verdict.others == 2
    report = verdict.chains[0]
    assert (report.lines, report.config, report.ended, report.broken) == (7, "sha256:1", True, "")
    assert report.last_hash == json.loads(lines[-1])["hash"]


def test_two_processes_have_two_chains_in_one_file():
    """Their lines may be mixed; one that is broken does not hide the other."""
    one, two = written(name="one"), written(name="two")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    verdict = checked(mixed)
    assert verdict.intact
    assert [each.lines for each in verdict.chains] == [7, 7]
    del mixed[4]
    verdict = checked(mixed)
    assert [bool(each.broken) for each in verdict.chains] == [True, False]


@pytest.mark.parametrize("place", range(7))
def test_a_changed_line_is_named(place):
    """In any field, at any place: the line itself, by its own hash."""
    lines = written()
    lines[place] = lines[place].replace(b'"chain":"c"', b'"chain":"c","extra":1')
    assert broken(lines) == f"line {place + 1}: it was changed: its hash is not that of what it says"


def test_a_changed_line_with_a_hash_of_its_own_breaks_the_next():
    """Who changes one and reckons its hash has to change all after it."""
    chain = ReceiptChain(chain="c")
    forged = [
        chain.start(config="sha256:1", fields={"router": "ml/front"}),
        chain.decision({**SHOWN, "backend": "cloud"}),
    ]
    lines = written()
    lines[:2] = forged
    assert broken(lines).startswith("line 3: it does not follow from the line before")


def test_a_line_that_is_taken_out_put_in_or_moved_is_told():
    """The numbers and the hashes before tell."""
    lines = written()
    assert broken(lines[:3] + lines[4:]).startswith("line 4: line 4 of the chain stands where line 3 should")
    assert broken([*lines[:3], lines[2], *lines[3:]]).startswith("line 4: line 2 of the chain stands where line 3")
    assert broken([*lines[:2], lines[3], lines[2], *lines[4:]]).startswith("line 3: line 3 of the chain")
    assert "its beginning is missing" in broken(lines[1:])
    assert "comes after its end" in broken([*lines, lines[-1]])


def test_a_missing_end_is_told_and_breaks_nothing():
    """A router that runs has none yet; one whose last lines were cut off has none either."""
    for lines in (written(ended=False), written()[:-1], written()[:3]):
        verdict = checked(lines)
        assert verdict.intact
        assert not verdict.chains[0].ended


def test_a_line_that_is_cut_off_is_told():
    """Half a line at the end of a file."""
    lines = written(ended=False)
    assert broken([*lines[:-1], lines[-1][:50]]) == "line 6: it is no JSON object, and its end is cut off"


def test_a_key_that_stands_twice_is_no_receipt():
    """One reader would take the first, and another the last."""
    lines = written()
    lines[2] = lines[2].replace(b'"backend":"mac"', b'"backend":"cloud","backend":"mac"')
    assert "line 3: it is no JSON object" in broken(lines)


def test_a_rewritten_chain_is_told_by_a_hash_that_was_noted():
    """Without one it is as good as the first: that is what a hash chain can do and what it cannot."""
    noted = frozenset({json.loads(written()[3])["hash"]})
    assert checked(written(), noted=noted).held == noted
    chain = ReceiptChain(chain="c")
    lines = [chain.start(config="sha256:1", fields={}), *(chain.decision(SHOWN) for _ in range(5)), chain.end({})]
    verdict = checked(lines, noted=noted)
    assert verdict.intact
    assert verdict.held == frozenset()


def test_no_change_of_a_byte_goes_unseen():
    """Any one byte of any line, replaced: the log is not intact, or says the same."""
    dice = random.Random(3)
    lines = written()
    same = [json.loads(line) for line in lines]
    unseen = 0
    for _ in range(1500):
        place = dice.randrange(len(lines))
        line = bytearray(lines[place][:-1])
        line[dice.randrange(len(line))] = dice.randrange(256)
        changed = [*lines[:place], bytes(line) + b"\n", *lines[place + 1 :]]
        if checked(changed).intact and place < len(lines) - 1:
            assert [json.loads(each) for each in changed] == same
            unseen += 1
    assert unseen < 100
