"""The engine for oMLX as a process, with an oMLX as a process: load, chat, unload, false reports and kills.

oMLX runs only on Macs: `omlx_program` has the API that its sources document, and holds real memory.
"""

import json
import os
from contextlib import asynccontextmanager

import psutil
import pytest
import trio

from e2e import omlx_program
from e2e.daemon_lab import end, ready, running, running_engine
from free_ports import free_port
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError
from llmkube.programs.daemon_engine import omlx_program as front
from llmkube.runtimes.plan import UNLOAD_LEFT
from llmkube.supervisor.host.processes import OWNER_VARIABLE
from llmkube.supervisor.host.this_machine import footprints_here

pytestmark = pytest.mark.e2e

OWNERS_KEY = "CanaryKeyOfTheOwner"
ASK = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}).encode()
READY_SECONDS = 60


@pytest.fixture
def folder(tmp_path):
    """The folder of a model, in a folder of models."""
    model = tmp_path / "models" / "tiny-4bit"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return model


@pytest.fixture
def environ(tmp_path):
    """An environment in which nothing listens at oMLX's port yet."""
    own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "FAKE_OMLX": str(tmp_path), "OMLX_PORT": str(free_port())}
    return {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")} | own


def engine(folder, environ, tmp_path, *further):
    """Run one of our engines, as `running_engine` does."""
    flags = ("--omlx", omlx_program.install(tmp_path), "--model", folder, "--ctx-size", 512, *further)
    return running_engine(front, "tiny", *flags, environ=environ, folder=tmp_path)


@asynccontextmanager
async def owners(folder, environ, tmp_path, key=""):
    """Run an oMLX as the host's owner."""
    log = tmp_path / "owners.log"
    own = environ | ({"OMLX_API_KEY": key} if key else {})
    argv = (omlx_program.install(tmp_path), "serve", "--model-dir", folder.parent, "--port", environ["OMLX_PORT"])
    async with running(*argv, environ=own, log=log) as process:
        with trio.fail_after(READY_SECONDS):
            while not await answers(environ):  # noqa: ASYNC110 - another program
                await trio.sleep(0.1)
        yield process


async def answers(environ):
    """Return whether an oMLX answers at this test's port."""
    async with open_http_client() as http:
        try:
            return (await http.request("GET", f"http://127.0.0.1:{environ['OMLX_PORT']}/health")).status == 200
        except HttpError:
            return False


def servers_below(folder):
    """Return the processes of an oMLX that serves models below a folder."""
    found = []
    for each in psutil.process_iter(["pid", "cmdline"]):
        words = each.info["cmdline"] or ()
        if omlx_program.__file__ in words and any(str(folder) in word for word in words):
            found.append(each.info["pid"])
    return found


async def test_without_an_omlx_one_is_started_and_ends_with_the_engine(folder, environ, tmp_path):
    """It answers, and after SIGTERM no process and no file of it is left."""
    async with engine(folder, environ, tmp_path) as (process, ask, log):
        await ready(ask, log)
        [server] = servers_below(tmp_path)
        assert footprints_here([server])[server] > omlx_program.SIZE
        answer = await ask("POST", "/v1/chat/completions", ASK)
        assert (answer.status, json.loads(answer.body)["model"]) == (200, "tiny")
        words = psutil.Process(server).cmdline()
        async with open_http_client() as http:  # it asks for a key of its own, which no command line has
            port = words[words.index("--port") + 1]
            assert (await http.request("GET", f"http://127.0.0.1:{port}/v1/models/status")).status == 401
        await end(process, log)
    assert "the model is unloaded, and its memory is free" in log.read_text()
    assert servers_below(tmp_path) == []
    assert not list(tmp_path.glob("llmkube-omlx-*"))
    assert not (tmp_path / ".omlx").exists()


@pytest.mark.ci
async def test_what_a_killed_engine_has_left_is_removed_by_the_next(folder, environ, tmp_path):
    """The agent kills its oMLX, as the test does here; the folder of a live engine and the model itself stay."""
    others = tmp_path / "others"
    others.mkdir()
    async with engine(folder, environ, others) as (neighbour, other, others_log):
        await ready(other, others_log)
        [living] = tmp_path.glob("llmkube-omlx-*")
        async with engine(folder, environ, tmp_path) as (killed, ask, log):
            await ready(ask, log)
            [left] = set(tmp_path.glob("llmkube-omlx-*")) - {living}
            killed.kill()
            await killed.wait()
            assert left.exists()
            for pid in servers_below(left):
                psutil.Process(pid).kill()
        async with engine(folder, environ, tmp_path) as (process, ask, log):
            await ready(ask, log)
            found = set(tmp_path.glob("llmkube-omlx-*"))
            assert left not in found
            assert living in found
            assert len(found) == 2
            assert "folder of a killed engine removed" in log.read_text()
            assert (folder / "config.json").exists()
            assert (await other("POST", "/v1/chat/completions", ASK)).status == 200
            await end(process, log)
        assert list(tmp_path.glob("llmkube-omlx-*")) == [living]
        await end(neighbour, others_log)
    assert servers_below(tmp_path) == []


async def test_a_running_omlx_is_borrowed_with_its_key_and_stays(folder, environ, tmp_path):
    """Its owner kills and restarts it meanwhile; then the engine exits, and its memory is released."""
    key = tmp_path / "owners-key"
    key.write_text(f"{OWNERS_KEY}\n")
    environ["LLMKUBE_OMLX_KEY_FILE"] = str(key)
    async with engine_with_owners(folder, environ, tmp_path) as (server, process, ask, log):
        await ready(ask, log)
        assert footprints_here([server.pid])[server.pid] > omlx_program.SIZE
        server.kill()
        await server.wait()
        async with owners(folder, environ, tmp_path, OWNERS_KEY) as second:
            with trio.fail_after(READY_SECONDS):
                while footprints_here([second.pid])[second.pid] < omlx_program.SIZE:  # noqa: ASYNC110
                    await trio.sleep(0.2)
            await ready(ask, log)
            assert (await ask("POST", "/v1/chat/completions", ASK)).status == 200
            await end(process, log)
            assert footprints_here([second.pid])[second.pid] < omlx_program.SIZE
            assert await answers(environ)
    assert OWNERS_KEY not in log.read_text()


@pytest.mark.ci
async def test_what_a_killed_engine_has_left_is_unloaded(folder, environ, tmp_path):
    """By the same command line with a flag; the model stays loaded while another engine uses it."""
    environ[OWNER_VARIABLE] = str(tmp_path)
    async with engine_with_owners(folder, environ, tmp_path, key="") as (server, killed, ask, log):
        await ready(ask, log)
        killed.kill()
        await killed.wait()
        async with engine(folder, environ, tmp_path) as (another, ask_it, its_log):
            await ready(ask_it, its_log)
            await unload_left(folder, environ, tmp_path)
            assert footprints_here([server.pid])[server.pid] > omlx_program.SIZE
            another.kill()
            await another.wait()
        assert footprints_here([server.pid])[server.pid] > omlx_program.SIZE
        await unload_left(folder, environ, tmp_path)
        assert footprints_here([server.pid])[server.pid] < omlx_program.SIZE
        assert await answers(environ)


async def unload_left(folder, environ, tmp_path):
    """Unload what is left."""
    async with engine(folder, environ, tmp_path, UNLOAD_LEFT) as (process, _, log):
        with trio.fail_after(60):
            assert await process.wait() == 0, log.read_text()


@pytest.mark.ci
async def test_memory_that_a_borrowed_omlx_keeps_is_reported(folder, environ, tmp_path):
    """It reports the model as unloaded, but its process holds as much as before, so the engine exits with 1."""
    async with engine_with_owners(folder, environ, tmp_path, key="") as (server, process, ask, log):
        await ready(ask, log)
        (tmp_path / "lies").touch()
        await end(process, log, code=1)
        assert f"oMLX was asked to unload the model, but process {server.pid} holds it; quit oMLX" in log.read_text()
        assert server.poll() is None


@pytest.mark.ci
async def test_our_own_omlx_serves_a_model_that_the_owners_lacks(folder, environ, tmp_path):
    """The log names how to have the owner's oMLX used."""
    other = tmp_path / "others" / "another"
    other.mkdir(parents=True)
    async with owners(other, environ, tmp_path) as server, engine(folder, environ, tmp_path) as (process, ask, log):
        await ready(ask, log)
        assert f"add the parent folder of {folder} to its model folders" in log.read_text()
        assert len(servers_below(tmp_path)) == 2
        await end(process, log)
        assert servers_below(tmp_path) == [server.pid]


@asynccontextmanager
async def engine_with_owners(folder, environ, tmp_path, key=OWNERS_KEY):
    """Run an oMLX, and an engine that finds it."""
    async with owners(folder, environ, tmp_path, key) as server, engine(folder, environ, tmp_path) as found:
        yield server, *found
