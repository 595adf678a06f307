"""What asks for keys in front of an engine in a pod: from the file to the answer, over real sockets."""

import contextlib
from functools import partial

import pytest
import structlog.testing
import trio
from click.testing import CliRunner

from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.programs.engine_pod import key_proxy
from llmkube.programs.engine_pod.key_proxy import KeyFile, KeysError, serve
from llmkube.programs.program import LOOPBACK, Stop
from waiting import until

FIRST, SECOND = "CanaryFirst1", "CanarySecond2"
NAMED = "Secret chat-keys, api-key"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "there is none; create it"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"CanaryFirst1 x\n", "something else than a key in line 1"),
        ("\u00e9".encode(), "other characters than ASCII"),
    ],
)
def test_without_keys_it_does_not_start_and_says_which_secret_lacks_what(tmp_path, value, said):
    """An engine is never open because its Secret is empty, and no message repeats what stands there."""
    path = tmp_path / "keys"
    if value is not None:
        path.write_bytes(value)
    args = ["--listen", "1", "--engine", "2", "--keys", str(path), "--named", NAMED]
    result = CliRunner().invoke(key_proxy.key_proxy, args)
    assert result.exit_code == 1
    assert NAMED in result.stderr
    assert said in result.stderr
    assert FIRST not in result.output


def test_keys_that_were_there_stay_while_there_are_none(tmp_path):
    """A Secret that is emptied or taken away changes nothing for clients, as on a host."""
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n")
    file.read()
    before = file.digests
    file.path.write_text("")
    with pytest.raises(KeysError, match="is empty"):
        file.read()
    file.path.unlink()
    with pytest.raises(KeysError, match="there is none"):
        file.read()
    assert file.digests == before
    assert FIRST not in repr(file)


async def test_what_is_wrong_is_said_once_and_other_keys_are_told_without_being_shown(tmp_path, monkeypatch):
    """A file that stays empty for many looks is one line of the log."""
    monkeypatch.setattr(key_proxy, "LOOK_SECONDS", 0.01)
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n")
    file.read()
    with structlog.testing.capture_logs() as said:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.follow)
            file.path.write_text("")
            await until(lambda: said)
            await trio.sleep(0.1)
            (tmp_path / "new").write_text(f"{FIRST}\n{SECOND}\n")
            (tmp_path / "new").replace(file.path)
            await until(lambda: len(said) > 1)
            nursery.cancel_scope.cancel()
    assert [line["event"] for line in said] == ["the keys of clients stay as they were", "other keys count"]
    assert FIRST not in str(said)


@contextlib.asynccontextmanager
async def open_proxy(file, opened=("/health",)):
    """Yield a way to ask an engine behind the proxy, what it was asked, and the proxy's stop."""
    asked, stop = [], Stop()

    async def engine(exchange):
        asked.append(exchange.request)
        if exchange.request.path != "/slow":
            await exchange.respond(Response.text(200, "yes"))
            return
        async with exchange.stream(200, Headers.of({})) as send:
            await send(b"the ")
            await until(lambda: stop.why)
            await trio.sleep(0.1)
            await send(b"rest")

    inner = await open_listeners(LOOPBACK, 0)
    port = free_port()
    async with trio.open_nursery() as nursery, open_http_client() as http:
        await nursery.start(partial(run_server, engine, inner))
        await nursery.start(serve, file, port, inner[0].socket.getsockname()[1], opened, stop)

        async def ask(path, key=""):
            headers = Headers.of({"Authorization": f"Bearer {key}"} if key else {})
            url = f"http://{LOOPBACK}:{port}{path}"
            async with http.open_stream("POST", url, headers=headers, body=b"{}") as answer:
                said = await answer.receive_some()
                while path == "/slow" and said != b"the rest":
                    stop.request_nowait("SIGTERM")
                    said += await answer.receive_some()
                return answer.status

        yield ask, asked, stop
        nursery.cancel_scope.cancel()


async def test_each_key_opens_the_engine_and_a_new_file_counts_without_a_restart(tmp_path, monkeypatch):
    """A kubelet puts a new file in the old one's place: what was taken out of it opens nothing any more."""
    monkeypatch.setattr(key_proxy, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(key_proxy, "settle_heap", lambda: None)  # these tests' heap is not settled
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n{SECOND}\n")
    file.read()
    async with open_proxy(file) as (ask, asked, stop):
        assert [await ask("/v1/chat/completions", key) for key in ("", FIRST, SECOND, "x")] == [401, 200, 200, 401]
        assert await ask("/invocations") == 401
        assert len(asked) == 2
        assert not any(FIRST in str(request.headers) for request in asked)
        (tmp_path / "new").write_text(f"{SECOND}\n")
        (tmp_path / "new").replace(file.path)
        await until(lambda: len(file.digests) == 1)
        assert [await ask("/v1/chat/completions", key) for key in (FIRST, SECOND)] == [401, 200]
        stop.request_nowait("SIGTERM")


async def test_an_answer_under_way_outlives_the_end_of_its_pod(tmp_path, monkeypatch):
    """TERM stops new requests; what an engine still says passes until it is complete."""
    monkeypatch.setattr(key_proxy, "settle_heap", lambda: None)
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n")
    file.read()
    with trio.fail_after(60):
        async with open_proxy(file) as (ask, _asked, stop):
            assert await ask("/slow", FIRST) == 200
            assert stop.why == "SIGTERM"
