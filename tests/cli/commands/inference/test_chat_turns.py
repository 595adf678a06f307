import pytest
from click.testing import CliRunner

from llmkube.cli.commands.inference import chat
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
