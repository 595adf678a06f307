from click.testing import CliRunner

from llmkube.cli.commands.inference import chat
from llmkube.cli.commands.inference.service_route import Way
from llmkube.cli.main import cli


def test_bytes_are_no_question():
    """A pipe of something else than text is a usage error in one sentence, before anything is asked."""
    done = CliRunner().invoke(cli, ["chat", "demo", "-"], input=b"\xff\xfe")
    assert done.exit_code == 2
    assert "standard input is not UTF-8 text" in done.output


def test_a_line_that_is_no_text_ends_no_conversation(monkeypatch):
    """A key that the terminal sends in another encoding costs that line alone."""
    lines = iter([UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), EOFError()])

    def ask(_prompt):
        raise next(lines)

    monkeypatch.setattr(chat._Talk, "_find_way", lambda _talk: Way("127.0.0.1", 8080, "default/demo", "the gateway"))
    monkeypatch.setattr(chat, "_prompt", lambda _given: None)
    monkeypatch.setattr("builtins.input", ask)
    done = CliRunner().invoke(cli, ["chat", "demo"])
    assert done.exit_code == 0, done.output
    assert "was not sent" in done.stderr
