"""The reference pages are up to date, and leave nothing out."""

import re

import click
import pytest

from docs.reference import REFERENCE, ROOT, commands, pages
from llmkube.k8s.wire.reasons import Reason


@pytest.mark.parametrize(("path", "text"), pages().items(), ids=lambda each: getattr(each, "name", ""))
def test_a_reference_page_agrees_with_the_code(path, text):
    """The page is what `make reference` would write now: if this fails, run it."""
    assert path.read_text(encoding="utf-8") == text


def test_the_page_of_commands_has_every_option():
    """Each command has its section, which lists each option that is not hidden."""
    sections = dict(re.findall(r"^### (llmkube .*?)\n\n```text\n(.*?)^```", _page("cli.md"), re.MULTILINE | re.DOTALL))
    for path, command, _ in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in sections[path], f"{path} has {option.opts[-1]}"


def test_the_page_of_metrics_has_every_one_that_the_chart_or_a_page_names():
    """Dashboards, rules and pages name no metric of ours that no program exports."""
    known = set(re.findall(r"^\| `(\w+)` \|", _page("metrics.md"), re.MULTILINE))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    for path in [
        *ROOT.glob("charts/**/*.json"),
        *ROOT.glob("charts/**/*rules*.yaml"),
        *ROOT.glob("docs/guides/helm.md"),
    ]:
        named = set(re.findall(r"\bllmkube_[a-z_]+[a-z]\b(?![{_*])", path.read_text(encoding="utf-8")))
        assert named <= known, f"{path.relative_to(ROOT)} names {named - known}"


def test_the_page_of_reasons_has_each_one_once():
    assert sorted(re.findall(r"^\| `(\w+)` \|", _page("reasons.md"), re.MULTILINE)) == sorted(Reason)


def _page(name):
    return (REFERENCE / name).read_text(encoding="utf-8")
