"""Two prompts share exactly the marks of their common beginning; the cost of a prompt is bounded."""

import itertools
import random

import orjson
import pytest

from llmkube.router.prefix_cache.warm_prefixes import (
    MARK_OFFSETS,
    MAX_PIECES,
    MAX_PROMPT_BYTES,
    SMALL_BODY_BYTES,
    marks_of,
    prompt_text,
)

CHAT = "/chat/completions"


def chat_body(*texts, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in texts]} | more


def marks(body, path=CHAT, body_bytes=0):
    return marks_of(b"seed", prompt_text(path, body, body_bytes))


def shared(left, right):
    return sum(one == other for one, other in zip(left, right, strict=False))


def test_the_places_are_few_and_no_further_apart_than_a_sixteenth():
    """The known part of a prefix is within 256 bytes or 7 % of its length."""
    assert MARK_OFFSETS[:3] == (256, 512, 768)
    assert len(MARK_OFFSETS) < 80
    assert all(later - one <= max(256, one // 16) for one, later in itertools.pairwise(MARK_OFFSETS))


@pytest.mark.parametrize("seed", range(5))
def test_a_continued_turn_has_all_marks_of_the_one_before(seed):
    """This is so for all lengths: the brackets at the end of a body are not part of the prompt."""
    dice = random.Random(seed)
    texts = ["x" * dice.randrange(1, 700) for _ in range(12)]
    for turns in range(1, len(texts)):
        before, after = marks(chat_body(*texts[:turns])), marks(chat_body(*texts[: turns + 1]))
        assert after[: len(before)] == before


def test_what_differs_shares_no_mark_from_there_on():
    """Equal text after a difference has different marks."""
    left, right = chat_body("a" * 2000, "b" * 5000), chat_body("a" * 2000, "c" + "b" * 5000)
    same = shared(marks(left), marks(right))
    assert MARK_OFFSETS[same - 1] <= 2100 < MARK_OFFSETS[same] + 256
    assert not set(marks(left)[same:]) & set(marks(right)[same:])
    assert not shared(marks(chat_body("a" * 2000)), marks(chat_body("a" * 2000, tools=[{"type": "function"}])))


def test_seeds_share_nothing():
    """Equal texts of two tenants have different marks."""
    text = prompt_text(CHAT, chat_body("a" * 5000), 0)
    assert not set(marks_of(b"one", text)) & set(marks_of(b"two", text))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat_body("a" * 5000, cache_prompt=False)),
        ("/embeddings", {"input": "a" * 5000}),
        (CHAT, chat_body("a" * 100)),
        (CHAT, {"messages": None}),
        ("/completions", {"prompt": ""}),
    ],
)
def test_what_no_engine_keeps_has_no_marks(path, body):
    """Short prompts have none, either."""
    assert marks(body, path) == ()


def test_completions_have_a_prompt():
    """It is a string or tokens."""
    assert len(marks({"prompt": "a" * 1000}, "/completions")) == 3
    assert marks({"prompt": list(range(1000))}, "/completions")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "ü" * 400_000}],
        [{"role": "user", "content": [{"type": "text", "text": "a" * 200_000}, {"type": "text", "text": "b"}]}],
        [{"role": "user", "content": "a\n" * 100} for _ in range(900)],
    ],
)
def test_a_long_body_has_the_marks_that_it_would_have_as_a_whole(messages):
    """Only its beginning is serialized, to the same bytes."""
    body = {"messages": messages}
    long = marks(body, body_bytes=SMALL_BODY_BYTES + 1)
    assert long
    assert long == marks(body)[: len(long)]


@pytest.mark.parametrize(
    "messages",
    [
        lambda: [[]] * 1_000_000,
        lambda: [{str(at): at for at in range(1_000_000)}],
        lambda: ["a"] * 1_000_000,
        lambda: [["x" * 9_000_000]],
    ],
)
def test_a_body_cut_finely_is_not_copied(messages):
    """The serialized part of 16 MiB is bounded in bytes and in pieces."""
    text = prompt_text(CHAT, {"messages": messages()}, 16 << 20)
    assert len(text) <= MAX_PROMPT_BYTES
    assert text.count(b",") <= MAX_PIECES


def test_nesting_ends_nothing():
    """A body that is nested too deeply to serialize has no marks, or those before that part."""
    deep = orjson.loads(b"[" * 900 + b"]" * 900)
    for size in (0, 16 << 20):
        assert isinstance(prompt_text(CHAT, {"messages": deep}, size), bytes)
