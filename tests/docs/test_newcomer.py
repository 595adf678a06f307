"""The newcomer's terminal notices what fails and what is not shown."""

import os

from docs.newcomer import COLUMNS, open_terminal
from docs.newcomer import missing as missing_of
from docs.pages import Block


def test_a_terminal_tells_how_a_command_ended_and_what_it_showed(tmp_path):
    with open_terminal(tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}) as terminal:
        assert terminal.run("(exit 3)")[0] == 3
        code, shown = terminal.run("stty size; pwd")
    assert code == 0
    assert f" {COLUMNS}" in shown
    assert str(tmp_path) in shown


def test_a_line_that_a_block_shows_and_the_terminal_does_not_is_missing():
    block = Block("a.md", "console", "", "$ llmkube list \\\n    -A\nNAME  PHASE\n")
    assert missing_of(block, "NAME  PHASE\r\nchat  Ready") == []
    assert missing_of(block, "nothing") == ["NAME  PHASE"]
