"""One line of the report: what is, whether that is well, why it matters, and what mends it."""

import enum
from collections.abc import Iterable

import attrs

from llmkube.programs.failures import ExitCode


class Verdict(enum.Enum):
    """How a finding counts."""

    PASS = "pass"  # noqa: S105 (not a password)
    WARN = "warn"
    FAIL = "fail"


@attrs.frozen
class Finding:
    """What one look has come to.

    Attributes:
        name: What was looked at.
        verdict: How that is.
        found: What is.
        why: Why it matters; empty when it is well.
        fix: The command, or the step, that mends it; empty when it is well.
    """

    name: str
    verdict: Verdict
    found: str
    why: str = attrs.field(default="", kw_only=True)
    fix: str = attrs.field(default="", kw_only=True)


def passed(name: str, found: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(name, Verdict.PASS, found)


def warned(name: str, found: str, *, why: str, fix: str) -> Finding:
    """Return a finding of what works now, and may not tomorrow."""
    return Finding(name, Verdict.WARN, found, why=why, fix=fix)


def failed(name: str, found: str, *, why: str, fix: str) -> Finding:
    """Return a finding of what keeps models from being served."""
    return Finding(name, Verdict.FAIL, found, why=why, fix=fix)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return 1 when something fails; a warning ends no script."""
    return ExitCode.FAILED if any(each.verdict is Verdict.FAIL for each in findings) else ExitCode.DONE
