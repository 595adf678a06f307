import socket
import sys
from pathlib import Path

import pytest

from llmkube.supervisor.host import tcp_listeners as module
from llmkube.supervisor.host.tcp_listeners import LISTEN, listening_ports
from waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def refuse(_):
    raise OSError


@pytest.fixture(params=["sock_diag", "proc"])
def method(request, monkeypatch):
    """One of the two methods to list listeners; the other one is disabled."""
    if request.param == "sock_diag":
        monkeypatch.setattr(module, "_read", refuse)
    else:
        monkeypatch.setattr(module, "_query_kernel", refuse)


@pytest.mark.usefixtures("method")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_listener_is_seen_with_its_waiting_connections(host):
    """A port is listed while a process listens there, marked while a connection or bytes wait for it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        port = server.getsockname()[1]
        assert listening_ports({port})[port] is False
        with socket.create_connection((host, port)) as client:
            await until(lambda: listening_ports({port})[port])
            accepted, _ = server.accept()
            with accepted:
                assert listening_ports({port})[port] is False
                client.sendall(b"hello")
                await until(lambda: listening_ports({port})[port])
    assert port not in listening_ports({port})


def test_both_methods_give_the_same_rows():
    """Both methods give the same rows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = (LISTEN, server.getsockname()[1], 0)
        assert link in module._query_kernel(socket.AF_INET)
        assert link in module._read(Path("/proc/net/tcp"))


def test_without_a_method_listeners_are_unknown(monkeypatch):
    """Without either method the result is None, and not that no process listens."""
    monkeypatch.setattr(module, "_query_kernel", refuse)
    monkeypatch.setattr(module, "_read", refuse)
    assert listening_ports({1}) is None
