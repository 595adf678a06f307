"""The whole program over real sockets, with a fake server: borrowed, or started for it."""

import os
import sys

import psutil
import pytest
import trio

from llmkube.base.http.client import open_http_client
from llmkube.programs.daemon_engine.model_lock import lock_opener
from llmkube.programs.daemon_engine.ollama_api import OllamaApi, address_problem, daemon_url
from llmkube.programs.daemon_engine.ollama_program import Dependencies, own_server, parse, serve, store_name
from llmkube.programs.daemon_engine.server import NoDaemonError
from llmkube.programs.program import Stop
from llmkube.runtimes.plan import UNLOAD_LEFT
from programs.daemon_engine.fake_ollama import URL, FakeDaemon, blob_of, client_of
from programs.daemon_engine.stage import FakeStarter
from waiting import until

LIBRARY = ("--model", "ollama://tiny", "--alias", "chat", "--service", "a/b", "--port", "0")
WEIGHTS = b"GGUF" + bytes(range(256)) * 40_000  # more than one piece of a copy


@pytest.mark.parametrize("runs", [True, False], ids=["borrowed", "started"])
async def test_a_file_is_served_and_unloaded(tmp_path, runs):
    """It is copied completely and once; only a server that was started for the program ends with it."""
    path = tmp_path / "weights.gguf"
    path.write_bytes(WEIGHTS)
    fake = FakeDaemon(answers=runs, load_seconds=0.01, lag_seconds=0.05)
    starter, stop, ended = FakeStarter(fake), Stop(), []
    options = parse(
        ["--model", str(path), "--alias", "chat", "--service", "a/b", "--port", "0", "--ctx-size", "64"], {}
    )
    async with client_of(fake) as client, open_http_client() as http, trio.open_nursery() as nursery:

        async def run(*, task_status):
            deps = Dependencies(client, fake, starter)
            ended.append(await serve(options, frozenset(), deps, stop, task_status=task_status))

        port = await nursery.start(run)

        async def is_ready():
            return (await http.request("GET", f"http://127.0.0.1:{port}/health")).status == 200

        with trio.fail_after(60):
            while not await is_ready():  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert list(fake.store.values()) == [blob_of(WEIGHTS)]
        assert fake.calls.count("/api/blobs") == 2  # asked for, and sent
        assert len(fake.holders()) == 1
        stop.request_nowait("a test")
        with trio.fail_after(60):
            await until(lambda: ended)
    assert ended == [True]
    assert fake.holders() == []
    assert (starter.starts, starter.ends) == ((0, 0) if runs else (1, 1))
    assert fake.answers is runs


@pytest.mark.parametrize("used", [False, True], ids=["left", "used"])
async def test_a_model_left_by_a_killed_front_is_unloaded(tmp_path, used):
    """Once, by its name, with its process; not while another front uses it, no other model, without a new server."""
    fake, locks = FakeDaemon(load_seconds=0.01, lag_seconds=0.05), lock_opener(str(tmp_path))
    options = parse([*LIBRARY, UNLOAD_LEFT], {})
    fake.store[options.store_name] = blob_of(WEIGHTS)
    await fake.load(options.store_name)
    starter = FakeStarter(fake)
    async with client_of(fake) as client:
        deps = Dependencies(client, fake, starter, open_lock=locks)

        async def unloads():
            return await serve(options, frozenset(), deps, Stop())

        assert await unloads()
        assert len(fake.holders()) == 1  # by a client without a lock: no front has left it
        async with locks(f"{options.daemon} {options.store_name}") as lock:
            await lock.share()
            if used:
                assert await unloads()
                assert len(fake.holders()) == 1
        assert await unloads()
        assert fake.holders() == []
        await fake.load(options.store_name)
        assert await unloads()
        assert len(fake.holders()) == 1
        fake.stop()
        with pytest.raises(NoDaemonError, match="is not available"):
            await unloads()
    assert starter.starts == 0


@pytest.mark.ci
async def test_no_second_server_is_started_while_one_hangs():
    """The hanging one may hold models in memory that the agent cannot measure."""
    fake = FakeDaemon(hangs=True)
    starter = FakeStarter(fake)
    options = parse(LIBRARY, {})
    async with client_of(fake) as client:
        with pytest.raises(NoDaemonError, match="no second server is started"):
            await serve(options, frozenset(), Dependencies(client, fake, starter), Stop())
    assert starter.starts == 0


async def test_a_missing_ollama_is_reported():
    async with open_http_client() as client:
        program = own_server("/nowhere/ollama", OllamaApi(client, URL), 1, {})
        with pytest.raises(NoDaemonError, match="install it"):
            async with program:
                raise AssertionError("it does not exist")


async def test_a_server_that_exits_at_once_is_not_waited_for(tmp_path):
    """Its output is in the engine's log."""
    path = tmp_path / "ollama"
    path.write_text("#!/bin/sh\nexit 7\n")
    path.chmod(0o755)
    async with open_http_client() as client:
        program = own_server(str(path), OllamaApi(client, URL), 1, {"PATH": os.environ["PATH"]})
        with trio.fail_after(60), pytest.raises(NoDaemonError, match="serve exited with 7"):
            async with program:
                raise AssertionError("it has ended")


@pytest.mark.ci
async def test_our_own_server_is_stopped_with_its_process_group(tmp_path):
    """A server that ignores TERM is killed, and so are its child processes."""
    path, pids = tmp_path / "ollama", tmp_path / "pids"
    path.write_text(
        f"#!{sys.executable}\n"
        "import http.server, json, os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = json.dumps({'version': '1'}).encode()\n"
        "        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "port = int(os.environ['OLLAMA_HOST'].rpartition(':')[2])\n"
        "http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    path.chmod(0o755)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    async with open_http_client() as client:
        program = own_server(str(path), OllamaApi(client, URL), port, {"PATH": os.environ["PATH"]})
        with trio.fail_after(60):
            async with program as server:
                assert server.url == f"http://127.0.0.1:{port}"
                leader, child = map(int, pids.read_text().split())
                assert server.pid == leader
            with pytest.raises(ProcessLookupError):
                os.kill(leader, 0)
            await until(lambda: _is_gone(child))


def _is_gone(pid):
    try:
        os.kill(pid, 0)
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return True


LEAST = ["--model", "/m/a.gguf", "--alias", "chat", "--service", "default/chat", "--port", "8001"]


def test_llama_servers_flags_are_accepted():
    """An agent writes the same flags for both."""
    options = parse([*LEAST, "--ctx-size", "4096", "--n-gpu-layers", "0", "--api-key-file", "/k"], {})
    assert options.store_name.startswith("llmkube/default_chat:")
    assert (options.port, str(options.keys)) == (8001, "/k")
    assert options.parameters == {"num_ctx": 4096, "num_gpu": 0}
    assert options.library_name == ""
    assert options.daemon == "http://127.0.0.1:11434"


def test_a_model_of_the_library_is_named_by_its_url():
    """Without a context Ollama's own default applies."""
    options = parse(["--model", "ollama://llama3.2:1b", *LEAST[2:]], {"OLLAMA_HOST": "0.0.0.0:1234"})
    assert options.library_name == "llama3.2:1b"
    assert options.parameters == {}
    assert options.daemon == "http://127.0.0.1:1234"


@pytest.mark.parametrize(
    ("changed", "environ", "message"),
    [
        (("--service", "chat"), {}, "use NAMESPACE/NAME"),
        (("--model", "ollama://"), {}, "ollama://NAME:TAG"),
        (("--port", "1"), {"OLLAMA_HOST": "10.0.0.7"}, "not on this machine"),
        (("--threads", "4"), {}, "--threads"),
    ],
)
def test_unsupported_flags_are_refused_by_name(capsys, changed, environ, message):
    with pytest.raises(SystemExit) as end:
        parse([*LEAST, *changed], environ)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("address", ["mac.local:80", "10.0.0.7", "[fe80::1]:11434"])
def test_a_server_of_another_machine_is_refused(address):
    """Its memory is not this host's, and its processes are not visible here."""
    assert "127.0.0.1:PORT" in address_problem(daemon_url({"OLLAMA_HOST": address}))


@pytest.mark.parametrize("address", ["", "0.0.0.0:1", "[::1]:1", "localhost", "127.0.0.1:99"])
def test_a_loopback_server_is_accepted(address):
    assert not address_problem(daemon_url({"OLLAMA_HOST": address}))


@pytest.mark.parametrize(
    ("namespace", "name", "stored"),
    [
        ("default", "chat", "llmkube/default_chat:"),
        ("a", "b" * 253, "llmkube/a_" + "b" * 78 + ":"),
        ("team-a", "llama3.1", "llmkube/team-a_llama3.1:"),
    ],
)
def test_a_service_has_one_name_in_the_store(namespace, name, stored):
    """Ollama accepts the name; other weights, or another context, have another name."""
    first = store_name(namespace, name, "/m/a.gguf", 512)
    assert first.startswith(stored)
    assert len(first) == len(stored) + 8
    assert first != store_name(namespace, name, "/m/a.gguf", 1024)
