"""An address that a machine loses and gets back, with real sockets on the loopback address and a virtual clock."""

import socket
from functools import partial

import attrs
import pytest
import structlog.testing
import trio

from free_ports import free_port
from http_lab import head_of
from llmkube.programs.lan_gateway.lan_listener import LOOK_SECONDS, lan_judge, open_lan_gateway, run_lan_listener
from llmkube.programs.lan_gateway.listen_options import Listen
from llmkube.programs.program import open_port

HERE = "127.0.0.1"
CHAT = "/v1/chat/completions"


def is_open(number):
    with socket.socket() as probe:
        return probe.connect_ex((HERE, number)) == 0


@attrs.define(eq=False)
class Machine:
    """A machine whose addresses and whose server the test decides."""

    own: frozenset[str] | OSError = frozenset({HERE})
    network_down: trio.Event = attrs.field(factory=trio.Event)
    served: int = 0

    def addresses(self):
        if isinstance(self.own, OSError):
            raise self.own
        return self.own

    async def serve(self, listeners):
        self.served += 1
        try:
            await self.network_down.wait()
            self.network_down = trio.Event()
            raise OSError(100, "Network is down")
        finally:
            for listener in listeners:
                listener.socket.close()


@pytest.fixture
async def machine(nursery):
    """Yield a machine, its port, and what it has logged."""
    machine = Machine()
    with structlog.testing.capture_logs() as logs:
        async with open_port(number := free_port(), "--listen", HERE) as port:
            nursery.start_soon(run_lan_listener, port, machine.serve, machine.addresses)
            await trio.sleep(1)
            yield machine, number, logs
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_an_address_that_stays_is_served_without_a_word(autojump_clock, machine):
    """Looks find nothing new, also those that cannot be made: one server, no log line."""
    machine, number, logs = machine
    for own in (OSError(24, "Too many open files"), frozenset({HERE, "192.168.1.50"})):
        machine.own = own
        await trio.sleep(3 * LOOK_SECONDS)
        assert is_open(number)
    assert (machine.served, logs) == (1, [])


async def test_a_lost_address_is_told_once_and_served_again_when_it_is_back(autojump_clock, machine):
    """Nothing listens meanwhile; the port stays the same."""
    machine, number, logs = machine
    machine.own = frozenset({"192.168.7.7"})
    await trio.sleep(10 * LOOK_SECONDS)
    assert not is_open(number)
    machine.own = frozenset({HERE})
    await trio.sleep(2 * LOOK_SECONDS)
    assert is_open(number)
    assert machine.served == 2
    assert [line["event"].partition(";")[0] for line in logs] == [
        "this machine has lost the address",
        "this machine has the address again",
    ]
    assert {line["address"] for line in logs} == {f"{HERE}:{number}"}


async def test_a_port_that_was_taken_meanwhile_is_waited_for(autojump_clock, machine):
    """The log says once that another program has it; once that one has gone, the port is served."""
    machine, number, logs = machine
    machine.own = frozenset()
    await trio.sleep(2 * LOOK_SECONDS)
    with socket.create_server((HERE, number)):
        machine.own = frozenset({HERE})
        await trio.sleep(5 * LOOK_SECONDS)
        assert machine.served == 1
        assert ["another program listens there" in line.get("error", "") for line in logs] == [False, True]
    await trio.sleep(2 * LOOK_SECONDS)
    assert machine.served == 2


async def test_a_listener_that_breaks_ends_nothing_else(autojump_clock, machine):
    """What a network does to an accepting socket is logged, and the port is opened anew."""
    machine, number, logs = machine
    machine.network_down.set()
    await trio.sleep(3 * LOOK_SECONDS)
    assert machine.served == 2
    assert is_open(number)
    assert "Network is down" in logs[0]["error"]


async def test_a_taken_port_draws_no_key(tmp_path):
    """A start that fails leaves no key behind that its owner was never shown."""
    with socket.create_server((HERE, 0)) as taken:
        opening = partial(open_lan_gateway, Listen(HERE, taken.getsockname()[1]), tmp_path)
        with pytest.raises(Exception, match="--listen: cannot listen on"):
            async with opening():
                pass
    assert not list(tmp_path.iterdir())
    async with open_lan_gateway(None, tmp_path) as nothing, open_lan_gateway(Listen(HERE, 0), tmp_path) as lan:
        assert nothing is None
        assert lan.keys.drawn
    assert [path.name for path in tmp_path.iterdir()] == ["listen-key"]
    async with open_lan_gateway(Listen(HERE, 0, asks_key=False), tmp_path) as lan:
        assert lan.keys is None


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        (CHAT, "Authorization: Bearer right\r\n", None),
        (CHAT, "Authorization: Bearer right\r\nOrigin: http://192.168.1.9\r\n", None),
        (CHAT, "Authorization: Bearer right\r\nOrigin: https://evil.example\r\n", 403),
        (CHAT, "Authorization: Bearer wrong\r\n", 401),
        (CHAT, "", 401),
        ("/health", "", None),
        ("/health?x=1", "", None),
        ("/health", "Content-Length: 5\r\n", 401),
        ("/health/", "", 401),
        ("/health/../v1/models", "", 401),
        ("//health", "", 401),
        ("/v1/models", "", 401),
        ("/", "", 401),
        ("/health", "Origin: https://evil.example\r\n", 403),
        (CHAT, "OPTIONS Origin: http://192.168.1.9\r\nAccess-Control-Request-Method: POST\r\n", None),
        (CHAT, "OPTIONS Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n", 403),
        (CHAT, "OPTIONS Origin: http://192.168.1.9\r\n", 401),
        (CHAT, "OPTIONS Access-Control-Request-Method: POST\r\n", 401),
        (CHAT, "OPTIONS Origin: http://a.lan\r\nAccess-Control-Request-Method: GET\r\nContent-Length: 5\r\n", 401),
    ],
)
def test_other_machines_show_a_key_and_foreign_pages_are_refused_with_one(path, lines, status):
    """No key helps a page from elsewhere; what it would do with the key of another page's user is not ours to allow."""
    method = "OPTIONS" if lines.startswith("OPTIONS ") else "GET"
    refusal = lan_judge(["right"])(head_of(path, lines.removeprefix("OPTIONS "), method), "192.168.1.7")
    assert (refusal and refusal.status) == status


def test_where_there_is_no_key_none_is_right():
    """A judge without keys lets no other machine in, and not all of them."""
    judge = lan_judge([])
    for lines in ("", "Authorization: Bearer \r\n", "X-Api-Key: \r\n", "X-Api-Key: x\r\n"):
        assert judge(head_of(CHAT, lines), "192.168.1.7").status == 401
