"""The load is what the tables say that it is."""

import itertools
import json
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from http_load import attacks, nginx, sse, wrk


def test_chats_are_of_many_lengths(tmp_path):
    """Between 200 and 2,000 bytes, a fifth more or less; hardly two in a row are of one length."""
    script = tmp_path / "chats.lua"
    wrk.write_script(script, "plain", random.Random(1))
    bodies = re.findall(r"\[==\[(.*?)\]==\]", script.read_text("utf-8"))
    lengths = [len(body.encode()) for body in bodies]
    assert len(bodies) == len(wrk.LENGTHS)
    assert {json.loads(body)["model"] for body in bodies} == {"plain"}
    assert 160 <= min(lengths) <= 240
    assert 1600 <= max(lengths) <= 2400
    assert sum(one != other for one, other in itertools.pairwise(lengths)) > 0.95 * len(wrk.LENGTHS)


def test_answers_are_of_ten_lengths(tmp_path):
    """What nginx answers is JSON, and depends on the length of the request."""
    nginx.backend_command(["nginx"], tmp_path, 1)
    answers = re.findall(r"~\d\$ '(.*?)';", (tmp_path / "nginx.conf").read_text("utf-8"))
    assert len({len(answer) for answer in answers}) == len(answers) == 10
    assert all(json.loads(answer)["object"] == "chat.completion" for answer in answers)


@pytest.mark.parametrize("size", [3, 30, 3000])
def test_empty_arrays_are_json(size):
    """Of about the size that is wanted."""
    body = attacks.nested(size)
    assert set(map(len, json.loads(body))) == {0}
    assert abs(len(body) - size) <= 2


def test_streams_are_timed():
    """The client counts each chunk that the backend sends, at 50 a second."""
    script = str(Path(sse.__file__))
    with subprocess.Popen([sys.executable, script, "backend", "127.0.0.1", "0"], stdout=subprocess.PIPE) as backend:
        try:
            port = int(backend.stdout.readline())
            asked = [sys.executable, script, "client", str(port), "4", "1", "demo"]
            found = json.loads(subprocess.run(asked, check=True, capture_output=True, timeout=60).stdout)
            with socket.create_connection(("127.0.0.1", port)) as one:
                one.sendall(sse.request("demo", "hello", stream=False))
                one.settimeout(60)
                said = b""
                while not said.endswith(b'{"status":"ok"}'):
                    said += one.recv(65536) or pytest.fail(f"{said} is all")
        finally:
            backend.kill()
    assert 4 <= found["chunks"] <= 220
    assert 0 <= found["late"]["p50"] <= found["late"]["p99"]
