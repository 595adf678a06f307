"""What `llmkube router verify` says of an audit log, and how it ends."""

import json

import pytest
from click.testing import CliRunner

from llmkube.cli.commands.router.command import router
from llmkube.router.receipts.chain import ReceiptChain


def written(*, ended=True):
    chain = ReceiptChain(chain="c1")
    lines = [chain.start(config="sha256:1", fields={"router": "ml/front"})]
    lines += [chain.decision({"rule": "private", "number": number}) for number in range(3)]
    return lines + ([chain.end({})] if ended else [])


def check(tmp_path, *parts, arguments=()):
    names = []
    for number, lines in enumerate(parts):
        path = tmp_path / f"audit.{number}"
        path.write_bytes(b"".join(lines))
        names.append(str(path))
    result = CliRunner().invoke(router, ["verify", *arguments, *names])
    return result.exit_code, result.output.replace(f"{tmp_path}/", "")


def test_a_log_that_is_whole(tmp_path):
    """Its lines, its last hash, its end; over files that were rotated, with other lines between."""
    lines = written()
    last = json.loads(lines[-1])["hash"]
    code, text = check(tmp_path, [b"starting\n", *lines[:2]], lines[2:])
    assert code == 0
    assert text == f"chain c1: 5 lines follow, last hash {last}\n  whole, with its end\n1 chains, 1 other lines\n"


def test_a_log_without_its_end(tmp_path):
    """It may run, it may have been killed, or somebody has cut the lines off: that is told, and is no failure."""
    code, text = check(tmp_path, written(ended=False))
    assert code == 0
    assert "unbroken, without its end: the router still runs, was killed, or lines are cut off" in text


def test_the_first_line_that_does_not_follow_is_named(tmp_path):
    """By file and number, and the exit code says that something is broken."""
    lines = written()
    lines[2] = lines[2].replace(b"private", b"public!")
    code, text = check(tmp_path, lines)
    assert code == 1
    assert "  broken at audit.0, line 3: it was changed: its hash is not that of what it says" in text
    assert "the log is not what the router wrote" in text


def test_a_line_that_is_no_json_any_more_is_named(tmp_path):
    """Half of one at the end of a file."""
    lines = written(ended=False)
    code, text = check(tmp_path, [*lines[:-1], lines[-1][:60]])
    assert code == 1
    assert "unreadable: audit.0, line 4: it is no JSON object, and its end is cut off" in text


def test_a_hash_that_was_noted_is_looked_for(tmp_path):
    """A log that was written anew as a whole has other hashes."""
    noted = json.loads(written()[1])["hash"]
    assert check(tmp_path, written(), arguments=("--holds", noted))[0] == 0
    code, text = check(tmp_path, written(), arguments=("--holds", "0" * 64))
    assert code == 1
    assert f"no unbroken chain has {'0' * 64}" in text


@pytest.mark.parametrize("lines", [[], [b"a log of something else\n"]])
def test_a_file_without_receipts_is_no_success(tmp_path, lines):
    """Who checks the wrong file learns it."""
    code, text = check(tmp_path, lines)
    assert code == 1
    assert "there is no receipt in it; give the audit log of a router" in text


def test_standard_input_and_a_file_that_is_not_there(tmp_path):
    """`-` reads what another program prints."""
    result = CliRunner().invoke(router, ["verify", "-"], input=b"".join(written()))
    assert result.exit_code == 0
    result = CliRunner().invoke(router, ["verify", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "cannot be read" in result.output
