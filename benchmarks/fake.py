"""An engine that is none: it starts at once and answers 200 to everything."""

import shlex
import subprocess
import sys
from pathlib import Path

SERVER = """
import socket, sys
words = sys.argv[1:]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((words[words.index("--host") + 1], int(words[words.index("--port") + 1])))
listener.listen(64)
while True:
    stream, _ = listener.accept()
    stream.recv(65536)
    stream.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 15\\r\\nConnection: close\\r\\n\\r\\n{\\"status\\":\\"ok\\"}")
    stream.close()
"""


def write_engine(folder: Path, first: str = "", *, preamble: str = "") -> Path:
    """Write the engine program into a folder and return its path.

    Its `--help` is the bundled engine's, so that plans are made as for the real one.

    Args:
        folder: The folder of the engine and its files.
        first: Commands of its shell before it becomes the server: a millisecond after exec, where Python takes ten.
        preamble: Python code that the server runs first.
    """
    real = Path(sys.executable).with_name("llmkube-llama-server")
    for flag in ("help", "version"):
        output = subprocess.run([real, f"--{flag}"], check=True, capture_output=True).stdout
        (folder / flag).write_bytes(output)
    (folder / "engine.py").write_text(f"{preamble}\n{SERVER}", "utf-8")
    quoted = {name: shlex.quote(str(folder / name)) for name in ("help", "version", "engine.py")}
    program = folder / "engine"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in --help) exec cat {quoted["help"]};; --version) exec cat {quoted["version"]};; esac\n'
        f"{first}"
        f'exec {shlex.quote(sys.executable)} -I -S -E {quoted["engine.py"]} "$@"\n',
        "utf-8",
    )
    program.chmod(0o755)
    return program
