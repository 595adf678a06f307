"""Each message of docs/guides/troubleshooting.md is one that a program writes today."""

import ast
import re

from docs.pages import ROOT


def test_the_page_quotes_only_messages_of_the_programs():
    """The texts between placeholders of a quoted line are in one string of the sources, in this order or in parts."""
    quoted = re.findall(
        r"^> (.*)$", (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src" / "llmkube").rglob("*.py"))
    strings = {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    parts = {part.strip("; ") for line in quoted for part in re.split(r"\{[^}]*\}", line) if len(part.strip("; ")) > 3}
    assert parts
    assert not [part for part in parts if not any(part in each for each in strings)]
