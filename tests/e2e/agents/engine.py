"""A scripted llama-server that calls the client's own tools.

`python engine.py LOG ARGS` appends each body that it gets to LOG, one JSON object a line.
"""

import itertools
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPTED = "scripted"
SHELLS = {
    "Bash": {"command": "echo canary-$((40+2))", "description": "Print"},
    "exec_command": {"cmd": "echo canary-$((40+2))"},
    "shell_command": {"command": "echo canary-$((40+2))"},
    "bash": {"command": "echo canary-$((40+2))", "description": "Print"},
    "weather": {"city": "Rome"},
}
"""Arguments by the name of a client's tool."""


def answer_to(body: dict[str, Any]) -> dict[str, Any]:
    """Return the message for a request: a picture is named, a tool is called once per turn, its result is repeated."""
    last = body["messages"][-1]
    text = json.dumps(last["content"])
    if '"image_url"' in text:
        return {"content": "a picture"}
    if last["role"] == "tool":
        return {"content": f"It printed {text}"}
    names = [each["function"]["name"] for each in body.get("tools", ())]
    name = next((name for name in names if name in SHELLS), None)
    if name is None:
        return {"content": "Hello"}
    call = {"name": name, "arguments": json.dumps(SHELLS[name])}
    return {
        "content": None,
        "tool_calls": [{"id": f"call_{len(body['messages'])}", "type": "function", "function": call}],
    }


class Engine(BaseHTTPRequestHandler):
    """Answers like llama.cpp's server."""

    protocol_version = "HTTP/1.1"
    log = ""

    def log_message(self, *_: object) -> None:
        """Write nothing: the log is the test's."""

    def do_GET(self) -> None:
        """Describe the model."""
        kinds = {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
        model = {
            "id": SCRIPTED,
            "object": "model",
            "meta": {"n_ctx": 131072, "n_ctx_train": 131072},
            "architecture": kinds,
        }
        props = {"total_slots": 4, "modalities": {"vision": True, "audio": False}, "chat_template_caps": {}}
        answers = {"/v1/models": {"object": "list", "data": [model]}, "/props": props, "/health": {"status": "ok"}}
        found = answers.get(self.path.partition("?")[0])
        self._send(200 if found else 404, json.dumps(found or {"error": {"message": "no"}}).encode())

    def do_POST(self) -> None:
        """Answer chat completions, whole or as a stream."""
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path != "/v1/chat/completions":
            self._send(404, b'{"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}')
            return
        body = json.loads(data)
        with Path(self.log).open("ab") as log:
            log.write(json.dumps(body).encode() + b"\n")
        message = {"role": "assistant"} | answer_to(body)
        reason = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": len(data) // 8, "completion_tokens": 2, "total_tokens": len(data) // 8 + 2}
        base = {"id": "x", "created": 1, "model": SCRIPTED}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            done = base | {"object": "chat.completion", "choices": [choice], "usage": usage}
            self._send(200, json.dumps(done).encode())
            return
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        parts = [
            ({"delta": message, "finish_reason": None}, {}),
            ({"delta": {}, "finish_reason": reason}, {"usage": usage}),
        ]
        chunk = base | {"object": "chat.completion.chunk"}
        events = [chunk | {"choices": [{"index": 0} | choice]} | more for choice, more in parts]
        data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        self._send(200, data, "text/event-stream")

    def _send(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    Engine.log, *args = sys.argv[1:]
    flags = dict(itertools.pairwise(args))
    ThreadingHTTPServer((flags["--host"], int(flags["--port"])), Engine).serve_forever()
