"""celpy's evaluator, with a price on everything that it does: a rule ends when its budget is spent.

A unit is paid for each node of an expression that is visited, and what goes over a list or a text pays for its size
(`cost`): `self.items.all(i, i in self.items)` visits few nodes and compares every item with every other one.

What of celpy costs without a bound is done here instead: it clones all names for each item of a macro, and spells whole
objects, and errors within errors, in the messages of errors that a rule may pass over.

A budget counts units of 2 to 3 µs. kube-apiserver has such a budget too, of estimates that a compiled evaluator is fast
enough for; the prices here follow its: comparing costs the smaller side, a text costs by its length, a pattern by both.
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
"""What all rules may spend on one object: about a third of a second."""

_OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"

_CHARACTERS_PER_UNIT: Final = 256
_PIECES_PER_UNIT: Final = 3  # a text is cut into so many in the time of one visit
_MATCHING_PER_UNIT: Final = 300  # characters times instructions of a pattern; a tenth of it in RE2's usual case


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


_FREE: Final = frozenset({"!_", "-_", "_?_:_", "_||_", "_&&_", "_[_]", "size", "type"})
"""They look at the outside of a value alone."""


_COMPARING: Final = frozenset({"_==_", "_!=_"})
_CUTTING: Final = frozenset({"findAll", "split"})
_MATCHING: Final = frozenset({"find", "findAll", "matches"})


def cost(name: str, budget: Budget, arguments: Sequence[Any]) -> int:
    """Return what the call of a function costs, in units: the size of what it is given, and what it does with a text.

    Of two values that are compared, the smaller one counts.
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


_ITEM_UNITS: Final = 3  # to begin with the next item of a macro

Tree = Any  # of lark, whose types do not say which of the children are trees

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
        CELEvalError: It has none for these values.
        OutOfBudgetError: It costs more than is left.
    """
    return _Priced(tree, activation, budget, names).evaluate()


class _Priced(Evaluator):
    """Evaluates an expression within a budget."""

    def __init__(self, ast: Tree, activation: Activation, budget: Budget, names: Mapping[str, Any]) -> None:
        super().__init__(ast, activation)
        self._budget = budget
        self._outer = self._names = names

    def sub_evaluator(self, ast: Tree) -> "_Priced":
        """Evaluate what is inside of a macro within the same budget."""
        return _Priced(ast, self.activation, self._budget, self._names)

    def set_activation(self, values: Mapping[str, Any]) -> "_Priced":
        """Name the item of a macro."""
        self._budget.spend(_ITEM_UNITS)
        self._names = {**self._outer, **values}
        return self

    def visit(self, tree: Tree) -> Any:
        """Pay for a node."""
        self._budget.spend(1)
        return super().visit(tree)

    def visit_children(self, tree: Tree) -> Any:
        """Pay for several."""
        self._budget.spend(len(tree.children))
        return super().visit_children(tree)

    def primary(self, tree: Tree) -> Any:
        """Look a name up here; celpy would spell everything that it knows when there is none."""
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
        """Select a field; celpy would spell the whole of what has none."""
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
        """Compare; celpy spends most of the time of an operator on hints of types."""
        operator, right = tree.children
        return self._operate(_OPERATORS[operator.data], operator.children[0], right)

    addition = multiplication = relation

    def conditionalor(self, tree: Tree) -> Any:
        """Look for a side that holds."""
        return _first_decisive(map(self.visit, tree.children), decisive=True)

    def conditionaland(self, tree: Tree) -> Any:
        """Look for a side that does not hold."""
        return _first_decisive(map(self.visit, tree.children), decisive=False)

    def member_dot_arg(self, tree: Tree) -> Any:
        """Call a method or a macro; celpy's `all` and `exists` spell errors within errors, twice as long each time."""
        member, name = tree.children[:2]
        if name.value not in {"all", "exists", "min"}:
            return super().member_dot_arg(tree)
        items = self.visit(member)
        if name.value == "min":  # to celpy a macro
            return self.method_eval(items, name)
        if isinstance(items, CELEvalError):
            return items
        if not isinstance(items, list | dict):
            return _no_overload(name.value, items)
        return _first_decisive(map(self.build_ss_macro_eval(tree), items), decisive=name.value == "exists")

    def unary(self, tree: Tree) -> Any:
        """Negate."""
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
        """Pay for a call; returns an error when there is no such function."""
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
    """Return what decides, or else the first error: one beside what decides does not count."""
    error = None
    for verdict in verdicts:
        if isinstance(verdict, ct.BoolType):
            if bool(verdict) is decisive:
                return verdict
        elif error is None:
            error = (
                verdict if isinstance(verdict, CELEvalError) else _no_overload("&&" if not decisive else "||", verdict)
            )
    return ct.BoolType(not decisive) if error is None else error


_LEVELS: Final = frozenset(
    {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member"}
)
"""Levels of precedence: a node with one child is that child."""


def pruned(tree: Tree) -> Tree:
    """Return the tree of an expression without nodes that only pass a value on: nine of ten, and of the time."""
    while tree.data in _LEVELS and len(tree.children) == 1:
        tree = tree.children[0]
    if tree.data in {"member_object", "fieldinits"}:  # messages, which no object of Kubernetes is: they ask for levels
        return tree
    children = [pruned(child) if isinstance(child, lark.Tree) else child for child in tree.children]
    return lark.Tree(tree.data, children, tree.meta)
