import json

import pytest
from click.testing import CliRunner

from llmkube.cli.commands.inference import chat
from llmkube.cli.commands.inference.conversation import ContextFullError
from llmkube.cli.commands.inference.service_route import Way
from llmkube.cli.commands.inference.sse import Delta
from llmkube.cli.main import cli
from llmkube.k8s.errors import TransportError

WAY = Way("127.0.0.1", 8080, "default/demo", "the gateway")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (TransportError("cannot reach the API server"), "Error: cannot reach the API server"),
        (KeyboardInterrupt(), "(stopped)"),
        (BaseExceptionGroup("a nursery's", [KeyboardInterrupt()]), "(stopped)"),
    ],
)
def test_a_way_that_is_not_found_ends_no_conversation(monkeypatch, trouble, words):
    """An API server that is away, or Ctrl-C while it is asked, costs one answer: the next question has the next one."""
    ways = iter([WAY, trouble, WAY])

    def find_way(_talk):
        way = next(ways)
        if isinstance(way, BaseException):
            raise way
        return way

    async def answer(_where, way, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        printer(Delta("I am here."))
        return "stop"

    questions = iter(["lost?", "there?"])

    def ask(_prompt):
        try:
            return next(questions)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(chat._Talk, "_find_way", find_way)
    monkeypatch.setattr(chat, "_answer", answer)
    monkeypatch.setattr(chat, "_prompt", lambda _given: None)
    monkeypatch.setattr("builtins.input", ask)
    done = CliRunner().invoke(cli, ["chat", "demo"])
    assert done.exit_code == 0, done.output
    assert words in done.stderr
    assert done.stdout == "I am here.\n"


def converse(monkeypatch, answer, *lines):
    """Hold a conversation of these lines; return what was printed."""
    typed = iter(lines)

    def ask(_prompt):
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(chat._Talk, "_find_way", lambda _talk: WAY)
    monkeypatch.setattr(chat, "_answer", answer)
    monkeypatch.setattr(chat, "_prompt", lambda _given: None)
    monkeypatch.setattr("builtins.input", ask)
    done = CliRunner().invoke(cli, ["chat", "demo"])
    assert done.exit_code == 0, done.output
    return done


def questions_in(body):
    return [each["content"] for each in json.loads(body)["messages"] if each["role"] == "user"]


def test_a_full_context_leaves_out_what_was_said_first(monkeypatch):
    """The conversation goes on with the newest that fits, and says what it has forgotten."""
    sent = []

    async def answer(_where, way, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        sent.append(questions_in(body))
        if len(sent[-1]) > 3:
            raise ContextFullError("full")
        printer(Delta("Yes."))
        return "stop"

    done = converse(monkeypatch, answer, "a", "b", "c", "d", "e")
    assert sent == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], ["c", "d"], ["c", "d", "e"]]
    said = "(the context is full: the first 2 questions and their answers were left out, and are forgotten)"
    assert done.stderr.count(said) == 1
    assert done.stdout == "Yes.\n" * 5


def test_a_question_that_alone_is_too_long_is_told(monkeypatch):
    """Nothing is left to forget: the error stands, and the next question is asked."""

    async def answer(_where, way, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        if "long" in questions_in(body)[-1]:
            raise ContextFullError("this is more than the model's context holds")
        printer(Delta("Yes."))
        return "stop"

    done = converse(monkeypatch, answer, "a", "long", "b")
    assert "Error: this is more than the model's context holds" in done.stderr
    assert done.stdout == "Yes.\nYes.\n"


def test_words_for_the_program_reach_no_model(monkeypatch):
    """/help and a mistyped command list what there is, /bye leaves, and two slashes send one."""
    sent = []

    async def answer(_where, way, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        sent.extend(questions_in(body)[-1:])
        return "stop"

    done = converse(monkeypatch, answer, "/help", "/hlep", "//etc", "/etc/hosts is what?", "/bye", "never asked")
    assert sent == ["/etc", "/etc/hosts is what?"]
    assert done.stderr.count("  /new   forget what was said") == 2
    assert "There is no /hlep; nothing was sent." in done.stderr
