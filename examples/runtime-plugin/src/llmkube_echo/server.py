"""The engine: a server with OpenAI's API that repeats the prompt. It uses only the standard library."""

import argparse
import http.server
import json
import socket
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler for health checks, metrics and chats."""

    options: argparse.Namespace

    def do_GET(self) -> None:
        """Answer health checks and metrics."""
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.path == "/metrics":
            self.answer(200, "# TYPE echo:requests_running gauge\necho:requests_running 0\n")
        else:
            self.answer(404, {"error": f"there is no {self.path}"})

    def do_POST(self) -> None:
        """Repeat the last message."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        prompt = str(body.get("messages", [{}])[-1].get("content", ""))[: self.options.longest]
        text = " ".join([self.options.prefix] * bool(self.options.prefix) + [prompt] * self.options.repeat)
        message = {"role": "assistant", "content": text.upper() if self.options.shout else text}
        self.answer(200, {"object": "chat.completion", "choices": [{"index": 0, "message": message}]})

    def answer(self, status: int, body: object) -> None:
        """Send one answer, as JSON unless it is a text."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(http.server.ThreadingHTTPServer):
    """Server on one address, or on all IPv4 and IPv6 addresses if it is `::`."""

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind the socket for IPv4 as well."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--host", default="::")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--longest", type=int)
    parser.add_argument("--shout", action="store_true")
    options = parser.parse_args()
    if not options.model.exists():
        parser.error(f"there is no {options.model}")
    Handler.options = options
    with Server(options.host, options.port) as server:
        print(f"listening on {options.port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
