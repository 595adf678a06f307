"""The ports that tests and benchmarks tell to programs stay theirs until the programs bind them."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import free_ports
from free_ports import free_port, kernels_range

CALLS = "from free_ports import free_port; print(*(free_port() for _ in range(20)), flush=True); input()"


def test_the_kernel_hands_out_none_of_them():
    """The port lies outside of the kernel's range, and every address of this machine can be listened on with it."""
    first, last = kernels_range()
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        assert first <= asked.getsockname()[1] <= last
    for _ in range(20):
        port = free_port()
        assert not first <= port <= last
        socket.create_server(("", port)).close()


def test_processes_that_run_side_by_side_get_different_ones(monkeypatch):
    """With 40 ports in all, two processes of 20 share none, and for a third nothing is left until they end."""
    few = range(19900, 19940)  # outside of what other tests are given
    code = f"import free_ports; free_ports._OURS = {few!r}; {CALLS}"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": Path(__file__).parent}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, **options) as one, subprocess.Popen(command, **options) as other:
        told = [*one.stdout.readline().split(), *other.stdout.readline().split()]
        monkeypatch.setattr(free_ports, "_OURS", few)
        with pytest.raises(RuntimeError, match="no port of 19900 to 19939 is free"):
            free_port()
        for process in (one, other):
            process.communicate("\n")
    assert len({*told}) == 40
    assert free_port() in few


def test_a_port_that_something_uses_is_not_one(monkeypatch):
    """A listener on one address, or a connection that began at the port, takes it away."""
    port = free_port()
    monkeypatch.setattr(free_ports, "_claims", lambda _: True)
    monkeypatch.setattr(free_ports, "_OURS", range(port, port + 1))
    with socket.create_server(("127.0.0.1", port)), pytest.raises(RuntimeError, match="is free"):
        free_port()
    assert free_port() == port
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), source_address=("127.0.0.1", port)),
        pytest.raises(RuntimeError, match="is free"),
    ):
        free_port()


def test_a_kernel_that_hands_out_all_is_told(tmp_path, monkeypatch):
    """Where the kernel's range leaves nothing, the error names the range and its file; macOS's range has no file."""
    (wide := tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(free_ports, "_KERNELS", wide)
    with pytest.raises(RuntimeError, match=f"outside of 1024 to 65535, {wide}"):
        free_port()
    monkeypatch.setattr(free_ports, "_KERNELS", tmp_path / "none")
    assert kernels_range() == (49152, 65535)
    assert free_port() in range(20000, 30000)
