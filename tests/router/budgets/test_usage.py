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
        ({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 20}, Usage(3, 17)),
        ({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 7}, Usage(3, 5)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
        ({"prompt_tokens": 3, "completion_tokens": -5}, None),
        ({"prompt_tokens": -3, "completion_tokens": 5, "total_tokens": 2}, None),
        ({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": -1}, None),
        ({"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": -4}}, None),
        ({"prompt_tokens": 3, "completion_tokens": True}, None),
        ({"prompt_tokens": 3, "completion_tokens": 1e9}, None),
        ({"prompt_tokens": 3, "completion_tokens": 2**40}, None),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 40}},
         Usage(40, 1, 40)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3}, Usage(9, 0, 6)),
        ({"prompt_tokens": 9, "cached_tokens": 6}, Usage(9, 0, 6)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 5}},
         Usage(9, 0, 2, written_5m=5)),
        ({"prompt_tokens": 9, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 5},
         Usage(9, 0, 2, written_5m=5)),
        ({"prompt_tokens": 9, "cache_creation_input_tokens": 5,
          "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 4}},
         Usage(9, 0, written_5m=1, written_1h=4)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cache_creation_tokens": 5, "cache_creation_token_details":
          {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 5}}}, Usage(9, 0, written_1h=5)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, 0, 4)),
        ({}, None),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
        ({"input_tokens": 3}, None),
        (None, None),
        ([], None),
    ],
)  # fmt: skip
def test_a_usage_is_read(usage, read):
    """Rerankers report only the total; usage without a number, or with one that cannot be true, is None."""
    assert usage_of({"usage": usage}) == read


def test_known_usage_stays_where_an_event_has_none():
    """Events of a stream may carry an empty usage."""
    known = Usage(3, 5)
    assert usage_of({"usage": {}}, known) is known


@pytest.mark.parametrize("timings", [{}, {"prompt_n": 0, "predicted_n": 0}, {"prompt_n": 4, "predicted_n": -1}])
def test_timings_that_cannot_be_true_are_none(timings):
    """As for `usage`."""
    assert usage_of({"timings": timings}) is None
