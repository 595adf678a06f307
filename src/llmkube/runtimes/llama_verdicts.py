"""A verdict for each flag of llama-server: whether `spec.extraArgs` may contain it on a host, and why not.

A user who can edit an InferenceService must not be able to read the host's files, run its programs, open its network or
slow down other programs. So flags that `llama_verdicts.toml` does not list are rejected: a new flag needs a verdict
first. A test compares the table with the `--help` of the engines that it finds.

Sources: llama-server's own `--help` and tools/server/README.md, builds 6401 to 11434
(https://github.com/ggml-org/llama.cpp).
"""

import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

import attrs

from llmkube.base.package_data import read_table


class Kind(Enum):
    """Treatment of a flag in `spec.extraArgs`."""

    ALLOWED = "is passed to the engine as it is"
    FIELD = "has the same effect as a field: passed to the engine unless the field has another value"
    OURS = "is controlled by a field or by LLMKube itself: rejected, and the message names that field, or LLMKube"
    REFUSED = "has an effect outside the engine: rejected, unless the owner of the host allows it by name"


@attrs.frozen
class Verdict:
    """The verdict on one flag.

    Attributes:
        kind: Treatment of the flag.
        spellings: All its names, and those of its opposite.
        values: Number of arguments after it that are its value.
        detail: The field for FIELD, what controls the flag for OURS, the reason for REFUSED; empty for ALLOWED.
        in_pods: Whether the verdict also applies in pods, from which a host cannot be reached.
        limits: Range of its value, if that is a number.
        unsafe: Builds of llama.cpp in which it must not be used.
    """

    kind: Kind
    spellings: tuple[str, ...]
    values: int = 0
    detail: str = ""
    in_pods: bool = False
    limits: "Limits | None" = None
    unsafe: "UnsafeBuilds | None" = None


@attrs.frozen
class Limits:
    """Range of a flag's value on a host.

    Attributes:
        least: Smallest value, as written.
        most: Largest value, as written.
    """

    least: str
    most: str

    def problem(self, text: str) -> str:
        """Return why a value is not in the range, with the fix; "" if it is."""
        is_decimal = bool({".", "e"} & {*self.least, *self.most})
        try:
            number = float(text) if is_decimal else int(text)
        except ValueError:
            number = math.nan
        if float(self.least) <= number <= float(self.most):
            return ""
        return f"write {'a number' if is_decimal else 'a whole number'} from {self.least} to {self.most}"


@attrs.frozen
class UnsafeBuilds:
    """Builds of llama.cpp in which a flag must not be used.

    Attributes:
        flag: The flag.
        first: The first of them.
        last: The last of them.
        reason: The reason.
    """

    flag: str
    first: int
    last: int
    reason: str

    def problem(self, version: str) -> str:
        """Return why the flag must not be used in a program of this version, with the fix; "" if it may."""
        build = build_of(version)
        if build is None or not self.first <= build <= self.last:
            return ""
        fix = f"install a llama-server after b{self.last}, or remove the flag"
        return f"{self.flag} is refused: the build b{build} of the engine has {self.reason}; {fix}"


_BUILD: Final = re.compile(r"b?(?P<own>\d{3,6})(?![\d.])|.*\bxllamacpp 20\d\d\.\d+\.(?P<bundled>\d+)", re.ASCII)
"""A version of llama-server (`9611 (02182fc5b)`), or of the bundled engine, whose package ends with the build."""


def build_of(version: str) -> int | None:
    """Return the number of llama.cpp's build in a program's version; None if it has none."""
    found = _BUILD.match(version)
    return int(found["own"] or found["bundled"]) if found else None


def _verdicts() -> Iterator[Verdict]:
    rows = read_table(__package__, "llama_verdicts")
    limits = {flag: Limits(*bounds.split()) for bounds, flags in rows["ranges"].items() for flag in flags.split()}
    unsafe = {row["flag"]: UnsafeBuilds(**row) for row in rows["unsafe_builds"]}
    for row in rows["verdicts"]:
        kind, values, in_pods = Kind[row["kind"]], row["values"], row.get("in_pods", False)
        for detail, flags in row["flags"].items():
            for names in flags.split():
                spellings = tuple(names.split("|"))
                first = spellings[0]
                yield Verdict(kind, spellings, values, detail, in_pods, limits.get(first), unsafe.get(first))


VERDICTS: Final[Mapping[str, Verdict]] = {flag: verdict for verdict in _verdicts() for flag in verdict.spellings}
"""Verdicts by flag, under each of its names."""

_ACCESS: Final = frozenset({"--api-key-file", "--cors-origins"})
OURS: Final = _ACCESS | {flag for flag, verdict in VERDICTS.items() if verdict.kind is Kind.OURS and verdict.in_pods}
"""Flags that are on every command line, or conflict with one that is: an owner cannot allow them."""


def spellings_of(flag: str) -> tuple[str, ...]:
    """Return all names of a flag and of its opposite; only the flag itself if it has no verdict."""
    verdict = VERDICTS.get(flag)
    return verdict.spellings if verdict else (flag,)
