"""The peers of a server on loopback: users of this machine, as the kernel tells."""

import contextlib
import os
import socket
from functools import partial

import pytest
import trio

from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import peer_uid
from llmkube.base.http.message import Response
from llmkube.base.http.server import run_server
from second_user import OTHER_UID, needs_second_user


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_user_of_a_peer_is_known(host):
    """An address that is not of this machine has no user here, nor has a connection that does not exist."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        server, _ = listener.accept()
        with client, server:
            assert peer_uid(server.getpeername(), server.getsockname()) == os.geteuid()
            assert peer_uid((host, 1), server.getsockname()) is None
            assert peer_uid(("192.0.2.1", 1), server.getsockname()) is None


@needs_second_user
async def test_another_user_does_not_take_all_places():
    """Beyond its own places it is disconnected at once, and this user is served."""

    async def hold(exchange):
        if exchange.head.path != "/quick":
            await trio.sleep_forever()
        await exchange.respond(Response.text(200, exchange.owner))

    def ask(target):
        sock = socket.create_connection(address)
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return sock

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    limits = Limits(max_connections=8, max_connections_per_peer=4)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_server, hold, listeners, limits=limits))
        os.seteuid(OTHER_UID)
        try:
            others = [ask("/slow") for _ in range(20)]
        finally:
            os.seteuid(0)
        for each in others[4:]:
            with trio.socket.from_stdlib_socket(each) as sock:
                each.setblocking(False)
                with contextlib.suppress(ConnectionResetError):
                    assert await sock.recv(100) == b""
        with trio.socket.from_stdlib_socket(ask("/quick")) as own:
            answer = await own.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"\r\n\r\n127.0.0.1 0")
        for each in others[:4]:
            each.close()
        nursery.cancel_scope.cancel()
