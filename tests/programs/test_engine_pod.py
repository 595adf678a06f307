"""The preStop hook that holds a pod until its engine is idle: decision, samples, and responses over real sockets."""

import contextlib
import socket
from functools import partial

import pytest
import structlog.testing
import trio
import trio.lowlevel
from click.testing import CliRunner

from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import ConnectionLostError
from llmkube.base.http.listen import open_listeners
from llmkube.base.http.message import Headers, Response
from llmkube.base.http.server import run_server
from llmkube.controller.render.drain import PATH as ASKED_PATH
from llmkube.programs import engine_pod
from llmkube.programs.engine_pod import MIN_DRAIN_SECONDS, PATH, Drain, DrainTarget, KeyFile, KeysError, run_drain
from llmkube.programs.program import LOOPBACK, Stop
from waiting import until

URL = "http://127.0.0.1:8080/metrics"
METRICS = ("r_running", "r_waiting")
IDLE, BUSY = "r_running 0\nr_waiting 0\n", "r_running 1\nr_waiting 0\n"


@pytest.mark.parametrize(
    ("samples", "waited", "ends"),
    [
        ([], 99, False),
        (["idle", "idle"], MIN_DRAIN_SECONDS - 0.1, False),
        (["idle", "idle"], MIN_DRAIN_SECONDS, True),
        (["idle"], MIN_DRAIN_SECONDS, False),
        (["busy", "idle"], 50, False),
        (["idle", "busy"], 50, False),
        (["gone"], 0, True),
        (["busy", "gone"], 3, True),
    ],
)
def test_two_idle_samples_end_an_engine_once_the_proxies_know(samples, waited, ends):
    """Before ten seconds only an engine that has exited may end; then one that is idle in two samples in a row."""
    assert engine_pod.may_stop(samples, waited) is ends


class Engine:
    """Metrics by the second, and the connections that the kernel reports."""

    def __init__(self, *, metrics=lambda _: (200, IDLE), links=lambda _port, _now: (True, 0)):
        self.metrics, self.links, self.asked = metrics, links, 0
        self.began = trio.current_time()

    @property
    def now(self):
        return trio.current_time() - self.began

    async def request(self, method, url):
        assert (method, url) == ("GET", URL)
        self.asked += 1
        await trio.lowlevel.checkpoint()
        found = self.metrics(self.now)
        if found is None:
            await trio.sleep_forever()
        if isinstance(found, Exception):
            raise found
        status, text = found
        return Response(status, Headers.of({}), text.encode())

    def drain(self, **more):
        target = DrainTarget(8080, 8080, **{"metrics_url": URL, "busy_metrics": METRICS, **more})
        return Drain(target, self, lambda port: self.links(port, self.now))


@pytest.mark.parametrize(
    ("metrics", "ends"),
    [
        (lambda now: (200, BUSY if now < 30 else IDLE), (31, 33)),  # a long answer
        (lambda now: (200, BUSY if now < 3 else IDLE), (10, 12)),  # a short one: the drain waits for the proxies
        (lambda now: (200, BUSY if int(now) % 2 else IDLE), (60, 62)),  # never twice in a row
        (lambda now: None if now < 20 else (200, IDLE), (21, 26)),  # a slow one has work
        (lambda now: ConnectionLostError("broke"), (60, 63)),
        (lambda now: (200, BUSY), (60, 62)),  # the maximum
    ],
)
async def test_an_engine_with_idle_metrics_ends(autojump_clock, metrics, ends):
    """Timeouts and broken responses mean work; no engine, however hostile, holds its pod longer than the maximum."""
    engine = Engine(metrics=metrics)
    reason = await engine.drain().wait()
    assert ends[0] <= engine.now <= ends[1]
    assert ("60 seconds" in reason) is (ends[0] == 60)


@pytest.mark.parametrize("metrics", [(404, ""), (501, "no --metrics"), (401, ""), (200, "other 1\n")])
async def test_without_metrics_the_connections_decide(autojump_clock, metrics):
    """An image without these metrics is held for as long as a client is connected."""
    engine = Engine(metrics=lambda _: metrics, links=lambda _port, now: (True, 1 if now < 25 else 0))
    await engine.drain().wait()
    assert 25 <= engine.now <= 28


async def test_connections_of_clients_decide_and_not_those_behind_the_key_proxy(autojump_clock):
    """The proxy that checks keys keeps connections to the engine open: those are no requests."""
    engine = Engine(links=lambda port, now: (True, 0 if port == 8000 else 5))
    target = DrainTarget(21410, 8000)
    assert await Drain(target, engine, lambda port: engine.links(port, engine.now)).wait() == "it has no requests"
    assert (engine.now, engine.asked) == (MIN_DRAIN_SECONDS, 0)


async def test_an_engine_without_an_open_port_does_not_hold_its_pod(autojump_clock):
    """A pod whose engine has crashed, or loads and does not listen yet, ends at once."""
    engine = Engine(metrics=lambda _: (200, BUSY), links=lambda _port, now: (now < 4, 1))
    assert await engine.drain().wait() == "it has exited"
    assert 4 <= engine.now <= 5
    nothing = Engine(links=lambda _port, _now: (False, 0))
    await nothing.drain().wait()
    assert nothing.now == 0


async def test_an_unreadable_connection_table_does_not_shorten_the_drain(autojump_clock):
    """Without a view of connections, metrics decide; without both, the maximum applies."""
    engine = Engine(links=lambda _port, _now: None)
    await engine.drain().wait()
    assert MIN_DRAIN_SECONDS <= engine.now <= MIN_DRAIN_SECONDS + 2
    blind = Engine(links=lambda _port, _now: None)
    await blind.drain(metrics_url="").wait()
    assert blind.now >= 60


async def test_many_hooks_cost_the_engine_one_sample_a_second(autojump_clock):
    """Any client that reaches the pod may call the hook: it reveals nothing, ends no engine and causes no requests."""
    engine = Engine(metrics=lambda _: (200, BUSY))
    shared = engine.drain(longest_seconds=20)
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(shared.wait)
    assert engine.asked <= 22
    assert engine_pod.METRICS_TIMEOUT_SECONDS < MIN_DRAIN_SECONDS


async def test_a_hook_is_answered_when_the_last_connection_is_closed(monkeypatch):
    """Over real sockets, with the kernel's own table: no metrics, one client, and then none."""
    monkeypatch.setattr(engine_pod, "MIN_DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(engine_pod, "SAMPLE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as engine:
        port, hooks = engine.getsockname()[1], free_port()
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = engine.accept()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery, open_http_client() as http:
                await nursery.start(run_drain, DrainTarget(port, port), hooks)
                url, answered = f"http://127.0.0.1:{hooks}{PATH}", trio.Event()
                assert (await http.request("GET", f"http://127.0.0.1:{hooks}/")).status == 404
                assert (await http.request("POST", url)).status == 404

                async def ask():
                    answer = await http.request("GET", url)
                    assert (answer.status, b"no request" in answer.body) == (200, True)
                    answered.set()

                nursery.start_soon(ask)
                await trio.sleep(0.5)
                assert not answered.is_set()
                with contextlib.closing(client), contextlib.closing(accepted):
                    pass
                await answered.wait()
                nursery.cancel_scope.cancel()


async def test_a_stranger_cannot_occupy_the_kubelets_connection(monkeypatch):
    """300 hooks from one address wait or are closed, and one from another address is still answered."""
    monkeypatch.setattr(engine_pod, "MIN_DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(engine_pod, "SAMPLE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as engine:
        port, hooks = engine.getsockname()[1], free_port()
        busy = socket.create_connection(("127.0.0.1", port))
        accepted, _ = engine.accept()
        with contextlib.ExitStack() as stack, trio.fail_after(60):
            async with trio.open_nursery() as nursery, open_http_client() as http:
                await nursery.start(run_drain, DrainTarget(port, port), hooks)
                for _ in range(300):
                    with contextlib.suppress(OSError):
                        one = socket.create_connection(("127.0.0.1", hooks), 1, ("127.0.0.2", 0))
                        stack.enter_context(contextlib.closing(one))
                        one.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    await trio.lowlevel.checkpoint()
                await trio.sleep(0.2)

                async def end_soon():
                    await trio.sleep(0.3)
                    with contextlib.closing(busy), contextlib.closing(accepted):
                        pass

                nursery.start_soon(end_soon)
                assert (await http.request("GET", f"http://127.0.0.1:{hooks}{PATH}")).status == 200
                nursery.cancel_scope.cancel()


async def test_metrics_are_read_over_real_sockets(monkeypatch):
    """A slow response times out and counts as work; the next idle one ends the engine."""
    monkeypatch.setattr(engine_pod, "MIN_DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(engine_pod, "SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr(engine_pod, "METRICS_TIMEOUT_SECONDS", 0.3)
    paths = []

    async def handle(exchange):
        paths.append(exchange.request.path)
        if len(paths) == 1:
            await trio.sleep_forever()
        text = BUSY if len(paths) < 4 else IDLE
        await exchange.respond(Response(200, Headers.of({"Content-Type": "text/plain"}), text.encode()))

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_http_client() as http:
            await nursery.start(run_server, handle, [listener])
            target = DrainTarget(port, port, f"http://127.0.0.1:{port}/metrics", METRICS)
            assert await Drain(target, http).wait() == "it has no requests"
            nursery.cancel_scope.cancel()
    assert len(paths) >= 5


def test_the_port_of_the_hooks_is_required():
    result = CliRunner().invoke(engine_pod.drain, ["--engine", "8080"])
    assert (result.exit_code, "--drain-port" in result.stderr) == (2, True)


def test_the_controllers_hook_has_the_programs_path():
    assert ASKED_PATH == PATH


FIRST, SECOND = "CanaryFirst1", "CanarySecond2"
NAMED = "Secret chat-keys, api-key"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "not found; create it"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"CanaryFirst1 x\n", "an invalid key in line 1"),
        ("\u00e9".encode(), "characters other than ASCII"),
    ],
)
def test_a_secret_without_keys_is_an_error_at_the_start(tmp_path, value, message):
    """An engine is never open because its Secret is empty, and no message repeats the Secret's content."""
    path = tmp_path / "keys"
    if value is not None:
        path.write_bytes(value)
    args = ["--listen", "1", "--engine", "2", "--keys", str(path), "--named", NAMED]
    result = CliRunner().invoke(engine_pod.key_proxy, args)
    assert result.exit_code == 1
    assert NAMED in result.stderr
    assert message in result.stderr
    assert FIRST not in result.output


def test_keys_stay_valid_while_the_secret_is_empty(tmp_path):
    """A Secret that is emptied or deleted changes nothing for clients, as on a host."""
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n")
    file.read()
    before = file.digests
    file.path.write_text("")
    with pytest.raises(KeysError, match="is empty"):
        file.read()
    file.path.unlink()
    with pytest.raises(KeysError, match="not found"):
        file.read()
    assert file.digests == before
    assert FIRST not in repr(file)


async def test_a_problem_with_keys_is_logged_once_and_no_key_is_shown(tmp_path, monkeypatch):
    """A file that stays empty over many checks is one log line."""
    monkeypatch.setattr(engine_pod, "KEYS_POLL_SECONDS", 0.01)
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n")
    file.read()
    with structlog.testing.capture_logs() as log:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.watch)
            file.path.write_text("")
            await until(lambda: log)
            await trio.sleep(0.1)
            (tmp_path / "new").write_text(f"{FIRST}\n{SECOND}\n")
            (tmp_path / "new").replace(file.path)
            await until(lambda: len(log) > 1)
            nursery.cancel_scope.cancel()
    assert [line["event"] for line in log] == ["client keys not reloaded", "client keys reloaded"]
    assert FIRST not in str(log)


@contextlib.asynccontextmanager
async def open_proxy(file, opened=("/health",)):
    """Yield a function that sends requests through the proxy, the engine's requests, and the proxy's stop."""
    asked, stop = [], Stop()

    async def engine(exchange):
        asked.append(exchange.request)
        if exchange.request.path != "/slow":
            await exchange.respond(Response.text(200, "yes"))
            return
        async with exchange.stream(200, Headers.of({})) as send:
            await send(b"the ")
            await until(lambda: stop.reason)
            await trio.sleep(0.1)
            await send(b"rest")

    inner = await open_listeners(LOOPBACK, 0)
    port = free_port()
    async with trio.open_nursery() as nursery, open_http_client() as http:
        await nursery.start(partial(run_server, engine, inner))
        await nursery.start(engine_pod.serve_keys, file, port, inner[0].socket.getsockname()[1], opened, stop)

        async def ask(path, key=""):
            headers = Headers.of({"Authorization": f"Bearer {key}"} if key else {})
            url = f"http://{LOOPBACK}:{port}{path}"
            async with http.open_stream("POST", url, headers=headers, body=b"{}") as answer:
                text = await answer.receive_some()
                while path == "/slow" and text != b"the rest":
                    stop.request_nowait("SIGTERM")
                    text += await answer.receive_some()
                return answer.status

        yield ask, asked, stop
        nursery.cancel_scope.cancel()


async def test_each_key_is_accepted_and_a_new_file_applies_without_a_restart(tmp_path, monkeypatch):
    """A kubelet replaces the file: a removed key is no longer accepted."""
    monkeypatch.setattr(engine_pod, "KEYS_POLL_SECONDS", 0.02)
    monkeypatch.setattr(engine_pod, "freeze_heap", lambda: None)  # these tests' heap is not settled
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


async def test_a_running_response_outlives_the_stop_of_its_pod(tmp_path, monkeypatch):
    """TERM stops new requests; the running response is sent to its end."""
    monkeypatch.setattr(engine_pod, "freeze_heap", lambda: None)
    file = KeyFile(tmp_path / "keys", NAMED)
    file.path.write_text(f"{FIRST}\n")
    file.read()
    with trio.fail_after(60):
        async with open_proxy(file) as (ask, _asked, stop):
            assert await ask("/slow", FIRST) == 200
            assert stop.reason == "SIGTERM"
