"""What is remembered by identity is never somebody else's."""

from typing import Any

from llmkube.apiserver.values.identity_cache import IdentityCache


def test_a_value_is_worked_on_once():
    """The second question about the same value costs nothing; an equal value is another one."""
    seen: list[Any] = []

    def make(value: list[int]) -> int:
        seen.append(value)
        return sum(value)

    total = IdentityCache(make, capacity=2)
    one, equal = [1, 2], [1, 2]
    assert (total(one), total(one), total(equal)) == (3, 3, 3)
    assert [value is one for value in seen] == [True, False]


def test_an_identity_is_not_used_twice():
    """Short-lived values, whose addresses Python gives out again, never get each other's results."""
    text = IdentityCache(str, capacity=4)
    assert all(text([number]) == f"[{number}]" for number in range(1000))


def test_what_is_known_need_not_be_made():
    """A remembered result is returned as it is, until newer ones have taken its place."""
    text = IdentityCache(str, capacity=1)
    value, other = [1], [2]
    text.remember(value, "one")
    assert text(value) == "one"
    assert text(other) == "[2]"
    assert text(value) == "[1]"
