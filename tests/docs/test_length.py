"""The pages stay short enough to be read."""

import re

from docs.pages import ROOT, name, pages

GENERATED = {f"docs/reference/{each}.md" for each in ("cli", "config", "crds", "metrics", "reasons")}
WORDS = 60_000
LIMITS = {
    "README.md": 400,
    "docs/README.md": 500,
    "docs/explanations": 1_300,
    "docs/explanations/architecture.md": 2_600,
    "docs/tutorials": 600,
    "docs/tutorials/mac-beside-a-cluster.md": 800,
}
"""Words of a page, or of each page in a folder."""


def words(page):
    """Return the words of a page; tables of measurements and of packages are not read as text."""
    text = page.read_text(encoding="utf-8")
    if page.name in ("benchmarks.md", "architecture.md"):
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    return len(text.split())


WRITTEN = [page for page in pages() if name(page) == "README.md" or name(page).startswith("docs/")]


def test_all_pages_together():
    """Without the generated pages."""
    lengths = {name(page): words(page) for page in WRITTEN if name(page) not in GENERATED}
    assert sum(lengths.values()) <= WORDS, sorted(lengths.items(), key=lambda each: -each[1])[:10]


def test_each_page_with_a_limit():
    for page in WRITTEN:
        limit = LIMITS.get(name(page), LIMITS.get(name(page.parent)))
        assert limit is None or words(page) <= limit, f"{name(page)} has {words(page)} words, and may have {limit}"
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 60
