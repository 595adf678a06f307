"""CEL rules of custom resources."""

import warnings
from typing import Any

import pytest

from llmkube.apiserver.schema import cel
from llmkube.apiserver.schema.structural import Schema


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
    with pytest.raises(cel.RuleError, match="compilation failed") as caught:
        cel.compiled(text)
    assert "\n" not in str(caught.value)


def test_the_rules_of_an_object_have_one_budget(monkeypatch: pytest.MonkeyPatch):
    """Loops in loops, or a modest rule over very many items, end when all of them together have taken their steps."""
    monkeypatch.setattr("llmkube.apiserver.schema.cel_rules.MAX_STEPS", 10_000)
    said = "validation failed due to running out of cost budget, no further validation rules will be run"
    cubic = rules("self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))", l=LIST)
    assert errors(cubic, {"l": list(range(5))}) == []
    assert errors(cubic, {"l": list(range(30))}) == [f'spec: Invalid value: "object": {said}']
    each = {
        "type": "array",
        "items": {**INTEGER, "x-kubernetes-validations": [{"rule": "[0, 1, 2].all(a, a <= self)"}]},
    }
    assert errors(each, [5] * 10) == []
    assert errors(each, [5] * 1_000)[-1].endswith(said)


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
