"""Why an engine ended, from how it ended and what it said last. Pure.

Each runtime has words of its own, as rows of `exit_rules.toml`; the phases of a load and `metal_error` are llama.cpp's.

The words move between llama.cpp versions, so each cause is known by several, and an exit whose words say nothing is
told as it is: code, signal, last lines. The first rule that matches wins; they are ordered from the particular to the
general, because a failed allocation, too, ends with "failed to load model".
"""

import re
import signal
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import attrs

from llmkube.base.package_data import read_table


class ExitCause(StrEnum):
    """What ended an engine."""

    BAD_FLAG = "BadFlag"
    BAD_MODEL = "BadModel"
    PORT_TAKEN = "PortTaken"
    BAD_ADDRESS = "BadAddress"
    OUT_OF_MEMORY = "OutOfMemory"
    MEMORY_KILL = "MemoryKill"
    METAL_ERROR = "MetalError"
    BAD_SIGNATURE = "BadSignature"
    MISSING_LIBRARY = "MissingLibrary"
    BAD_SETTING = "BadSetting"
    CRASH = "Crash"
    SIGNAL = "Signal"
    UNKNOWN = "Unknown"


@attrs.frozen
class Diagnosis:
    """Why an engine ended.

    Attributes:
        cause: What kind of end it was.
        summary: One clause that says so, with the engine's decisive words; "" when they say nothing that is known.
        next_step: What the user can do about it; "" where nothing is obvious.
    """

    cause: ExitCause
    summary: str
    next_step: str = ""

    def __str__(self) -> str:
        """The clause and the next step, as a condition says them."""
        return f"{self.summary}; {self.next_step}" if self.next_step else self.summary


@attrs.frozen
class Rule:
    """Words of a line, and what they mean; `{detail}` of the summary is that line."""

    cause: ExitCause
    pattern: re.Pattern[str]
    summary: str
    next_step: str = ""


_ROWS: Final = read_table(__package__, "exit_rules")


def rules_of(name: str) -> tuple[Rule, ...]:
    """Return the rules of a runtime, by the rows of `exit_rules.toml`; case does not count in their words."""
    rules: list[Rule] = []
    for row in _ROWS[name]:
        if "general" in row:
            rules += rules_of("general")
        else:
            pattern = re.compile("|".join(row["words"]), re.IGNORECASE)
            rules.append(Rule(ExitCause[row["cause"]], pattern, row["summary"], row.get("next_step", "")))
    return tuple(rules)


GENERAL_RULES: Final = rules_of("general")
"""What programs of every kind say."""

LLAMA_RULES: Final = rules_of("llamacpp")


def phase_reader(*phases: tuple[str, str]) -> Callable[[Sequence[str]], str]:
    """Return what tells, by the newest line that says so, what an engine that loads does; "" when none does.

    Args:
        phases: A pattern of lines, and what one that fits it means; the first that fits wins.
    """
    known = [(re.compile(pattern), phase) for pattern, phase in phases]

    def read(lines: Sequence[str]) -> str:
        detail = (phase for line in reversed(lines) for pattern, phase in known if pattern.search(line))
        return next(detail, "")

    return read


_LESS_MEMORY: Final = "a smaller spec.contextSize, fewer spec.parallelSlots or a smaller quantization needs less"

SIGN_AGAIN: Final = "install it again, or sign it with `codesign --force --sign - FILE`"
"""What mends a program whose code signature macOS does not accept, as after a copy over the file."""

_METAL: Final = re.compile(r"command buffer \d+ failed with status|backend is in error state")
"""What ggml says when the GPU has failed: each request gets 500 from then on, and `/health` says 200
(ggml-metal-context.m, llama.cpp issue 20306)."""

_METAL_MEMORY: Final = re.compile(r"OutOfMemory|insufficient memory", re.IGNORECASE)

_CRASHES: Final = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
)

_STAMP: Final = re.compile(r"^\s*\d+(\.\d+)+\s+[A-Z]\s+")
"""llama.cpp's clock and level before each line."""

_MAX_DETAIL: Final = 240


def classify(
    code: int | None,
    lines: Sequence[str],
    *,
    memory_kills: int = 0,
    memory_short: bool = False,
    for_signature: bool = False,
    rules: Sequence[Rule] = LLAMA_RULES,
) -> Diagnosis:
    """Say why an engine ended by itself.

    Args:
        code: Its exit code, or the negated number of the signal that killed it; None when that is not known.
        lines: Its last lines, oldest first.
        memory_kills: How many processes the kernel has killed for lack of memory where the engine ran, while it ran.
        memory_short: Whether the host was short of memory when it was last looked at; macOS counts no such kills.
        for_signature: Whether the kernel has said that it ended it because of its code signature; only macOS does.
        rules: What the lines of engines of its runtime mean; the first that matches wins.
    """
    if for_signature:
        detail = "macOS has killed it, as the code signature of its program or of a library is not valid"
        return Diagnosis(ExitCause.BAD_SIGNATURE, detail, SIGN_AGAIN)
    killed = _killed(memory_kills, memory_short)
    if code == -signal.SIGKILL:
        return killed or Diagnosis(
            ExitCause.SIGNAL, "LLMKube did not send it; the kernel does on a host that is short of memory"
        )
    for each in rules:
        for line in lines:
            if each.pattern.search(line):
                return Diagnosis(each.cause, each.summary.format(detail=_shown(line)), each.next_step)
    if code is None and killed is not None:  # an adopted one, which has said nothing of an end
        return killed
    if code is not None and -code in _CRASHES:
        step = "this build may not suit this processor" if -code == signal.SIGILL else ""
        return Diagnosis(ExitCause.CRASH, f"it crashed with {_signal_name(-code)}", step)
    if code is not None and code < 0:
        return Diagnosis(ExitCause.SIGNAL, f"LLMKube did not send {_signal_name(-code)}")
    if code == 0:
        return Diagnosis(ExitCause.UNKNOWN, "it ended with exit code 0, as after a request to stop")
    return Diagnosis(ExitCause.UNKNOWN, "")


def metal_error(lines: Sequence[str]) -> Diagnosis | None:
    """Return what has failed on the GPU, by the lines that an engine has written; None where nothing has."""
    failed = next((line for line in lines if _METAL.search(line)), None)
    if failed is None:
        return None
    memory = next((line for line in lines if _METAL_MEMORY.search(line)), None)
    if memory is not None:
        detail = f"there was not enough memory for the GPU: {_shown(memory)}"
        return Diagnosis(ExitCause.OUT_OF_MEMORY, detail, _LESS_MEMORY)
    return Diagnosis(ExitCause.METAL_ERROR, f"a command of the GPU has failed: {_shown(failed)}")


def _killed(memory_kills: int, memory_short: bool) -> Diagnosis | None:
    """Return the evidence for a kill for lack of memory; None if nothing does."""
    if memory_kills:
        detail = "the kernel killed a process of this host for lack of memory, probably this one"
    elif memory_short:
        detail = "this host was short of memory, so the kernel probably killed it"
    else:
        return None
    return Diagnosis(ExitCause.MEMORY_KILL, detail, _LESS_MEMORY)


def _shown(line: str) -> str:
    text = _STAMP.sub("", line).strip()
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]}…"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


loading_phase: Final = phase_reader(
    (r"warming up", "warming up"),
    (r"llama_context:|llama_kv_cache|sched_reserve|init_from_model", "making room for the context"),
    (r"load_tensors|loading model tensors", "loading tensors"),
    (r"llama_model_loader|print_info|loading model|fitting params", "reading the model's header"),
)
