"""API keys that `llmkube chat` sends, its errors without one, and its conversations."""

import base64
import json
import re

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from cli.cli_objects import service
from cli.memory_cluster import open_cluster_client
from llmkube.cli.commands.inference import chat
from llmkube.cli.commands.inference.chat import WordWrap, find_key, read_key_file
from llmkube.cli.commands.inference.conversation import ContextFullError, Delta, Route
from llmkube.cli.main import cli
from llmkube.cli.target_cluster import Cluster
from llmkube.k8s.builtins import Secret
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import ForbiddenError, TransportError
from llmkube.programs.failures import CommandError, errors_as_messages

FIRST = "CanaryFirst1"


def with_keys(found):
    body = encode(found)
    body["spec"]["apiKeySecretRef"] = {"name": "chat-keys"}
    return decode(InferenceService, body)


async def find(found, value=None):
    with errors_as_messages():  # the cluster's nurseries raise groups
        async with open_cluster_client() as client:
            if value is not None:
                meta = {"name": "chat-keys", "namespace": "default"}
                data = {"api-key": base64.b64encode(value).decode()}
                manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
                await client.apply(Secret, manifest, field_manager="test")
            return await find_key(Cluster(client, "default"), found)


async def test_first_key_of_the_secret_is_sent():
    """A user who may read the Secret needs no flag; a service without keys gets none."""
    assert await find(with_keys(service()), f"{FIRST}\nsecond\n".encode()) == FIRST
    assert await find(service(), f"{FIRST}\n".encode()) == ""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "which does not exist; pass your key with --api-key-file FILE"),
        (b"", "is empty"),
        (b"CanaryFirst1 x\n", "an invalid key"),
    ],
)
async def test_without_a_key_the_fix_is_named(value, message):
    """No request is sent, and nothing of the Secret is printed."""
    with pytest.raises(CommandError, match=message) as refused:
        await find(with_keys(service()), value)
    assert FIRST not in str(refused.value)


async def test_unreadable_secret_is_reported():
    """The error offers a key file instead."""

    class Client:
        async def get(self, _kind, _key):  # noqa: ASYNC124 - stub for a request
            raise ForbiddenError("secrets is forbidden", code=403)

    with pytest.raises(CommandError, match="which you may not read; pass your key with --api-key-file FILE"):
        await find_key(Cluster(Client(), "default"), with_keys(service()))


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "cannot be read"), (b"", "is empty"), (b"CanaryFirst1 x\n", "an invalid key in line 1")],
)
def test_a_file_without_a_key_is_reported_by_its_name(tmp_path, value, message):
    """The first key of the file is used; an invalid one is not printed."""
    path = tmp_path / "key"
    path.write_bytes(f"{FIRST}\nsecond\n".encode())
    assert read_key_file(path) == FIRST
    path.unlink()
    if value is not None:
        path.write_bytes(value)
    with pytest.raises(CommandError, match=message) as refused:
        read_key_file(path)
    assert str(path) in str(refused.value)
    assert FIRST not in str(refused.value)


@pytest.mark.parametrize("through_gateway", [True, False])
def test_chat_sends_the_key_of_the_file_or_the_secret_and_none_to_a_gateway(
    run, monkeypatch, tmp_path, through_gateway
):
    """A key file wins; the gateway of `llmkube up` needs no key and gets only a given one."""
    shown = []

    async def answer(_where, route, _body, _printer):  # noqa: ASYNC124 - stub for a request
        shown.append(route.api_key)
        return "stop"

    async def find(_cluster, _service):  # noqa: ASYNC124 - stub for a request
        return "of-the-secret"

    async def route(_cluster, _service):  # noqa: ASYNC124 - stub for a request
        return chat.Route("127.0.0.1", 8080, "default/demo", "the gateway")

    monkeypatch.setattr(chat, "_answer", answer)
    monkeypatch.setattr(chat, "find_key", find)
    monkeypatch.setattr(chat, "find_route", route)
    monkeypatch.setattr(chat, "gateway_route", lambda _service: object() if through_gateway else None)
    file = tmp_path / "key"
    file.write_text(f"{FIRST}\n")
    for args in ((), ("--api-key-file", str(file))):
        done = run("chat", "demo", "Hi?", *args)
        assert done.exit_code == 0, done.output
    assert shown == ["" if through_gateway else "of-the-secret", FIRST]


def test_key_cannot_be_an_argument():
    """Command lines are public, so a key comes from a file only."""
    assert chat.FLAG in CliRunner().invoke(cli, ["chat", "--help"]).output
    done = CliRunner().invoke(cli, ["chat", "demo", "--api-key", FIRST])
    assert done.exit_code == 2


def test_invalid_utf8_is_refused():
    """Invalid input is a usage error before any request."""
    done = CliRunner().invoke(cli, ["chat", "demo", "-"], input=b"\xff\xfe")
    assert done.exit_code == 2
    assert "standard input is not UTF-8 text" in done.output


ROUTE = Route("127.0.0.1", 8080, "default/demo", "the gateway")


def converse(monkeypatch, answer, *lines, find_route=lambda _talk: ROUTE):
    """Run `llmkube chat` with these input lines; return its result."""
    typed = iter(lines)

    def ask(_prompt):
        line = next(typed, EOFError())
        if isinstance(line, Exception):
            raise line
        return line

    monkeypatch.setattr(chat._ChatSession, "_find_route", find_route)
    monkeypatch.setattr(chat, "_answer", answer)
    monkeypatch.setattr(chat, "_prompt", lambda _given: None)
    monkeypatch.setattr("builtins.input", ask)
    done = CliRunner().invoke(cli, ["chat", "demo"])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (TransportError("cannot reach the API server"), "Error: cannot reach the API server"),
        (KeyboardInterrupt(), "(stopped)"),
        (BaseExceptionGroup("a nursery's", [KeyboardInterrupt()]), "(stopped)"),
    ],
)
def test_failed_route_lookup_does_not_end_the_conversation(monkeypatch, trouble, words):
    """An unreachable API server or Ctrl-C costs one answer; the next question works."""
    routes = iter([ROUTE, trouble, ROUTE])

    def find_route(_talk):
        route = next(routes)
        if isinstance(route, BaseException):
            raise route
        return route

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stub for a request
        printer(Delta("I am here."))
        return "stop"

    done = converse(monkeypatch, answer, "lost?", "there?", find_route=find_route)
    assert words in done.stderr
    assert done.stdout == "I am here.\n"


def questions_in(body):
    return [each["content"] for each in json.loads(body)["messages"] if each["role"] == "user"]


def test_a_full_context_leaves_out_the_oldest_questions(monkeypatch):
    """The conversation continues with the newest messages that fit, and reports the number dropped."""
    sent = []

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stub for a request
        sent.append(questions_in(body))
        if len(sent[-1]) > 3:
            raise ContextFullError("full")
        printer(Delta("Yes."))
        return "stop"

    done = converse(monkeypatch, answer, "a", "b", "c", "d", "e")
    assert sent == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], ["c", "d"], ["c", "d", "e"]]
    notice = "(the context is full: the oldest 2 questions and their answers were dropped)"
    assert done.stderr.count(notice) == 1
    assert done.stdout == "Yes.\n" * 5


def test_a_question_that_alone_is_too_long_is_reported(monkeypatch):
    """Nothing can be dropped: the error is printed, and the next question works."""

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stub for a request
        if "long" in questions_in(body)[-1]:
            raise ContextFullError("the prompt exceeds the model's context")
        printer(Delta("Yes."))
        return "stop"

    done = converse(monkeypatch, answer, "a", "long", "b")
    assert "Error: the prompt exceeds the model's context" in done.stderr
    assert done.stdout == "Yes.\nYes.\n"


def test_slash_commands_are_not_sent(monkeypatch):
    """`/help` and unknown commands print the commands, `/bye` exits, and `//` sends a slash."""
    sent = []

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stub for a request
        sent.extend(questions_in(body)[-1:])
        return "stop"

    done = converse(monkeypatch, answer, "/help", "/hlep", "//etc", "/etc/hosts is what?", "/bye", "never asked")
    assert sent == ["/etc", "/etc/hosts is what?"]
    assert done.stderr.count("  /new   start a new conversation") == 2
    assert "Unknown command /hlep; nothing was sent." in done.stderr


def test_undecodable_line_does_not_end_the_conversation(monkeypatch):
    """Only that line is lost."""
    done = converse(monkeypatch, None, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert "Not sent: " in done.stderr


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_answers_break_between_words(step):
    """Lines end between words, however the text arrives; a long URL stays whole, wide characters are words."""
    url = "https://example.com/a/path/that/is/too/long"
    text = f"The quick brown fox jumps over it, exactly.\n\n  * {url} and 漢字漢字漢字漢字漢字漢字漢字 end"
    wrap = WordWrap(20)
    written = "".join(wrap.feed(text[at : at + step]) for at in range(0, len(text), step)) + wrap.feed("")
    assert written.splitlines()[:3] == ["The quick brown fox ", "jumps over it, ", "exactly."]
    assert url in written
    assert all(cell_len(line) <= 20 for line in written.splitlines() if url not in line)
    assert re.sub(r"\s", "", written) == re.sub(r"\s", "", text)
