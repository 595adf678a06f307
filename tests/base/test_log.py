import io
import json
import logging
import sys

import pytest
import structlog

from llmkube.base.errors import UserError
from llmkube.base.log import RECENT_CHARS, REDACTED, RecentLog, configure_logging, parse_level


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(write, level="info", style="json"):
    stream = io.StringIO()
    configure_logging(level, style=style, stream=stream)
    write(structlog.get_logger())
    text = stream.getvalue().splitlines()
    return [json.loads(line) for line in text] if style == "json" else text


def test_a_line_has_the_guides_keys_in_order():
    """A line starts with ts, level and msg, followed by the caller's own keys in their order."""
    (line,) = lines(lambda log: log.info("registered endpoint", name="chat", hostIP="10.0.0.5", port=51234))
    assert list(line) == ["ts", "level", "msg", "name", "hostIP", "port"]
    assert (line["level"], line["msg"], line["port"]) == ("info", "registered endpoint", 51234)
    assert line["ts"].endswith("Z")


def test_the_level_is_a_threshold():
    """Lines below the level are not written, those at the level are."""
    written = lines(lambda log: (log.debug("a"), log.info("b"), log.warning("c"), log.error("d")), level="warning")
    assert [line["msg"] for line in written] == ["c", "d"]


@pytest.mark.parametrize(("text", "level"), [("info", 20), ("WARN", 30), ("warning", 30), (" Debug ", 10)])
def test_levels_are_read_in_any_case(text, level):
    """Both spellings of warning and any case are accepted."""
    assert parse_level(text) == level


def test_an_unknown_level_is_refused():
    """A typing error in the level is an error that lists the levels, and not a silent default."""
    with pytest.raises(UserError, match='"verbose" is not a log level; choose debug, info, warning, error'):
        configure_logging("verbose")


@pytest.mark.parametrize(
    "keys",
    [
        {"token": "s3cret-s3cret"},
        {"apiKey": "s3cret-s3cret"},
        {"api_key": "s3cret-s3cret"},
        {"Authorization": "s3cret-s3cret"},
        {"headers": {"authorization": "s3cret-s3cret", "x": [{"password": "s3cret-s3cret"}]}},
        {"error": "401 for Authorization: Bearer s3cret-s3cret"},
        {"url": "https://user:s3cret-s3cret@example.org/x"},
        {"url": "https://s3cret-s3cret@example.org/x"},
        {"parts": ["Basic s3cret-s3cret"]},
    ],
)
def test_secrets_are_not_logged(keys):
    """At any depth, the values of secret-looking keys and credentials within texts are redacted."""
    (line,) = lines(lambda log: log.info("called", **keys))
    assert "s3cret" not in json.dumps(line)
    assert REDACTED in json.dumps(line)


def test_lookalikes_of_secrets_stay():
    """Counts of tokens, empty secrets and an at sign in a path are not redacted: they help, and reveal nothing."""
    url = "https://example.org/@user/x?mail=a@b"
    (line,) = lines(lambda log: log.info("done", tokens=17, tokens_per_second=9.5, token="", url=url))
    assert (line["tokens"], line["token"], line["url"]) == (17, "", url)


def test_exceptions_come_as_one_line():
    """A traceback is part of its JSON line, so that one event is one line."""

    def fail(log):
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("bug")

    (line,) = lines(fail)
    assert "ValueError: broken" in line["exception"]


def test_unserialisable_values_are_written_as_text():
    """A value that JSON does not support never costs the line."""
    (line,) = lines(lambda log: log.info("odd", path={1}, what=object))
    assert line["path"] == "{1}"


def test_other_packages_are_logged_from_warnings_up():
    """Standard-library records have the same form; below warning they would drown ours."""

    def speak(_log):
        logging.getLogger("httpx").info("HTTP Request: GET")
        logging.getLogger("httpx").warning("odd %s", "answer", extra={"token": "s3cret"})

    (line,) = lines(speak)
    assert (line["msg"], line["token"]) == ("odd answer", REDACTED)


def test_a_stack_is_below_its_console_line():
    """One call per line, as in a traceback."""
    output = lines(lambda log: log.error("stands still", stack="a.py:1 run\nb.py:2 hold", seconds=1), style="console")
    assert output[0].endswith("ERROR   stands still  seconds=1")
    assert output[1:] == ["a.py:1 run", "b.py:2 hold"]


def test_the_console_line_is_short():
    """On a console a line is a clock, a level, the message and quoted keys."""
    (line,) = lines(lambda log: log.warning("engine exited", name="chat", message='said "no"'), style="console")
    assert line[8:] == ' WARNING engine exited  name=chat message="said "no""'


HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed\u2066e\x7ff\u2028g\u200fh\nINFO forged"


@pytest.mark.parametrize("style", ["console", "json"])
@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.info("fetching", source=HOSTILE),
        lambda log: log.info(HOSTILE),
        lambda log: log.info("fetching", sources=[{"url": HOSTILE}]),
        lambda log: log.info("fetching", **{HOSTILE: 1}),
        lambda log: logging.getLogger("x").warning("%s", HOSTILE),
    ],
)
def test_a_source_cannot_control_the_terminal(write, style):
    """Control characters of all kinds are escaped; what scripts and emojis need stays."""
    stream = io.StringIO()
    configure_logging("info", style=style, stream=stream)
    write(structlog.get_logger())
    structlog.get_logger().info("क्\u200dष 👩\u200d💻 é")
    first, second = stream.getvalue().splitlines()
    assert first.isprintable()
    assert "9b31mc" in first
    assert "क्\u200dष 👩\u200d💻 é" in second


def test_a_traceback_keeps_its_lines():
    """Only line breaks and tabs of a stack are written as they are."""
    output = lines(lambda log: log.error("failed", stack="a\n\tb\x9bc\u202e"), style="console")
    assert output[1:] == ["a", "\tb\\u009bc\\u202e"]


def test_a_closed_terminal_costs_only_the_line(monkeypatch):
    """A stream that cannot be written raises nothing in the caller."""

    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    configure_logging("info")
    structlog.get_logger().info("lost")
    logging.getLogger("httpx").warning("lost, too")


def test_the_stream_is_looked_up_at_each_line(capsys):
    """Without a stream, a line is written to the current sys.stderr."""
    configure_logging("info")
    structlog.get_logger().info("now")
    assert '"msg":"now"' in capsys.readouterr().err


def test_a_json_line_is_written_as_guides_quote_it(capsys):
    """`grep '"msg":"started inference service","name":"phi"'` finds it: no spaces, the keys in the order given."""
    configure_logging("info")
    structlog.get_logger().info("started inference service", name="phi", pid=7)
    assert '"msg":"started inference service","name":"phi","pid":7}' in capsys.readouterr().err


def test_recent_lines_are_kept_below_the_level_of_the_stream_too():
    """A viewer gets what it has not seen; only the last characters are kept."""
    stream, recent = io.StringIO(), RecentLog()
    configure_logging("warning", style="console", stream=stream, recent=recent)
    log = structlog.get_logger()
    log.debug("hidden")
    log.info("engine started", token="x" * 9)
    log.warning("engine stopped")
    text, number = recent.after(0)
    assert ("INFO    engine started  token=[redacted]" in text, "engine stopped" in text, "hidden" in text) == (
        True,
        True,
        False,
    )
    assert ("engine started" in stream.getvalue(), "engine stopped" in stream.getvalue()) == (False, True)
    assert recent.after(number) == ("", number)
    for _ in range(3):
        recent.write("y" * RECENT_CHARS)
    text, _ = recent.after(number)
    assert (len(text), "x" in text) == (RECENT_CHARS, False)
