"""Keys are read when their file changes, or fetched at intervals.

Responses that an issuer's address may return, and those that are refused.
"""

import json
import os
import random
from contextlib import suppress

import pytest
import trio
from structlog.testing import capture_logs

from http_lab import GONE, MemoryListener
from llmkube.base.http.client import open_http_client
from llmkube.router.auth import jwks_refresh
from llmkube.router.auth.jwks_refresh import FETCH_SECONDS, JwksRefresh, KeysUnreadableError, fetch_jwks
from llmkube.router.auth.token_keys import TokenKeys
from router.auth.token_lab import jwks


@pytest.fixture
def no_threads(monkeypatch):
    """Run thread work inline: under an autojump clock, minutes would pass while a thread works."""

    async def parsed(data, limiter):
        await trio.lowlevel.checkpoint()
        return jwks_refresh.load_key_set(data)

    monkeypatch.setattr(jwks_refresh, "parsed", parsed)


async def no_fetch(uri, most):
    await trio.lowlevel.checkpoint()
    raise AssertionError("a file is not fetched")


def names(keys):
    found = keys.key_set_at(trio.current_time())
    return None if found is None else [each.key_id for each in found.keys]


@pytest.fixture
def in_file(tmp_path):
    return TokenKeys("", str(tmp_path / "jwks.json"), random.Random(1))


async def test_a_file_is_read_before_the_router_serves(in_file, tmp_path):
    """The first client is served without a retry."""
    (tmp_path / "jwks.json").write_bytes(jwks("ed-1"))
    async with trio.open_nursery() as nursery:
        await nursery.start(JwksRefresh(lambda: in_file, no_fetch).run)
        assert names(in_file) == ["ed-1"]
        nursery.cancel_scope.cancel()


async def test_a_file_that_changes_is_read_again(in_file, tmp_path):
    """A missing or broken file removes no keys and is logged once; a valid file is used again."""
    file, refresh = tmp_path / "jwks.json", JwksRefresh(lambda: in_file, no_fetch)
    with capture_logs() as logs:
        await refresh.refresh_if_due()
        assert names(in_file) is None
        assert in_file.problem == "the key file cannot be read (No such file or directory)"
        file.write_bytes(jwks("ed-1"))
        stamp = file.stat()
        await refresh.refresh_if_due()
        assert names(in_file) == ["ed-1"]
        file.unlink()
        await refresh.refresh_if_due()
        await refresh.refresh_if_due()
        assert names(in_file) == ["ed-1"]
        file.write_bytes(b"<html>secret-of-a-page</html>")
        await refresh.refresh_if_due()
        assert names(in_file) == ["ed-1"]
        assert "not a JWK Set" in in_file.problem
        file.write_bytes(jwks("ed-1"))
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        await refresh.refresh_if_due()
        assert not in_file.problem
        file.write_bytes(jwks("ed-2", "rsa-1"))
        await refresh.refresh_if_due()
        assert names(in_file) == ["ed-2", "rsa-1"]
    assert [each["log_level"] for each in logs] == ["warning", "info", "warning", "warning", "info"]
    assert "secret-of-a-page" not in str(logs)


async def test_an_existing_file_is_trusted_forever_and_a_missing_one_for_an_hour(in_file, tmp_path, autojump_clock):
    """A deleted Secret is trusted for an hour at most."""
    (tmp_path / "jwks.json").write_bytes(jwks("ed-1"))
    refresh = JwksRefresh(lambda: in_file, no_fetch)
    for _ in range(5):
        await refresh.refresh_if_due()
        await trio.sleep(3000)
    assert names(in_file) == ["ed-1"]
    await refresh.refresh_if_due()
    (tmp_path / "jwks.json").unlink()
    await trio.sleep(3599)
    await refresh.refresh_if_due()
    assert names(in_file) == ["ed-1"]
    await trio.sleep(1)
    assert names(in_file) is None


async def test_one_fetch_at_a_time_and_none_too_often(autojump_clock, no_threads):
    """The rate holds for any number of unknown key names; a slow issuer is not asked again while a fetch is running."""
    keys, asked, running = TokenKeys("https://id.example/keys", "", random.Random(1)), [], []

    async def fetch(uri, most):
        assert not running
        running.append(uri)
        asked.append(trio.current_time())
        await trio.sleep(4)
        running.clear()
        return jwks("ed-1")

    async with trio.open_nursery() as nursery:
        await nursery.start(JwksRefresh(lambda: keys, fetch).run)
        start = trio.current_time()
        for _ in range(1000):
            keys.request_refetch(trio.current_time())
            await trio.sleep(0.1)
        assert 3 <= len(asked) <= 5
        await trio.sleep(900)
        nursery.cancel_scope.cancel()
    later = [at for at in asked if at > start + 100]
    assert len(later) in (2, 3)


async def test_an_issuer_that_is_down_is_asked_less_and_less(autojump_clock, no_threads):
    """Its keys remain valid meanwhile; once it is back, they are fetched within a minute."""
    keys, asked, down = TokenKeys("https://id.example/keys", "", random.Random(1)), [], []

    async def fetch(uri, most):
        asked.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if down:
            raise KeysUnreadableError("no connection to the issuer")
        return jwks("ed-1") if len(asked) < 2 else jwks("ed-2")

    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            await nursery.start(JwksRefresh(lambda: keys, fetch).run)
            await trio.sleep(299)
            down.append(True)
            await trio.sleep(1200)
            assert names(keys) == ["ed-1"]
            assert len(asked) < 40
            assert keys.problem == "no connection to the issuer"
            down.clear()
            await trio.sleep(62)
            assert names(keys) == ["ed-2"]
            nursery.cancel_scope.cancel()
    assert len([each for each in logs if each["log_level"] == "warning"]) == 1


async def test_keys_of_another_config_are_fetched_at_the_next_check(autojump_clock, no_threads):
    """A late response for the old config does not affect the new one."""
    first, second = (TokenKeys(f"https://id.example/{at}", "", random.Random(1)) for at in "12")
    current = [first]

    async def fetch(uri, most):
        await trio.sleep(3)
        return jwks("ed-1") if uri.endswith("1") else jwks("ed-2")

    async with trio.open_nursery() as nursery:
        await nursery.start(JwksRefresh(lambda: current[0], fetch).run)
        await trio.sleep(1)
        current[0] = second
        await trio.sleep(3)
        assert (names(first), names(second)) == (["ed-1"], None)
        await trio.sleep(4)
        assert names(second) == ["ed-2"]
        nursery.cancel_scope.cancel()


SET = jwks("ed-1")


def response(status=200, body=SET, lines=""):
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


async def fetched(script, uri="http://issuer/keys?p=a", most=4096):
    """Fetch from an issuer with this script; return the result and the request heads that it received."""
    heads, listener = [], MemoryListener()

    async def serve():
        while True:
            connection = await listener.accept()
            with suppress(*GONE):
                async with connection:
                    heads.append((await connection.receive_some()).decode())
                    if callable(script):
                        await script(connection)
                    else:
                        await connection.send_all(script)

    async def connect(host, port):
        asked.append((host, port))
        return await listener.connect(host, port)

    asked = []
    async with trio.open_nursery() as nursery, open_http_client(connect) as client:
        nursery.start_soon(serve)
        try:
            found = await fetch_jwks(client, client, uri, most)
        except KeysUnreadableError as exc:
            found = exc
        nursery.cancel_scope.cancel()
    return found, heads, asked


async def test_a_set_is_fetched_from_the_configured_address(autojump_clock):
    """The fetch is one GET without credentials, at the port of the scheme or the URL."""
    found, [head], asked = await fetched(response())
    assert (found, asked) == (SET, [("issuer", 80)])
    assert head.startswith("GET /keys?p=a HTTP/1.1\r\n")
    assert "host: issuer\r\n" in head.lower()
    assert "authorization" not in head.lower()
    assert (await fetched(response(), "https://issuer"))[2] == [("issuer", 443)]
    assert (await fetched(response(), "http://[::1]:81/k"))[2] == [("::1", 81)]


async def chatter(connection):
    """Send header lines forever."""
    await connection.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await connection.send_all(b"3e8\r\n" + b" " * 1000 + b"\r\n")


async def silent(connection):
    await trio.sleep(100)


async def drip(connection):
    await connection.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    for _ in range(100):
        await trio.sleep(1)
        await connection.send_all(b" ")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            response(302, b"", "Location: http://evil/keys\r\n"),
            "the issuer responds with status 302; redirects are not followed",
        ),
        (response(404, json.dumps({"secret": 1}).encode()), "the issuer responds with status 404"),
        (response(503, b""), "the issuer responds with status 503"),
        (response(body=b" " * 5000), "the issuer's response has more than 4096 bytes"),
        (chatter, "the issuer's response has more than 4096 bytes"),
        (drip, "no complete response from the issuer within 10 seconds"),
        (silent, "no complete response from the issuer within 10 seconds"),
        (
            response(lines="Content-Encoding: gzip\r\n"),
            "the issuer's response is compressed, although that was not requested",
        ),
        (response()[:-5], "the issuer closed the connection, or does not speak HTTP/1.1"),
        (b"SSH-2.0-OpenSSH\r\n", "the issuer closed the connection, or does not speak HTTP/1.1"),
    ],
)
async def test_an_invalid_response_is_reported_without_an_address(script, words, autojump_clock):
    """Time and memory are bounded, and no second request is sent."""
    start = trio.current_time()
    found, heads, _ = await fetched(script)
    assert isinstance(found, KeysUnreadableError)
    assert (str(found), len(heads)) == (words, 1)
    assert trio.current_time() - start <= FETCH_SECONDS


async def test_an_unreachable_issuer_is_reported():
    """A name that cannot be resolved is reported, too."""

    async def nowhere(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "Connection refused")

    async def no_name(host, port):
        await trio.lowlevel.checkpoint()
        raise UnicodeError("label too long")

    for connect, words in ((nowhere, "no connection"), (no_name, "address is invalid")):
        async with open_http_client(connect) as client:
            with pytest.raises(KeysUnreadableError, match=words):
                await fetch_jwks(client, client, "http://issuer/keys", 4096)
