"""Engine flags, variables and engines that the owner of a host allows in addition to LLMKube's own, by exact name."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.runtimes.engine_template import EngineTemplate

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
