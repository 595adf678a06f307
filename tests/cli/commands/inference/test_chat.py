"""Which key a command shows, and what it says when it has none."""

import base64
import json

import pytest
from click.testing import CliRunner

from cli.cli_objects import service
from cli.memory_cluster import open_cluster_client
from llmkube.cli.commands.inference import chat
from llmkube.cli.commands.inference.chat import find_key, read_key_file
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


async def test_the_first_key_of_the_service_s_secret_is_shown():
    """A user who may read it needs no flag; a service without keys is shown none."""
    assert await find(with_keys(service()), f"{FIRST}\nsecond\n".encode()) == FIRST
    assert await find(service(), f"{FIRST}\n".encode()) == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "which does not exist; pass your key with --api-key-file FILE"),
        (b"", "is empty"),
        (b"CanaryFirst1 x\n", "an invalid key"),
    ],
)
async def test_without_a_key_the_way_out_is_named(value, said):
    """Nothing is asked that would be refused, and nothing of the Secret is repeated."""
    with pytest.raises(CommandError, match=said) as refused:
        await find(with_keys(service()), value)
    assert FIRST not in str(refused.value)


async def test_a_secret_that_one_may_not_read_is_reported_as_that():
    """The API server's refusal is no failure of the command: a file has the key."""

    class Client:
        async def get(self, _kind, _key):  # noqa: ASYNC124 - it stands in for one that asks
            raise ForbiddenError("secrets is forbidden", code=403)

    with pytest.raises(CommandError, match="which you may not read; pass your key with --api-key-file FILE"):
        await find_key(Cluster(Client(), "default"), with_keys(service()))


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "cannot be read"), (b"", "is empty"), (b"CanaryFirst1 x\n", "an invalid key in line 1")],
)
def test_a_file_without_a_key_is_reported_by_its_name(tmp_path, value, said):
    """The first key of a file counts; what is none is not repeated."""
    path = tmp_path / "key"
    path.write_bytes(f"{FIRST}\nsecond\n".encode())
    assert read_key_file(path) == FIRST
    path.unlink()
    if value is not None:
        path.write_bytes(value)
    with pytest.raises(CommandError, match=said) as refused:
        read_key_file(path)
    assert str(path) in str(refused.value)
    assert FIRST not in str(refused.value)


@pytest.mark.parametrize("through_gateway", [True, False])
def test_chat_shows_the_file_s_key_or_the_secret_s_and_none_to_a_gateway(run, monkeypatch, tmp_path, through_gateway):
    """A file wins; the gateway of `llmkube up` asks for no key and gets none that was not given."""
    shown = []

    async def answer(_where, route, _body, _printer):  # noqa: ASYNC124 - it stands in for one that asks
        shown.append(route.api_key)
        return "stop"

    async def find(_cluster, _service):  # noqa: ASYNC124 - it stands in for one that asks
        return "of-the-secret"

    async def route(_cluster, _service):  # noqa: ASYNC124 - it stands in for one that asks
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


def test_a_key_is_no_argument():
    """There is a flag for a file, and none for the key itself: a command line is public."""
    assert chat.FLAG in CliRunner().invoke(cli, ["chat", "--help"]).output
    done = CliRunner().invoke(cli, ["chat", "demo", "--api-key", FIRST])
    assert done.exit_code == 2


def test_bytes_are_no_question():
    """A pipe of something else than text is a usage error in one sentence, before anything is asked."""
    done = CliRunner().invoke(cli, ["chat", "demo", "-"], input=b"\xff\xfe")
    assert done.exit_code == 2
    assert "standard input is not UTF-8 text" in done.output


WAY = Route("127.0.0.1", 8080, "default/demo", "the gateway")


def converse(monkeypatch, answer, *lines, find_route=lambda _talk: WAY):
    """Hold a conversation of these lines; return what was printed."""
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
def test_a_way_that_is_not_found_ends_no_conversation(monkeypatch, trouble, words):
    """An API server that is away, or Ctrl-C while it is asked, costs one answer: the next question has the next one."""
    ways = iter([WAY, trouble, WAY])

    def find_route(_talk):
        route = next(ways)
        if isinstance(route, BaseException):
            raise route
        return route

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        printer(Delta("I am here."))
        return "stop"

    done = converse(monkeypatch, answer, "lost?", "there?", find_route=find_route)
    assert words in done.stderr
    assert done.stdout == "I am here.\n"


def questions_in(body):
    return [each["content"] for each in json.loads(body)["messages"] if each["role"] == "user"]


def test_a_full_context_leaves_out_the_oldest_questions(monkeypatch):
    """The conversation goes on with the newest that fits, and says what it has forgotten."""
    sent = []

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        sent.append(questions_in(body))
        if len(sent[-1]) > 3:
            raise ContextFullError("full")
        printer(Delta("Yes."))
        return "stop"

    done = converse(monkeypatch, answer, "a", "b", "c", "d", "e")
    assert sent == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"], ["c", "d"], ["c", "d", "e"]]
    said = "(the context is full: the oldest 2 questions and their answers were dropped)"
    assert done.stderr.count(said) == 1
    assert done.stdout == "Yes.\n" * 5


def test_a_question_that_alone_is_too_long_is_reported(monkeypatch):
    """Nothing is left to forget: the error stands, and the next question is asked."""

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        if "long" in questions_in(body)[-1]:
            raise ContextFullError("the prompt exceeds the model's context")
        printer(Delta("Yes."))
        return "stop"

    done = converse(monkeypatch, answer, "a", "long", "b")
    assert "Error: the prompt exceeds the model's context" in done.stderr
    assert done.stdout == "Yes.\nYes.\n"


def test_words_for_the_program_reach_no_model(monkeypatch):
    """/help and a mistyped command list what there is, /bye leaves, and two slashes send one."""
    sent = []

    async def answer(_where, route, body, printer):  # noqa: ASYNC124 - stands in for one that asks
        sent.extend(questions_in(body)[-1:])
        return "stop"

    done = converse(monkeypatch, answer, "/help", "/hlep", "//etc", "/etc/hosts is what?", "/bye", "never asked")
    assert sent == ["/etc", "/etc/hosts is what?"]
    assert done.stderr.count("  /new   start a new conversation") == 2
    assert "Unknown command /hlep; nothing was sent." in done.stderr


def test_a_line_that_is_no_text_ends_no_conversation(monkeypatch):
    """A key that the terminal sends in another encoding costs that line alone."""
    done = converse(monkeypatch, None, UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert "Not sent: " in done.stderr
