"""The entry point around mlx_lm.server, with a fake of the methods that it replaces; tests/e2e has the real one."""

import io
import json
import threading
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest

from llmkube.programs.mlx_entry import REQUIRED, WORKER_EXITED, ServerState, missing, patch_server


class Provider:
    def __init__(self):
        self.loads = []

    def load(self, *names):
        self.loads.append(names)

    def load_default(self):
        self.load("default_model", None, "default_model")


class Generator:
    alive = True

    def generate(self, request):
        return "context", iter(["a", "b", "c"])

    def generation_available(self):
        return self.alive


class Handler(BaseHTTPRequestHandler):
    response_generator = Generator()

    def __init__(self, text):
        self.rfile, self.wfile = io.BytesIO(text.encode()), io.BytesIO()
        self.client_address, self.raw_requestline, self.during = ("127.0.0.1", 1), b"", None
        self.handle_one_request()

    def do_GET(self):
        self.wfile.write(b"theirs")

    def do_POST(self):
        self.wfile.write(f"working {STATE[0].in_flight}".encode())
        if "fail" in self.path:
            raise OSError("the client has gone")

    def log_message(self, *_):
        pass


STATE = []


@pytest.fixture
def server():
    """Return the fake server, guarded by two keys; its classes are new each time, since methods are replaced."""
    made = SimpleNamespace(
        ModelProvider=type("P", (Provider,), {"load": Provider.load, "load_default": Provider.load_default}),
        ResponseGenerator=type("G", (Generator,), dict(vars(Generator))),
        APIHandler=type("H", (Handler,), {k: v for k, v in vars(Handler).items() if k.startswith("do_")}),
    )
    state, ended = ServerState(("first", "second"), "chat"), []
    made.APIHandler.response_generator = made.ResponseGenerator()
    patch_server(made, state, ended.append)
    STATE[:] = [state]
    return SimpleNamespace(server=made, state=state, ended=ended)


def ask(world, path, key="second", method="GET"):
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    return world.server.APIHandler(f"{method} {path} HTTP/1.0\r\n{shown}\r\n").wfile.getvalue()


@pytest.mark.parametrize("key", ["", "wrong", "firs", "first second", "sécond"])
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/chat/completions", "/healthy", "/health/x"])
def test_a_stranger_gets_401(server, key, path):
    """A request without one of the keys is not counted either."""
    for method in ("GET", "POST", "OPTIONS"):
        answer = ask(server, path, key, method)
        assert b" 401 " in answer.splitlines()[0]
        assert b"working" not in answer


def test_each_key_is_accepted(server):
    """The agent's, and those of the service's clients."""
    for key in ("first", "second"):
        assert json.loads(ask(server, "/v1/models?x=1", key).split(b"\r\n\r\n")[1])["data"][0]["id"] == "chat"


def test_health_follows_the_load_and_needs_no_key(server):
    """503 during the load, then 200 by the server's own handler; the process exits when its thread is dead."""
    assert b" 503 " in ask(server, "/health", key="").splitlines()[0]
    server.server.ModelProvider().load_default()
    assert ask(server, "/health", key="") == b"theirs"
    assert server.ended == []
    server.server.ResponseGenerator.alive = False
    ask(server, "/health", key="")
    assert server.ended == [WORKER_EXITED]


def test_every_request_uses_the_loaded_model(server):
    """Also one that names another model, an adapter or a draft."""
    provider = server.server.ModelProvider()
    provider.load("/etc/passwd", "/adapters", draft_model_path="org/draft")
    assert provider.loads == [("default_model", None, "default_model")]


def test_work_and_tokens_are_counted(server):
    """A request counts until it has ended, also by an error; each token counts when it is generated."""
    assert ask(server, "/v1/completions", method="POST") == b"working 1"
    with pytest.raises(OSError, match="gone"):
        ask(server, "/fail", method="POST")
    assert server.state.in_flight == 0
    _, tokens = server.server.ResponseGenerator().generate("request")
    assert list(tokens) == ["a", "b", "c"]
    assert b"llmkube:tokens_predicted_total 3\n" in ask(server, "/metrics")


def test_a_build_that_lacks_a_method_is_not_served():
    """The missing method is named; an unguarded server never runs."""
    whole = {name: type(name, (), dict.fromkeys(methods, lambda self: None)) for name, methods in REQUIRED.items()}
    assert missing(SimpleNamespace(**whole)) == ""
    for name, methods in REQUIRED.items():
        for method in methods:
            less = type(name, (), {m: (lambda self: None) for m in methods if m != method})
            assert missing(SimpleNamespace(**whole | {name: less})) == f"{name}.{method}"
    assert missing(SimpleNamespace()) == "ModelProvider.load"


def test_counts_of_many_threads_add_up():
    """Requests are handled in threads."""
    state = ServerState((), "chat")
    threads = [threading.Thread(target=lambda: [state.add(tokens=1) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state.tokens == 8000
