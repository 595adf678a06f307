"""Patterns of model names do what a character-wise reading of them does, in time that no name makes long."""

import random
import time

import pytest

from llmkube.router.config.model_patterns import covers, fits_any, problem_of
from router.policy import oracle


def test_patterns_fit_as_a_plain_reading_does():
    """Random patterns and names over few letters, slashes and stars, against one that goes character by character."""
    dice = random.Random(4)
    seen = set()
    for _ in range(20_000):
        pattern = "".join(dice.choice("ab/*?") for _ in range(dice.randint(0, 6)))
        name = "".join(dice.choice("ab/") for _ in range(dice.randint(0, 7)))
        fits = oracle.fits(pattern, name)
        assert fits_any((pattern,), name) == fits, (pattern, name)
        seen.add(fits)
    assert seen == {True, False}


@pytest.mark.parametrize("name", ["a.b", "a+b", "a(b", "a\nb", "ä"])
def test_all_else_is_itself(name):
    """What means something to regular expressions means nothing here."""
    assert fits_any((name,), name)
    assert not fits_any((name,), "axb")
    assert fits_any(("*",), name)


def test_no_pattern_fits_nothing():
    """An empty list admits no model, not even one without a name."""
    assert not fits_any((), "")
    assert not fits_any((), "gpt-5")


def test_a_hostile_name_costs_no_more_than_its_length():
    """Many stars against a long name without an end that fits: the search never goes back."""
    begin = time.process_time()
    assert not fits_any(("*a" * 30 + "b",), "a" * 100_000)
    assert time.process_time() - begin < 20  # going back would take years


@pytest.mark.parametrize(
    ("pattern", "said"), [("", "it is empty"), ("gpt-[45]", "'['"), ("a{b", "'{'"), ("a b", "' '"), ("a\\*", "'\\\\'")]
)
def test_what_is_no_pattern_is_told(pattern, said):
    """Wildcards of other languages are refused: they would fit nothing in silence."""
    assert said in problem_of(pattern)


def test_a_pattern_covers_another():
    """Only what is certain counts."""
    assert covers("*", "gpt-*")
    assert covers("gpt-*", "gpt-*")
    assert covers("gpt-*", "gpt-5")
    assert not covers("gpt-*", "*")
    assert not covers("gpt-*", "phi")
