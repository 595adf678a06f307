"""The LAN address of a gateway, with real sockets on the loopback address and a virtual clock."""

import datetime
import json
import random
import re
import socket
import stat
from functools import partial

import attrs
import pytest
import structlog.testing
import trio

from cli.memory_cluster import open_cluster_client
from free_ports import free_port
from http_lab import MemoryListener, head_of
from llmkube.base.errors import UserError
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.k8s.builtins import Secret
from llmkube.k8s.resource import Key
from llmkube.programs.config import UpConfig
from llmkube.programs.lan_gateway import (
    POLL_SECONDS,
    ListenSettings,
    lan_judge,
    listen_settings,
    open_lan_gateway,
    parse_listen,
    run_lan_listener,
)
from llmkube.programs.program import open_port
from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.auth.issued_keys import shown_time
from llmkube.router.auth.principals import access_check
from llmkube.router.backends import Backend
from llmkube.router.front_door import PassThrough, passing_door
from llmkube.router.model_list import ModelEntry
from llmkube.router.origin_policy import cors_lines, refuse_foreign_pages

HERE = "127.0.0.1"
CHAT = "/v1/chat/completions"


def is_open(number):
    with socket.socket() as probe:
        return probe.connect_ex((HERE, number)) == 0


@attrs.define(eq=False)
class Machine:
    """A machine whose addresses and server are set by the test."""

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
    """Yield a machine, its port, and its log."""
    machine = Machine()
    with structlog.testing.capture_logs() as logs:
        async with open_port(number := free_port(), "--listen", HERE) as port:
            nursery.start_soon(run_lan_listener, port, machine.serve, machine.addresses)
            await trio.sleep(1)
            yield machine, number, logs
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_an_address_that_stays_is_served_without_a_log_line(autojump_clock, machine):
    """Also over checks that fail: one server, no log line."""
    machine, number, logs = machine
    for own in (OSError(24, "Too many open files"), frozenset({HERE, "192.168.1.50"})):
        machine.own = own
        await trio.sleep(3 * POLL_SECONDS)
        assert is_open(number)
    assert (machine.served, logs) == (1, [])


async def test_a_lost_address_is_logged_once_and_served_again_when_it_is_back(autojump_clock, machine):
    """The port is closed meanwhile, and stays the same."""
    machine, number, logs = machine
    machine.own = frozenset({"192.168.7.7"})
    await trio.sleep(10 * POLL_SECONDS)
    assert not is_open(number)
    machine.own = frozenset({HERE})
    await trio.sleep(2 * POLL_SECONDS)
    assert is_open(number)
    assert machine.served == 2
    assert [line["event"].partition(";")[0] for line in logs] == [
        "address lost, gateway unreachable for other machines",
        "address restored, gateway reachable for other machines",
    ]
    assert {line["address"] for line in logs} == {f"{HERE}:{number}"}


async def test_a_port_that_was_taken_meanwhile_is_waited_for(autojump_clock, machine):
    """The log reports once that another program has the port; it is served when that program has exited."""
    machine, number, logs = machine
    machine.own = frozenset()
    await trio.sleep(2 * POLL_SECONDS)
    with socket.create_server((HERE, number)):
        machine.own = frozenset({HERE})
        await trio.sleep(5 * POLL_SECONDS)
        assert machine.served == 1
        assert ["another program listens there" in line.get("error", "") for line in logs] == [False, True]
    await trio.sleep(2 * POLL_SECONDS)
    assert machine.served == 2


async def test_a_listener_that_breaks_ends_nothing_else(autojump_clock, machine):
    """An error of an accepting socket is logged, and the port is opened again."""
    machine, number, logs = machine
    machine.network_down.set()
    await trio.sleep(3 * POLL_SECONDS)
    assert machine.served == 2
    assert is_open(number)
    assert "Network is down" in logs[0]["error"]


async def test_a_taken_port_generates_no_key(tmp_path):
    """A failed start leaves no key behind that was never shown."""
    with socket.create_server((HERE, 0)) as taken:
        opening = partial(open_lan_gateway, ListenSettings(HERE, taken.getsockname()[1]), tmp_path)
        with pytest.raises(Exception, match="--listen: cannot listen on"):
            async with opening():
                pass
    assert not list(tmp_path.iterdir())
    async with open_lan_gateway(None, tmp_path) as nothing, open_lan_gateway(ListenSettings(HERE, 0), tmp_path) as lan:
        assert nothing is None
        assert lan.keys.generated
    assert [path.name for path in tmp_path.iterdir()] == ["listen-key"]
    async with open_lan_gateway(ListenSettings(HERE, 0, requires_key=False), tmp_path) as lan:
        assert lan.keys is None


OWN = frozenset({"192.168.1.50", "fd00::5"})
LAN = UpConfig(listen="192.168.1.50")


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("192.168.1.50", "192.168.1.50", 8080),
        ("192.168.1.50:9000", "192.168.1.50", 9000),
        ("192.168.1.50:0", "192.168.1.50", 0),
        ("fd00::5", "fd00::5", 8080),
        ("FD00:0::0005", "fd00::5", 8080),
        ("[fd00::5]", "fd00::5", 8080),
        ("[fd00::5]:9000", "fd00::5", 9000),
    ],
)
def test_an_address_of_this_machine_is_accepted(text, address, port):
    """With or without a port, of either family; the default port is the gateway's."""
    assert parse_listen(text, 8080, OWN) == (address, port)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.0.0.0", "0.0.0.0 means every address of this machine"),
        ("0.0.0.0:8080", "0.0.0.0 means every address of this machine"),
        ("[::]:8080", ":: means every address of this machine"),
        ("127.0.0.1", "only this machine can reach 127.0.0.1"),
        ("[::1]:80", "only this machine can reach ::1"),
        ("::ffff:127.0.0.1", "::ffff:"),
        ("169.254.3.4", "other machines cannot be served at 169.254.3.4"),
        ("fe80::1%eth0", "other machines cannot be served at fe80::1%eth0"),
        ("224.0.0.1", "other machines cannot be served at 224.0.0.1"),
        ("192.168.1.51", "this machine does not have the address 192.168.1.51"),
        ("fd00::5%eth0", "other machines cannot be served at fd00::5%eth0"),
        ("mac.local", '"mac.local" is not an IP address'),
        ("localhost:8080", '"localhost:8080" is not an IP address'),
        ("*", '"*" is not an IP address'),
        (":8080", '":8080" is not an IP address'),
        ("", '"" is not an IP address'),
        ("192.168.1.50:", '"192.168.1.50:" is not an IP address'),
        ("192.168.1.50:http", '"192.168.1.50:http" is not an IP address'),
        ("192.168.1.50:-1", '"192.168.1.50:-1" is not an IP address'),
        ("192.168.1.50/24", '"192.168.1.50/24" is not an IP address'),
        ("http://192.168.1.50", '"http://192.168.1.50" is not an IP address'),
        ("[fd00::5", '"[fd00::5" is not an IP address'),
    ],
)
def test_another_address_is_refused_with_a_list_of_this_machines(text, message):
    """Neither all addresses nor loopback nor a name: the message has the reason, and the addresses to choose from."""
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        parse_listen(text, 8080, OWN)
    assert str(caught.value).startswith("--listen: ")
    assert str(caught.value).endswith("; give one of 192.168.1.50, fd00::5")


def test_an_invalid_port_and_a_missing_network_are_reported():
    with pytest.raises(UserError, match=r"192\.168\.1\.50:65536: 65536 is not a port; the highest is 65535"):
        parse_listen("192.168.1.50:65536", 8080, OWN)
    with pytest.raises(UserError, match="it has no address now that others can reach"):
        parse_listen("192.168.1.50", 8080, ())


def not_called():
    raise AssertionError("the addresses were listed")


def test_without_listen_addresses_are_not_listed():
    """A machine that cannot list its addresses starts; keys without an address are refused."""
    assert listen_settings(UpConfig(), not_called) is None
    assert listen_settings(UpConfig(insecure_lan=True), not_called) is None


def test_a_failure_to_list_addresses_is_one_sentence():
    """A sandbox may forbid it; --listen is then refused without a traceback."""

    def forbidden():
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(UserError, match=r"--listen: .* this machine cannot be determined \(Operation not permitted\)"):
        listen_settings(LAN, forbidden)


def test_flags_that_do_not_fit_together_are_refused(tmp_path):
    """A file of keys needs an address, and excludes --insecure-lan; no flag is ignored."""
    file = tmp_path / "keys"
    file.write_text("mine\n")
    with pytest.raises(UserError, match="--listen-key-file: it requires --listen ADDRESS"):
        listen_settings(UpConfig(listen_key_file=file), not_called)
    with pytest.raises(UserError, match="--listen-key-file: under --insecure-lan no keys are needed"):
        listen_settings(attrs.evolve(LAN, listen_key_file=file, insecure_lan=True), lambda: OWN)
    asked = listen_settings(attrs.evolve(LAN, listen_key_file=file, gateway_port=0), lambda: OWN)
    assert asked == ListenSettings("192.168.1.50", 0, file)
    assert listen_settings(attrs.evolve(LAN, insecure_lan=True), lambda: OWN).requires_key is False


def test_a_key_is_generated_once(tmp_path):
    """It is stored in a private file; only the first start shows it, and no repr does."""
    listen = listen_settings(LAN, lambda: OWN)
    first, second = listen.keys(tmp_path), listen.keys(tmp_path)
    assert (first.generated, second.generated) == (True, False)
    assert first.keys == second.keys
    assert len(first.keys[0]) >= 43
    assert first.keys[0] not in repr(first)
    assert first.path.read_text() == first.keys[0]
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"two words\n", b"\xff\n", b"k" + b"\n" * 70_000])
def test_a_file_without_keys_is_refused_and_not_quoted(tmp_path, content):
    """The owner's file is refused before the start, the generated one with a fix; neither is overwritten."""
    file = tmp_path / "listen-key"
    file.write_bytes(content)
    problems = "(is empty|has |is larger than 65600 bytes)"
    with pytest.raises(UserError, match=f"--listen-key-file: {file} {problems}") as caught:
        listen_settings(attrs.evolve(LAN, listen_key_file=file), lambda: OWN)
    assert "two" not in str(caught.value)
    with pytest.raises(UserError, match=f"--listen: {file} .*; remove the file, and a new key is generated"):
        listen_settings(LAN, lambda: OWN).keys(tmp_path)
    assert file.read_bytes() == content


def test_the_owners_own_keys_replace_the_generated_one(tmp_path):
    """Each line is a key; none is generated, shown or changed."""
    file = tmp_path / "mine"
    file.write_text("one\n\ntwo\n")
    found = listen_settings(attrs.evolve(LAN, listen_key_file=file), lambda: OWN).keys(tmp_path)
    assert (found.path, found.keys, found.generated) == (file, ("one", "two"), False)
    file.chmod(0o604)
    assert ListenSettings("192.168.1.50", 0, file).keys(tmp_path).is_world_readable
    file.chmod(0o640)
    assert not ListenSettings("192.168.1.50", 0, file).keys(tmp_path).is_world_readable
    assert not (tmp_path / "listen-key").exists()
    with pytest.raises(UserError, match=r"--listen-key-file: .*/gone cannot be read \(No such file or directory\)"):
        listen_settings(attrs.evolve(LAN, listen_key_file=tmp_path / "gone"), lambda: OWN)


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
def test_other_machines_need_a_key_and_foreign_pages_are_refused_with_one(path, lines, status):
    """No key permits a foreign page: the key may be that of another page's user."""
    method = "OPTIONS" if lines.startswith("OPTIONS ") else "GET"
    refusal = lan_judge(["right"])(head_of(path, lines.removeprefix("OPTIONS "), method), "192.168.1.7")
    assert (refusal and refusal.status) == status


def test_pages_behind_a_proxy_are_refused_where_the_owner_has_none():
    """With the setting a page of the requested host is foreign, with and without a key."""
    head = head_of(CHAT, "Origin: https://x\r\nAuthorization: Bearer right\r\n")
    assert lan_judge(["right"])(head, "192.168.1.7") is None
    judge = partial(refuse_foreign_pages, https_proxy_pages=False)
    assert lan_judge(["right"], judge)(head, "192.168.1.7").status == 403
    check = access_check(lambda: None, lambda outcome: None, https_proxy_pages=False)
    assert (check(head, "::1").status, access_check(lambda: None, lambda outcome: None)(head, "::1")) == (403, None)
    assert cors_lines(head, https_proxy_pages=False) == b""
    assert b"https://x" in cors_lines(head)


def test_without_keys_every_key_is_refused():
    """A judge without keys admits no other machine."""
    judge = lan_judge([])
    for lines in ("", "Authorization: Bearer \r\n", "X-Api-Key: \r\n", "X-Api-Key: x\r\n"):
        assert judge(head_of(CHAT, lines), "192.168.1.7").status == 401


class TwoModels:
    """A directory of two services with engines; the second has an alias."""

    def __init__(self, engine):
        self.found = {name: attrs.evolve(engine, service=f"default/{name}") for name in ("small", "large")}

    def aliases(self):
        return ["big"]

    def model_ids(self):
        return list(self.found)

    def lookup(self, model_id):
        return self.found.get({"big": "large"}.get(model_id, model_id.removeprefix("default/")))


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        ("/v1/responses/resp_1", "/v1/responses/ID"),
        ("/v1/responses/resp_1/input_items?limit=1", "/v1/responses/ID/input_items"),
        ("/routers/default/home/v1/responses/resp_1", "/routers/default/home/v1/responses/ID"),
        ("/responses/resp_1", "/responses/ID"),
        ("/v1/responses/input_tokens", "/v1/responses/input_tokens"),
        ("/v1/responses", "/v1/responses"),
    ],
)
async def test_a_request_is_logged_without_the_id_of_a_stored_response(tmp_path, nursery, path, logged):
    """The ID is known to its owner alone; the rest of the path is logged."""
    front = MemoryListener()

    async def answer(exchange):
        await exchange.respond(Response.json(200, {}))

    async with open_lan_gateway(ListenSettings(HERE, 0), tmp_path) as lan, open_http_client(front.connect) as http:
        await nursery.start(run_server, lan.identified(answer), [front])
        with structlog.testing.capture_logs() as logs:
            await http.request("GET", f"http://lan{path}")
            while not logs:
                await trio.lowlevel.checkpoint()
    assert [line["path"] for line in logs] == [logged]


async def test_an_issued_key_is_limited_and_revoked_while_the_gateway_runs(tmp_path, nursery):
    """Its models, its expiry and its removal from the Secret take effect without a restart; other keys stay valid."""
    engine_listener, front, now = MemoryListener(), MemoryListener(), [1000.0]
    lines = [f"sha256:{digest_of_key('ann-key').hex()} for=ann until={shown_time(2000)} models=small,routers/default/*"]
    body = {"metadata": {"name": "llmkube-keys"}, "stringData": {"clients": "\n".join(lines)}}

    async def engine(exchange):
        await exchange.respond(Response.json(200, {"model": "m", "object": "list", "data": []}))

    async def ask(model, key="ann-key", path="/v1/chat/completions"):
        data = json.dumps({"model": model}).encode() if model else b""
        headers = Headers.of({"Authorization": f"Bearer {key}"})
        async with open_http_client(front.connect) as http:
            got = await http.request("POST" if model else "GET", f"http://lan{path}", headers=headers, body=data)
        return got.status, json.loads(got.body)

    async with (
        open_cluster_client() as client,
        open_http_client(engine_listener.connect) as upstream,
        open_lan_gateway(ListenSettings(HERE, 0), tmp_path) as lan,
    ):
        lan.issued.wall_clock = lambda: now[0]
        further = [ModelEntry(name="routers/default/home"), ModelEntry(name="routers/other/home")]
        proxy = PassThrough(TwoModels(Backend("127.0.0.1", 1, "m")), upstream)
        door = passing_door(proxy, lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), further=lambda: further)
        await nursery.start(run_server, engine, [engine_listener])
        await nursery.start(partial(run_server, lan.identified(door), [front], judge=lan.judge))
        await nursery.start(lan.follow_issued_keys, client, random.Random(1))
        assert (await ask("small"))[0] == 401
        await client.request_json("POST", "/api/v1/namespaces/default/secrets", body=body)
        while not lan.issued.holders:
            await trio.lowlevel.checkpoint()
        found = {model: await ask(model) for model in ("small", "default/small", "large", "big", "default/large", "no")}
        assert {model: status for model, (status, _) in found.items()} == {
            "small": 200,
            "default/small": 200,
            "large": 403,
            "big": 403,
            "default/large": 403,
            "no": 404,
        }
        assert found["big"][1]["error"]["message"].endswith("model big, only small, routers/default/*")
        assert found["no"][1]["error"]["message"] == "no model 'no'; available: 'small'"
        ids = [each["id"] for each in (await ask("", path="/v1/models"))[1]["data"]]
        assert ids == ["small", "routers/default/home"]
        assert (await ask("small", path="/models/unload"))[1]["error"]["code"] == "owner_only"
        assert (await ask("large", lan.keys.keys[0]))[0] == 200
        now[0] = 2000.0
        assert (await ask("small"))[1]["error"]["code"] == "key_expired"
        await client.delete(Secret, Key("default", "llmkube-keys"))
        while lan.issued.holders:
            await trio.lowlevel.checkpoint()
        assert (await ask("small"))[1]["error"]["code"] == "invalid_api_key"
