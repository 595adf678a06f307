"""Checks whether an address answers, over real sockets of this machine."""

import json
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from click.testing import CliRunner

from llmkube.k8s.wire.termination_message import REACHED
from llmkube.programs.fetch_job import reach as module
from llmkube.programs.fetch_job.reach import OTHER_PROGRAM, reach, try_connect


@asynccontextmanager
async def open_server(*pieces):
    """Send these pieces to each client that connects, and close the connection."""

    async def speak(stream):
        async with stream:
            for piece in pieces:
                await stream.send_all(piece)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, speak, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("pieces", "result"),
    [
        ((b"word\n",), REACHED),
        ((b"wo", b"rd\n"), REACHED),
        ((b"SSH-2.0-OpenSSH_9.9\r\n",), OTHER_PROGRAM),
        ((), OTHER_PROGRAM),
        ((b"x" * 100_000,), OTHER_PROGRAM),
        ((b"\xff\xfe\n",), OTHER_PROGRAM),
    ],
)
async def test_only_the_hosts_token_identifies_it(pieces, result):
    """Another machine may have the same address, and a proxy answers for any."""
    async with open_server(*pieces) as port:
        assert await try_connect("127.0.0.1", port, "word") == result


async def test_a_refused_connection_is_reported_by_its_errno():
    """Not by Trio's message for all addresses of a host."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert await try_connect("127.0.0.1", taken.getsockname()[1], "word") == "ECONNREFUSED"


async def test_a_silent_server_is_waited_for_until_the_deadline(monkeypatch):
    """It accepts the connection, and sends nothing."""
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert (await try_connect("127.0.0.1", silent.getsockname()[1], "word")).startswith("ETIMEDOUT")


def test_the_result_is_printed_and_written_to_the_termination_log(tmp_path):
    """The exit code is 0 whatever the result is."""
    log = tmp_path / "termination-log"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(reach, [address, "--word", "w", f"--termination-log={log}"])
    assert (done.exit_code, done.output) == (0, "ECONNREFUSED\n")
    assert json.loads(log.read_text()) == {"result": "ECONNREFUSED"}


@pytest.mark.parametrize("address", ["192.168.1.5", "192.168.1.5:http", ":80"])
def test_an_invalid_address_is_refused_by_name(address):
    """With an example of a valid one."""
    done = CliRunner().invoke(reach, [address, "--word", "w"])
    assert done.exit_code == 2
    assert "ADDRESS" in done.output
    assert "192.168.1.50:8080" in done.output
