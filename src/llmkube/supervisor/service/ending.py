"""Why an engine has ended is told by what ended it, how it exited, and its last words."""

from collections.abc import Sequence
from typing import Final

import attrs

from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.exits import ExitCause, Rule, classify
from llmkube.supervisor.nouns.lifecycle import Exit, Failure

LAST_LINES: Final = 20
"""How much of an engine's own words goes into a condition."""


@attrs.define(eq=False)
class Outcome:
    """How far an engine has come, and how it has ended; filled in as it happens.

    Attributes:
        published: It is, or may be, known to the API server as one that serves.
        ready_at: When it first answered, on Trio's clock.
        exit: How its process ended by itself.
        failure: Why it had to be ended.
    """

    published: bool = False
    ready_at: float | None = None
    exit: Exit | None = None
    failure: Failure | None = None


def failure_of(
    outcome: Outcome,
    lines: Sequence[str],
    *,
    rules: Sequence[Rule],
    now: float,
    memory_kills: int,
    memory_short: bool,
) -> Failure:
    """Say why an engine has ended.

    Args:
        outcome: How far it came, and what ended it.
        lines: Its last lines, oldest first.
        rules: What lines of its runtime mean.
        now: The time on Trio's clock.
        memory_kills: How many processes the kernel has killed for lack of memory where the engine ran.
        memory_short: Whether the host was short of memory at the last look.
    """
    words = "\n" + "\n".join(lines) if lines else ""
    seconds = 0.0 if outcome.ready_at is None else now - outcome.ready_at
    if outcome.exit is None and outcome.failure is not None:
        return attrs.evolve(outcome.failure, message=outcome.failure.message + words, ready_seconds=seconds)
    code = outcome.exit.code if outcome.exit else None
    why = classify(
        code,
        lines,
        rules=rules,
        memory_kills=memory_kills,
        memory_short=memory_short,
        for_signature=outcome.exit is not None and outcome.exit.for_signature,
    )
    loading = outcome.ready_at is None
    reason = Reason.PORT_TAKEN if why.cause is ExitCause.PORT_TAKEN and loading else Reason.ENGINE_EXITED
    because = f": {why}" if why.summary else ""
    when = "while loading" if loading else "while serving"
    return Failure(reason, f"the engine ended {when}: {outcome.exit}{because}{words}", seconds)
