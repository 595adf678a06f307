import json

import pytest
from click.testing import CliRunner

from llmkube.base.http.message import Response
from llmkube.cli.commands.programs.up_session import ask, read_answer
from llmkube.cli.main import cli
from llmkube.programs.failures import CommandError


class Gateway:
    """A gateway that returns the scripted responses in turn."""

    def __init__(self, *responses):
        self.responses = list(responses)
        self.asked = []

    async def request(self, method, url, *, headers, body):
        self.asked.append((method, url, headers.get("content-type"), json.loads(body)))
        return self.responses.pop(0)


def answer(text):
    return Response.json(200, {"choices": [{"message": {"role": "assistant", "content": text}}]})


def refusal(status, message):
    return Response.json(status, {"error": {"message": message}})


def test_no_question_where_no_service_answers(tmp_path):
    """A gateway that serves routers only refuses it, which is reported before anything starts."""
    args = ["up", "--gateway-serves", "routers", "--ask", "hi", "--state-dir", str(tmp_path / "state")]
    result = CliRunner().invoke(cli, args)
    assert (result.exit_code, "Error: --ask: it asks a service" in result.output) == (1, True)
    assert not (tmp_path / "state").exists()


async def test_the_question_is_put_at_temperature_0():
    """The answer is then always the same."""
    gateway = Gateway(answer(" It is. "))
    assert await ask(gateway, "http://gw", "default/chat", "What?") == "It is."
    messages = [{"role": "user", "content": "What?"}]
    body = {"model": "default/chat", "temperature": 0, "messages": messages}
    assert gateway.asked == [("POST", "http://gw/v1/chat/completions", "application/json", body)]


async def test_temporary_errors_are_retried(autojump_clock):
    """A gateway returns 404, 502 and 503 until it knows the model."""
    gateway = Gateway(refusal(404, "no such model"), refusal(503, "loading"), refusal(502, "gone"), answer("yes"))
    assert await ask(gateway, "http://gw", "chat", "What?") == "yes"


async def test_a_refusal_is_reported():
    """Another status ends the wait with the engine's message."""
    with pytest.raises(CommandError, match="rejected with status 400: context is too small"):
        await ask(Gateway(refusal(400, "context is too small")), "http://gw", "chat", "What?")
    with pytest.raises(CommandError, match="rejected with status 500: oops"):
        await ask(Gateway(Response.text(500, "oops")), "http://gw", "chat", "What?")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": null}}]}',
    ],
)
def test_response_without_an_answer_is_refused(body):
    with pytest.raises(CommandError, match="not a chat completion"):
        read_answer(body)
