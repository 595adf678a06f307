"""Which name a model has where: a client reaches one model alone, and reads the name that it knows."""

import json
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.programs.daemon_engine.naming import AnswerNames, RequestBodyError, with_model

OLLAMAS, OURS = "llmkube/default_chat", "chat"


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "secret"},
        {"Model": "secret"},
        {"MODEL": "secret", "model": "other"},
        {"model": {"a": 1}},
        {},
    ],
)
def test_a_request_asks_for_our_model_whatever_it_names(asked):
    """Go's reader takes a key of any case: none is left that could name another model."""
    body = json.loads(with_model(json.dumps(asked | {"messages": []}).encode(), OLLAMAS))
    assert {key: value for key, value in body.items() if key.lower() == "model"} == {"model": OLLAMAS}
    assert body["messages"] == []


def test_of_a_repeated_key_nothing_is_left():
    """JSON may repeat a key, and readers differ in which one counts."""
    body = with_model(b'{"model":"a","model":"b","mOdel":"c","n":1}', OLLAMAS)
    assert orjson.loads(body) == {"model": OLLAMAS, "n": 1}
    assert b'"b"' not in body


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"a"', b"\xff", b'"x"'])
def test_what_is_no_object_is_refused(body):
    """It would reach Ollama with no model of ours in it."""
    with pytest.raises(RequestBodyError):
        with_model(body, OLLAMAS)


@given(cuts=st.lists(st.integers(0, 200), max_size=12), text=st.text(max_size=30))
def test_an_answer_has_the_clients_name_however_it_is_cut(cuts, text):
    """What the model says is left as it is, also where it says a name."""
    said = {"model": OLLAMAS, "content": f'"model":"{OLLAMAS}" {text}'}
    data = b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    names = AnswerNames.between(OLLAMAS, OURS)
    passed = b"".join(names.feed(data[start:end]) for start, end in pairwise(edges))
    assert passed.endswith(b"\n\n")  # an event is never held back
    assert json.loads((passed + names.end()).removeprefix(b"data: ")) == said | {"model": OURS}


def test_what_looks_like_the_beginning_of_a_name_at_the_end_is_not_lost():
    """An answer may stop anywhere."""
    names = AnswerNames.between(OLLAMAS, OURS)
    assert names.feed(b'{"mod') + names.end() == b'{"mod'
