"""The pages that a user reads, cut into what a test can check: links, anchors, inline code and fenced blocks."""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*<<'(\w+)'.*\n(?s:.*?)^\2$|(?:.*\\\n)*.*)$", re.MULTILINE)
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


def pages() -> list[Path]:
    """Return every Markdown page of the repository that is written by hand."""
    folders = ("", "docs/", "docs/*/", "examples/*/", "tests/", "launchd/", "deployment/*/")
    return sorted(page for folder in folders for page in ROOT.glob(f"{folder}*.md"))


def name(page: Path) -> str:
    """Return the page's path from the root, as tests and messages call it."""
    return str(page.relative_to(ROOT))


@attrs.frozen
class Block:
    """A fenced block: its page, its language, what the fence says behind the language, and its text."""

    page: str
    language: str
    note: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a console block: each begins with `$ `, and continues while its line ends in a backslash.

        A here-document (`<<'END'`) belongs to its command.
        """
        return [found[1] for found in _COMMAND.finditer(self.text)]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the page's fenced blocks, in order."""
    for fence, text in _FENCE.findall(page.read_text()):
        language, _, note = fence.partition(" ")
        yield Block(name(page), language, note.strip(), text)


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the page's headings as GitHub writes them behind a `#`."""
    headings = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {_NOT_IN_ANCHORS.sub("", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}
