"""`make demo`, in a home of its own."""

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from e2e.up_process import ANSWER, engines_in, environment, processes_in
from llmkube.base.http.client import open_http_client

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ROOT = Path(__file__).parents[2]


async def make_demo(home, *args, **variables):
    """Run it with this Python's packages; return the exit code and both outputs."""
    ports = {f"LLMKUBE_{each}_PORT": "0" for each in ("API", "GATEWAY", "PROBE")}
    venv = [f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.serving"]
    done = await trio.run_process(
        ["make", "--no-print-directory", "--directory", str(ROOT), *venv, "demo", *args],
        env=environment(home) | ports | variables,
        stdin=subprocess.DEVNULL,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_the_demo_keeps_running_and_prints_how_to_go_on_and_stop_it(tmp_path):
    """After the installation: pid, page, answer, stop, on five lines. A second run uses the same program."""
    code, out, err = await make_demo(tmp_path)
    assert (code, err) == (0, "")
    try:
        state, page, *answer, stop = out.splitlines()
        pid = re.fullmatch(r"llmkube up is running in the background \(pid (\d+)\)", state)[1]
        assert " ".join(answer) == ANSWER
        url = page.split()[1]
        async with open_http_client() as http:
            assert (await http.request("GET", url)).status == 200
        code, again, err = await make_demo(tmp_path)
        assert (code, again.splitlines()) == (0, [f"llmkube up is already running (pid {pid})", *out.splitlines()[1:]])
    finally:
        stop = shlex.split(out.splitlines()[-1].removeprefix("stop"))
        await trio.run_process(stop, cwd=ROOT, env=environment(tmp_path), capture_stdout=True)
    assert not [*engines_in(tmp_path), *processes_in(tmp_path)]


async def test_a_port_of_another_program_is_named_with_the_way_out(tmp_path):
    """Nothing keeps running; the message has the program that listens there, and how to pass another port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = await make_demo(tmp_path, f"ARGS=--gateway-port={port}")
    assert (code, out) == (2, "")
    assert re.search(rf"port {port} \(--gateway-port\) is in use by \S+ \(pid \d+\)", err)
    assert 'make demo ARGS="--gateway-port 8081"' in err
    assert not processes_in(tmp_path)
