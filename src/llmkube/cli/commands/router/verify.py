"""`llmkube router verify`: whether what routers wrote down is what they wrote down."""

import sys
from collections.abc import Iterator

import click

from llmkube.base.errors import UserError
from llmkube.cli.view.output import printable
from llmkube.programs.failures import CommandError
from llmkube.programs.options import HELP, guarded
from llmkube.router.receipts.verify import ChainReport, Verdict, verify


@click.command("verify", context_settings=HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--holds", "noted", multiple=True, metavar="HASH", help="Fail unless some line has this hash, noted elsewhere."
)
@guarded
def verify_receipts(*, files: tuple[str, ...], noted: tuple[str, ...]) -> None:
    """Check the receipts in an audit log: files oldest first, or -; other lines may be between.

    Each decision carries its own hash and that of the line before. This names the first line of each chain that was
    changed or that does not follow, and says of which chain the end is missing. Who can write the whole file can write
    another chain: compare a hash that was noted elsewhere (--holds). Exit code 1: something is broken.
    """
    verdict = verify(_lines(files), noted=frozenset(noted))
    click.echo(printable("\n".join(_report(verdict))))
    missing = [each for each in noted if each not in verdict.held]
    if missing:
        raise CommandError(f"no unbroken chain has {', '.join(missing)}")
    if not verdict.chains and not verdict.unreadable:
        raise CommandError("there is no receipt in it; give the audit log of a router")
    if not verdict.intact:
        raise CommandError("the log is not what the router wrote")


def _lines(files: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for name in files:
        if name == "-":
            yield from ((f"standard input, line {number}", line) for number, line in enumerate(sys.stdin.buffer, 1))
            continue
        try:
            with open(name, "rb") as file:  # noqa: PTH123 - read line by line: an audit log may be larger than memory
                yield from ((f"{name}, line {number}", line) for number, line in enumerate(file, 1))
        except OSError as exc:
            raise UserError(f"{name}: cannot be read ({exc.strerror})") from exc


def _report(verdict: Verdict) -> Iterator[str]:
    for report in verdict.chains:
        yield f"chain {report.chain}: {report.lines} lines follow, last hash {report.last_hash or 'none'}"
        yield f"  {_end_of(report)}"
    yield from (f"unreadable: {place}" for place in verdict.unreadable)
    yield f"{len(verdict.chains)} chains, {verdict.others} other lines"


def _end_of(report: ChainReport) -> str:
    if report.broken:
        return f"broken at {report.broken}"
    if report.ended:
        return "whole, with its end"
    return "unbroken, without its end: the router still runs, was killed, or lines are cut off"
