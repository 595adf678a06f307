"""Engine flags, variables and engines that the owner of a host allows in addition to LLMKube's own, by exact name.

An engine of the owner's has its program and its command line in `[engines.NAME]` of `config.toml`. Objects name the
engine, and choose among the values that the owner lists for an option. Everything else that reaches the command line is
written by the owner or computed by LLMKube, so no field of an object adds an argument, a program or a path. Each item
of `args` becomes one argument, whatever the values of its placeholders contain.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.settings import SettingError, setting
from llmkube.base.units import parse_bytes
from llmkube.k8s.crd.model import FORMATS
from llmkube.k8s.crd.serving import ENGINE_NAME
from llmkube.runtimes.plan import SLOT, PlanError, TemplateText

FIELD: Final = "spec.engine"

_COMPUTED: Final = ("model", "port", "host", "ctx")
_LOOPBACK: Final = re.compile(r"\{host\}|127\.0\.0\.1|\[?::1|localhost")
_HEALTH_PATH: Final = re.compile(r"/[^\s?#\x00-\x1f]*")
_ENGINE_VARIABLE: Final = re.compile(r"(?!LLMKUBE_)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
MAX_LINE_CHARS: Final = 2000
"""Characters of a log line that `ready_pattern` is compared with."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@attrs.frozen
class EngineTemplate:
    """The settings of one engine of a host's owner."""

    program: str = setting("", help="Absolute path of the program, or its name on PATH; required.")
    args: tuple[str, ...] = setting(
        (),
        help="Arguments, each with any text and the placeholders {model}, {port}, {host} (the address to listen on), "
        "{ctx} (tokens of spec.contextSize) and {options.NAME}; {port} and {host} are required.",
    )
    memory: str = setting(
        "", help='Memory of one engine with its model, such as "2Gi"; required. The memory in use is measured, too.'
    )
    formats: tuple[str, ...] = setting(
        ("custom",), help="Values of Model.spec.format that the engine reads.", choices=FORMATS
    )
    options: Mapping[str, tuple[str, ...]] = setting(
        {}, help="Values that spec.engine.options may select, by name; the first is the default."
    )
    env: Mapping[str, str] = setting({}, help="Variables of the engine's environment, without placeholders.")
    health: str = setting("/health", help="Path that answers 200 once the engine can serve.")
    ready_pattern: str = setting(
        "", help="Regular expression (RE2); a line of the engine's log must match it before the engine serves."
    )

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders in its arguments."""
        return frozenset(name for item in self.args for name in SLOT.findall(item))

    @property
    def memory_bytes(self) -> int:
        """The declared memory."""
        return parse_bytes(self.memory)

    def check(self, where: str) -> None:
        """Check what the types of its keys do not show.

        Args:
            where: The file and the table, for messages.

        Raises:
            SettingError: A key is missing or has a value that cannot work; the message names it, with a fix.
        """
        for problems in (self._program_problems, self._option_problems, self._argument_problems):
            for problem in problems():
                raise SettingError(f"{where}.{problem}")

    def _program_problems(self) -> Iterator[str]:
        if not self.program or _CONTROL.search(self.program) or ("/" in self.program and self.program[0] != "/"):
            yield f"program: {self.program!r} is not a program; set its absolute path, or its name on PATH"
        try:
            if self.memory_bytes == 0:
                yield 'memory: 0 is too little; set the memory of one engine with its model, such as "2Gi"'
        except UserError as error:
            yield f"memory: {error}"
        if not _HEALTH_PATH.fullmatch(self.health):
            yield f"health: {self.health!r} is not a path; set one such as /health"
        try:
            find_ready_line(self.ready_pattern, ())
        except ValueError as error:
            yield f"ready_pattern: {error}; write a regular expression of RE2, such as 'listening on'"

    def _option_problems(self) -> Iterator[str]:
        for name, values in self.options.items():
            if not re.fullmatch(ENGINE_NAME, name):
                yield f"options: {name!r} is not a name; use letters, digits, - and _"
            if not isinstance(values, tuple) or not values or not all(map(_is_plain, values)):
                yield f'options.{name}: {values!r} is no list of texts without placeholders; set one such as ["2", "4"]'

    def _argument_problems(self) -> Iterator[str]:
        known = {*_COMPUTED, *(f"options.{name}" for name in self.options)}
        if unknown := sorted(self.placeholders - known):
            written = ", ".join(f"{{{name}}}" for name in sorted(known))
            yield f"args: {{{unknown[0]}}} is not a placeholder; use {written}"
        if "port" not in self.placeholders:
            yield "args: no argument has {port}, the port to listen on; add it, such as --port={port}"
        for name, value in self.env.items():
            if not _ENGINE_VARIABLE.fullmatch(name) or not _is_plain(value):
                yield f"env: {name} = {value!r} is not a variable with a text that has no placeholder; correct it"
        texts = (*self.args, *self.env.values())
        if not any(map(_LOOPBACK.search, texts)):
            yield "args: no argument has {host}, the address to listen on; add it, or name 127.0.0.1 in args or env"
        if any(map(_CONTROL.search, self.args)):
            yield "args: an argument has a control character, such as a line break; remove it"

    def argv_for(self, name: str, chosen: Mapping[str, str], context: int) -> tuple[str, ...]:
        """Return the arguments with the values of options and context; the slots of a plan remain.

        Args:
            name: Name of the engine.
            chosen: Values of options that a service selects.
            context: Tokens of its context.

        Raises:
            PlanError: There is no such option, or it does not have that value.
        """
        for option, value in chosen.items():
            if (allowed := self.options.get(option)) is None:
                problem, fix = f"no option {option[:64]!r}", f"use {', '.join(self.options) or 'none'}"
            elif value not in allowed:
                problem, fix = f"no value {value[:64]!r} for {option}", f"use {', '.join(allowed)}"
            else:
                continue
            raise PlanError(f'engine "{name}" has {problem}; {fix}', field=f"{FIELD}.options")
        values = {f"options.{option}": chosen.get(option, allowed[0]) for option, allowed in self.options.items()}
        return tuple(TemplateText(item).filled(values | {"ctx": str(context)}) for item in self.args)


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and not SLOT.search(value) and not _CONTROL.search(value)


def find_ready_line(pattern: str, lines: Iterable[str]) -> bool:
    """Return whether one of an engine's log lines matches its `ready_pattern`; in time linear in their length.

    Raises:
        ValueError: The pattern is not a regular expression of RE2.
    """
    import re2  # noqa: PLC0415 - few hosts need it

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        raise ValueError(f"{pattern!r} is not valid ({error})") from error
    return any(compiled.search(line[:MAX_LINE_CHARS]) for line in lines)


FLAG_SETTING: Final = "--allow-engine-flag"
VARIABLE_SETTING: Final = "--allow-engine-variable"

_FLAG: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9.-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@attrs.frozen
class Allowances:
    """Flags, variables and engines that the owner of a host allows; none by default.

    Attributes:
        flags: Flags allowed in `spec.extraArgs`, regardless of their verdicts.
        variables: Names allowed in `spec.env`.
        engines: The owner's engines for the runtime generic, by name.
    """

    flags: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    engines: Mapping[str, EngineTemplate] = attrs.field(factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.flags or self.variables)


NO_ALLOWANCES: Final = Allowances()


def parse_allowances(flags: Iterable[str], variables: Iterable[str], *, reserved: Collection[str]) -> Allowances:
    """Check the names that an owner has given, and return the allowances.

    Args:
        flags: Flags of engines.
        variables: Names of variables.
        reserved: Flags that LLMKube sets itself, which an owner cannot allow.

    Raises:
        UserError: A name is invalid or reserved; the message names the setting.
    """
    flags, variables = frozenset(flags), frozenset(variables)
    for flag in sorted(flags):
        if not _FLAG.fullmatch(flag):
            raise UserError(f"{flag!r} is not a flag; list exact flags, such as --lora", field=FLAG_SETTING)
        if flag in reserved:
            raise UserError(f"{flag} is set by LLMKube itself and cannot be allowed; remove it", field=FLAG_SETTING)
    for name in sorted(variables):
        if not _VARIABLE.fullmatch(name):
            raise UserError(f"{name!r} is not the name of a variable; list exact names", field=VARIABLE_SETTING)
        if name.startswith("LLMKUBE_"):
            raise UserError(f"{name} is reserved for LLMKube and cannot be allowed; remove it", field=VARIABLE_SETTING)
    return Allowances(flags, variables)
