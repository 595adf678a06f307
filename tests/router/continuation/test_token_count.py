"""Token counts of an answer by several engines equal those of one engine."""

import pytest

from llmkube.router.budgets.usage import Usage
from llmkube.router.continuation.token_count import JoinError, TokenCount


def timings(prompt, predicted, cached=0):
    return {"timings": {"cache_n": cached, "prompt_n": prompt - cached, "predicted_n": predicted}}


def write(count, prompt, tokens, cached=0):
    """Write with one engine, a token in each event."""
    count.begin_engine()
    for at in range(1, tokens + 1):
        count.take(timings(prompt, at, cached), at_end=False)
        count.add_piece()


def test_the_whole_is_the_first_prompt_and_all_text():
    """The second engine has read the first 4 tokens as prompt, but they are not part of the request's prompt."""
    count = TokenCount()
    write(count, 10, 4, cached=8)
    assert count.next_engine(has_text=True) == 4
    write(count, 14, 3, cached=14)
    assert (count.total, count.text_tokens, count.is_counted) == (Usage(10, 7, 8), 7, True)
    assert count.totals({"prompt_tokens_details": None}) == {
        "completion_tokens": 7,
        "prompt_tokens": 10,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 8},
    }


def test_an_engine_that_died_before_any_text_counts_nothing():
    count = TokenCount()
    count.begin_engine()
    assert count.next_engine(has_text=False) == 0
    write(count, 10, 2)
    assert count.total == Usage(10, 2, 0)


def test_what_was_not_counted_is_not_guessed():
    """Without timings, a piece may be more than one token."""
    count = TokenCount()
    count.begin_engine()
    count.add_piece()
    assert (count.is_counted, count.text_tokens, count.total) == (False, 1, None)
    count.next_engine(has_text=True)
    write(count, 12, 3)
    assert (count.is_counted, count.total) == (False, None)


@pytest.mark.parametrize(
    ("read", "is_greedy", "refused"),
    [(14, True, False), (15, True, True), (15, False, True), (13, True, True), (13, False, False)],
)
def test_a_later_engine_has_read_the_prompt_and_the_text(read, is_greedy, refused):
    count = TokenCount()
    write(count, 10, 4)
    count.next_engine(has_text=True)
    write(count, read, 1)
    if refused:
        with pytest.raises(JoinError, match=f"engine read {read} tokens; prompt and text have 14"):
            count.check_prompt(is_greedy=is_greedy)
    else:
        count.check_prompt(is_greedy=is_greedy)


def test_a_missing_end_is_completed_with_the_clients_text():
    count = TokenCount()
    write(count, 10, 4)
    total = count.total
    assert total is not None
    count.take(timings(10, 9), at_end=True)  # text that was held back is not included
    count.close(total)
    assert count.total == Usage(10, 4, 0)
