import pytest

from llmkube.programs.line_breaks import broken

PATH = "/a/path/that/is/longer/than/the/line"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", None, ["one two three"]),
        ("one two three", 80, ["one two three"]),
        ("one two three", 8, ["one two", "three"]),
        (f"see {PATH} there", 12, ["see", PATH, "there"]),
        ("  phase   one two three", 16, ["  phase   one", "          two", "          three"]),
        ("short\nand a longer one", 8, ["short", "and a", "longer", "one"]),
    ],
)
def test_lines_break_between_words(text, width, lines):
    """No word is cut, a column goes on below itself, and without a width nothing changes."""
    assert broken(text, width).split("\n") == lines
