"""Tools of clients as functions of chat completions, in requests, histories, whole answers and streams."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.responses_client import read_responses
from router.dialects.drawn_chats import WORDS, chunks_of
from router.dialects.test_responses_answers import events_of

PLAIN = {"type": "function", "name": "shell", "description": "d", "parameters": {"type": "object"}, "strict": False}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: WORD"},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Agents",
    "tools": [PLAIN | {"name": "spawn_agent", "defer_loading": True}, {"type": "tool_search"}],
}
HOSTED = [{"type": each} for each in ("web_search", "image_generation", "local_shell", "mcp", "new_in_2030")]
LONG = "x" * 70


def read(tools=(), items="hi", **more):
    return read_responses({"model": "m", "input": items, "tools": list(tools)} | more)


def function_names(found):
    return [tool["function"]["name"] for tool in found.body.get("tools", ())]


def called(found, name, arguments, cut=3):
    """Return the only item of a whole answer that calls a function, and the events of the same answer as a stream."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {}}
    whole, translator = read_again(found).translator.answer(answer)["output"], read_again(found).translator
    events = events_of(b"".join(map(translator.event, chunks_of(answer, cut))) + translator.end())
    assert events[-1]["response"]["output"] == whole
    return whole[0], events


def read_again(found):
    return read_responses(found.translator.asked)


def test_the_request_of_codex_is_translated_or_named():
    """Namespaces become parts of names, texts an argument; tools that the client does not run are left out."""
    found = read([PLAIN, AGENTS, PATCH, *HOSTED], tool_choice="auto", parallel_tool_calls=False)
    plain, agent, patch = (tool["function"] for tool in found.body["tools"])
    assert plain == {name: each for name, each in PLAIN.items() if name != "type"}
    assert agent == plain | {"name": "multi_agent_v1__spawn_agent"}
    assert (patch["name"], patch["parameters"]["required"]) == ("apply_patch", ["input"])
    assert all(words in patch["description"] for words in ("Edit files", "lark", "start: WORD"))
    assert (found.body["tool_choice"], found.body["parallel_tool_calls"]) == ("auto", False)
    assert set(found.dropped) == {
        *("tools[1].description", "tools[1].tools[0].defer_loading", "tools[1].tools[1] (tool_search)"),
        *("tools[2].format (only described)", "tools[3] (web_search)", "tools[4] (image_generation)"),
        *("tools[5] (local_shell)", "tools[6] (mcp)", "tools[7] (new_in_2030)"),
    }
    assert [tool["type"] for tool in found.translator.echo["tools"]] == ["function", "namespace", "custom"]


TOOLS = st.builds(
    lambda kind, name, space: (kind, name, space),
    st.sampled_from(["function", "custom"]),
    st.sampled_from(["a", "b", "b__a", "a__b", LONG, LONG + "y", "a.b"]),
    st.sampled_from(["", "a", "a__b", "mcp__x", "mcp.x", LONG]),
)


@given(st.lists(TOOLS, min_size=1, max_size=8, unique=True))
@example([("function", "b__c", "a"), ("function", "c", "a__b"), ("function", "a__b__c", "")])
@example([("function", "a", ""), ("custom", "a", "")])
def test_each_tool_has_its_own_name_in_both_directions(drawn):
    """It is unique and valid; calls have the client's names, and earlier calls the names of the functions."""
    tools = []
    for kind, name, space in drawn:
        tool = {"type": kind, "name": name}
        tools.append({"type": "namespace", "name": space, "tools": [tool]} if space else tool)
    found = read(tools)
    names = function_names(found)
    assert len(set(names)) == len(names) == len(drawn)
    for (kind, name, space), flat in zip(drawn, names, strict=True):
        assert len(flat) <= 64
        assert not space or re.fullmatch(r"[\w-]+", flat)
        if not space and kind == "function" and len(name) <= 64:
            assert flat == name
        item, events = called(found, flat, '{"input":"t"}')
        assert (item["name"], item.get("namespace", "")) == (name, space)
        assert item["type"] == ("custom_tool_call" if kind == "custom" else "function_call")
        assert events[2]["item"]["name"] == name
        history = read(tools, [{"role": "user", "content": "hi"}, item]).body["messages"]
        assert history[1]["tool_calls"][0]["function"] == {"name": flat, "arguments": '{"input":"t"}'}


@given(WORDS | st.text(st.sampled_from('\\"/\n\u2028€😀a{}'), min_size=1), st.integers(1, 9), st.booleans())
def test_a_text_is_streamed_as_it_comes(text, cut, is_ascii):
    """Deltas and the last event have the text of the argument, wherever pieces are cut."""
    item, events = called(read([PATCH]), "apply_patch", json.dumps({"input": text}, ensure_ascii=is_ascii), cut)
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", text, "c1")
    kind = "response.custom_tool_call_input"
    assert "".join(each["delta"] for each in events if each["type"] == f"{kind}.delta") == text
    done = next(each for each in events if each["type"] == f"{kind}.done")
    assert (done["input"], done["item_id"]) == (text, item["id"])


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("{}", ""),
        ('{"input": ""}', ""),
        ("*** Begin Patch", "*** Begin Patch"),
        ("long " * 40, "long " * 40),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": "cut of', "cut of"),
        ('{"input": "a\\ud83dx"}', "a"),
        ('{"input": "a", "more": "' + "b" * 99 + '"}', "a"),
        ('{"input": "line\nline"}', "line\nline"),
    ],
)
def test_other_arguments_are_the_text(written, text):
    """A model that is not held to the schema may write the text itself."""
    assert called(read([PATCH]), "apply_patch", written)[0]["input"] == text


def test_a_long_text_is_read_piece_by_piece():
    """The first piece of a text is sent before its last is known."""
    translator = read([PATCH]).translator
    function = {"name": "apply_patch", "arguments": '{"input": "a\\nb'}
    events = events_of(translator.event({"choices": [{"delta": {"tool_calls": [{"id": "c", "function": function}]}}]}))
    assert events[-1]["delta"] == "a\nb"


ALLOWED = {"type": "allowed_tools", "mode": "auto"}
SPAWN = {"type": "function", "name": "spawn_agent", "namespace": "multi_agent_v1"}


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("required", "required", ["shell", "multi_agent_v1__spawn_agent", "apply_patch"]),
        ({"type": "custom", "name": "apply_patch"}, "apply_patch", None),
        (SPAWN, "multi_agent_v1__spawn_agent", None),
        ({"type": "function", "name": "multi_agent_v1__spawn_agent"}, "multi_agent_v1__spawn_agent", None),
        (ALLOWED | {"tools": [SPAWN, {"type": "mcp", "server_label": "x"}]}, "auto", ["multi_agent_v1__spawn_agent"]),
        (ALLOWED | {"mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}, "required",
         ["apply_patch"]),
        (ALLOWED | {"tools": [{"type": "web_search"}]}, "none", None),
    ],
)  # fmt: skip
def test_a_choice_names_functions(choice, expected, names):
    """Of the tools that are allowed, only those are sent."""
    found = read([PLAIN, AGENTS, PATCH, *HOSTED], tool_choice=choice)
    chosen = found.body["tool_choice"]
    assert (chosen if isinstance(chosen, str) else chosen["function"]["name"]) == expected
    assert function_names(found) == (names or ["shell", "multi_agent_v1__spawn_agent", "apply_patch"])
    assert ("tool_choice.tools[1]" in found.dropped) == (names == ["multi_agent_v1__spawn_agent"])


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_without_a_function_nothing_about_tools_is_sent(choice):
    """Providers refuse a choice among no tools."""
    found = read(HOSTED, tool_choice=choice, parallel_tool_calls=True)
    assert set(found.body) == {"model", "messages"}


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (HOSTED, "required"),
        (HOSTED, {"type": "function", "name": "f"}),
        ([PLAIN, *HOSTED], {"type": "web_search"}),
        ([PLAIN, *HOSTED], {"type": "mcp", "server_label": "x", "name": "shell"}),
        ([PLAIN, *HOSTED], ALLOWED | {"mode": "required", "tools": [{"type": "web_search"}]}),
        ([PLAIN], ALLOWED | {"mode": "any", "tools": [PLAIN]}),
        ([PLAIN], ["shell"]),
    ],
)
def test_a_choice_that_forces_another_tool_is_refused(tools, choice):
    """The error names the choice and what to write."""
    with pytest.raises(DialectError, match=r"tool_choice is .*write auto, none, required"):
        read(tools, tool_choice=choice)


def test_tools_among_the_items_are_offered():
    """Those that were given before are not repeated."""
    more = {"type": "additional_tools", "role": "developer", "tools": [PLAIN, AGENTS, {"type": "web_search"}]}
    found = read([PLAIN], [more, {"role": "user", "content": "hi"}])
    assert function_names(found) == ["shell", "multi_agent_v1__spawn_agent"]
    assert "input[0].tools[2] (web_search)" in found.dropped
    assert called(found, "multi_agent_v1__spawn_agent", "{}")[0]["namespace"] == "multi_agent_v1"
    assert "tools[1] (repeated)" in read([PLAIN, PLAIN]).dropped
