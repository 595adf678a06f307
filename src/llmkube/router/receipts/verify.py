"""Reads lines of an audit log and names the first of each chain that does not follow from the one before."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs

from llmkube.router.receipts.chain import (
    BEFORE_KEY,
    CHAIN_KEY,
    CONFIG_KEY,
    END,
    HASH_KEY,
    KIND_KEY,
    KINDS,
    NONE_BEFORE,
    SEQUENCE_KEY,
    START,
    hash_of,
)

_MARK: Final = b'"chain"'


@attrs.define(kw_only=True)
class ChainReport:
    """What is known of one chain.

    Attributes:
        chain: Its name.
        lines: Lines that follow from one another.
        config: Digest of the newest config.
        last_hash: Of the last line that follows.
        ended: The last line says that nothing follows.
        broken: The first line that does not follow, with its place and why; "" when all do.
    """

    chain: str
    lines: int = 0
    config: str = ""
    last_hash: str = NONE_BEFORE
    ended: bool = False
    broken: str = ""


@attrs.frozen(kw_only=True)
class Verdict:
    """What is known of an audit log.

    Attributes:
        chains: In the order in which they begin.
        unreadable: Lines that were receipts and are none any more, with their place.
        others: Lines that are no receipts.
        held: The hashes that were asked for and that a line of an unbroken chain has.
    """

    chains: tuple[ChainReport, ...]
    unreadable: tuple[str, ...]
    others: int
    held: frozenset[str]

    @property
    def intact(self) -> bool:
        """Nothing was changed, put in or left out between the lines that are there."""
        return bool(self.chains) and not self.unreadable and not any(each.broken for each in self.chains)


def verify(lines: Iterable[tuple[str, bytes]], *, noted: frozenset[str] = frozenset()) -> Verdict:
    """Check an audit log.

    Args:
        lines: Each with its place, for people, oldest first; lines that are no receipts may be between.
        noted: Hashes that a reader has noted, which some line should have.
    """
    chains: dict[str, ChainReport] = {}
    unreadable: list[str] = []
    held: set[str] = set()
    others = 0
    for place, text in lines:
        if _MARK not in text:
            others += 1
            continue
        try:
            line = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            cut = "" if text.endswith(b"\n") else ", and its end is cut off"
            unreadable.append(f"{place}: it is no JSON object{cut}")
            continue
        if not isinstance(line, dict) or not isinstance(line.get(CHAIN_KEY), str):
            others += 1
            continue
        report = chains.setdefault(line[CHAIN_KEY], ChainReport(chain=line[CHAIN_KEY]))
        if report.broken:
            continue
        report.broken = next((f"{place}: {why}" for why in _misfits(report, line)), "")
        if not report.broken:
            _follow(report, line)
            held.update(noted & {report.last_hash})
    return Verdict(chains=tuple(chains.values()), unreadable=tuple(unreadable), others=others, held=frozenset(held))


def _misfits(report: ChainReport, line: dict[str, Any]) -> Iterator[str]:
    """Yield why a line does not follow from those before it."""
    number, kind = line.get(SEQUENCE_KEY), line.get(KIND_KEY)
    if report.ended:
        yield f"line {number} of the chain comes after its end"
    if type(number) is not int or number != report.lines:
        missing = "its beginning is missing" if not report.lines else f"after line {report.lines - 1} of the chain"
        yield f"line {number} of the chain stands where line {report.lines} should: {missing}"
    if kind not in KINDS or (kind == START) != (report.lines == 0):
        yield f"kind {kind!r} cannot stand here"
    if line.get(BEFORE_KEY) != report.last_hash:
        yield "it does not follow from the line before: one of the two was changed, or another was taken out"
    if line.get(HASH_KEY) != hash_of(line):
        yield "it was changed: its hash is not that of what it says"


def _follow(report: ChainReport, line: dict[str, Any]) -> None:
    report.lines += 1
    report.last_hash = line[HASH_KEY]
    report.ended = line[KIND_KEY] == END
    if isinstance(config := line.get(CONFIG_KEY), str):
        report.config = config


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: one reader would take the first, and another the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
