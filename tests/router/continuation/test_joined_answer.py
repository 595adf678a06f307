"""Parts from several engines form one stream, byte for byte the undisturbed one, or are not joined."""

import json
import re

import pytest

from llmkube.router.config.routing_config import Backend
from llmkube.router.continuation import joined_answer, token_count
from llmkube.router.continuation.joined_answer import MAX_CONTINUATIONS, MAX_TEXT_BYTES, JoinedAnswer, JoinError
from router.continuation.llama_script import CHAT, COMPLETIONS, PIECES, PROMPT, PROMPT_TOKENS, TEXT, TOKENS, answer

DONE = b"data: [DONE]\n\n"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = {
    "a chat": (CHAT, MESSAGES),
    "with usage": (CHAT, MESSAGES | {"stream_options": {"include_usage": True}}),
    "with a limit": (CHAT, MESSAGES | {"max_tokens": 7, "stream_options": {"include_usage": True}}),
    "with a limit in a letter": (CHAT, MESSAGES | {"max_tokens": 4, "stream_options": {"include_usage": True}}),
    "with a limit at a piece": (CHAT, MESSAGES | {"max_tokens": 6, "stream_options": {"include_usage": True}}),
    "a prompt": (COMPLETIONS, {"prompt": PROMPT}),
    "a prompt with a limit": (COMPLETIONS, {"prompt": PROMPT, "max_tokens": 8}),
}


def engine(name, digest="x"):
    return Backend(name=name, model_id=name, base_url=f"http://{name}/v1", local=True, model_digest=digest)


def asked(path, body):
    """Return the body that a backend gets."""
    return body | {"timings_per_token": True, "stream_options": {"include_usage": True}}


def read(joined, backend, events, *, hides=False):
    """Feed the events of one engine; return what the client gets."""
    events = list(events)
    joined.begin(backend, next((json.loads(each[6:]).get("model", "") for each in events if each != DONE), ""))
    found = b""
    for event in events:
        if event == DONE:
            return found + joined.release() + event
        chunk = json.loads(event[6:])
        found += joined.take(chunk, event, hidden=hides and not chunk["choices"])
    return found


def hides_usage(body):
    return not body.get("stream_options", {}).get("include_usage")


def undisturbed(path, body):
    return read(new(path, body), engine("a"), list(answer(path, asked(path, body), "a")), hides=hides_usage(body))


def timeless(data):
    """Remove the times of the last engine, which are not those of the whole answer."""
    return re.sub(rb',"timings":{[^}]*}', b"", data)


def new(path, body):
    return JoinedAnswer(path, body | {"stream": True})


def interrupted(path, body, ends):
    """Return what the client gets if the n-th engine dies after this many events; the last one does not die."""
    joined, found, sent = new(path, body), b"", body
    for number, end in enumerate([*ends, None]):
        name = "ab"[number % 2]
        events = list(answer(path, asked(path, sent), name))
        found += read(joined, engine(name), events[:end], hides=hides_usage(body))
        if end is None or found.endswith(DONE):
            return joined, found
        closing_events = joined.release() if joined.is_finished else joined.closing_events()
        if closing_events:
            return joined, found + closing_events + DONE
        assert joined.mark_interrupted() == ""
        sent = {name: each for name, each in joined.next_body().items() if name != "stream"}
    raise AssertionError


@pytest.mark.parametrize("name", BODIES)
def test_an_engine_that_dies_after_any_event_leaves_no_trace(name):
    """After one or two deaths at any event the bytes are the same, with one id, role and end, and full usage."""
    path, body = BODIES[name]
    whole = timeless(undisturbed(path, body))
    most = len(list(answer(path, asked(path, body))))
    for first in range(1, most):
        assert timeless(interrupted(path, body, [first])[1]) == whole, first
        for second in range(1, most - first + 1):
            joined, found = interrupted(path, body, [first, second])
            assert timeless(found) == whole, (first, second)
            assert joined.continuations <= 2


def test_the_undisturbed_stream_is_the_engines_own():
    """Only timings that the router itself requested are removed; those at the end stay."""
    path, body = BODIES["with usage"]
    plain = b"".join(answer(path, body, "a"))
    assert undisturbed(path, body) == plain
    assert b"timings" in plain


def test_a_client_that_asks_for_timings_gets_them():
    """The timings are the first engine's: those of another would start again at 0."""
    body = MESSAGES | {"timings_per_token": True}
    assert undisturbed(CHAT, body).count(b'"timings"') == len(PIECES)


def test_usage_is_that_of_the_whole_answer():
    """The prompt is counted once, with all tokens of the text and the first engine's cached tokens."""
    joined, found = interrupted(CHAT, BODIES["with usage"][1], [4])
    usage = json.loads(found.split(b"\n\n")[-3][6:])["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, TOKENS + 1)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert (joined.usage.prompt, joined.usage.completion, joined.usage.cached) == (PROMPT_TOKENS, TOKENS + 1, 3)


def test_what_was_counted_is_known_also_of_an_answer_that_ends_in_the_middle():
    """Tokens that no engine has counted are not included."""
    joined = new(CHAT, MESSAGES)
    read(joined, engine("a"), list(answer(CHAT, asked(CHAT, MESSAGES)))[:3])
    assert (joined.usage.prompt, joined.usage.completion) == (PROMPT_TOKENS, 2)
    joined.mark_interrupted()
    joined.next_body()
    assert (joined.usage.prompt, joined.usage.completion) == (PROMPT_TOKENS, 2)
    silent = new(CHAT, MESSAGES)
    read(silent, engine("a"), list(answer(CHAT, MESSAGES))[:3])
    assert silent.usage is None


def piece(delta, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": None} | more
    event = {"id": "1", "model": "m.gguf", "system_fingerprint": "b1-x", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(event).encode()


NOT_TEXT = {
    "a call": piece({"tool_calls": [{"index": 0}]}),
    "an old call": piece({"function_call": {"name": "f"}}),
    "thoughts": piece({"reasoning_content": "hm"}),
    "probabilities": piece({"content": "x"}, logprobs={"content": []}),
    "what is not known": piece({"audio": {"id": "x"}}),
    "a second choice": piece({"content": "x"}, index=1),
    "two choices": b'data: {"choices": [{"index": 0}, {"index": 1}]}\n\n',
    "a choice that is none": b'data: {"choices": [7]}\n\n',
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_what_is_no_text_is_not_joined(name):
    """It is passed on, and the answer is not continued; in a continuation it is refused."""
    joined = new(CHAT, MESSAGES)
    assert read(joined, engine("a"), [piece({"content": "a"}), NOT_TEXT[name]]).endswith(NOT_TEXT[name])
    assert joined.mark_interrupted()
    later = new(CHAT, MESSAGES)
    read(later, engine("a"), [piece({"content": "a"})])
    later.next_body()
    with pytest.raises(JoinError):
        read(later, engine("b"), [NOT_TEXT[name]])


def test_an_unknown_engine_is_not_continued():
    """It has no digest and no llama.cpp build."""
    joined = new(CHAT, MESSAGES)
    read(joined, engine("a", digest=""), [piece({"content": "a"}).replace(b"b1-x", b"fp_1")])
    assert "not known to be" in joined.mark_interrupted()


def test_the_same_backend_with_another_model_is_refused():
    """It was restarted with another file; the same model may have different names at two backends."""
    for name, refused in (("a", True), ("b", False)):
        joined = new(CHAT, MESSAGES)
        read(joined, engine("a"), [piece({"content": "a"})])
        joined.next_body()
        other = [piece({"content": "b"}).replace(b"m.gguf", b"n.gguf")]
        if refused:
            with pytest.raises(JoinError, match="model of a has changed"):
                read(joined, engine(name), other)
        else:
            assert b"m.gguf" in read(joined, engine(name), other)


def test_an_engine_that_has_read_more_than_the_text_is_refused():
    """It has ended the text and started another answer; at temperature 0, fewer tokens are refused, too."""
    joined = new(CHAT, MESSAGES)
    read(joined, engine("a"), list(answer(CHAT, asked(CHAT, MESSAGES)))[:4])
    sent = joined.next_body()
    for extra in (0, -1):  # the text may be fewer tokens than it took
        again = new(CHAT, MESSAGES)
        read(again, engine("a"), list(answer(CHAT, asked(CHAT, MESSAGES)))[:4])
        again.next_body()
        assert read(again, engine("b"), answer(CHAT, asked(CHAT, sent), extra_prompt=extra))
    greedy = new(CHAT, MESSAGES | {"temperature": 0})
    read(greedy, engine("a"), list(answer(CHAT, asked(CHAT, MESSAGES)))[:4])
    greedy.next_body()
    with pytest.raises(JoinError):
        read(greedy, engine("b"), answer(CHAT, asked(CHAT, sent), extra_prompt=-1))
    with pytest.raises(JoinError, match="prompt and text have"):
        read(joined, engine("b"), answer(CHAT, asked(CHAT, sent), extra_prompt=2))


def test_a_limit_without_a_count_ends_it():
    """The remaining number of tokens is not guessed."""
    joined = new(CHAT, MESSAGES | {"max_tokens": 9})
    read(joined, engine("a"), list(answer(CHAT, MESSAGES))[:3])
    assert "has not counted" in joined.mark_interrupted()
    unlimited = new(CHAT, MESSAGES)
    read(unlimited, engine("a"), list(answer(CHAT, MESSAGES))[:3])
    assert unlimited.mark_interrupted() == ""


def test_an_answer_is_continued_three_times():
    """A request that kills engines must not kill every engine."""
    joined = new(CHAT, MESSAGES)
    for _ in range(MAX_CONTINUATIONS):
        read(joined, engine("a"), list(answer(CHAT, MESSAGES))[:2])
        assert joined.mark_interrupted() == ""
        joined.next_body()
        joined = joined if joined.continuations == MAX_CONTINUATIONS else _restarted(joined)
    assert f"{MAX_CONTINUATIONS} times" in joined.mark_interrupted()


def _restarted(joined):
    """Restart the text, since each engine of this test starts at the beginning."""
    joined._text = bytearray()
    return joined


def test_a_long_text_is_not_kept():
    """It is passed on and can no longer be continued; a continued answer is passed on as well."""
    for gone_on in (False, True):
        joined = new(CHAT, MESSAGES)
        if gone_on:
            read(joined, engine("a"), [piece({"content": "a"})])
            joined.next_body()
        joined.begin(engine("a"), "m.gguf")
        part = piece({"content": "x" * 1000})
        passed = [joined.take(json.loads(part[6:]), part) for _ in range(MAX_TEXT_BYTES // 1000 + 2)]
        assert all(passed)
        assert "longer than" in joined.mark_interrupted()


# -- deliberate bugs --------------------------------------------------------------------------------------------------


def play():
    """Run the exhaustive test for one request with a limit and one with a prompt."""
    for name in ("with usage", "with a limit at a piece", "a prompt with a limit"):
        test_an_engine_that_dies_after_any_event_leaves_no_trace(name)
    test_an_engine_that_has_read_more_than_the_text_is_refused()
    test_the_same_backend_with_another_model_is_refused()


def _full_limit(path, body, text, tokens):
    return joined_answer_next(path, body, text, 0)


def _no_text(path, body, text, tokens):
    return joined_answer_next(path, body, "", tokens)


joined_answer_next = joined_answer.next_request
MUTANTS = {
    "the limit is not lowered": (joined_answer, "next_request", _full_limit),
    "the text is not given": (joined_answer, "next_request", _no_text),
    "the id is another": (joined_answer, "_SHARED_FIELDS", frozenset({"created", "model", "system_fingerprint"})),
    "nothing of a piece is text": (joined_answer, "text_of", lambda _choice: ""),
    "a role is never seen": (joined_answer, "has_role", lambda _choice: False),
    "nothing is a limit": (joined_answer, "is_limit", lambda _value: False),
    "no usage is read": (token_count, "usage_of", lambda _said, known=None: known),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_caught(name, monkeypatch):
    """If a mutant passed, the test of every event would prove nothing."""
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, pytest.fail.Exception, JoinError)):
        play()


@pytest.mark.soak
def test_no_mutant_is_caught_by_chance():
    """Without a bug, the same run passes."""
    play()
    assert "".join(text for text, _ in PIECES) == TEXT
