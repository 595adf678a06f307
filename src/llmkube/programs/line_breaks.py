"""Long lines break between words on a terminal, and stay whole everywhere else. Pure."""

import re
import textwrap


def broken(text: str, width: int | None) -> str:
    """Return text whose lines have no more characters than `width`, None for any number; no word is cut.

    What is broken goes on below the last column that the line has.
    """
    if width is None:
        return text
    return "\n".join(line if len(line) <= width else _broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    columns = [found.end() for found in re.finditer(r"(?<=\S) {2,}(?=\S)", line[:width])]
    hanging = columns[-1] if columns and columns[-1] <= width * 2 // 3 else 0
    return textwrap.fill(
        line, width=width, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * hanging
    )
