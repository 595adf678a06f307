"""Engines are killed at random while they answer: each answer is complete, or its client gets an error."""

import pytest

from lengths import KILLED_ENGINES
from router.killed_engines import session
from router.killed_engines.engine import words_of
from router.killed_engines.session import BROKEN, REFUSED, WHOLE, judge

MIB = 1 << 20


@pytest.mark.e2e
async def test_each_answer_is_complete_or_an_error(tmp_path, monkeypatch):
    """A real router keeps serving over sockets, and its memory does not grow."""
    monkeypatch.setattr(session, "ODDS", min(session.ODDS, KILLED_ENGINES))
    found = await session.play(KILLED_ENGINES, tmp_path)
    assert found.wrong == []
    assert sum(found.answers.values()) == KILLED_ENGINES
    assert found.deaths > 2
    assert found.answers[WHOLE] > 0.1 * KILLED_ENGINES
    assert found.memory[-1] - found.memory[len(found.memory) // 4] < 16 * MIB


def events(*texts, done=True, error=False):
    lines = [f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{each}"}}}}]}}\n\n' for each in texts]
    return "".join([*lines, 'data: {"error": {}}\n\n' * error, "data: [DONE]\n\n" * done]).encode()


WORDS = words_of(4)


@pytest.mark.parametrize(
    ("status", "data", "clean", "kind"),
    [
        (200, events(*WORDS), True, WHOLE),
        (200, events(*WORDS[:2], done=False, error=True), False, BROKEN),
        (200, events(*WORDS[:2]), True, "wrong"),  # truncated, but presented as complete
        (200, events(*WORDS[:2], done=False), False, "wrong"),  # truncated without an error
        (200, events(*WORDS[:2], error=True), True, "wrong"),  # a failure that ends like an answer
        (200, events(WORDS[1], done=False, error=True), False, "wrong"),  # not the beginning of the answer
        (200, events(*WORDS, *WORDS), True, "wrong"),  # a word twice
        (503, b'{"error": {}}', True, REFUSED),
        (400, b'{"error": {"code": "ended_engines"}}', True, REFUSED),
        (400, b'{"error": {}}', True, "wrong"),
        (503, b"", True, "wrong"),
        (404, b'{"error": {}}', True, "wrong"),
        (0, b"", False, "wrong"),
    ],
)
def test_what_an_answer_is(status, data, clean, kind):
    """If a wrong kind passed here, no wrong answer would be found among a million."""
    assert judge(4, status, data, clean).partition(":")[0] == kind
