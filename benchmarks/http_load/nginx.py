"""nginx, one process, no log: as the backend that answers at once, and as a reverse proxy.

python nginx.py PORT FOLDER COMMAND…     become the backend; for an engine program
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_FRAME: Final = """
daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 3600; client_max_body_size 64m;
  client_body_buffer_size 1m; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {rest}
}}
"""
_BACKEND: Final = """
  map $content_length $words {{ {words} }}
  server {{ listen 127.0.0.1:{port}; default_type application/json; location / {{ return 200 $words; }} }}
"""
_PROXY: Final = """
  upstream engine {{ server 127.0.0.1:{backend}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering {buffering};
    }}
  }}
"""


def _answer(number: int) -> str:
    """Return one of ten answers of 300 to 1,200 bytes, so that their heads differ as well."""
    content = "The quick brown fox jumps over the lazy dog. " * (2 * number + 3)
    return (
        '{"id":"chatcmpl-7","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,'
        f'"message":{{"role":"assistant","content":"{content}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":9,'
        f'"completion_tokens":{40 + number},"total_tokens":{49 + number}}}}}'
    )


def backend_command(nginx: Sequence[str], folder: Path, port: int) -> list[str]:
    """Return the command of a server that answers 200 to everything; the length depends on that of the request."""
    words = " ".join(f"~{number}$ '{_answer(number)}';" for number in range(10))
    return _command(nginx, folder, _BACKEND.format(words=f"default '{_answer(0)}'; {words}", port=port))


def proxy_command(nginx: Sequence[str], folder: Path, port: int, backend: int, *, streams: bool) -> list[str]:
    """Return the command of a reverse proxy; for streams it passes each piece on as it comes."""
    buffering = "off" if streams else "on"
    return _command(nginx, folder, _PROXY.format(port=port, backend=backend, buffering=buffering))


def _command(nginx: Sequence[str], folder: Path, rest: str) -> list[str]:
    (folder / "nginx.conf").write_text(_FRAME.format(folder=folder, rest=rest), "utf-8")
    return [*nginx, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


if __name__ == "__main__":
    command = backend_command(sys.argv[3:], Path(tempfile.mkdtemp(dir=sys.argv[2])), int(sys.argv[1]))
    os.execvp(command[0], command)  # noqa: S606 (nothing is quoted)
