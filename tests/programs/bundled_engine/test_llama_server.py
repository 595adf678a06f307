import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.bundled_engine import llama_params
from llmkube.programs.bundled_engine.llama_server import remedy
from llmkube.runtimes.llama_flags import parse_help, parse_version
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import plan_for
from llmkube.weights.formats import gguf
from llmkube.weights.store.blobs import WeightsFile

pytestmark = pytest.mark.e2e

DEMO = Path(gguf.__file__).parents[1] / "builtin" / "demo.gguf"
PROGRAM = str(Path(sys.executable).with_name("llmkube-llama-server"))
QUESTION = "What is LLMKube?"
ANSWER = (
    "LLMKube turns serving a language model into a Kubernetes object: describe a Model and an InferenceService, "
    "and it downloads, starts, watches and routes."
)


@attrs.frozen
class Server:
    process: subprocess.Popen
    port: int
    log: Path

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(log, *argv, command=None):
    """Start the program on a free port, wait until it reports that it serves, and kill it at the end."""
    command = command or [PROGRAM, "--model", str(DEMO), "--port", "0", "--alias", "demo", "-c", "512", *argv]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        line = process.stdout.readline()
        assert "serving" in line, log.read_text()
        yield Server(process, int(line.rpartition(":")[2]), log)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, "--metrics", "--no-ui", "--verbosity", "4", "--parallel", "2") as server:
        yield server


def get(url, headers=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {})) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def post(url, body):
    data = json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        return answer.read().decode()


def question(**more):
    return {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": QUESTION}], **more}


def ask(server):
    answer = json.loads(post(f"{server.url}/v1/chat/completions", question()))
    return answer["choices"][0]["message"]["content"]


def test_a_question_is_answered_with_the_trained_sentence(server):
    """At temperature 0 the demo model returns the sentence that it was trained on."""
    assert ask(server) == ANSWER


def test_a_streamed_answer_is_the_same(server):
    """The pieces of a streamed answer make up the same sentence, and the stream says that it is done."""
    lines = post(f"{server.url}/v1/chat/completions", question(stream=True)).split("\n\n")
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    pieces = [choice["delta"].get("content") or "" for event in events for choice in json.loads(event)["choices"]]
    assert len(pieces) > 100
    assert "".join(pieces) == ANSWER


def test_health_metrics_and_props_follow_the_flags(server):
    """Health, metrics, model id and slots are as the flags set them, and the web page is off."""
    assert get(f"{server.url}/health") == (200, '{"status":"ok"}')
    assert "llamacpp:tokens_predicted_total" in get(f"{server.url}/metrics")[1]
    assert [model["id"] for model in json.loads(get(f"{server.url}/v1/models")[1])["data"]] == ["demo"]
    assert [slot["n_ctx"] for slot in json.loads(get(f"{server.url}/slots")[1])] == [256, 256]
    assert get(f"{server.url}/")[0] == 404


def test_a_small_model_is_computed_by_one_thread(server):
    """More threads would wait for each other, on a busy machine for minutes."""
    assert re.search(r"threadpool init, n_threads = 1\b", server.log.read_text())


def test_its_log_has_the_buffer_sizes(server):
    """At verbosity 4 the engine logs how much memory its model, cache and scratch buffers take."""
    log = server.log.read_text()
    for buffer in ("model", "KV", "compute"):
        assert re.search(rf"{buffer} buffer size =\s+[\d.]+ MiB", log), buffer


@pytest.mark.parametrize(
    "flags",
    [
        "--flash-attn on --cache-type-k q8_0 --cache-type-v q8_0",
        "--load-mode none --no-warmup --no-repack --threads 1",
        "--fit off --no-kv-offload --cpu-moe --n-gpu-layers 0 --batch-size 64 --ubatch-size 32",
        "--spec-type ngram-simple --spec-draft-n-max 4",
        f"--spec-type draft-simple --model-draft {DEMO} --spec-draft-n-max 4",
        "--jinja --reasoning-budget 0 --cache-ram 0 --threads-http 2 --no-slots",
    ],
)
def test_flags_of_loading_caching_and_drafting_do_not_change_the_answer(flags, tmp_path):
    with serving(tmp_path / "log", *flags.split()) as server:
        assert ask(server) == ANSWER


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(tmp_path, number):
    with serving(tmp_path / "log") as server:
        server.process.send_signal(number)
        assert server.process.wait(10) == 0


def test_a_stop_breaks_a_running_stream_off_at_once(tmp_path):
    """The stream does not end cleanly, so that no client takes half an answer for a whole one."""
    with serving(tmp_path / "log", "--context-shift", "--cache-ram", "0") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        body = question(stream=True, ignore_eos=True, max_tokens=10_000_000)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        server.process.terminate()
        assert server.process.wait(10) == 0  # the engine's own shutdown would take 30 seconds here
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
        connection.close()


def run(*argv):
    return subprocess.run([PROGRAM, *argv], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (None, "cannot read the model"),
        (b"hello", "is not a GGUF file: it does not start with GGUF"),
        (DEMO.read_bytes()[:500_000], "see its output above"),
        (b"GGUF" + b"\xff" * 100, "see its output above"),
    ],
    ids=["missing", "text", "truncated", "garbage"],
)
def test_an_unreadable_model_ends_it_with_one_line(tmp_path, write, message):
    """A line on stderr names the file and the reason, and the exit code is 1.

    It is not always the last line: the engine writes to stderr from a thread of its own.
    """
    path = tmp_path / "bad.gguf"
    if write is not None:
        path.write_bytes(write)
    done = run("--model", str(path), "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    (ours,) = [line for line in done.stderr.splitlines() if message in line]
    assert str(path) in ours
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named():
    """A port that another program listens on is refused before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--model", str(DEMO), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"llmkube-llama-server: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_a_key_is_required_except_for_health(tmp_path):
    (tmp_path / "keys").write_text("# for the gateway\nsesame\n")
    with serving(tmp_path / "log", "--api-key-file", str(tmp_path / "keys")) as server:
        assert get(f"{server.url}/v1/models", {"Authorization": "Bearer sesame"})[0] == 200
        assert get(f"{server.url}/props")[0] == 401
        assert get(f"{server.url}/health")[0] == 200


def test_help_lists_exactly_the_supported_flags():
    """The supervisor's parser reads the table of flags from --help, and nothing else."""
    honoured = {name for rows in llama_params.FLAGS.values() for row in rows for name in row.names.split()}
    assert parse_help(run("--help").stdout) == honoured | {"-h", "--help", "--version", "--list-devices"}
    assert run("--list-devices").stdout.startswith("Available devices:\n")


def test_the_version_names_program_and_engine():
    assert re.fullmatch(r"llmkube-llama-server [\d.]+ \(xllamacpp [\d.]+\)", parse_version(run("--version").stdout))


def test_it_imports_neither_trio_nor_the_cli():
    code = "import sys, llmkube.programs.bundled_engine.llama_server; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not modules & {"trio", "click", "rich", "attrs", "xllamacpp"}
    room = "llmkube.programs.bundled_engine"
    ours = {"llmkube.programs", room, f"{room}.llama_params", f"{room}.llama_server"}
    assert {module for module in modules if module.startswith("llmkube.")} == ours


def command_for(spec):
    """Return the command line that the supervisor would start for this service."""
    engine = EngineInfo(PROGRAM, parse_version(run("--version").stdout), parse_help(run("--help").stdout))
    service = decode(InferenceService, {"metadata": {"name": "demo"}, "spec": {"modelRef": "demo", **spec}})
    model = decode(Model, {"metadata": {"name": "demo"}, "spec": {"source": "builtin://demo"}})
    weights = WeightsFile(DEMO, DEMO.stat().st_size, None, "demo")
    plan = plan_for(PlanInputs(service, model, weights, gguf.read_header(DEMO), engine, alias="demo", asks_key=False))
    assert plan.not_honoured == ()
    return plan.render(engine, model=str(DEMO), host="127.0.0.1", port=0, keys="")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"contextSize": 256, "parallelSlots": 1, "flashAttention": True, "cacheTypeK": "q8_0", "cacheTypeV": "q8_0",
         "batchSize": 128, "uBatchSize": 64, "noKvOffload": True, "moeCPUOffload": True, "noWarmup": True,
         "jinja": True, "reasoningBudget": 0, "extraArgs": ["--mlock", "--threads=1", "--seed", "-1"]},
        {"speculativeDecoding": {"type": "ngram-mod", "nDraftMax": 4}},
    ],
)  # fmt: skip
def test_a_planned_command_line_is_accepted_and_serves(tmp_path, spec):
    with serving(tmp_path / "log", command=command_for(spec)) as server:
        assert ask(server) == ANSWER
        assert get(f"{server.url}/metrics")[0] == 200


@pytest.mark.parametrize(("spec", "tokens"), [({}, 256), ({"maxAnswerTokens": 300}, 300)])
def test_an_answer_ends_although_the_context_is_shifted(tmp_path, spec, tokens):
    """It would never end: the request has no limit, and the end of the text is ignored."""
    spec = {"contextSize": 256, "extraArgs": ["--context-shift"]} | spec
    with serving(tmp_path / "log", command=command_for(spec)) as server:
        answer = json.loads(post(f"{server.url}/v1/completions", {"prompt": "once", "ignore_eos": True}))
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (tokens, "length")


def test_a_planned_embedding_service_embeds(tmp_path):
    """In embedding mode a text becomes one vector of the model's width."""
    with serving(tmp_path / "log", command=command_for({"mode": "embedding"})) as server:
        answer = json.loads(post(f"{server.url}/v1/embeddings", {"model": "demo", "input": "hello"}))
    assert [len(item["embedding"]) for item in answer["data"]] == [128]


def test_a_missing_system_library_is_named_with_its_package():
    """A minimal Linux may lack a library that the Python package needs and pip cannot install."""
    missing = "libgomp.so.1: cannot open shared object file: No such file or directory"
    assert "libgomp1" in remedy(ImportError(missing))
    assert remedy(ImportError("No module named 'xllamacpp'")) == "pip install xllamacpp"
