"""Each sentence of docs/troubleshooting.md is one that a program says today."""

import re

from docs.pages import ROOT
from docs.sentences import collect


def test_the_page_quotes_only_what_the_programs_say():
    """A quoted line is a whole sentence of the sources, so one that changes there has to change here."""
    quoted = re.findall(r"^> (.*)$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    said = {each.text.strip("; ") for each in collect()}
    assert quoted
    assert not [line for line in quoted if line not in said]
