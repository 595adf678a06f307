"""CEL rules are compiled once and evaluated with `self` and `oldSelf`; a rule that cannot be evaluated has failed.

The schema gives each value its CEL type: JSON's 1 in a `number` field is a double, so `self <= 1.5` compares two
doubles, as on a kube-apiserver. Facts: `k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import attrs
import celpy
import celpy.celtypes as ct
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from llmkube.apiserver.schema import cel_evaluator, cel_functions
from llmkube.apiserver.schema.cel_evaluator import Budget, OutOfBudgetError, Tree
from llmkube.apiserver.schema.structural import Rule, RuleError, Schema
from llmkube.apiserver.values.field_errors import ErrorType, FieldError, at, at_item
from llmkube.apiserver.values.json_values import ABSENT, is_integer, is_list, is_number, is_object, same

_MISSING: Final = re.compile(r"no such member in mapping: '([^']*)'")
_REASONS: Final = {
    "": ErrorType.INVALID,
    "FieldValueInvalid": ErrorType.INVALID,
    "FieldValueForbidden": ErrorType.FORBIDDEN,
    "FieldValueRequired": ErrorType.REQUIRED,
    "FieldValueDuplicate": ErrorType.DUPLICATE,
}


MAX_CHARACTERS: Final = 10_000
"""Limit of one expression: celpy parses as many in half a second. kube-apiserver allows ten times as many."""


_VALUES_PER_UNIT: Final = 2  # JSON values that are converted to CEL for one unit


@attrs.frozen(eq=False)
class Expression:
    """A compiled expression."""

    text: str
    tree: Tree
    runner: Any  # celpy's, which is untyped
    uses_old_self: bool

    def evaluate(self, value: Any, old: Any, budget: Budget) -> Any:
        """Return the result for CEL values; `old` is None on create, where nothing refers to it.

        Raises:
            RuleError: The expression cannot be evaluated for these values.
            OutOfBudgetError: It costs more than the rest of the budget.
        """
        names = {"self": value} if old is None else {"self": value, "oldSelf": old}
        try:
            return cel_evaluator.evaluate(self.tree, self.runner.new_activation(), names, budget)
        except (CELEvalError, ValueError, TypeError, ArithmeticError, KeyError, IndexError) as error:
            raise RuleError(str(error.args[0] if error.args else error)) from error


@lru_cache(maxsize=4096)
def compiled(text: str) -> Expression:
    """Return the expression, compiled at most once.

    Raises:
        RuleError: The text does not parse.
    """
    if len(text) > MAX_CHARACTERS:
        raise RuleError(f"compilation failed: it has {len(text)} characters; {MAX_CHARACTERS} are allowed")
    try:
        tree = _ENVIRONMENT.compile(text)
        runner = _ENVIRONMENT.program(tree, functions=cel_functions.FUNCTIONS)
    except (CELParseError, ValueError) as error:
        raise RuleError(f"compilation failed: {str(error.args[0] if error.args else error).splitlines()[0]}") from error
    names = {str(token) for token in tree.scan_values(lambda _: True)}
    return Expression(text, cel_evaluator.pruned(tree), runner, "oldSelf" in names)


_ENVIRONMENT: Final = celpy.Environment()


def check(value: Any, old: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """Return the violations of the schema's rules; transition rules are skipped where there is no old value."""
    errors: list[FieldError] = []
    try:
        for error in _check(value, old, schema, path, Budget()):
            errors.append(error)  # noqa: PERF402  # errors found before the budget is spent are reported
    except OutOfBudgetError as exc:
        errors.append(FieldError(path, ErrorType.INVALID, str(exc), schema.type))
    return errors


def to_cel(value: Any, schema: Schema | None, budget: Budget) -> Any:
    """Return the CEL value of a JSON value, typed by its schema; lists and objects are converted once."""
    kind = schema.type if schema else ""
    if value is None or isinstance(value, bool):
        return None if value is None else ct.BoolType(value)
    if is_object(value) or is_list(value):
        key = id(value), id(schema)
        if key not in budget.typed:
            budget.spend(len(value) // _VALUES_PER_UNIT)
            budget.typed[key] = _typed_parts(value, schema, budget)
        return budget.typed[key]
    if is_number(value):
        return ct.IntType(int(value)) if kind != "number" and is_integer(value) else ct.DoubleType(value)
    if kind == "string" and schema is not None:
        return _typed_text(value, schema.raw.get("format", ""))
    return ct.StringType(value)


def _typed_parts(value: Any, schema: Schema | None, budget: Budget) -> Any:
    if is_list(value):
        return ct.ListType([to_cel(item, schema.items if schema else None, budget) for item in value])
    return ct.MapType(
        {
            ct.StringType(name): to_cel(item, schema.child(name) if schema else None, budget)
            for name, item in value.items()
            if item is not None or (schema is not None and (inner := schema.child(name)) and inner.nullable)
        }
    )


def _typed_text(value: str, wanted: str) -> Any:
    try:
        if wanted == "date-time":
            return cel_functions.timestamp(value)
        if wanted == "duration":
            return cel_functions.duration(value)
    except ValueError:
        pass  # the format's own check reports it
    return ct.StringType(value)


def _check(value: Any, old: Any, schema: Schema, path: str, budget: Budget) -> Iterator[FieldError]:
    if value is None or not schema.has_rules:
        return
    yield from _check_value(value, old, schema, path, budget)
    if is_object(value):
        before = old if is_object(old) else {}
        for name, item in value.items():
            inner = schema.child(name)
            if inner is not None:
                below = at(path, name) if name in schema.properties else at_item(path, name)
                yield from _check(item, before.get(name), inner, below, budget)
    elif is_list(value) and schema.items is not None:
        for index, (item, previous) in enumerate(zip(value, schema.counterparts(value, old), strict=True)):
            yield from _check(item, previous, schema.items, at_item(path, index), budget)


def _check_value(value: Any, old: Any, schema: Schema, path: str, budget: Budget) -> Iterator[FieldError]:
    """Evaluate the rules of a value, but not those of its parts."""
    rules = [rule for rule in schema.rules if not _is_skipped(rule, value, old)]
    if not rules:
        return
    typed = to_cel(value, schema, budget)
    typed_old = None if old is None else to_cel(old, schema, budget)
    for rule in rules:
        try:
            error = _apply_rule(rule, typed, typed_old, budget)
        except OutOfBudgetError:
            raise
        except RuleError as exc:  # it cannot be evaluated for this value
            bad = schema.type if schema.type in {"object", "array"} else value
            message = _MISSING.sub(r"no such key: \1", str(exc))
            why = f"{message} evaluating rule: {rule.get('message') or rule['rule']}"
            yield FieldError(path, ErrorType.INVALID, why, bad)
            continue
        if error is not None:
            shown = ABSENT if schema.type in {"object", "array"} else value
            below = rule.get("fieldPath", "")
            where = path + below if path else below.removeprefix(".")
            yield attrs.evolve(error, path=where, bad_value=shown)


def _is_skipped(rule: Rule, new: Any, old: Any) -> bool:
    """Whether to skip a rule: a transition rule if there is no old value, any other if the value is unchanged."""
    try:
        expression = compiled(rule.get("rule", ""))
    except RuleError:
        return False  # so that the error is reported
    if expression.uses_old_self:
        return old is None
    return old is not None and same(new, old)  # what was stored under an older rule may stay


def _apply_rule(rule: Rule, typed: Any, typed_old: Any, budget: Budget) -> FieldError | None:
    """Evaluate one rule on CEL values; the caller adds path and value to the error.

    Raises:
        RuleError: The rule cannot be run on this value.
    """
    result = compiled(rule.get("rule", "")).evaluate(typed, typed_old, budget)
    if not isinstance(result, ct.BoolType):
        raise RuleError("the result is not a boolean")
    kind = _REASONS.get(rule.get("reason", ""), ErrorType.INVALID)
    return None if result else FieldError("", kind, _message(rule, typed, typed_old, budget))


def _message(rule: Rule, typed: Any, typed_old: Any, budget: Budget) -> str:
    if expression := rule.get("messageExpression"):
        try:
            message = str(compiled(expression).evaluate(typed, typed_old, budget)).strip()
        except RuleError:
            message = ""  # a failed message must not hide the result
        if message and "\n" not in message:
            return message
    return rule.get("message", "").strip() or f"failed rule: {rule.get('rule', '').strip()}"
