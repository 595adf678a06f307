"""The command line of an engine on oMLX."""

from pathlib import Path

import pytest

from llmkube.programs.daemon_engine.omlx.options import parse

ARGV = ["--model", "/m/tiny", "--alias", "chat", "--service", "a/b", "--port", "9"]


def test_what_the_agent_says_arrives():
    """By flags for one service, by variables for all of its host."""
    environ = {"OMLX_PORT": "8001", "LLMKUBE_OMLX_KEY_FILE": "/k", "LLMKUBE_OMLX_STARTUP_SECONDS": "30"}
    read = parse([*ARGV, "--ctx-size", "512", "--embedding", "--api-key-file", "/keys", "--omlx", "/o"], environ)
    assert (read.model, read.alias, read.port, read.context, read.embeds) == (Path("/m/tiny"), "chat", 9, 512, True)
    assert (read.daemon, read.key_file, read.start_seconds) == ("http://127.0.0.1:8001", Path("/k"), 30.0)
    assert (read.keys, read.program) == (Path("/keys"), "/o")


def test_without_them_it_is_as_oMLX_has_it():  # noqa: N802 - its name
    """Port 8000 and no key."""
    read = parse(ARGV, {})
    assert (read.daemon, read.key_file, read.start_seconds) == ("http://127.0.0.1:8000", None, 120.0)


@pytest.mark.parametrize(
    ("changed", "environ", "said"),
    [
        (["--service", "b"], {}, "write NAMESPACE/NAME"),
        ([], {"OMLX_PORT": "0"}, "OMLX_PORT=0: write a port, such as 8000"),
        ([], {"OMLX_PORT": "http"}, "OMLX_PORT=http: write a port, such as 8000"),
        ([], {"LLMKUBE_OMLX_STARTUP_SECONDS": "2m"}, "LLMKUBE_OMLX_STARTUP_SECONDS=2m: write seconds, such as 120"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(capsys, changed, environ, said):
    """With 2, and one line."""
    with pytest.raises(SystemExit) as caught:
        parse([*ARGV, *changed], environ)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
