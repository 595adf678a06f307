"""Build an engine's command line from fields, respecting the flags that the user has given in `spec.extraArgs`."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.fields import wire_fields
from llmkube.runtimes.plan import EngineInfo, PlanError

EXTRA_ARGS: Final = "spec.extraArgs"
FLAG: Final = re.compile(r"--?[A-Za-z][\w-]*(?:\.[\w-]+)*", re.ASCII)


def flag_of(arg: str) -> str:
    """Return the flag that an argument is or starts with (`--x=1`), or "" for a value; `--a_b` is `--a-b`."""
    name = arg.partition("=")[0]
    if not FLAG.fullmatch(name):
        return ""
    return name.replace("_", "-") if name.startswith("--") else name  # llama-server and argparse accept both forms


def flags_in(args: Sequence[str]) -> frozenset[str]:
    """Return the flags in these arguments."""
    return frozenset(filter(None, map(flag_of, args)))


def flag_values(args: Sequence[str]) -> dict[str, str]:
    """Return the values in these arguments by flag, joined by spaces; of a repeated flag the last one."""
    texts: dict[str, str] = {}
    for at, word in enumerate(args):
        if flag := flag_of(word):
            following = list(itertools.takewhile(lambda other: not flag_of(other), args[at + 1 :]))
            texts[flag] = word.partition("=")[2] if "=" in word else " ".join(following)
    return texts


def flag_words(flags: Mapping[str, str]) -> list[str]:
    """Return flags and their values as arguments of a command line."""
    return [word for flag in flags.items() for word in flag]


@attrs.define(eq=False)
class CommandLine:
    """A command line that is being built, and the fields that have an effect in it.

    Attributes:
        given: Flags that the user has given, under all their names.
        explicit: Values of these flags, where known: a flag with the same value as a field is no conflict.
        engine: The engine, if known: a flag that it lacks is not written. None accepts every flag.
        escape: Escapes a field's text for the place of the command line, so that the engine reads the text itself.
        argv: The words so far.
        honoured: Paths of the fields that have an effect.
    """

    given: frozenset[str] = frozenset()
    explicit: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    engine: EngineInfo | None = None
    escape: Callable[[str], str] = str
    argv: list[str] = attrs.Factory(list)
    honoured: set[str] = attrs.Factory(set)

    def knows(self, flag: str) -> bool:
        """Return whether the engine knows a flag; True if the engine is not known."""
        return self.engine is None or flag in self.engine.flags

    def add(self, path: str, flag: str, *values: object) -> None:
        """Add the flag for the field at `path`, if the engine knows it and the user has not given the same.

        Raises:
            PlanError: The user has given the flag with another value.
        """
        if not self.knows(flag):
            return
        if flag in self.given:
            if self.explicit.get(flag) != " ".join(map(str, values)):
                raise PlanError(f"{flag} is controlled by {path}; remove one of the two", field=EXTRA_ARGS)
        else:
            self.argv += [flag, *map(self._to_word, values)]
        self.honoured.add(path)

    def default(self, *spellings: str, value: object = None) -> None:
        """Write a default flag in the first spelling that the engine knows, unless the user has given one of them."""
        flag = next(filter(self.knows, spellings), None)
        if flag and not self.given.intersection(spellings):
            self.argv += [flag] if value is None else [flag, self._to_word(value)]

    def add_block(self, block: Any, path: str, flags: Mapping[str, str]) -> None:
        """Add the flags for a block of options, by a table from attributes to flags.

        The flag of a switch may be followed by `|` and the flag that turns it off; either is empty if that is the
        engine's default. Options with their default values are omitted.
        """
        for slot in wire_fields(block.__class__):
            value = getattr(block, slot.attribute)
            if slot.attribute not in flags or value is None or value == slot.default:
                continue
            flag, field_path = flags[slot.attribute], f"{path}.{slot.key}"
            if isinstance(value, bool):
                on, _, off = flag.partition("|")
                if word := on if value else off:
                    self.add(field_path, word)
                else:
                    self.honoured.add(field_path)
            else:
                self.add(field_path, flag, *(value if isinstance(value, tuple) else (value,)))

    def _to_word(self, value: object) -> str:
        if type(value) is str or not isinstance(value, str):
            return self.escape(str(value))
        return value  # a placeholder stays one


def refuse_owned(args: Iterable[str], owned: Mapping[str, str]) -> None:
    """Reject flags that a field or LLMKube controls.

    Args:
        args: The user's own arguments.
        owned: The field or program that controls a flag, by flag.

    Raises:
        PlanError: For the first of these flags, with its owner.
    """
    for arg in args:
        if owner := owned.get(flag_of(arg)):
            raise PlanError(f"{flag_of(arg)} is controlled by {owner}; remove it", field=EXTRA_ARGS)
