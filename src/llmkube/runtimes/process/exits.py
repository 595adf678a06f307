"""Find the cause of an engine's exit, from its exit code and its last lines, and what a load gave up. Pure.

Each runtime has its own rules, in `exit_rules.toml`; the phases of a load and `metal_error` are llama.cpp's.

Log lines differ between llama.cpp versions, so each cause has several patterns, and an unknown exit is reported as it
is: code, signal, last lines. The first rule that matches wins. Rules are ordered from the specific to the general,
because a failed allocation also ends with "failed to load model".
"""

import re
import signal
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import attrs

from llmkube.base.messages import signal_name
from llmkube.base.package_data import read_table
from llmkube.runtimes.arguments import EXTRA_ARGS, flag_values
from llmkube.runtimes.llama_verdicts import VERDICTS, Kind


class ExitCause(StrEnum):
    """Causes of an engine's exit."""

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
    """The cause of an engine's exit, for the user.

    Attributes:
        cause: Kind of the cause.
        summary: One clause with the decisive line of the engine's log; "" if no line is known.
        next_step: Fix for the user; "" if none is obvious.
    """

    cause: ExitCause
    summary: str
    next_step: str = ""

    def __str__(self) -> str:
        """Return the clause and the next step, as in a condition."""
        return f"{self.summary}; {self.next_step}" if self.next_step else self.summary


@attrs.frozen
class Rule:
    """A pattern of log lines and the cause that it means; `{detail}` in the summary is the line."""

    cause: ExitCause
    pattern: re.Pattern[str]
    summary: str
    next_step: str = ""


_ROWS: Final = read_table(__package__, "exit_rules")


def rules_of(name: str) -> tuple[Rule, ...]:
    """Return the rules of a runtime from `exit_rules.toml`; their patterns ignore case."""
    rules: list[Rule] = []
    for row in _ROWS[name]:
        if "general" in row:
            rules += rules_of("general")
        else:
            pattern = re.compile("|".join(row["words"]), re.IGNORECASE)
            rules.append(Rule(ExitCause[row["cause"]], pattern, row["summary"], row.get("next_step", "")))
    return tuple(rules)


GENERAL_RULES: Final = rules_of("general")
"""Rules for programs of every kind."""

LLAMA_RULES: Final = rules_of("llamacpp")


def phase_reader(*phases: tuple[str, str]) -> Callable[[Sequence[str]], str]:
    """Return a function that finds the phase of a load in the newest line that reports one; "" if none does.

    Args:
        phases: Pattern of a line, and its phase; the first that matches wins.
    """
    known = [(re.compile(pattern), phase) for pattern, phase in phases]

    def read(lines: Sequence[str]) -> str:
        detail = (phase for line in reversed(lines) for pattern, phase in known if pattern.search(line))
        return next(detail, "")

    return read


@attrs.frozen
class GivenUp:
    """A setting that an engine has not put into effect although it has loaded.

    Attributes:
        setting: The field, or the flag in `spec.extraArgs`; "" if no field asks for it.
        line: The line of the engine's log.
        part: Part of the estimate that the engine does not use; "" if there is none.
    """

    setting: str
    line: str
    part: str = ""

    def __str__(self) -> str:
        """Return it as in a condition."""
        return f"{self.setting} (the engine's log: {self.line})" if self.setting else self.line


_GIVEN_UP: Final = tuple((re.compile("|".join(row["words"]), re.IGNORECASE), row) for row in _ROWS["given_up"])


def given_up(lines: Sequence[str], argv: Sequence[str]) -> tuple[GivenUp, ...]:
    """Return what llama.cpp has given up, by the lines that it logged while it loaded.

    Args:
        lines: The lines of a load that has succeeded.
        argv: The engine's command line: what that does not ask for cannot be given up.
    """
    values = flag_values(argv)
    found: list[GivenUp] = []
    for pattern, row in _GIVEN_UP:
        flag = next((each for each in row["flags"] if each in values and values[each] not in row.get("unless", ())), "")
        line = next(filter(pattern.search, lines), "") if flag else ""
        if line:
            verdict = VERDICTS[flag]
            field = verdict.detail if verdict.kind is Kind.FIELD else f"{EXTRA_ARGS} {flag}"
            unasked = values[flag] in row.get("unasked", ())
            found.append(GivenUp("" if unasked else field, _shown(line), row.get("part", "")))
    return tuple(found)


_LESS_MEMORY: Final = "reduce spec.contextSize or spec.parallelSlots, or use a smaller quantization"

SIGN_AGAIN: Final = "reinstall it, or sign it with `codesign --force --sign - FILE`"
"""Fix for a program whose code signature macOS rejects, for example after the file was overwritten."""

_METAL: Final = re.compile(r"command buffer \d+ failed with status|backend is in error state")
"""Lines of ggml when the GPU has failed: from then on each request gets 500, but `/health` still returns 200
(ggml-metal-context.m, llama.cpp issue 20306)."""

_METAL_MEMORY: Final = re.compile(r"OutOfMemory|insufficient memory", re.IGNORECASE)

_CRASHES: Final = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
)

_STAMP: Final = re.compile(r"^\s*\d+(\.\d+)+\s+[A-Z]\s+")
"""llama.cpp's timestamp and level at the beginning of a line."""

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
    """Return the cause of an exit that LLMKube did not request.

    Args:
        code: Exit code, or the negated number of the signal that killed the engine; None if not known.
        lines: Last lines of its log, oldest first.
        memory_kills: Processes that the kernel killed for lack of memory where the engine ran, while it ran.
        memory_short: Whether the host was short of memory at the last sample; macOS does not count such kills.
        for_signature: Whether the kernel reported that it killed the engine for its code signature; only macOS does.
        rules: Rules of its runtime; the first that matches wins.
    """
    if for_signature:
        detail = "macOS killed it because the code signature of its program or of a library is not valid"
        return Diagnosis(ExitCause.BAD_SIGNATURE, detail, SIGN_AGAIN)
    killed = _killed(memory_kills, memory_short)
    if code == -signal.SIGKILL:
        return killed or Diagnosis(ExitCause.SIGNAL, "LLMKube did not send it; the kernel does when memory is short")
    for each in rules:
        for line in lines:
            if each.pattern.search(line):
                return Diagnosis(each.cause, each.summary.format(detail=_shown(line)), each.next_step)
    if code is None and killed is not None:  # an adopted engine, without a matching line
        return killed
    if code is not None and -code in _CRASHES:
        step = "this build may not support this processor" if -code == signal.SIGILL else ""
        return Diagnosis(ExitCause.CRASH, f"it crashed with {signal_name(-code)}", step)
    if code is not None and code < 0:
        return Diagnosis(ExitCause.SIGNAL, f"LLMKube did not send {signal_name(-code)}")
    if code == 0:
        return Diagnosis(ExitCause.UNKNOWN, "it exited with code 0, as after a request to stop")
    return Diagnosis(ExitCause.UNKNOWN, "")


def metal_error(lines: Sequence[str]) -> Diagnosis | None:
    """Return the diagnosis of a GPU failure in an engine's lines; None if there is none."""
    failed = next((line for line in lines if _METAL.search(line)), None)
    if failed is None:
        return None
    memory = next((line for line in lines if _METAL_MEMORY.search(line)), None)
    if memory is not None:
        detail = f"there was not enough memory for the GPU: {_shown(memory)}"
        return Diagnosis(ExitCause.OUT_OF_MEMORY, detail, _LESS_MEMORY)
    return Diagnosis(ExitCause.METAL_ERROR, f"a GPU command failed: {_shown(failed)}")


def _killed(memory_kills: int, memory_short: bool) -> Diagnosis | None:
    """Return the diagnosis of a kill for lack of memory; None without evidence for it."""
    if memory_kills:
        detail = "the kernel killed a process for lack of memory, probably this one"
    elif memory_short:
        detail = "memory was short, so the kernel probably killed it"
    else:
        return None
    return Diagnosis(ExitCause.MEMORY_KILL, detail, _LESS_MEMORY)


def _shown(line: str) -> str:
    text = _STAMP.sub("", line).strip()
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]}…"


loading_phase: Final = phase_reader(
    (r"warming up", "warming up"),
    (r"llama_context:|llama_kv_cache|sched_reserve|init_from_model", "allocating the context"),
    (r"load_tensors|loading model tensors", "loading tensors"),
    (r"llama_model_loader|print_info|loading model|fitting params", "reading the model's header"),
)
