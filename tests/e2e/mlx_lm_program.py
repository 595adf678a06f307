"""`mlx_lm.server` with the interface that `mlx_entry` knows (0.32.2), as a process that needs no MLX.

`install` makes a Python environment with this file as its `mlx_lm.server`, which imports only the standard library. An
answer names the model, the adapter and the draft model that computed it, one token per word.
"""

import argparse
import json
import queue
import shutil
import sys
import threading
import venv
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = "0.32.2"


def install(folder):
    """Make the environment in a folder; return the path of its `mlx_lm.server`, whose first line names its Python."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "mlx_lm").mkdir()
    (packages / "mlx_lm" / "__init__.py").write_text(f'__version__ = "{VERSION}"\n')
    shutil.copyfile(__file__, packages / "mlx_lm" / "server.py")
    path = folder / "bin" / "mlx_lm.server"
    path.write_text(f"#!{folder}/bin/python\nfrom mlx_lm.server import main\nmain()\n")
    path.chmod(0o755)
    return path


class ModelProvider:
    def __init__(self, args):
        self.args = args

    def load_default(self):
        self.load("default_model", None, "default_model")

    def load(self, model, adapter=None, draft=None):
        path = self.args.model if model == "default_model" else model
        kind = json.loads((Path(path) / "config.json").read_text())["model_type"]
        if kind != "llama":
            raise ValueError(f"Model type {kind} not supported.")
        return f"{path} {adapter} {draft}"


class ResponseGenerator:
    def __init__(self, provider):
        self.provider, self.asked = provider, queue.Queue()
        self.thread = threading.Thread(target=self._compute, daemon=True)
        self.thread.start()

    def _compute(self):
        self.provider.load_default()
        while True:
            asked, answers = self.asked.get()
            answers.put(self.provider.load(asked["model"], asked.get("adapters"), asked.get("draft_model")).split())

    def generation_available(self):
        return self.thread.is_alive()

    def generate(self, asked):
        answers = queue.Queue()
        self.asked.put((asked, answers))
        return None, iter(answers.get(timeout=60))


class APIHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    response_generator = None

    def do_GET(self):
        self._answer(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, tokens = self.response_generator.generate(asked)
        message = {"role": "assistant", "content": " ".join(tokens)}
        self._answer(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def _answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main():
    parser = argparse.ArgumentParser(prog="mlx_lm.server")
    for name in ("--model", "--host", "--allowed-origins"):
        parser.add_argument(name)
    for name in ("--port", "--decode-concurrency", "--prompt-concurrency", "--prompt-cache-size"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    APIHandler.response_generator = ResponseGenerator(ModelProvider(args))
    sys.stderr.write(f"Starting httpd at {args.host} on port {args.port}...\n")
    ThreadingHTTPServer((args.host, args.port), APIHandler).serve_forever()
