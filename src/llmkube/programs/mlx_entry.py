"""Wrap `mlx_lm.server`, in its own Python: require keys, serve one model, and report health and metrics.

PYTHON mlx_entry.py [--llmkube-keys FILE] --llmkube-alias NAME OPTIONS-OF-MLX_LM.SERVER

That Python may be older than ours and does not have this package, so this file imports only the standard library. It
replaces methods of `mlx_lm.server` (0.32.2), and exits if one of them is missing.

* Every path except /health requires one of the keys in the file, which has one per line.
* /health is 200 once the model is loaded. If the thread that computes has exited, the process exits as well; otherwise
  the server would answer 503 forever.
* /v1/models lists the model under its name, and /metrics counts requests in flight and tokens.
* Every request is answered by the loaded model, whatever model, adapter or draft it names.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules could shadow others

import argparse
import hmac
import importlib
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

REQUIRED = {
    "ModelProvider": ("load", "load_default"),
    "ResponseGenerator": ("generate", "generation_available"),
    "APIHandler": ("parse_request", "do_GET", "do_POST", "log_request"),
}
WORKER_EXITED = 70
"""Exit code if the thread that computes has exited (EX_SOFTWARE of sysexits.h)."""


class ServerState:
    """State and counters of one server, whose requests are handled in threads."""

    def __init__(self, keys: Sequence[str], alias: str) -> None:
        self.keys, self.alias = tuple(keys), alias
        self.loaded, self.in_flight, self.tokens = False, 0, 0
        self.lock = threading.Lock()

    def admits(self, path: str, authorization: str) -> bool:
        """Return whether a request is admitted; all keys are compared, in constant time."""
        if path == "/health" or not self.keys:
            return True
        presented = authorization.encode("utf-8", "replace")
        matches = [hmac.compare_digest(presented, b"Bearer " + key.encode()) for key in self.keys]
        return any(matches)

    def add(self, *, in_flight: int = 0, tokens: int = 0) -> None:
        """Add to the counters."""
        with self.lock:
            self.in_flight += in_flight
            self.tokens += tokens

    @property
    def metrics(self) -> str:
        """The counters in Prometheus' text format."""
        return f"llmkube:requests_processing {self.in_flight}\nllmkube:tokens_predicted_total {self.tokens}\n"

    @property
    def models(self) -> str:
        """The list of the one model."""
        return json.dumps({"object": "list", "data": [{"id": self.alias, "object": "model", "owned_by": "llmkube"}]})


def missing(server: Any) -> str:
    """Return the first required method that the server lacks; empty if it has all."""
    for name, methods in REQUIRED.items():
        for method in methods:
            if not callable(getattr(getattr(server, name, None), method, None)):
                return f"{name}.{method}"
    return ""


def patch_server(server: Any, state: ServerState, exit_process: Callable[[int], Any] = os._exit) -> None:
    """Replace methods of the server; `exit_process` exits the process with a code."""
    _patch_model(server.ModelProvider, state)
    _patch_generator(server.ResponseGenerator, state)
    _patch_requests(server.APIHandler, state)
    _patch_responses(server.APIHandler, state, exit_process)


def _patch_model(provider: Any, state: ServerState) -> None:
    load, load_default = provider.load, provider.load_default

    def load_one(self: Any, *_names: Any, **_more: Any) -> Any:
        return load(self, "default_model", None, "default_model")

    def load_first(self: Any) -> None:
        load_default(self)
        state.loaded = True
        _log("the model is loaded")

    provider.load, provider.load_default = load_one, load_first


def _patch_generator(generator: Any, state: ServerState) -> None:
    generate = generator.generate

    def count(tokens: Iterable[Any]) -> Iterator[Any]:
        for token in tokens:
            state.add(tokens=1)
            yield token

    def generate_counted(self: Any, *request: Any, **more: Any) -> tuple[Any, Iterator[Any]]:
        context, tokens = generate(self, *request, **more)
        return context, count(tokens)

    generator.generate = generate_counted


def _patch_requests(handler: Any, state: ServerState) -> None:
    parse, post = handler.parse_request, handler.do_POST

    def parse_admitted(self: Any) -> bool:
        if not parse(self):
            return False
        if state.admits(_path(self), self.headers.get("Authorization", "")):
            return True
        self.close_connection = True
        self.send_error(401, "this engine requires a key")
        return False

    def do_post(self: Any) -> None:
        state.add(in_flight=1)
        try:
            post(self)
        finally:
            state.add(in_flight=-1)

    handler.parse_request, handler.do_POST = parse_admitted, do_post


def _patch_responses(handler: Any, state: ServerState, exit_process: Callable[[int], Any]) -> None:
    get, log = handler.do_GET, handler.log_request

    def log_request(self: Any, *args: Any) -> None:
        if getattr(self, "path", "") not in ("/health", "/metrics"):  # requested every few seconds
            log(self, *args)

    def do_get(self: Any) -> None:
        path = _path(self)
        if path == "/health" and not self.response_generator.generation_available():
            _log("the thread that computes has exited")
            exit_process(WORKER_EXITED)
        if path == "/health" and not state.loaded:
            _respond(self, 503, "application/json", '{"status": "loading"}')
        elif path == "/metrics":
            _respond(self, 200, "text/plain; version=0.0.4", state.metrics)
        elif path == "/v1/models":
            _respond(self, 200, "application/json", state.models)
        else:
            get(self)

    handler.do_GET, handler.log_request = do_get, log_request


def _path(request: Any) -> str:
    return str(request.path).partition("?")[0]


def _respond(request: Any, status: int, kind: str, text: str) -> None:
    body = text.encode()
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _log(text: str) -> None:
    sys.stderr.write(f"llmkube: {text}\n")
    sys.stderr.flush()


def main() -> None:
    """Parse our own options, and run the server with the others."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--llmkube-keys", default="")
    parser.add_argument("--llmkube-alias", required=True)
    ours, rest = parser.parse_known_args()
    keys: list[str] = []
    if ours.llmkube_keys:
        keys = pathlib.Path(ours.llmkube_keys).read_text("ascii").split()
        if not keys:
            sys.exit("the key file is empty: no key would be required")
    server = importlib.import_module("mlx_lm.server")
    if absent := missing(server):
        sys.exit(f"{server.__file__} is not the mlx_lm that llmkube knows: it has no {absent}")
    patch_server(server, ServerState(keys, ours.llmkube_alias))
    sys.argv[1:] = rest
    server.main()


if __name__ == "__main__":
    main()
