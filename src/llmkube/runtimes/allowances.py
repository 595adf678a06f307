"""What the owner of a host lets services use beyond what LLMKube lets them use: flags and variables by exact name."""

import re
from collections.abc import Collection, Iterable
from typing import Final

import attrs

from llmkube.base.errors import UserError

FLAG_SETTING: Final = "--allow-engine-flag"
VARIABLE_SETTING: Final = "--allow-engine-variable"

_FLAG: Final = re.compile(r"--?[A-Za-z][A-Za-z0-9.-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@attrs.frozen
class Allowances:
    """What an owner has added, by exact name; nothing unless he says so.

    Attributes:
        flags: Words that `spec.extraArgs` may hold as flags, whatever the verdict on them.
        variables: Names that `spec.env` may hold.
    """

    flags: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.flags or self.variables)


NO_ALLOWANCES: Final = Allowances()


def parse_allowances(flags: Iterable[str], variables: Iterable[str], *, reserved: Collection[str]) -> Allowances:
    """Read what an owner has written.

    Args:
        flags: Each a flag of the engine.
        variables: Each the name of a variable.
        reserved: The flags that LLMKube itself writes: no owner can hand these to services.

    Raises:
        UserError: One of them is none, or is among `reserved`; the sentence names the setting.
    """
    flags, variables = frozenset(flags), frozenset(variables)
    for flag in sorted(flags):
        if not _FLAG.fullmatch(flag):
            raise UserError(f"{flag!r} is not one flag, such as --lora: name each exactly", field=FLAG_SETTING)
        if flag in reserved:
            raise UserError(f"{flag} is written by LLMKube itself: no service can have it", field=FLAG_SETTING)
    for name in sorted(variables):
        if not _VARIABLE.fullmatch(name):
            raise UserError(f"{name!r} is not the name of one variable: name each exactly", field=VARIABLE_SETTING)
        if name.startswith("LLMKUBE_"):
            raise UserError(f"{name} is LLMKube's own: no service can have it", field=VARIABLE_SETTING)
    return Allowances(flags, variables)
