"""Findings: a verdict, the state, why it matters, and the fix; as text and JSON."""

import enum
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import click

from llmkube import __version__
from llmkube.cli.view.output import line_width, printable
from llmkube.programs.failures import ExitCode, runnable


class Verdict(enum.Enum):
    """The severity of a finding."""

    PASS = "pass"  # noqa: S105 (not a password)
    WARN = "warn"
    FAIL = "fail"


_COLORS: Final = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


@attrs.frozen
class Finding:
    """One entry of the report.

    Attributes:
        name: Name of the checked part; empty for the name of the probe.
        verdict: Its severity.
        found: The observed state.
        why: Why it matters; empty if the verdict is PASS.
        fix: The command or step that fixes it; empty if the verdict is PASS.
    """

    name: str = attrs.field(default="", kw_only=True)
    verdict: Verdict
    found: str
    why: str = attrs.field(default="", kw_only=True)
    fix: str = attrs.field(default="", kw_only=True)


def passed(found: str, *, name: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(Verdict.PASS, found, name=name)


def warned(found: str, *, why: str, fix: str, name: str = "") -> Finding:
    """Return a finding of something that works now but may fail later."""
    return Finding(Verdict.WARN, found, why=why, fix=fix, name=name)


def failed(found: str, *, why: str, fix: str, name: str = "") -> Finding:
    """Return a finding of something that prevents serving, or lets others use the models."""
    return Finding(Verdict.FAIL, found, why=why, fix=fix, name=name)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return 1 if any finding failed; warnings do not change the exit code."""
    return ExitCode.FAILED if any(each.verdict is Verdict.FAIL for each in findings) else ExitCode.DONE


def as_text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, with reason and fix below, and a summary as the last line."""
    width = max(len(each.name) for each in findings)
    return "\n".join([*(_lines(each, width) for each in findings), "", summary(findings)])


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON."""
    lines = [attrs.asdict(each) | {"verdict": each.verdict.value, "fix": runnable(each.fix)} for each in findings]
    return json.dumps({"llmkube": __version__, **_counts(findings), "findings": lines}, indent=2, ensure_ascii=False)


def summary(findings: Sequence[Finding]) -> str:
    """Return `1 fail, 2 warn, 14 pass. Nothing was changed here.`."""
    counts = _counts(findings)
    parts = [f"{counts['fail']} fail", f"{counts['warn']} warn", f"{counts['pass']} pass"]
    return f"{', '.join(parts)}. Nothing was changed here."


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    return {verdict.value: sum(each.verdict is verdict for each in findings) for verdict in Verdict}


def _lines(finding: Finding, width: int) -> str:
    verdict = finding.verdict.value
    first, indent = f"{verdict}  {finding.name.ljust(width)}  ", " " * (width + len(verdict) + 4)
    text = [_wrap(first, indent, finding.found)]
    text += [_wrap(indent, indent, finding.why)] if finding.why else []
    text += [_wrap(indent, indent, f"fix: {finding.fix}")] if finding.fix else []
    block = "\n".join(text)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        block = click.style(verdict, fg=_COLORS[finding.verdict], bold=True) + block[len(verdict) :]
    return block


def _wrap(first: str, indent: str, text: str) -> str:
    """Return the text after `first`, wrapped and indented on a terminal, on one line elsewhere."""
    line, width = runnable(printable(text.replace("\n", " "))), line_width()
    if width is None:
        return first + line
    return textwrap.fill(
        line, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
