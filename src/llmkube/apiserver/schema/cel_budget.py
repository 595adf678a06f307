"""What the rules of one object may spend, and what each call of CEL's functions costs.

A budget counts units of 2 to 3 µs. kube-apiserver has such a budget too, of estimates that a compiled evaluator is fast
enough for; the prices here follow its: comparing costs the smaller side, a text costs by its length, a pattern by both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from llmkube.apiserver.schema import patterns
from llmkube.apiserver.schema.structural import RuleError

MAX_UNITS = 150_000
"""What all rules may spend on one object: about a third of a second."""

_OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"

_CHARACTERS_PER_UNIT: Final = 256
_PIECES_PER_UNIT: Final = 3  # a text is cut into so many in the time of one visit
_MATCHING_PER_UNIT: Final = 300  # characters times instructions of a pattern; a tenth of it in RE2's usual case

_Price = Callable[["Budget", Sequence[Any]], int]


class OutOfBudgetError(RuleError):
    """The rules cost too much."""


@attrs.define(eq=False)
class Budget:
    """What the rules of one object may spend, and what is computed once for all of them.

    Attributes:
        left: Units.
        typed: The CEL values of lists and objects, by the ids of their JSON, which the caller keeps, and their schema.
    """

    left: int = attrs.field(factory=lambda: MAX_UNITS)
    typed: dict[tuple[int, int], Any] = attrs.field(factory=dict, init=False)
    _sizes: dict[int, tuple[Any, int]] = attrs.field(factory=dict, init=False)  # by id, which the value here keeps

    def spend(self, units: int) -> None:
        """Take units; raises OutOfBudgetError when there are none left."""
        self.left -= units
        if self.left < 0:
            raise OutOfBudgetError(_OUT_OF_BUDGET)

    def size(self, value: Any) -> int:
        """Return how much there is to look at in a value: the items at all levels, and its texts by their length."""
        if isinstance(value, str | bytes):
            return len(value) // _CHARACTERS_PER_UNIT
        if not isinstance(value, list | dict):
            return 0
        known = self._sizes.get(id(value))
        if known is None:
            inner = value if isinstance(value, list) else [*value.keys(), *value.values()]
            known = self._sizes[id(value)] = (value, len(inner) + sum(map(self.size, inner)))
        return known[1]


def _of_all(budget: Budget, given: Sequence[Any]) -> int:
    return sum(map(budget.size, given))


def _of_the_smaller(budget: Budget, given: Sequence[Any]) -> int:
    return min(map(budget.size, given))


def _of_the_container(budget: Budget, given: Sequence[Any]) -> int:
    return budget.size(given[-1])


def _of_pieces(budget: Budget, given: Sequence[Any]) -> int:
    return _of_all(budget, given) + _length(given[0]) // _PIECES_PER_UNIT


def _of_matching(budget: Budget, given: Sequence[Any]) -> int:
    instructions = patterns.size(given[1]) if isinstance(given[-1], str) else 0
    return _of_all(budget, given) + _length(given[0]) * instructions // _MATCHING_PER_UNIT


def _length(text: Any) -> int:
    return len(text) if isinstance(text, str) else 0


_PRICES: Final[dict[str, _Price]] = {
    **dict.fromkeys(("_==_", "_!=_"), _of_the_smaller),
    **dict.fromkeys(("matches", "find"), _of_matching),
    "_in_": _of_the_container,
    "split": _of_pieces,
    "findAll": lambda budget, given: _of_matching(budget, given) + _of_pieces(budget, given),
}
"""All other functions cost `_of_all` that they are given."""

_FREE: Final = frozenset({"!_", "-_", "_?_:_", "_||_", "_&&_", "_[_]", "size", "type"})
"""They look at the outside of a value alone."""


def price(name: str, budget: Budget, given: Sequence[Any]) -> int:
    """Return what the call of a function costs, in units, with what it is given."""
    return 0 if name in _FREE else _PRICES.get(name, _of_all)(budget, given)
