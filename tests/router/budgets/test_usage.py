"""Token usage in answers; an answer without usage is charged as reserved, so missing usage must not be read as 0."""

import pytest

from llmkube.router.budgets.usage import Usage, usage_of


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}, Usage(3, 5)),
        ({"prompt_tokens": 3, "total_tokens": 3}, Usage(3, 0)),
        ({"total_tokens": 9}, Usage(9, 0)),
        ({"completion_tokens": 2, "total_tokens": 9}, Usage(7, 2)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, 0)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, 0, 4)),
        ({}, None),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"input_tokens": 3}, None),
        (None, None),
        ([], None),
    ],
)
def test_a_usage_is_read(usage, read):
    """Rerankers report only the total; usage without a number is None."""
    assert usage_of({"usage": usage}) == read


def test_known_usage_stays_where_an_event_has_none():
    """Events of a stream may carry an empty usage."""
    known = Usage(3, 5)
    assert usage_of({"usage": {}}, known) is known
