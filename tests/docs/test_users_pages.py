"""What users looked for in the pages and did not find is there, and stands in one place."""

import re

import pytest

from docs.pages import ROOT

DOCS = ROOT / "docs"


def read(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_reference_says_what_an_unset_context_means():
    """D9: the row of `spec.contextSize` has the default's rule, and the page on models that of each runtime."""
    [row] = [line for line in read("crds.md").splitlines() if line.startswith("| `spec.contextSize` |")]
    assert "unset means what the model was trained for, 4096 at most" in row
    assert "| runtime | context in tokens when `spec.contextSize` is unset |" in read("models.md")


def test_there_is_one_table_of_metrics_and_one_page_about_no_network():
    """D10: a metric has its row in docs/metrics.md and nowhere else; docs/offline.md is the only page of its title."""
    rows = re.compile(r"^\| `llmkube_\w+` \|", re.MULTILINE)
    assert [page.name for page in DOCS.glob("*.md") if rows.search(page.read_text(encoding="utf-8"))] == ["metrics.md"]
    titles = {page.name: page.read_text(encoding="utf-8").partition("\n")[0] for page in DOCS.glob("*.md")}
    assert [
        name for name, title in titles.items() if re.search("offline|without.*(network|internet)", title, re.IGNORECASE)
    ] == ["offline.md"]


def test_it_is_said_that_personaplex_serves_https_alone():
    """D11: who asks it by http finds the reason and the way by the symptom."""
    section = read("troubleshooting.md").partition("## A PersonaPlex answers no http")[2].partition("\n## ")[0]
    assert "It serves https only" in section
    assert "curl -k" in section


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("gateway.md", "/v1"),
        ("metrics.md", "llmkube_"),
        ("cli.md", "llmkube deploy"),
        ("troubleshooting.md", "> "),
        ("mac.md", "launchd"),
        ("config.md", "config.toml"),
    ],
)
def test_each_page_that_was_missed_is_linked_from_the_first_one(page, words):
    """U25: the README leads to clients, metrics, commands, troubleshooting, the Mac and the settings."""
    linked = set(re.findall(r"\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8")))
    within = set(re.findall(r"\(([\w-]+\.md)", read("overview.md")))
    assert page in linked | within
    assert words in read(page)


def test_a_table_with_figures_of_the_original_is_below_how_they_were_made():
    """G8: a section that compares says of its figures of the Go implementation where they come from."""
    sections = re.split(r"^## ", read("benchmarks.md"), flags=re.MULTILINE)
    comparing = [each for each in sections if re.search(r"^\|.*Go implementation", each, re.MULTILINE)]
    assert comparing
    for section in comparing:
        prose = section.partition("\n|")[0]
        assert re.search(r"not of this run|was not run|by its sources", prose, re.IGNORECASE), section.partition("\n")[
            0
        ]
