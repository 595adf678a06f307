"""CEL rules of custom resources."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from lengths import sample_rows
from llmkube.apiserver.schema import cel
from llmkube.apiserver.schema.structural import RuleError, Schema


def errors(schema: dict[str, Any], value: Any, old: Any = None, path: str = "spec") -> list[str]:
    return [str(error) for error in cel.check(value, old, Schema.parse(schema), path)]


def rules(*texts: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "x-kubernetes-validations": [{"rule": text, "message": text} for text in texts],
    }


NUMBER, INTEGER, TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string"}
LIST = {"type": "array", "items": INTEGER}

RULES: list[tuple[str, dict[str, Any], Any, bool]] = [
    ("self.low <= self.high", {"low": INTEGER, "high": INTEGER}, {"low": 1, "high": 2}, True),
    ("self.low <= self.high", {"low": INTEGER, "high": INTEGER}, {"low": 3, "high": 2}, False),
    ("has(self.a) == has(self.b)", {"a": TEXT, "b": TEXT}, {"a": "x"}, False),
    ("!has(self.a) || self.a > 0.5", {"a": NUMBER}, {"a": 1}, True),
    ("double(self.a) / 2.0 < 1.0", {"a": INTEGER}, {"a": 1}, True),
    ("size(self.l) == 2 && self.l.all(i, i > 0)", {"l": LIST}, {"l": [1, 2]}, True),
    ("self.l.exists(i, i == 3)", {"l": LIST}, {"l": [1, 2]}, False),
    ("self.a in ['x', 'y']", {"a": TEXT}, {"a": "z"}, False),
    ("self.a.startsWith('x') && self.a.matches('^x.$')", {"a": TEXT}, {"a": "xy"}, True),
    ("self.d < duration('5m')", {"d": {"type": "string", "format": "duration"}}, {"d": "10m"}, False),
    ("self.l.isSorted() && self.l.sum() == 3", {"l": LIST}, {"l": [1, 2]}, True),
    ("self.a.split(',').size() == 2", {"a": TEXT}, {"a": "1,2"}, True),
    ("self.a.lowerAscii() == self.a", {"a": TEXT}, {"a": "A"}, False),
    ("isURL(self.a)", {"a": TEXT}, {"a": "not a url"}, False),
    ("self.a == null || self.a > 1", {"a": {**INTEGER, "nullable": True}}, {"a": None}, True),
]


@pytest.mark.parametrize(("rule", "properties", "value", "holds"), RULES)
def test_a_rule_judges_the_value_by_its_schema_types(rule: str, properties: Any, value: Any, holds: bool):
    """Comparisons, has(), size(), macros and Kubernetes' own functions give the verdict that CEL defines."""
    expected = [] if holds else [f"spec: Invalid value: {rule}"]
    assert errors(rules(rule, **properties), value) == expected


def test_a_scalar_shows_its_value_and_an_object_does_not():
    """A broken rule on a scalar quotes the value; on an object it would only be noise."""
    schema = {
        "type": "object",
        "properties": {"n": {**INTEGER, "x-kubernetes-validations": [{"rule": "self > 1", "message": "too small"}]}},
    }
    assert errors(schema, {"n": 1}) == ["spec.n: Invalid value: 1: too small"]


def test_without_a_message_the_rule_speaks():
    """A rule without a message is quoted."""
    schema = {**TEXT, "x-kubernetes-validations": [{"rule": "self == 'a'"}]}
    assert errors(schema, "b") == ["spec: Invalid value: \"b\": failed rule: self == 'a'"]


def test_a_message_expression_beats_the_message_unless_it_fails():
    """The computed message is used; one that cannot be computed falls back to the fixed one."""
    rule = {"rule": "self < 5", "message": "fixed", "messageExpression": "'got ' + string(self)"}
    assert errors({**INTEGER, "x-kubernetes-validations": [rule]}, 7) == ["spec: Invalid value: 7: got 7"]
    rule["messageExpression"] = "'got ' + self.nothing"
    assert errors({**INTEGER, "x-kubernetes-validations": [rule]}, 7) == ["spec: Invalid value: 7: fixed"]


def test_reason_and_field_path_are_the_rules():
    """A rule may say that a field is forbidden, and which one."""
    rule = {"rule": "false", "message": "no", "reason": "FieldValueForbidden", "fieldPath": ".a"}
    assert errors({"type": "object", "x-kubernetes-validations": [rule]}, {"a": 1}) == ["spec.a: Forbidden: no"]


def test_a_rule_that_cannot_run_fails():
    """A missing field under a rule that needs it is an invalid object, not a crash and not a pass."""
    assert errors(rules("self.absent > 1", absent=INTEGER), {}) == [
        'spec: Invalid value: "object": no such key: absent evaluating rule: self.absent > 1'
    ]


def test_a_transition_rule_waits_for_an_old_value():
    """A rule about oldSelf is skipped on create and judged on update."""
    schema = {
        "type": "object",
        "properties": {"a": {**TEXT, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]}},
    }
    assert errors(schema, {"a": "x"}) == []
    assert errors(schema, {"a": "x"}, {}) == []
    assert errors(schema, {"a": "x"}, {"a": "x"}) == []
    assert errors(schema, {"a": "x"}, {"a": "y"}) == ['spec.a: Invalid value: "x": fixed']


def test_items_of_keyed_lists_meet_their_own_past():
    """A transition rule inside a keyed list compares items of the same key, whatever their place."""
    schema = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": {
            "type": "object",
            "properties": {"k": TEXT, "v": INTEGER},
            "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "down"}],
        },
    }
    old = [{"k": "a", "v": 1}, {"k": "b", "v": 5}]
    assert errors(schema, [{"k": "b", "v": 5}, {"k": "a", "v": 2}], old) == []
    assert errors(schema, [{"k": "b", "v": 4}], old) == ["spec[0]: Invalid value: down"]


def test_an_unchanged_value_is_not_judged_again():
    """A value stored under an older rule may stay as it is."""
    schema = rules("self.a > 10", a=INTEGER)
    assert errors(schema, {"a": 1}, {"a": 1}) == []
    assert errors(schema, {"a": 2}, {"a": 1}) != []


def test_an_expression_is_compiled_once_and_silently():
    """Compiling twice gives the same object, and the library emits no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cel.compiled("self.x == 'once'") is cel.compiled("self.x == 'once'")


@pytest.mark.parametrize("text", ["self.", "self ==", "(", "1 +* 2"])
def test_what_is_no_expression_is_refused(text: str):
    """A text that does not parse raises a one-line error."""
    with pytest.raises(RuleError, match="compilation failed") as caught:
        cel.compiled(text)
    assert "\n" not in str(caught.value)


OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


def test_the_rules_of_an_object_have_one_budget(monkeypatch: pytest.MonkeyPatch):
    """Nested loops, or a cheap rule over very many items, end when they have used their common budget of steps."""
    monkeypatch.setattr("llmkube.apiserver.schema.cel_evaluator.MAX_UNITS", 10_000)
    message = OUT_OF_BUDGET
    cubic = rules("self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))", l=LIST)
    assert errors(cubic, {"l": list(range(5))}) == []
    assert errors(cubic, {"l": list(range(30))}) == [f'spec: Invalid value: "object": {message}']
    each = {
        "type": "array",
        "items": {**INTEGER, "x-kubernetes-validations": [{"rule": "[0, 1, 2].all(a, a <= self)"}]},
    }
    assert errors(each, [5] * 10) == []
    assert errors(each, [5] * 1_000)[-1].endswith(message)


def calls_of(act: Callable[[], object]) -> int:
    """Return how many functions are called, Python's and C's: what it costs, on any machine."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


FIELDS: dict[str, Any] = {
    "l": LIST,
    "a": TEXT,
    "n": {"type": "array", "items": LIST},
    "m": {"type": "object", "additionalProperties": INTEGER},
}
WORST: list[str] = [
    "self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))",
    "self.l.all(a, self.l.all(b, true))",
    "self.l.map(a, self.l.map(b, b)).size() > 0",
    "self.l.filter(a, self.l.exists_one(b, a == b)).size() > 0",
    "self.l.all(i, !(i + 10000 in self.l))",
    "self.l.all(i, !('x' in self.m))",
    "self.l.all(i, self.n == self.n && !(self.n != self.n))",
    "self.l.all(i, self.m == self.m)",
    "self.l.all(i, self.l + self.l != self.l)",
    "self.l.reduce(r, i, [0], r + r).size() > 0",
    "self.l.all(i, self.l.isSorted() && self.l.sum() > 0 && self.l.min() == 0 && self.l.indexOf(-1) < 0)",
    "self.l.all(i, (self.a + self.a).contains('xy') == false)",
    "self.l.all(i, self.a.split('').size() > 0)",
    "self.l.all(i, self.a.findAll('x').size() > 0)",
    "self.l.all(i, !self.a.matches('(x|y)*z'))",
    "self.l.all(i, string(self.a) == self.a)",
]


@pytest.mark.parametrize("rule", sample_rows(WORST))
def test_what_a_rule_may_cost_is_bounded_by_the_budget(monkeypatch: pytest.MonkeyPatch, rule: str):
    """Whatever it loops over, compares, cuts or searches, a rule ends after so many calls for each unit."""
    units = 10_000
    monkeypatch.setattr("llmkube.apiserver.schema.cel_evaluator.MAX_UNITS", units)
    numbers = list(range(3_000))
    value = {
        "l": numbers,
        "a": "x" * 20_000,
        "n": [numbers[:30]] * 100,
        "m": {str(number): number for number in numbers},
    }
    cel.compiled(rule)
    found: list[str] = []
    assert calls_of(lambda: found.extend(errors(rules(rule, **FIELDS), value))) < 60 * units
    assert found == [f'spec: Invalid value: "object": {OUT_OF_BUDGET}']


@pytest.mark.parametrize("rule", sample_rows(WORST))
def test_the_same_rules_are_judged_over_what_people_write(rule: str):
    """Over a few items each of them gets its verdict."""
    found = errors(
        rules(rule, **FIELDS), {"l": list(range(12)), "a": "x" * 250, "n": [[1, 2]] * 12, "m": {"a": 1, "b": 2}}
    )
    assert not any(OUT_OF_BUDGET in error for error in found)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("self.l.all(i, i.name != '')", "no such key: name"),
        ("self.l.exists(i, i.name == '')", "no such key: name"),
        ("self.l.all(i, other == i)", "undeclared reference to 'other'"),
        ("self.l.all(i, other(i))", "undeclared reference to 'other'"),
        ("self.l.all(i, i.other())", "undeclared reference to 'other'"),
        ("self.l.all(i, self.l.name == 1)", "type 'ListType' does not support field selection"),
        (
            "self.l.all(i, size(i) + 'x' == 1)",
            "found no matching overload for '_+_' applied to '(IntType, StringType)'",
        ),
        ("self.l.all(i, 1 / 0 == 1)", "modulus or divide by zero"),
        ("self.l.size() > 0 && self.l.size()", "found no matching overload for '&&' applied to '(IntType)'"),
        ("(5).all(i, true)", "found no matching overload for 'all' applied to '(IntType)'"),
    ],
)
def test_many_errors_are_one_short_one(rule: str, message: str):
    """A rule that fails for each of a thousand items reports the first failure only."""
    schema = rules(rule, l={"type": "array", "items": {"type": "object", "additionalProperties": TEXT}})
    found: list[str] = []
    errors(schema, {"l": [{"a": "b"}]})  # the first rule of a process builds the grammar
    assert calls_of(lambda: found.extend(errors(schema, {"l": [{"a": "b"}] * 1_000}))) < 500_000
    assert found == [f'spec: Invalid value: "object": {message} evaluating rule: {rule}']


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("self.l.all(i, i.name != 'x' || i.a == 'b')", True),
        ("self.l.exists(i, i.name == 'x' && i.a == 'b')", False),
        ("self.l.exists(i, i.name == 'x' || i.a == 'b')", True),
        ("!self.l.all(i, i.name == 'x' && i.a == 'c')", True),
        ("self.l.all(i, !has(i.name) || i.name == 'x') ? true : false", True),
        ("type(self.l) == list && type(1) == int", True),
        ("[1, 2, 3].min() == 1 && -[1, 2].max() == -2", True),
        ("(1 + 2) * 3 == 9 && 1 + 2 * 3 == 7 && 7 % 4 - 1 == 2 && !(1 > 2)", True),
        ("{'a': 1}.all(k, k == 'a') && 'a' in {'a': 1}", True),
        ("dyn(self.l).size() == 3", True),
    ],
)
def test_an_error_next_to_the_deciding_operand_is_ignored(rule: str, holds: bool):
    """`&&`, `||`, `all` and `exists` have the value that one side decides; precedence is CEL's."""
    schema = rules(rule, l={"type": "array", "items": {"type": "object", "additionalProperties": TEXT}})
    found = errors(schema, {"l": [{"a": "b"}] * 3})
    assert (found == []) is holds, found


def test_what_rules_at_several_levels_see_is_made_once():
    """A large object with a rule at each level pays once for being given its types."""
    leaf = {**LIST, "x-kubernetes-validations": [{"rule": "size(self) > 0"}]}
    schema: dict[str, Any] = leaf
    value: Any = list(range(90_000))
    for _ in range(8):
        schema = rules("has(self.l)", l=schema)
        value = {"l": value}
    assert errors(schema, value) == []


def test_a_long_text_is_no_duration_and_a_long_expression_is_no_rule():
    """To read the one would take a second, and the other a minute."""
    text = {"d": "1h" * 100_000}
    assert "return error for overflow" in errors(rules("duration(self.d) > duration('1h')", d=TEXT), text)[0]
    typed = rules("type(self.d) == string", d={"type": "string", "format": "duration"})
    assert errors(typed, text) == []
    with pytest.raises(RuleError, match="compilation failed: it has 12002 characters; 10000 are allowed"):
        cel.compiled("[" + "1," * 6_000 + "]")


@pytest.mark.parametrize(
    "rule",
    ["size(self.a.replace('', self.a)) > 0", "size([self.a, self.a].join(self.a)) > 0", "size(self.a * 1000000) > 0"],
)
def test_no_function_makes_a_text_that_fills_a_memory(rule: str):
    """Texts are not multiplied: a rule that would is one that cannot run."""
    assert len(errors(rules(rule, a=TEXT), {"a": "x" * 5_000_000})) == 1


def test_a_pattern_of_a_rule_is_re2s():
    """`matches`, `find` and `findAll` answer a pattern at once that an engine with backtracking never finishes."""
    texts = ["self.a.matches('^(a+)+$')", "self.a.find('(a+)+b') == 'x'", "size(self.a.findAll('(a+)+b')) == 1"]
    assert len(errors(rules(*texts, a=TEXT), {"a": "a" * 10_000 + "!"})) == len(texts)
