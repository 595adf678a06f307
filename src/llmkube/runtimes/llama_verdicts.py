"""A verdict per flag of llama-server: whether `spec.extraArgs` may hold it on a host, and why if not.

Who may edit an InferenceService must not be able to read the host's files, run its programs, open its network or slow
down what else runs there. So what `llama_verdicts.toml` does not list is refused: a new build's new flag waits for a
verdict. A test holds that table against the `--help` of the engines that it finds.

Sources: llama-server's own `--help` and tools/server/README.md, builds 6401 to 11434
(https://github.com/ggml-org/llama.cpp).
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

import attrs

from llmkube.base.package_data import read_table


class Kind(Enum):
    """What becomes of a flag in `spec.extraArgs`."""

    ALLOWED = "reaches the engine as it is"
    FIELD = "says what a field says too: reaches the engine unless the field says something else"
    OURS = "is written by LLMKube, from a field or by itself: refused, with where to write it instead"
    REFUSED = "would reach out of the engine: refused, unless the host's owner allows it by name"


@attrs.frozen
class Verdict:
    """What may be done with one flag.

    Attributes:
        kind: What becomes of it.
        spellings: All its names, and those of its opposite.
        values: How many words follow it as its value.
        detail: The field for FIELD, who decides for OURS, why for REFUSED; empty for ALLOWED.
        in_pods: Whether it holds in pods as well; there nothing of a host is in reach.
    """

    kind: Kind
    spellings: tuple[str, ...]
    values: int = 0
    detail: str = ""
    in_pods: bool = False


def _verdicts() -> Iterator[Verdict]:
    rows = read_table(__package__, "llama_verdicts")
    for row in rows["verdicts"]:
        kind, values, in_pods = Kind[row["kind"]], row["values"], row.get("in_pods", False)
        for detail, flags in row["flags"].items():
            for names in flags.split():
                yield Verdict(kind, tuple(names.split("|")), values, detail, in_pods)


VERDICTS: Final[Mapping[str, Verdict]] = {flag: verdict for verdict in _verdicts() for flag in verdict.spellings}
"""The verdict on each flag, by each of its names."""

_ACCESS: Final = frozenset({"--api-key-file", "--cors-origins"})
OURS: Final = _ACCESS | {flag for flag, verdict in VERDICTS.items() if verdict.kind is Kind.OURS and verdict.in_pods}
"""The flags that stand on every command line, or would contradict one that does: no owner can allow them."""


def spellings_of(flag: str) -> tuple[str, ...]:
    """Return all names of a flag and of its opposite; of one without a verdict, itself."""
    verdict = VERDICTS.get(flag)
    return verdict.spellings if verdict else (flag,)
