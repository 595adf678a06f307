import io

import pytest
from rich.text import Text

from llmkube.cli.view.consoles import open_console


@pytest.mark.parametrize(("no_color", "styled"), [("", True), ("1", False)])
def test_no_color_leaves_out_every_style(monkeypatch, no_color, styled):
    """Bold and dim go with the colours: whoever sets NO_COLOR wants the words."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = io.StringIO()
    open_console(file=drawn, force_terminal=True).print(Text("word", style="bold"), end="")
    assert ("\x1b[" in drawn.getvalue()) is styled
    assert "word" in drawn.getvalue()
