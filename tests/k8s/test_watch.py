"""However a watch goes wrong, it goes wrong in one of four ways."""

import json
from functools import partial

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from k8s.scripted import ScriptedServer, bookmark, config_map, event, html, status, status_object, watching
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.codec import DecodeError, VersionDecoder
from llmkube.k8s.errors import ApiError, GoneError, ServerError, TransportError, WatchDataError
from llmkube.k8s.resource import Key
from llmkube.k8s.watch import MAX_LINE_BYTES, READ_IDLE_SECONDS, parse_event

ADDED = event("ADDED", config_map("a", 5, x="1"))


async def events_of(*steps, **options):
    async with (
        ScriptedServer(watching(*steps)).client().open_watch(ConfigMap, resource_version="1", **options) as watch
    ):
        seen = []
        while (one := await watch.next_event()) is not None:
            seen.append(one)
        return seen


async def test_events_arrive_in_order_and_a_clean_end_is_none():
    """Every event of a watch is seen, in order, and the server's clean end is None and no error."""
    steps = [ADDED, event("MODIFIED", config_map("a", 6)), bookmark(9), event("DELETED", config_map("a", 10))]
    seen = await events_of(*steps)
    assert [(e.type, e.resource_version) for e in seen] == [
        ("ADDED", "5"),
        ("MODIFIED", "6"),
        ("BOOKMARK", "9"),
        ("DELETED", "10"),
    ]
    assert seen[0].key == Key("default", "a")
    assert seen[0].object.data == {"x": "1"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
async def test_chunk_boundaries_do_not_matter(size):
    """The same events are seen whether they come byte by byte or all at once, blank lines and CR included."""
    text = ADDED + b"\r\n\n" + event("MODIFIED", config_map("ü", 6)) + bookmark(7)
    seen = await events_of(*(text[i : i + size] for i in range(0, len(text), size)))
    assert [e.resource_version for e in seen] == ["5", "6", "7"]


async def test_a_partial_line_at_the_end_is_no_event():
    """A line without its newline is dropped, even when it happens to be whole JSON."""
    assert len(await events_of(ADDED, event("MODIFIED", config_map("a", 6))[:-1])) == 1
    assert len(await events_of(ADDED, b'{"type":"DELETED","object":{"kind":"Conf')) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (event("ERROR", status_object(410, "Expired")), GoneError),
        (event("ERROR", status_object(410, "Gone")), GoneError),
        (event("ERROR", status_object(500, "InternalError")), ServerError),
        (event("ERROR", {"kind": "Status"}), ApiError),
        (b"<html>Please log in</html>\n", WatchDataError),
        (b"[]\n", WatchDataError),
        (b'{"type":"ADDED"}\n', WatchDataError),
        (b'{"type":"ADDED","object":[]}\n', WatchDataError),
        (b'{"type":"EXPLODED","object":{"kind":"ConfigMap"}}\n', WatchDataError),
        (event("ADDED", {**config_map("a", 5), "kind": "Secret"}), WatchDataError),
        (event("ADDED", {"kind": "ConfigMap", "metadata": None}), WatchDataError),
        (event("ADDED", {"kind": "ConfigMap", "metadata": {"name": 7}}), WatchDataError),
        (b"\xff\xfe\n", WatchDataError),
        (b"[" * 100_000 + b"\n", WatchDataError),
    ],
)
def test_a_line_that_is_no_event_is_an_error_of_its_kind(line, expected):
    """ERROR events become the error that they carry, everything else that is no event is a WatchDataError."""
    with pytest.raises(expected):
        parse_event(ConfigMap, line, VersionDecoder())


def test_a_malformed_object_does_not_spoil_its_event():
    """The event of an object that cannot be decoded still tells whose it is; only looking at the object raises."""
    one = parse_event(ConfigMap, event("ADDED", {**config_map("a", 5), "data": "not a map"}), VersionDecoder())
    assert one.key == Key("default", "a")
    with pytest.raises(DecodeError, match="data"):
        _ = one.object


async def test_silence_is_an_error_after_the_read_idle_deadline(autojump_clock):
    """A half-open connection is noticed after READ_IDLE_SECONDS without a byte, not sooner and not never."""
    start = trio.current_time()
    with pytest.raises(TransportError, match="bookmark"):
        await events_of(ADDED, 60.0, bookmark(6), None)
    assert trio.current_time() - start == pytest.approx(60 + READ_IDLE_SECONDS)


async def test_bookmarks_keep_a_quiet_watch_alive(autojump_clock):
    """An hour with nothing but a bookmark every 75 seconds is no silence."""
    steps = [step for i in range(48) for step in (75.0, bookmark(i))]
    assert len(await events_of(*steps)) == 48


async def test_a_line_is_capped(monkeypatch):
    """A line above the cap is refused before it fills the memory."""
    chunk = b"x" * 1_000_000
    with pytest.raises(WatchDataError, match=str(MAX_LINE_BYTES)):
        await events_of(*([chunk] * 100))


@pytest.mark.parametrize(
    "error", [httpx.ReadError("reset by peer"), httpx.RemoteProtocolError("incomplete chunked read")]
)
async def test_a_broken_connection_is_a_transport_error(error):
    """A reset in the middle of a watch is never taken for its clean end."""
    with pytest.raises(TransportError):
        await events_of(ADDED, error)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (status(410, "Expired"), GoneError),
        (html(200), TransportError),
        (html(410), TransportError),
        (httpx.ConnectError("refused"), TransportError),
    ],
)
async def test_a_watch_that_does_not_open_raises_on_entry(answer, expected):
    """A refusal, a page or a dead server is known before the body of the context runs."""
    with pytest.raises(expected):
        async with ScriptedServer(answer).client().open_watch(ConfigMap, resource_version="1"):
            pytest.fail("opened")


async def test_a_watch_that_hangs_while_opening_is_given_up(autojump_clock):
    """A server that accepts and never answers is a TransportError after half a minute."""
    start = trio.current_time()
    with pytest.raises(TransportError, match="did not open"):
        async with ScriptedServer().client().open_watch(ConfigMap, resource_version="1"):
            pytest.fail("opened")
    assert trio.current_time() - start == pytest.approx(30)


async def test_leaving_early_closes_the_connection():
    """Whoever leaves the context with events unread still lets go of the connection."""
    answer = watching(ADDED, ADDED, None)
    async with ScriptedServer(answer).client().open_watch(ConfigMap, resource_version="1") as watch:
        await watch.next_event()
    assert answer.is_closed


async def test_the_request_asks_for_what_is_promised():
    """The server is asked for bookmarks, a position, a selector and an end."""
    server = ScriptedServer(watching())
    async with server.client().open_watch(
        ConfigMap, resource_version="7", namespace="team", label_selector="a=b", timeout_seconds=250
    ):
        pass
    (call,) = server.calls
    assert call.path == "/api/v1/namespaces/team/configmaps"
    assert call.params == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "250",
        "labelSelector": "a=b",
    }


async def test_buffered_events_let_other_tasks_run():
    """A thousand events in one chunk do not starve the other tasks."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await events_of(ADDED * 1000)
        nursery.cancel_scope.cancel()
    assert turns >= 500


async def test_a_real_connection_is_left_without_a_trace():
    """Over real sockets and httpcore, leaving in mid-stream raises no ResourceWarning and closes the socket."""
    closed = trio.Event()

    async def serve(stream):
        await stream.receive_some()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        await stream.send_all(head + f"{len(ADDED):x}\r\n".encode() + ADDED + b"\r\n")
        assert await stream.receive_some() == b""
        closed.set()

    from llmkube.k8s.auth.config import ClusterConfig
    from llmkube.k8s.client import open_client

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with open_client(ClusterConfig(server=f"http://127.0.0.1:{port}")) as client:
            async with client.open_watch(ConfigMap, resource_version="1") as watch:
                first = await watch.next_event()
                assert json.dumps(dict(first.object.data)) == '{"x": "1"}'
            await closed.wait()
        nursery.cancel_scope.cancel()
