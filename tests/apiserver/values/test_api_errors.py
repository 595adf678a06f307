"""Refusals are answers, so they have bounds, too."""

from llmkube.apiserver.values.api_errors import Subject, invalid
from llmkube.apiserver.values.field_errors import invalid as field_invalid


def test_a_refusal_lists_the_first_errors_and_counts_the_rest():
    """100,000 errors, or a few of a megabyte each, give a response of bounded size with the count of omitted errors."""
    many = invalid(Subject("Thing"), [field_invalid(f"x[{number}]", "y", "no") for number in range(100_000)])
    assert many.message.endswith("and 99500 more errors]")
    assert many.details is not None
    assert len(many.details["causes"]) == 500
    large = invalid(Subject("Thing"), [field_invalid(f"x[{number}]", "y" * 600_000, "no") for number in range(50)])
    assert large.message.endswith("and 48 more errors]")


def test_a_few_errors_are_listed_in_full():
    """As kube-apiserver tells them, once each."""
    one, other = field_invalid("a", 1, "no"), field_invalid("b", 2, "no")
    assert invalid(Subject("Thing"), [one, one, other]).message == (
        'Thing "" is invalid: [a: Invalid value: 1: no, b: Invalid value: 2: no]'
    )
