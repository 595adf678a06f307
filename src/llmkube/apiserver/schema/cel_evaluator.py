"""celpy's evaluator with a cost budget: a rule is aborted when the budget is spent.

Each visited node of an expression costs a unit, and an operation on a list or a text also pays for its size (`cost`):
`self.items.all(i, i in self.items)` visits few nodes and compares every item with every other one.

Where the cost of celpy's own code is not limited, it is replaced here: celpy copies all names for each item of a macro,
and prints whole objects, and errors within errors, in the messages of errors that a rule may ignore.

A unit takes 2 to 3 µs. kube-apiserver has such a budget too, with units that suit a compiled evaluator; the prices here
follow its: comparing costs the smaller side, a text costs by its length, a pattern by both.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import celpy.celtypes as ct
import lark
from celpy.evaluation import Activation, CELEvalError, Evaluator

from llmkube.apiserver.schema import patterns
from llmkube.apiserver.schema.structural import RuleError

MAX_UNITS = 150_000
"""Budget of all rules for one object: about a third of a second."""

_OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"

_CHARACTERS_PER_UNIT: Final = 256
_PIECES_PER_UNIT: Final = 3  # pieces that a text is split into in the time of one visit
_MATCHING_PER_UNIT: Final = 300  # characters times instructions of a pattern; RE2 usually needs a tenth of the time


class OutOfBudgetError(RuleError):
    """The rules exceed their budget."""


@attrs.define(eq=False)
class Budget:
    """The remaining budget of the rules of one object, and values computed once for all rules.

    Attributes:
        left: Remaining units.
        typed: The CEL values of lists and objects, by the ids of their JSON, which the caller keeps, and their schema.
    """

    left: int = attrs.field(factory=lambda: MAX_UNITS)
    typed: dict[tuple[int, int], Any] = attrs.field(factory=dict, init=False)
    _sizes: dict[int, tuple[Any, int]] = attrs.field(factory=dict, init=False)  # by id; the value keeps the id valid

    def spend(self, units: int) -> None:
        """Spend units; raises OutOfBudgetError when there are none left."""
        self.left -= units
        if self.left < 0:
            raise OutOfBudgetError(_OUT_OF_BUDGET)

    def size(self, value: Any) -> int:
        """Return the size of a value: its items at all levels, and the lengths of its strings."""
        if isinstance(value, str | bytes):
            return len(value) // _CHARACTERS_PER_UNIT
        if not isinstance(value, list | dict):
            return 0
        known = self._sizes.get(id(value))
        if known is None:
            inner = value if isinstance(value, list) else [*value.keys(), *value.values()]
            known = self._sizes[id(value)] = (value, len(inner) + sum(map(self.size, inner)))
        return known[1]


_FREE: Final = frozenset({"!_", "-_", "_?_:_", "_||_", "_&&_", "_[_]", "size", "type"})
"""Functions that cost nothing, because they do not read the items or the text of a value."""


_COMPARING: Final = frozenset({"_==_", "_!=_"})
_CUTTING: Final = frozenset({"findAll", "split"})
_MATCHING: Final = frozenset({"find", "findAll", "matches"})


def cost(name: str, budget: Budget, arguments: Sequence[Any]) -> int:
    """Return the cost of a function call in units: the size of its arguments, plus its work on a text.

    A comparison costs the smaller of the two sizes.
    """
    if name in _FREE:
        return 0
    sizes = [budget.size(each) for each in arguments]
    units = min(sizes) if name in _COMPARING else sum(sizes)
    length = len(arguments[0]) if arguments and isinstance(arguments[0], str) else 0
    if name in _CUTTING:
        units += length // _PIECES_PER_UNIT
    if name in _MATCHING and len(arguments) > 1 and isinstance(arguments[1], str):
        units += length * patterns.size(arguments[1]) // _MATCHING_PER_UNIT
    return units


_ITEM_UNITS: Final = 3  # to start the next item of a macro

Tree = Any  # lark's; its types do not tell which children are trees

_OPERATORS: Final = {
    "relation_lt": "_<_",
    "relation_le": "_<=_",
    "relation_ge": "_>=_",
    "relation_gt": "_>_",
    "relation_eq": "_==_",
    "relation_ne": "_!=_",
    "relation_in": "_in_",
    "addition_add": "_+_",
    "addition_sub": "_-_",
    "multiplication_mul": "_*_",
    "multiplication_div": "_/_",
    "multiplication_mod": "_%_",
    "unary_not": "!_",
    "unary_neg": "-_",
}


def evaluate(tree: Tree, activation: Activation, names: Mapping[str, Any], budget: Budget) -> Any:
    """Return the value of a `pruned` expression.

    Raises:
        CELEvalError: It cannot be evaluated for these values.
        OutOfBudgetError: It costs more than is left.
    """
    return _PricedEvaluator(tree, activation, budget, names).evaluate()


class _PricedEvaluator(Evaluator):
    """Evaluates an expression within a budget."""

    def __init__(self, ast: Tree, activation: Activation, budget: Budget, names: Mapping[str, Any]) -> None:
        super().__init__(ast, activation)
        self._budget = budget
        self._outer = self._names = names

    def sub_evaluator(self, ast: Tree) -> "_PricedEvaluator":
        """Return an evaluator for the inside of a macro, within the same budget."""
        return _PricedEvaluator(ast, self.activation, self._budget, self._names)

    def set_activation(self, values: Mapping[str, Any]) -> "_PricedEvaluator":
        """Bind the item of a macro to its name."""
        self._budget.spend(_ITEM_UNITS)
        self._names = {**self._outer, **values}
        return self

    def visit(self, tree: Tree) -> Any:
        """Pay for a node, and visit it."""
        self._budget.spend(1)
        return super().visit(tree)

    def visit_children(self, tree: Tree) -> Any:
        """Pay for the children, and visit them."""
        self._budget.spend(len(tree.children))
        return super().visit_children(tree)

    def primary(self, tree: Tree) -> Any:
        """Look up a name; if it is unknown, celpy's own error would list all known names."""
        child = tree.children[0]
        if child.data != "ident":
            return super().primary(tree)
        name = child.children[0].value
        if name in self._names:
            return self._names[name]
        try:
            return self.ident_value(name)
        except KeyError:
            return _undeclared(name)

    def member_dot(self, tree: Tree) -> Any:
        """Select a field; celpy would print the whole object when the field is missing."""
        member, name = self.visit(tree.children[0]), tree.children[1].value
        if isinstance(member, CELEvalError):
            return member
        if not isinstance(member, ct.MapType):
            return CELEvalError(f"type '{type(member).__name__}' does not support field selection", TypeError)
        try:
            return member[name]
        except KeyError:
            return CELEvalError(f"no such member in mapping: {name!r}", KeyError)

    def relation(self, tree: Tree) -> Any:
        """Apply a binary operator; celpy spends most of the time of one on type hints."""
        operator, right = tree.children
        return self._operate(_OPERATORS[operator.data], operator.children[0], right)

    addition = multiplication = relation

    def conditionalor(self, tree: Tree) -> Any:
        """Evaluate `||`: true if one side is true, even if the other is an error."""
        return _first_decisive(map(self.visit, tree.children), decisive=True)

    def conditionaland(self, tree: Tree) -> Any:
        """Evaluate `&&`: false if one side is false, even if the other is an error."""
        return _first_decisive(map(self.visit, tree.children), decisive=False)

    def member_dot_arg(self, tree: Tree) -> Any:
        """Call a method or a macro; celpy's own `all` and `exists` nest errors, whose length doubles with each item."""
        member, name = tree.children[:2]
        if name.value not in {"all", "exists", "min"}:
            return super().member_dot_arg(tree)
        items = self.visit(member)
        if name.value == "min":  # a macro in celpy
            return self.method_eval(items, name)
        if isinstance(items, CELEvalError):
            return items
        if not isinstance(items, list | dict):
            return _no_overload(name.value, items)
        return _first_decisive(map(self.build_ss_macro_eval(tree), items), decisive=name.value == "exists")

    def unary(self, tree: Tree) -> Any:
        """Apply a unary operator."""
        operator, operand = tree.children
        return self._operate(_OPERATORS[operator.data], operand)

    def _operate(self, name: str, *operands: Tree) -> Any:
        arguments = [self.visit(operand) for operand in operands]
        self._charge(name, arguments)
        try:
            return self.activation.functions[name](*arguments)
        except TypeError:
            return _no_overload(name, *arguments)
        except ZeroDivisionError:
            return CELEvalError("modulus or divide by zero", ZeroDivisionError)
        except (ValueError, OverflowError):
            return CELEvalError("return error for overflow", ValueError)

    def function_eval(self, name_token: lark.Token, exprlist: Any = None) -> Any:
        """Call a function."""
        arguments = exprlist if isinstance(exprlist, list) else ()
        return self._charge(name_token.value, arguments) or super().function_eval(name_token, exprlist)

    def method_eval(self, object: Any, method_ident: lark.Token, exprlist: Any = None) -> Any:  # noqa: A002 (celpy's)
        """Call a method."""
        arguments = [object, *(exprlist if isinstance(exprlist, list) else ())]
        return self._charge(method_ident.value, arguments) or super().method_eval(object, method_ident, exprlist)

    def _charge(self, name: str, arguments: Sequence[Any]) -> CELEvalError | None:
        """Pay for a call; return an error when there is no such function."""
        if name not in self.activation.functions:
            return _undeclared(name)
        self._budget.spend(cost(name, self._budget, arguments))
        return None


def _undeclared(name: str) -> CELEvalError:
    return CELEvalError(f"undeclared reference to '{name}'", KeyError)


def _no_overload(name: str, *arguments: Any) -> CELEvalError:
    kinds = ", ".join(type(each).__name__ for each in arguments)
    return CELEvalError(f"found no matching overload for '{name}' applied to '({kinds})'", TypeError)


def _first_decisive(verdicts: Iterable[Any], *, decisive: bool) -> Any:
    """Return the first decisive value, or else the first error: a decisive value outweighs errors."""
    error = None
    for verdict in verdicts:
        if isinstance(verdict, ct.BoolType):
            if bool(verdict) is decisive:
                return verdict
        elif error is None:
            error = verdict if isinstance(verdict, CELEvalError) else _no_overload("||" if decisive else "&&", verdict)
    return ct.BoolType(not decisive) if error is None else error


_LEVELS: Final = frozenset(
    {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member"}
)
"""Precedence levels of the grammar: a node with one child is equivalent to that child."""


def pruned(tree: Tree) -> Tree:
    """Return the tree of an expression without nodes that only pass a value on: 90% of the nodes, and of the time."""
    while tree.data in _LEVELS and len(tree.children) == 1:
        tree = tree.children[0]
    if tree.data in {"member_object", "fieldinits"}:  # messages, which Kubernetes objects are not; they need the levels
        return tree
    children = [pruned(child) if isinstance(child, lark.Tree) else child for child in tree.children]
    return lark.Tree(tree.data, children, tree.meta)
