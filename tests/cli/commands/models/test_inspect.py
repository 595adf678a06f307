import enum
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files

import attrs
import pytest
import yaml
from click.testing import CliRunner

import gguf_bytes as g
from llmkube.cli.commands.models.inspect import as_rows
from llmkube.cli.main import cli
from llmkube.weights.formats.gguf import read_header

DEMO = files("llmkube.weights") / "builtin" / "demo.gguf"


def run(*args, **kwargs):
    return CliRunner().invoke(cli, ("inspect", *map(str, args)), **kwargs)


@pytest.fixture
def web():
    """A web server with the demo's file, and the Range header of each request to it."""
    content = DEMO.read_bytes()
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Range"])
            if self.path != "/demo.gguf":
                self.send_error(404)
                return
            start, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
            piece = content[int(start) : int(end) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(piece) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(piece)))
            self.end_headers()
            self.wfile.write(piece)

        def log_message(self, *_args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_a_local_file_is_described():
    """The header's facts are printed one per line, in common units."""
    done = run(DEMO)
    assert done.exit_code == 0, done.output
    for words in (
        "size          933.8 KiB",
        "architecture  llama",
        "context       512 tokens",
        "license       apache-2.0",
    ):
        assert words in done.output


def test_a_remote_file_gives_the_same_facts(web):
    """Only the header of a URL is requested, in at most three requests."""
    url, asked = web
    local, remote = (json.loads(run(source, "-o", "json").output) for source in (DEMO, f"{url}/demo.gguf"))
    assert remote == local
    assert 1 <= len(asked) <= 3
    assert all(asked)
    missing = run(f"{url}/other.gguf")
    assert (missing.exit_code, "404" in missing.output) == (1, True), missing.output


def test_newer_tensor_types_have_the_names_of_the_gguf_package(monkeypatch):
    """A tensor type missing from LLMKube's table is named by the gguf package, else numbered."""
    monkeypatch.setattr("gguf.constants.GGMLQuantizationType", enum.IntEnum("Kind", {"Q9_9": 250}))
    facts = attrs.evolve(read_header(DEMO), newer_tensor_types=(249, 250))
    types = "tensor types 249, 250 (Q9_9), which a newer engine may support"
    assert ("unknown", types) in as_rows(facts)


def test_facts_can_be_data():
    """`-o yaml` uses the names of status.gguf, and the built-in model is named as in a Model."""
    facts = yaml.safe_load(run("builtin://demo", "-o", "yaml").output)
    assert (facts["modelName"], facts["contextLength"], facts["layerCount"]) == ("LLMKube demo", 512, 4)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nope.gguf", 3, "/nope.gguf"),
        ("/nope.gguf", 3, "there is no file /nope.gguf"),
        ("file:///nope.gguf", 3, "there is no file /nope.gguf"),
        ("pvc://claim/m.gguf", 1, "cannot be inspected from here"),
        ("ollama://llama3.2", 1, "ollama://llama3.2:latest cannot be inspected from here"),
        ("gopher://x", 1, "unknown scheme 'gopher'"),
        (__file__, 1, "is not a valid GGUF file"),
    ],
)
def test_inspection_errors_are_reported(name, code, words):
    """Each error has its sentence and its exit code."""
    done = run(name)
    assert (done.exit_code, words in done.output) == (code, True), done.output


def write(path, architecture, *pairs, kinds=(0,)):
    """Write a GGUF file with these keys and a tensor of each kind."""
    tensors = [g.tensor(f"blk.{at}.w", (32,), kind, 128 * at) for at, kind in enumerate(kinds)]
    data = g.header(g.key("general.architecture", g.STRING, architecture), *pairs, tensors=tensors)
    path.write_bytes(data.ljust(len(data) + -len(data) % 32, b"\0") + bytes(128 * len(tensors)))


def test_what_is_not_known_is_said(tmp_path, monkeypatch):
    """An unknown architecture is named as in `fit`, and a mix with unknown tensor types is not called by a name."""
    numbers = [g.key(f"gemma9.{name}", g.U32, 2) for name in ("context_length", "embedding_length", "block_count")]
    more = [g.key("tokenizer.ggml.model", g.STRING, "none"), g.key("general.file_type", g.U32, 18)]
    write(tmp_path / "x.gguf", "gemma9", *numbers, *more, kinds=(0, 99))
    monkeypatch.chdir(tmp_path)
    shown, fitted = run("x.gguf").output, CliRunner().invoke(cli, ("fit", "x.gguf")).output
    assert f"file          {tmp_path}/x.gguf" in shown
    assert "quantization  not known" in shown
    note = "the architecture gemma9 is not known to LLMKube: its memory is estimated as if"
    assert note in shown
    assert note in " ".join(fitted.split())


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("whisper", "its architecture is whisper: it is a speech recognition model, which whisper.cpp can serve"),
        ("flux", "it is an image or video model, which llama.cpp cannot serve"),
        ("mystery", "it has no mystery.context_length, which every language model has"),
    ],
)
def test_a_file_that_is_no_language_model_says_what_it_is(tmp_path, architecture, words):
    """The message names the kind of model, and not only the key that is missing."""
    write(tmp_path / "x.gguf", architecture)
    done = run(tmp_path / "x.gguf")
    assert (done.exit_code, words in done.output) == (1, True), done.output
