"""A command line in the making: which field has found which flag, and what the user has written himself."""

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
    """The flag that an argument is or starts with (`--x=1`), or nothing for a value; `--a_b` is `--a-b`."""
    name = arg.partition("=")[0]
    if not FLAG.fullmatch(name):
        return ""
    return name.replace("_", "-") if name.startswith("--") else name  # llama-server and argparse users take both


def flags_in(args: Sequence[str]) -> frozenset[str]:
    """Return the flags that are used in these arguments."""
    return frozenset(filter(None, map(flag_of, args)))


def flag_values(args: Sequence[str]) -> dict[str, str]:
    """Return what these arguments say by flag, where that is plain: one value, or none; what is said last counts."""
    texts: dict[str, str] = {}
    for at, word in enumerate(args):
        if flag := flag_of(word):
            following = list(itertools.takewhile(lambda other: not flag_of(other), args[at + 1 :]))
            texts[flag] = word.partition("=")[2] if "=" in word else " ".join(following)
    return texts


def flag_words(flags: Mapping[str, str]) -> list[str]:
    """Return the words of a command line that gives each of these flags its value."""
    return [word for flag in flags.items() for word in flag]


@attrs.define(eq=False)
class CommandLine:
    """A command line that is being written, and the fields that have found a place in it.

    Attributes:
        given: The flags that the user has written himself, each by all its names.
        explicit: What they say, where that is known: a flag that says what a field says is no contradiction.
        engine: Who will read it, where that is known: a flag that it lacks is not written. None takes every flag.
        escape: How a field's text is written where the command line will stand, so that the engine reads that text.
        argv: The words so far.
        honoured: Paths of the fields that have had an effect.
    """

    given: frozenset[str] = frozenset()
    explicit: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    engine: EngineInfo | None = None
    escape: Callable[[str], str] = str
    argv: list[str] = attrs.Factory(list)
    honoured: set[str] = attrs.Factory(set)

    def knows(self, flag: str) -> bool:
        """Whether the engine understands a flag, as far as we know."""
        return self.engine is None or flag in self.engine.flags

    def add(self, path: str, flag: str, *values: object) -> None:
        """Write the flag for the field at `path`, if the engine knows it, unless the user's own says the same.

        Raises:
            PlanError: The user has written the same flag himself, and it says something else.
        """
        if not self.knows(flag):
            return
        if flag in self.given:
            if self.explicit.get(flag) != " ".join(map(str, values)):
                raise PlanError(f"{flag} is decided by {path}: leave one of the two out", field=EXTRA_ARGS)
        else:
            self.argv += [flag, *map(self._to_word, values)]
        self.honoured.add(path)

    def default(self, *spellings: str, value: object = None) -> None:
        """Write a flag of ours in the first spelling that the engine knows, unless the user chose one of them."""
        flag = next(filter(self.knows, spellings), None)
        if flag and not self.given.intersection(spellings):
            self.argv += [flag] if value is None else [flag, self._to_word(value)]

    def add_block(self, block: Any, path: str, flags: Mapping[str, str]) -> None:
        """Write what a block of options says, by a table from attributes to flags.

        A switch's flag may be followed by `|` and the one that turns it off; either may be empty, where the engine
        does that anyway. What has its default is not written.
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
        return value  # a slot stays one


def refuse_owned(args: Iterable[str], owned: Mapping[str, str]) -> None:
    """Refuse flags that a field or LLMKube decides.

    Args:
        args: The user's own arguments.
        owned: Who decides, by flag: a field, or a place where it belongs.

    Raises:
        PlanError: The first of them, with where to write it instead.
    """
    for arg in args:
        if owner := owned.get(flag_of(arg)):
            raise PlanError(f"{flag_of(arg)} is decided by {owner}: leave it out here", field=EXTRA_ARGS)
