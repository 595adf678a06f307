"""Responses items as turns of a chat."""

import json

import pytest

from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.responses_items import items_of, turns_of
from llmkube.router.dialects.responses_tools import ToolNames

PICTURE = "data:image/png;base64,AAAA"


def turns(*items, instructions=""):
    return turns_of(instructions, items_of(list(items), []), ToolNames())


def item(role, content, **more):
    return {"role": role, "content": content} | more


def call(name="f", call_id="c1"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([item("user", "a")], [item("user", "a")]),
        ([item("user", [{"type": "input_text", "text": "a"}])], [item("user", "a")]),
        ([item("user", [{"type": "input_text", "text": "a"}] * 2)], [item("user", "a\na")]),
        ([item("developer", "a"), item("user", "b")], [item("system", "a"), item("user", "b")]),
        (
            [item("system", "a"), item("developer", "b"), item("user", "c")],
            [item("system", "a\n\nb"), item("user", "c")],
        ),
        ([item("user", "a"), item("system", "b")], [item("user", "a"), item("system", "b")]),
        (
            [item("assistant", [{"type": "output_text", "text": "a", "annotations": []}], id="m", status="completed")],
            [item("assistant", "a")],
        ),
        ([item("assistant", [{"type": "refusal", "refusal": "no"}])], [item("assistant", "no")]),
        (
            [item("user", [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PICTURE}])],
            [item("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PICTURE}}])],
        ),
        (
            [item("user", [{"type": "input_image", "image_url": PICTURE, "detail": "low"}])],
            [item("user", [{"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}])],
        ),
        (
            [item("user", [{"type": "input_file", "file_data": "data:x", "filename": "n"}])],
            [item("user", [{"type": "file", "file": {"file_data": "data:x", "filename": "n"}}])],
        ),
        (
            [call(), {"type": "function_call_output", "call_id": "c1", "output": "r"}],
            [
                item("assistant", None, tool_calls=[
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]),
                item("tool", "r", tool_call_id="c1"),
            ],
        ),
        (
            [{"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]}],
            [item("tool", "r", tool_call_id="c1")],
        ),
    ],
)  # fmt: skip
def test_each_item_is_a_turn(items, expected):
    """The content is a string if all parts are text, else a list of parts."""
    assert turns(*items) == expected


def test_calls_belong_to_the_latest_assistant_turn():
    """A text and two calls are one turn; a result between them starts another."""
    result = {"type": "function_call_output", "call_id": "c1", "output": "r"}
    found = turns(item("assistant", "a"), call(), call("g", "c2"), result, call("h", "c3"))
    assert [turn["role"] for turn in found] == ["assistant", "tool", "assistant"]
    assert [[each["function"]["name"] for each in turn.get("tool_calls", ())] for turn in found] == [
        ["f", "g"],
        [],
        ["h"],
    ]


def test_instructions_come_first():
    """They share one turn with the developer's message: templates support one system turn, at the beginning."""
    assert turns(item("developer", "b"), item("user", "c"), instructions="a") == [
        item("system", "a\n\nb"),
        item("user", "c"),
    ]


def test_reasoning_is_taken_and_passed_over():
    """It reaches no backend, and its name is in the audit log; encrypted content is not stored."""
    dropped = []
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}],
               "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "x" * 99}  # fmt: skip
    found = items_of([thought, item("user", "a", phase="final_answer")], dropped)
    assert found[0] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "t"}],
    }
    assert turns_of("", found, ToolNames()) == [item("user", "a")]
    assert dropped == ["input[0] (reasoning)", "input[1].phase"]


def test_history_without_a_counterpart_is_left_out_by_name():
    """Items, results of calls that are left out, and parts of earlier turns; never the newest user turn."""
    dropped = []
    pictures = [{"type": "input_image", "file_id": "f"}, {"type": "input_image", "image_url": "https://x/y.png"}]
    items = [
        item("user", [*pictures, {"type": "input_audio"}, {"type": "input_text", "text": "a"}]),
        item("assistant", []),
        item("assistant", "b"),
        item("assistant", [{"type": "new_in_2030"}]),
        *({"type": each} for each in ("web_search_call", "compaction", "tool_search_call", "new_in_2030")),
        {"type": "reasoning", "summary": None, "content": [{"text": None}, "x"], "encrypted_content": None},
        {"type": "local_shell_call", "call_id": "c0", "action": {"command": ["ls"]}},
        {"type": "function_call_output", "call_id": "c0", "output": "files"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "p", "input": 'say "x"', "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": []},
        item("user", "c"),
    ]
    found = turns_of("", items_of(items, dropped), ToolNames())
    assert [(turn["role"], turn["content"]) for turn in found] == [
        ("user", "a"),
        ("assistant", "b"),
        ("tool", ""),
        ("user", "c"),
    ]
    assert json.loads(found[1]["tool_calls"][0]["function"]["arguments"]) == {"input": 'say "x"'}
    assert dropped == [
        *(
            "input[0].content[0] (input_image)",
            "input[0].content[1] (input_image)",
            "input[0].content[2] (input_audio)",
        ),
        *("input[1] (message)", "input[3].content[0] (new_in_2030)", "input[3] (message)"),
        *("input[4] (web_search_call)", "input[5] (compaction)", "input[6] (tool_search_call)"),
        *("input[7] (new_in_2030)", "input[8] (reasoning)"),
        *("input[9] (local_shell_call)", "input[10] (function_call_output)"),
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, "input is empty"),
        ([], "input is empty"),
        (7, "input must be a list of objects"),
        (["a"], "input must be a list of objects"),
        ([{"type": "item_reference"}], "input[0].id is None; write a string"),
        ([{"type": "item_reference", "id": "msg_1"}] * 2, "input refers to an item twice"),
        ([{"type": "web_search_call"}], "input is empty: input[0] (web_search_call) cannot be used here"),
        ([{"type": ["message"]}], "input[0].type is ['message']"),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "f"}], "input[0].input is None; write a string"),
        ([item("tool", "a")], "input[0].role is 'tool'; write user, assistant, system or developer"),
        ([item(["user"], "a")], "input[0].role is ['user']"),
        ([item("user", None)], "input[0].content is missing"),
        ([item("user", [])], "input[0].content is empty"),
        ([item("user", [{"type": "input_audio"}])], "input[0].content[0].type is 'input_audio'"),
        ([item("user", [{"type": "input_text"}])], "input[0].content[0].text is None; write a string"),
        ([item("user", [{"type": "refusal", "refusal": "x"}])], "input[0].content[0].type is 'refusal'"),
        (
            [item("user", [{"type": "input_image", "file_id": "f"}])],
            "content[0].file_id refers to a file that this router",
        ),
        ([item("user", [{"type": "input_image"}])], "input[0].content[0].image_url is None"),
        (
            [item("user", [{"type": "input_file", "file_url": "http://x"}])],
            "file_url refers to a file that this router cannot read",
        ),
        ([call() | {"arguments": {}}], "input[0].arguments is {}; write a string"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0].output is missing"),
        ([{"type": "function_call_output", "output": "r"}], "input[0].call_id is None"),
        ([item("user", "a", id=7)], "input[0].id is 7"),
    ],
)
def test_what_is_no_item_is_refused_by_its_place(asked, words):
    """The error has an alternative."""
    with pytest.raises(DialectError) as caught:
        items_of(asked, [])
    assert words in str(caught.value)
