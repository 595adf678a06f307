"""What users looked for in the pages and did not find is there, and stands in one place."""

import plistlib
import re

import pytest
from click.testing import CliRunner

from docs.pages import ROOT
from llmkube.cli.commands.programs.agent import agent
from llmkube.supervisor.power.powermetrics import POWERMETRICS

DOCS = ROOT / "docs"


def read(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_reference_says_what_an_unset_context_means():
    """The row of `spec.contextSize` has the default's rule, and the page on models that of each runtime."""
    [row] = [line for line in read("crds.md").splitlines() if line.startswith("| `spec.contextSize` |")]
    assert "unset means what the model was trained for, 4096 at most" in row
    assert "| runtime | context in tokens when `spec.contextSize` is unset |" in read("models.md")


def test_there_is_one_table_of_metrics_and_one_page_about_no_network():
    """A metric has its row in docs/metrics.md and nowhere else; docs/offline.md is the only page of its title."""
    rows = re.compile(r"^\| `llmkube_\w+` \|", re.MULTILINE)
    assert [page.name for page in DOCS.glob("*.md") if rows.search(page.read_text(encoding="utf-8"))] == ["metrics.md"]
    titles = {page.name: page.read_text(encoding="utf-8").partition("\n")[0] for page in DOCS.glob("*.md")}
    assert [
        name for name, title in titles.items() if re.search("offline|without.*(network|internet)", title, re.IGNORECASE)
    ] == ["offline.md"]


def test_it_is_said_that_personaplex_serves_https_alone():
    """Who asks it by http finds the reason and the way by the symptom."""
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
    """The README leads to clients, metrics, commands, troubleshooting, the Mac and the settings."""
    linked = set(re.findall(r"\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8")))
    within = set(re.findall(r"\(([\w-]+\.md)", read("overview.md")))
    assert page in linked | within
    assert words in read(page)


def test_a_table_with_figures_of_the_original_is_below_how_they_were_made():
    """A section that compares says of its figures of the Go implementation where they come from."""
    sections = re.split(r"^## ", read("benchmarks.md"), flags=re.MULTILINE)
    comparing = [each for each in sections if re.search(r"^\|.*Go implementation", each, re.MULTILINE)]
    assert comparing
    for section in comparing:
        prose = section.partition("\n|")[0]
        assert re.search(r"not of this run|was not run|by its sources", prose, re.IGNORECASE), section.partition("\n")[
            0
        ]


# -- deployment/macos/README.md ---------------------------------------------------------------------------------------

MACOS = ROOT / "deployment" / "macos" / "README.md"


def test_the_page_on_macos_shows_the_line_of_sudoers_that_the_program_prints(monkeypatch):
    """It is that of `llmkube agent sudoers` for user 501; each word is explained, and the file is that of make."""
    monkeypatch.setattr("os.getuid", lambda: 501)
    printed = CliRunner().invoke(agent, ("sudoers",)).output
    page = MACOS.read_text(encoding="utf-8")
    [shown] = re.findall(r"^```sudoers\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown == printed
    explained = " ".join(re.findall(r"^\| `(.+?)` \| ", page.partition("| part | meaning |")[2], re.MULTILINE))
    assert explained == printed.splitlines()[1].replace("ALL=(root)", "ALL (root)")
    tried = re.findall(r"^\$ sudo -k -n (.*)$", page, re.MULTILINE)
    assert tried[0] == " ".join(POWERMETRICS) != tried[1]
    [file] = re.findall(r"^POWER_RULE := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"sudo install -m 0440 -o 0 -g 0 powermetrics.sudoers {file}\n" in page


def test_the_page_on_macos_lists_what_the_agent_exports():
    """The names are those of docs/metrics.md that an agent on a Mac has, and no others."""
    rows = re.findall(r"^\| `(llmkube_\w+)` \|.* \| (.*?) \|$", read("metrics.md"), re.MULTILINE)
    exported = {metric for metric, programs in rows if {"agent", "agent on a Mac"} & {*programs.split(", ")}}
    section = MACOS.read_text(encoding="utf-8").partition("\n## Metrics\n")[2].partition("\n## ")[0]
    listed = {f"llmkube_metal_agent_{each}" for line in re.findall(r"^\* (.*(?:\n  .*)*)", section, re.MULTILINE)
              for each in re.findall(r"`([a-z]\w+)`", line)}  # fmt: skip
    assert listed | {*re.findall(r"`(llmkube_download_\w+)`", section)} == exported


def test_the_page_on_macos_tunes_the_keys_that_the_plist_has():
    """Each key of the table is in the job as the installer writes it, with the number that the table gives."""
    page = MACOS.read_text(encoding="utf-8").partition("| key | value | reason |")[2].partition("\nLeave")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", page, re.MULTILINE)
    job = plistlib.loads((ROOT / "launchd" / "com.llmkube.metal-agent.plist").read_bytes())
    assert rows
    for keys, value in rows:
        for key in re.findall(r"\w+", keys):
            assert key in job or value.endswith("only with `--daemon`"), key
            assert not value.isdigit() or job[key] == int(value)
