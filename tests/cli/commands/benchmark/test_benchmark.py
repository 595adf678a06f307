"""`llmkube benchmark`: what it counts, and from when; the comparison of runs and its exit code."""

import json
import threading
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

import pytest
import trio
from click.testing import CliRunner

from llmkube.base.http.message import NO_HEADERS
from llmkube.cli.commands.benchmark.load import Load, Prompts, Target, run_load
from llmkube.cli.main import cli

SERVICE_SECONDS = 2.0


class SlowServer:
    """Stands in for the client and a server that answers one request after the other, each in two seconds."""

    def __init__(self):
        self.turn, self.bodies = trio.Lock(), []

    @asynccontextmanager
    async def open_stream(self, method, url, *, headers, body):
        self.bodies.append(body)
        async with self.turn:
            await trio.sleep(SERVICE_SECONDS)
            yield Stream()


class Stream:
    status = 200

    def __init__(self):
        self.pieces = [b'data: {"choices":[{"delta":{"content":"hello"}}]}\n\ndata: [DONE]\n\n', b""]

    async def receive_some(self):
        await trio.lowlevel.checkpoint()
        return self.pieces.pop(0)


async def test_a_slow_server_does_not_hide_the_requests_that_wait(autojump_clock):
    """Requests arrive twice as often as they are served: each waits longer, from its intended arrival on."""
    target = Target(SlowServer(), "http://x/v1/chat/completions", NO_HEADERS, 600.0)
    load = Load(64, requests=40, rate=1 / (SERVICE_SECONDS / 2))
    point = await run_load(target, Prompts("m", 8), load)
    arrivals = list(load.arrivals(seed=0))
    busy_until, expected = 0.0, []
    for at in arrivals:
        busy_until = max(busy_until, at) + SERVICE_SECONDS
        expected.append(busy_until - at)
    assert point["samples"]["latency"] == pytest.approx(expected)
    assert point["latency"]["p99"] > 10 * SERVICE_SECONDS
    assert arrivals != list(load.arrivals(seed=1))
    assert len(set(target.http.bodies)) == 40  # no prompt is in a cache


async def test_a_closed_loop_has_as_many_requests_as_clients(autojump_clock):
    """The number of requests is exact, and each client sends one at a time."""
    target = Target(SlowServer(), "http://x", NO_HEADERS, 60.0)
    point = await run_load(target, Prompts("m", 8), Load(64, requests=6, concurrency=3))
    assert (point["requests"], point["client"]["mostInFlight"], point["seconds"]) == (6, 3, pytest.approx(12.0))
    point = await run_load(target, Prompts("m", 8), Load(64, requests=0, concurrency=1, seconds=5.0))
    assert (point["requests"], point["seconds"]) == (3, pytest.approx(6.0))  # the last one starts before the end
    target.timeout = 1.0
    point = await run_load(target, Prompts("m", 8), Load(64, requests=2, concurrency=1))
    assert point["errors"] == {"timeout": {"count": 2, "example": "no end within 1 s"}}


@contextmanager
def openai_server(*, reports_usage=True, pause=0.0, seen=None):
    """Answer with words; a long prompt for an answer of 3 tokens gets 503."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if seen is not None:
                seen.append((self.path, self.headers.get("Authorization"), request))
            words = len(request["messages"][0]["content"].split())
            if request["max_tokens"] == 3 and words > 50:
                return self._send(503, b'{"error":{"message":"all slots are busy"}}')
            usage = {"prompt_tokens": 2 * words + 10, "completion_tokens": request["max_tokens"]}
            events = [{"choices": [{"delta": {"role": "assistant", "content": None}}]}]
            events += [{"choices": [{"delta": {"content": "word "}}]}] * request["max_tokens"]
            events += [{"choices": [{"delta": {}, "finish_reason": "length"}]}]
            events += [{"choices": [], "usage": usage}] if reports_usage else []
            threading.Event().wait(pause)
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            return self._send(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

        def _send(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def run(*args):
    return CliRunner().invoke(cli, ("benchmark", *map(str, args)))


def measure(url, out, *args):
    return run("--url", url, "--model", "m", "--requests", "6", "--out", out, *args)


def test_figures_are_counted_by_the_server_and_prompts_have_the_given_length(tmp_path):
    """A file of figures, a chart, the key in a header only; a prompt's length is as asked for."""
    seen, out, key = [], tmp_path / "run.json", tmp_path / "key"
    key.write_text("s3cret\n")
    with openai_server(seen=seen) as url:
        more = ("--key-file", key, "--shared-prefix", "60", "--svg", tmp_path / "c.svg")
        done = measure(url, out, "--sweep", "100,400", "--answer-tokens", "5", *more)
    assert done.exit_code == 0, done.output
    first, second = json.loads(out.read_text())["loads"]
    assert (first["meanPromptTokens"], second["meanPromptTokens"], first["meanAnswerTokens"]) == (100, 400, 5)
    assert (first["tokensCountedBy"], first["succeeded"], first["errors"]) == ("usage", 6, {})
    assert set(first["timeToFirstToken"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert "1 at a time, prompt 400: 6 of 6 succeeded, 400+5 tokens each (counted by usage)" in done.output
    assert ElementTree.parse(tmp_path / "c.svg").getroot().tag.endswith("svg")
    assert {(path, given) for path, given, _ in seen} == {("/v1/chat/completions", "Bearer s3cret")}
    prompts = [request["messages"][0]["content"].split() for _, _, request in seen[2:8]]
    assert len({tuple(words[:30]) for words in prompts}) == 1  # two tokens a word
    assert len({tuple(words[30:]) for words in prompts}) == 6
    assert "s3cret" not in done.output + out.read_text()


def test_without_usage_chunks_are_counted_and_the_text_says_so(tmp_path):
    """A word is then taken for a token."""
    with openai_server(reports_usage=False) as url:
        done = measure(url, tmp_path / "run.json", "--answer-tokens", "4")
    assert "0+4 tokens each (counted by chunks)" in done.output


def test_errors_are_counted_by_kind_and_the_exit_code_is_1(tmp_path):
    """The server's message is an example of its kind; an address without a server is one sentence."""
    with openai_server() as url:
        done = measure(url, tmp_path / "run.json", "--answer-tokens", "3")
    assert done.exit_code == 1
    assert "0 of 6 succeeded" in done.output
    assert "6 of these: HTTP 503: all slots are busy" in done.output
    done = measure("http://127.0.0.1:1", tmp_path / "run.json")
    assert done.exit_code == 1
    assert "Error: http://127.0.0.1:1/v1/chat/completions: cannot connect" in done.output


def test_a_slower_run_is_found_and_a_like_one_is_not(tmp_path):
    """The exit code is 1 beyond the limit; a file of another program is refused."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    with openai_server(pause=0.01) as url:
        measure(url, before)
    with openai_server(pause=0.2) as url:
        measure(url, after)
    done = run("compare", before, after, "--limit", "2")
    assert done.exit_code == 1
    assert "worse" in done.output
    assert run("compare", after, before).exit_code == 0
    assert run("compare", before, before).exit_code == 0
    before.write_text("{}")
    assert "was not written by `llmkube benchmark --out`" in run("compare", before, after).output.replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--concurrency", "1", "--rate", "2"), "choose one"),
        (("--concurrency", "1,x"), "'1,x' is not a list of numbers above 0, such as 1,4,16"),
        (("--url", "http://127.0.0.1:1"), "--url needs --model"),
        (("--url", "ftp://x", "--model", "m"), "write http://HOST:PORT or https://HOST"),
        (("--url", "http://me:secret@x", "--model", "m"), "pass a key with --key-file"),
        (("--url", "http://127.0.0.1:1", "--model", "m", "--out", "/no/such/folder/x"), "No such file or directory"),
    ],
)
def test_wrong_options_are_named(args, message):
    """The exit code is that of wrong usage."""
    done = run(*args)
    assert (done.exit_code, message in done.output) == (2, True), done.output
    assert "secret" not in done.output


def test_a_key_file_that_cannot_be_read_is_named_with_its_flag():
    done = run("--url", "http://127.0.0.1:1", "--model", "m", "--key-file", "/no/such/file")
    assert (done.exit_code, "--key-file: /no/such/file cannot be read" in done.output) == (1, True), done.output
    assert "--api-key-file" not in done.output
