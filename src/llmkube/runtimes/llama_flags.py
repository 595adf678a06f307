"""llama-server's flags: those that a binary has, and those that a service gives, checked against the verdicts."""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import GPU
from llmkube.runtimes.allowances import FLAG_SETTING, NO_ALLOWANCES, Allowances
from llmkube.runtimes.arguments import EXTRA_ARGS, FLAG, flag_of
from llmkube.runtimes.llama_verdicts import VERDICTS, Kind, spellings_of
from llmkube.runtimes.plan import EngineInfo, PlanError

MAX_WORDS: Final = 256
MAX_VALUE_BYTES: Final = 16 * 1024
"""Enough for a chat template or a JSON schema."""

MAX_SHOWN: Final = 64
"""Characters of a user's argument that are quoted in a message."""

CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(,-?\d+(\.\d+)?)*", re.ASCII | re.IGNORECASE)


@attrs.frozen
class UserFlag:
    """One flag in a service's own arguments, with its values."""

    flag: str
    values: tuple[str, ...] = ()


_FLAG_IN_NAMES: Final = re.compile(rf"(?<![\w<{{\[-]){FLAG.pattern}", re.ASCII)
_REMOVED: Final = "argument has been removed"  # newer builds still list removed flags, with this description


def parse_help(text: str) -> frozenset[str]:
    """Return all flags, long and short, in the output of `--help`, of llama-server or of argparse."""
    return frozenset(flag for names in _entries(text) for flag in _FLAG_IN_NAMES.findall(names))


def parse_switches(text: str) -> frozenset[str]:
    """Return the flags in the output of `--help` that take no value; some switches take one in later builds."""
    switches: set[str] = set()
    for names in _entries(text):
        flags = _FLAG_IN_NAMES.findall(names)
        if not _FLAG_IN_NAMES.sub("", names).strip(" ,"):
            switches.update(flags)
    return frozenset(switches)


def _entries(text: str) -> Iterator[str]:
    """Yield the part before each description: the names of a flag and of its value."""
    entries: list[tuple[str, str]] = []
    for line in text.splitlines():
        if re.match(r" {0,4}-{1,2}[A-Za-z]", line):
            # "-m,    --model FNAME      model path to load": the description starts after two spaces, aliases do not
            names, _, description = re.sub(r",\s+", ", ", line.strip()).partition("  ")
            entries.append((names, description))
        elif entries and line.strip():
            names, description = entries[-1]
            entries[-1] = (names, f"{description} {line.strip()}")
    yield from (names for names, description in entries if _REMOVED not in description)


def parse_version(text: str) -> str:
    """Return the text after `version:` in the output of `--version`, or else its first line; "" if it is empty."""
    found = re.search(r"^version:\s*(.+)$", text, re.MULTILINE)
    lines = text.strip().splitlines()
    return found.group(1).strip() if found else lines[0].strip() if lines else ""


# Flags that --load-mode has replaced, and its values for them
_LOAD_MODES: Final[Mapping[frozenset[str], str]] = {
    frozenset({"--mmap"}): "mmap",
    frozenset({"--mlock"}): "mmap+mlock",
    frozenset({"--mmap", "--mlock"}): "mmap+mlock",
    frozenset({"--no-mmap"}): "none",
    frozenset({"--mlock", "--no-mmap"}): "mlock",
    frozenset({"--direct-io"}): "dio",
}


def read_extra_args(args: Sequence[str], allowances: Allowances = NO_ALLOWANCES) -> tuple[UserFlag, ...]:
    """Parse and check a service's own arguments for the command line of an engine on a host.

    No value may look like a flag: however a build parses the arguments, and however many values a flag has there, it
    finds no flags but those that were checked here. (argparse reads `-c60000` as `-c`, and `-cr` as `-cram`.)

    Args:
        args: `spec.extraArgs`.
        allowances: Flags that the owner of the host allows in addition to the verdicts.

    Raises:
        PlanError: An argument is neither a flag nor a flag's value, or the flag is not allowed.
    """
    if len(args) > MAX_WORDS:
        raise PlanError(f"too many arguments: {len(args)}; write at most {MAX_WORDS}", field=EXTRA_ARGS)
    found: list[UserFlag] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        flag, equals, joined = flag_of(word), "=" in word, word.partition("=")[2]
        if not flag:
            raise _stray_word_error(word, found)
        wanted = _value_count(flag, allowances)
        values = [joined] if equals else []
        if wanted is None:  # an allowed flag without a verdict may take any number of values
            while not equals and rest and not _looks_like_flag(rest[0]):
                values.append(rest.pop(0))
        elif equals and wanted != 1:
            raise PlanError(f"{flag} takes no value after an equals sign; remove the value", field=EXTRA_ARGS)
        elif not equals:
            values, rest = rest[:wanted], rest[wanted:]
            if len(values) < wanted:
                raise PlanError(f"{flag} needs a value; write it as the next argument", field=EXTRA_ARGS)
        for value in values:
            _check_value(flag, value)
        _check_range(flag, values, allowances)
        found.append(UserFlag(flag, tuple(values)))
    return tuple(found)


def _value_count(flag: str, allowances: Allowances) -> int | None:
    """Return the number of values that a flag takes; None if it is allowed by the owner and has no verdict.

    Raises:
        PlanError: The flag is not allowed.
    """
    verdict = VERDICTS.get(flag)
    if flag in allowances.flags:
        return verdict.values if verdict else None
    if verdict is None:
        raise PlanError(
            f"{flag[:MAX_SHOWN]} is not among the allowed flags; write a flag and its value as two arguments, or allow "
            f"the flag on this machine with {FLAG_SETTING}",
            field=EXTRA_ARGS,
        )
    if verdict.kind is Kind.OURS:
        raise PlanError(f"{flag} is controlled by {verdict.detail}; remove it", field=EXTRA_ARGS)
    if verdict.kind is Kind.REFUSED:
        advice = f"remove it, or allow it on this machine with {FLAG_SETTING} {flag}"
        raise PlanError(f"{flag} {verdict.detail}; {advice}", field=EXTRA_ARGS)
    return verdict.values


def _stray_word_error(word: str, found: Sequence[UserFlag]) -> PlanError:
    shown = word if word.isprintable() else repr(word)
    problem = (
        f'"{shown[:MAX_SHOWN]}"{f" after {found[-1].flag}" if found else ""} is neither a flag nor the value of one'
    )
    return PlanError(f"{problem}; write each flag and its value as two arguments", field=EXTRA_ARGS)


def _check_value(flag: str, value: str) -> None:
    if _looks_like_flag(value):
        raise PlanError(f"{flag} needs a value, but the next argument looks like another flag", field=EXTRA_ARGS)
    if CONTROL_CHARACTER.search(value):
        raise PlanError(f"the value of {flag} contains a control character, such as a line break", field=EXTRA_ARGS)
    if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
        raise PlanError(f"the value of {flag} is longer than {MAX_VALUE_BYTES} bytes", field=EXTRA_ARGS)


def _check_range(flag: str, values: Sequence[str], allowances: Allowances) -> None:
    verdict = VERDICTS.get(flag)
    if verdict is None or verdict.limits is None or flag in allowances.flags:
        return
    for value in values:
        if problem := verdict.limits.problem(value):
            raise _value_error(flag, value, problem)


def _looks_like_flag(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.fullmatch(word)


def expand_spellings(parsed: Iterable[UserFlag]) -> tuple[frozenset[str], dict[str, str]]:
    """Return the flags that are used, under all their names, and their values, for a `CommandLine`.

    A switch has the value "" under the name that is used, and none under its other names: these may be its opposite.
    """
    given: set[str] = set()
    texts: dict[str, str] = {}
    for each in parsed:
        names = spellings_of(each.flag)
        given.update(names)
        for name in names if each.values else (each.flag,):
            texts[name] = " ".join(each.values)
    return frozenset(given), texts


def check_pod_args(args: Sequence[str], owned: Mapping[str, str]) -> None:
    """Reject flags that are not allowed in pods either: those that LLMKube sets, expose a secret, or stop the server.

    The rules that protect a host do not apply: a pod is its own boundary, and its author chooses image and command.

    Args:
        args: `spec.extraArgs`.
        owned: Fields or programs that control further flags in pods, by flag.

    Raises:
        PlanError: For the first of them.
    """
    for arg in args:
        flag = flag_of(arg)
        verdict = VERDICTS.get(flag)
        applies = verdict is not None and verdict.in_pods
        owner = owned.get(flag) or (verdict.detail if applies and verdict and verdict.kind is Kind.OURS else "")
        if owner:
            raise PlanError(f"{flag} is controlled by {owner}; remove it", field=EXTRA_ARGS)
        if applies and verdict and verdict.kind is Kind.REFUSED:
            raise PlanError(f"{flag} {verdict.detail}; remove it", field=EXTRA_ARGS)
        if "\0" in arg:
            raise PlanError(f"{arg[:MAX_SHOWN]!r} contains a NUL character; remove it", field=EXTRA_ARGS)


def known_flags(args: Sequence[str]) -> tuple[UserFlag, ...]:
    """Parse a service's own arguments without checking them; unknown flags are left out."""
    return pop_flags(args, VERDICTS.keys())[0]


def pop_flags(args: Sequence[str], flags: Collection[str]) -> tuple[tuple[UserFlag, ...], tuple[str, ...]]:
    """Remove some flags with their values from a service's own arguments; return these flags and the remaining words.

    A flag in the last place has no value.
    """
    found: list[UserFlag] = []
    rest: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        flag, joined = flag_of(word), "=" in word
        verdict = VERDICTS.get(flag)
        wanted = verdict.values if verdict is not None and not joined else 0
        values, words = words[:wanted], words[wanted:]
        if flag in flags:
            found.append(UserFlag(flag, (word.partition("=")[2],) if joined else tuple(values)))
        else:
            rest += [word, *values]  # a value is not a flag, even if it looks like one
    return tuple(found), tuple(rest)


def render_extra_args(parsed: Sequence[UserFlag], engine: EngineInfo) -> Iterator[str]:
    """Yield the arguments for this engine, with flags that its build has replaced translated.

    Raises:
        PlanError: The engine has no such flag, or its build must not be used with it.
    """
    flags = frozenset(each.flag for each in parsed)
    replaced = flags & frozenset.union(*_LOAD_MODES) - engine.flags
    if replaced and "--load-mode" in engine.flags:
        if (mode := _LOAD_MODES.get(replaced)) is None:
            raise PlanError(f"{' and '.join(sorted(replaced))} are mutually exclusive; keep one", field=EXTRA_ARGS)
        yield from ("--load-mode", mode)
        parsed = [each for each in parsed if each.flag not in replaced]
    for each in parsed:
        if engine.flags and each.flag not in engine.flags:
            raise PlanError(f"the engine {engine.version or engine.program} has no flag {each.flag}", field=EXTRA_ARGS)
        verdict = VERDICTS.get(each.flag)
        if verdict is not None and verdict.unsafe and (problem := verdict.unsafe.problem(engine.version)):
            raise PlanError(problem, field=EXTRA_ARGS)
        yield from (each.flag, *each.values)


TRAINED_CONTEXT: Final = 0
"""Value of `--ctx-size` for the whole context that the model was trained for. No field can express it."""

_MAX_CONTEXT: Final = 2097152
_WHOLE_CONTEXT: Final = (-1, -2)
"""Values of `--n-predict` for no limit, and for the context."""

_MAX_SLOTS: Final = 64
_ALL_LAYERS: Final = -1
_FLASH: Final[Mapping[str, bool | None]] = {"on": True, "1": True, "off": False, "0": False, "auto": None}


def read_as_fields(service: InferenceService, model: Model) -> tuple[InferenceService, Model]:
    """Move arguments that `_READERS` read, and layers, from extraArgs to fields, in copies of a service and its Model.

    These arguments are removed from `spec.extraArgs`; of a repeated one the last applies, as in the engine. Without
    any, the objects themselves are returned.

    Raises:
        PlanError: An argument has a value that its field cannot have, or the field has another value.
    """
    parsed, rest = pop_flags(tuple(with_flash_value(service.spec.extra_args)), _FIELD_OF.keys())
    if not parsed:
        return service, model
    spec, hardware = attrs.evolve(service.spec, extra_args=rest), model.spec.hardware
    for flag, text in _texts(parsed).items():
        if flag == "--n-gpu-layers":
            gpu = hardware.gpu or GPU()
            layers = _merge(flag, "the Model's spec.hardware.gpu.layers", _layers(flag, text), gpu.layers, None)
            hardware = attrs.evolve(hardware, gpu=attrs.evolve(gpu, layers=layers))
        else:
            spec = _READERS[flag](spec, flag, text)
    service = attrs.evolve(service, spec=spec)
    return service, attrs.evolve(model, spec=attrs.evolve(model.spec, hardware=hardware))


def _texts(parsed: Iterable[UserFlag]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for each in parsed:
        if not each.values:
            raise PlanError(f"{each.flag} needs a value; write it as the next argument", field=EXTRA_ARGS)
        texts[_FIELD_OF[each.flag]] = each.values[0]
    return texts


def with_flash_value(args: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, with the value `on` for `--flash-attn` without one: it was a switch in older builds."""
    for word, following in itertools.zip_longest(args, args[1:]):
        bare = flag_of(word) in _FLASH_FLAGS and "=" not in word and following not in _FLASH
        yield f"{word}=on" if bare else word


def _context(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    tokens = _number(flag, text)
    if tokens != TRAINED_CONTEXT and not 128 <= tokens <= _MAX_CONTEXT:
        raise _value_error(flag, text, f"write 0 (all that the model was trained for), or 128 to {_MAX_CONTEXT} tokens")
    return attrs.evolve(spec, context_size=_merge(flag, "spec.contextSize", tokens, spec.context_size, None))


def _slots(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    slots = _number(flag, text)
    if not 1 <= slots <= _MAX_SLOTS:
        raise _value_error(flag, text, f"write 1 to {_MAX_SLOTS}, since memory is reserved for each slot")
    # the schema's default is 1, so 1 may not be the user's value
    return attrs.evolve(spec, parallel_slots=_merge(flag, "spec.parallelSlots", slots, spec.parallel_slots, 1))


def _answer(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    tokens = _number(flag, text)
    if tokens in _WHOLE_CONTEXT:
        return spec
    if not 1 <= tokens <= _MAX_CONTEXT:
        raise _value_error(flag, text, f"write 1 to {_MAX_CONTEXT} tokens, or -1 for the context")
    return attrs.evolve(
        spec, max_answer_tokens=_merge(flag, "spec.maxAnswerTokens", tokens, spec.max_answer_tokens, None)
    )


def _flash(spec: InferenceServiceSpec, flag: str, text: str) -> InferenceServiceSpec:
    if text not in _FLASH:
        raise _value_error(flag, text, "write on, off or auto")
    return attrs.evolve(
        spec, flash_attention=_merge(flag, "spec.flashAttention", _FLASH[text], spec.flash_attention, None)
    )


def _layers(flag: str, text: str) -> int:
    if text in ("all", "auto"):
        return _ALL_LAYERS
    layers = _number(flag, text)
    if layers < _ALL_LAYERS:
        raise _value_error(flag, text, "write a number of layers, or -1 for all")
    return layers


def _merge(flag: str, path: str, parsed: Any, field: Any, unset: Any) -> Any:
    if field not in (unset, parsed):
        raise PlanError(f"{flag} is {parsed} and {path} is {field}; remove one of the two", field=EXTRA_ARGS)
    return parsed


def _number(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _value_error(flag, text, "write a whole number") from None


def _value_error(flag: str, text: str, advice: str) -> PlanError:
    return PlanError(f"{flag} is {text[:64]!r}; {advice}", field=EXTRA_ARGS)


_FLASH_FLAGS: Final = frozenset(spellings_of("--flash-attn"))
_Reader = Callable[[InferenceServiceSpec, str, str], InferenceServiceSpec]

_READERS: Final[Mapping[str, _Reader]] = {
    "--ctx-size": _context,
    "--parallel": _slots,
    "--n-predict": _answer,
    "--flash-attn": _flash,
}
_FIELD_OF: Final[Mapping[str, str]] = {
    spelling: flag for flag in (*_READERS, "--n-gpu-layers") for spelling in spellings_of(flag)
}
