"""The whole program over real sockets, with a fake oMLX: borrowed, or started for it."""

import json
import os
from pathlib import Path

import pytest
import trio

from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Response
from llmkube.programs.daemon_engine import omlx_program
from llmkube.programs.daemon_engine.omlx_api import OmlxApi
from llmkube.programs.daemon_engine.omlx_program import (
    PREFIX,
    OmlxDependencies,
    OmlxProgram,
    OwnerServer,
    choose,
    create_own_folder,
    parse,
    probe_owner,
    read_key,
    remove_abandoned,
    serve,
)
from llmkube.programs.daemon_engine.server import NoDaemonError
from llmkube.programs.program import Stop
from programs.daemon_engine.fake_omlx import NAME, URL, FakeOmlx, client_of
from programs.daemon_engine.stage import FakeStarter
from second_user import OTHER_UID, needs_second_user
from waiting import until

ASK = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()


def options(folder, *argv):
    return parse(["--model", str(folder), "--alias", "chat", "--service", "a/b", "--port", "0", *argv], {})


@pytest.mark.parametrize("runs", [True, False], ids=["borrowed", "started"])
async def test_a_folder_is_served_and_unloaded(tmp_path, runs):
    """Under the client's name, whole or as a stream; only a server that was started for the program ends with it."""
    folder = tmp_path / NAME
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)  # as one of our own has it
    fake = FakeOmlx(answers=runs, folders={NAME: str(link)}, sizes={NAME: 4 << 30}, load_seconds=0.01, lag_seconds=0.05)
    starter, stop, ended = FakeStarter(fake), Stop(), []
    async with client_of(fake) as client, open_http_client() as http, trio.open_nursery() as nursery:

        async def run(*, task_status):
            deps = OmlxDependencies(client, fake, starter)
            ended.append(await serve(options(folder), frozenset(), deps, stop, task_status=task_status))

        port = await nursery.start(run)
        front = f"http://127.0.0.1:{port}"
        with trio.fail_after(60):
            while (await http.request("GET", f"{front}/health")).status != 200:  # noqa: ASYNC110
                await trio.sleep(0.01)
        for asked in (ASK, json.dumps(json.loads(ASK) | {"stream": True}).encode()):
            answer = await http.request("POST", f"{front}/v1/chat/completions", body=asked)
            chunk = json.loads(answer.body.rpartition(b"data: ")[2])
            assert (answer.status, chunk["model"]) == (200, "chat")
            assert chunk["choices"][0]["message"]["content"] == f'"model":"{NAME}" of {NAME}'
        assert json.loads((await http.request("GET", f"{front}/v1/models")).body)["data"][0]["owned_by"] == "omlx"
        assert b"prompt_tokens_total 14\n" in (await http.request("GET", f"{front}/metrics")).body
        assert (await http.request("POST", f"{front}/v1/models/{NAME}/unload")).status == 404
        fake.key = "of its owner, new"
        answer = await http.request("POST", f"{front}/v1/chat/completions", body=ASK)
        assert (answer.status, b"oMLX refuses requests from this machine with 401" in answer.body) == (502, True)
        fake.key = ""
        stop.request_nowait("a test")
        with trio.fail_after(60):
            await until(lambda: ended)
    assert ended == [True]
    assert fake.holding() == 0
    assert (starter.starts, starter.ends) == ((0, 0) if runs else (1, 1))
    assert fake.answers is runs


@pytest.mark.parametrize(
    ("fake", "key", "folders"),
    [
        (FakeOmlx(folders={"a": "/a", "b": "/b"}, sizes={"a": 1, "b": 1}), "", ["/a", "/b"]),
        (FakeOmlx(key="k", folders={"a": "/a"}, sizes={"a": 1}), "k", ["/a"]),
        (FakeOmlx(key="k"), "", ()),
    ],
)
async def test_a_running_omlx_is_asked_for_its_folders(fake, key, folders):
    """With the given key; without one the server answers that it needs one."""
    async with client_of(fake) as client:
        found = await probe_owner(OmlxApi(client, URL, key))
    assert (found.is_omlx, found.answers, found.folders) == (True, True, folders)
    assert found.status == (401 if fake.key != key else 0)


async def test_another_program_at_its_port_is_no_omlx():
    """It answers, but not as oMLX does; where nothing listens there is no oMLX either."""

    class Other(FakeOmlx):
        async def handle(self, exchange):
            await exchange.respond(self.faults["/health"])

    fake = Other()
    for answer in (Response(404), Response(200, body=b"<html>"), Response.json(200, {"status": "ok"}), Response(503)):
        fake.faults["/health"] = answer
        async with client_of(fake) as client:
            assert not (await probe_owner(OmlxApi(client, URL))).is_omlx
    fake.answers = False
    async with client_of(fake) as client:
        assert not (await probe_owner(OmlxApi(client, URL))).answers


@pytest.mark.ci
async def test_no_second_server_is_started_while_one_hangs(tmp_path):
    """The hanging one may hold models in memory that the agent cannot measure."""
    fake = FakeOmlx(hangs=True)
    starter = FakeStarter(fake)
    async with client_of(fake) as client:
        with pytest.raises(NoDaemonError, match="no second server is started"):
            await serve(options(tmp_path), frozenset(), OmlxDependencies(client, fake, starter), Stop())
    assert starter.starts == 0


async def test_a_missing_omlx_is_reported(tmp_path):
    """Its temporary files are removed."""
    async with open_http_client() as client:
        program = OmlxProgram(options(tmp_path, "--omlx", "/nowhere/omlx"), OmlxApi(client, URL), 1, environ={})
        with pytest.raises(NoDaemonError, match="no oMLX answers, and /nowhere/omlx cannot be started"):
            async with program.started():
                raise AssertionError("it does not exist")


@pytest.mark.parametrize(
    ("folder", "embeds", "name"),
    [
        ("Qwen3-8B-4bit", False, "Qwen3-8B-4bit"),
        ("Qwen3-8B-4bit", True, "Qwen3-8B-4bit-embedding"),
        ("Qwen3-Embedding-4bit", True, "Qwen3-Embedding-4bit"),
        ("Qwen3-Embedding-4bit", False, "model"),
        ("reranker", False, "model"),
        ("a name, with “more”", False, "a-name-with-more"),
        ("...", False, "model"),
    ],
)
def test_a_models_id_has_the_word_of_its_purpose(folder, embeds, name):
    """OMLX derives from words in the id what a model is for."""
    assert omlx_program.link_name(Path("/m") / folder, embeds=embeds) == name


def test_our_own_omlx_writes_below_a_folder_of_its_own(tmp_path, monkeypatch):
    """Not into ~/.omlx; its settings have the service's context; the folder is private."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = OmlxProgram(options(tmp_path / "tiny", "--ctx-size", "512"), None, 9)
    made = program.create_folder().path
    assert (made.parent, made.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert (made / "models" / "tiny").readlink() == tmp_path / "tiny"
    settings = json.loads((made / "base" / "settings.json").read_text())
    assert settings["sampling"] == {"max_context_window": 512, "max_context_window_policy": 512}
    argv = program.command_line(made)
    assert argv[:6] == ("omlx", "serve", "--model-dir", str(made / "models"), "--base-path", str(made / "base"))
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert "--api-key" not in argv


async def test_a_failure_to_create_its_folder_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    async with open_http_client() as client:
        program = OmlxProgram(options(tmp_path), OmlxApi(client, URL), 1, environ={})
        with pytest.raises(NoDaemonError, match="cannot create a folder for LLMKube's own oMLX: No such file"):
            async with program.started():
                raise AssertionError("it has no folder")


def test_a_key_is_the_first_line_of_its_file(tmp_path):
    """An empty line is no key, nor is one with characters that no header can carry."""
    path = tmp_path / "key"
    path.write_text("CanaryKey\n\nmore\n")
    assert read_key(path) == "CanaryKey"
    assert "CanaryKey" not in repr(OmlxDependencies(None, None, None, "CanaryKey"))
    for wrong in ("", " \n", "kéy", "a\x00b"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="contains no key of printable"):
            read_key(path)


ARGV = ["--model", "/m/tiny", "--alias", "chat", "--service", "a/b", "--port", "9"]


def test_the_agents_settings_arrive():
    """By flags for one service, by variables for the whole host."""
    environ = {"OMLX_PORT": "8001", "LLMKUBE_OMLX_KEY_FILE": "/k", "LLMKUBE_OMLX_STARTUP_SECONDS": "30"}
    read = parse([*ARGV, "--ctx-size", "512", "--embedding", "--api-key-file", "/keys", "--omlx", "/o"], environ)
    assert (read.model, read.alias, read.port, read.context, read.embeds) == (Path("/m/tiny"), "chat", 9, 512, True)
    assert (read.daemon, read.key_file, read.start_seconds) == ("http://127.0.0.1:8001", Path("/k"), 30.0)
    assert (read.keys, read.program) == (Path("/keys"), "/o")


def test_the_defaults_are_those_of_oMLX():  # noqa: N802 - its name
    read = parse(ARGV, {})
    assert (read.daemon, read.key_file, read.start_seconds) == ("http://127.0.0.1:8000", None, 120.0)


@pytest.mark.parametrize(
    ("changed", "environ", "message"),
    [
        (["--service", "b"], {}, "use NAMESPACE/NAME"),
        ([], {"OMLX_PORT": "0"}, "OMLX_PORT=0: set a port, such as 8000"),
        ([], {"OMLX_PORT": "http"}, "OMLX_PORT=http: set a port, such as 8000"),
        ([], {"LLMKUBE_OMLX_STARTUP_SECONDS": "2m"}, "LLMKUBE_OMLX_STARTUP_SECONDS=2m: set a number, such as 120"),
    ],
)
def test_unsupported_flags_are_refused_by_name(capsys, changed, environ, message):
    """With exit code 2, and one line."""
    with pytest.raises(SystemExit) as caught:
        parse([*ARGV, *changed], environ)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


FOLDER = "/models/tiny"


@pytest.mark.parametrize(
    ("found", "is_used", "expected"),
    [
        ({"folders": ["/models/a", FOLDER]}, True, "has the model"),
        ({"folders": ["/models/a"]}, False, f"add the parent folder of {FOLDER} to its model folders"),
        ({"folders": []}, False, "does not have the model"),
        ({"folders": ["", ""]}, False, "does not report the folders of its models"),
        ({"answers": False, "error": "no oMLX answers"}, False, f"no oMLX runs at {URL}"),
        ({"is_omlx": False}, False, "is not oMLX"),
        ({"error": "oMLX answers 401: Invalid API key", "status": 401}, False, "--omlx-key-file"),
        ({"error": "oMLX has not answered /health within 2 s"}, None, "no second server is started next to it"),
        ({"error": "oMLX answers 500: oops", "status": 500}, None, "oops; no second server"),
    ],
)
def test_a_running_omlx_is_used_if_it_can_serve_the_model(found, is_used, expected):
    """Otherwise our own is started and the reason logged; but not next to one that may hold models it does not list."""
    if is_used is None:
        with pytest.raises(NoDaemonError, match=expected):
            choose(OwnerServer(url=URL, **found), FOLDER)
    else:
        chosen, reason = choose(OwnerServer(url=URL, **found), FOLDER)
        assert (chosen, expected in reason) == (is_used, True)


@pytest.fixture
def parent(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def left_by_a_killed_one():
    """Return the folder of a killed front: the kernel has released its lock."""
    held = create_own_folder()
    (held.path / "base").mkdir()
    os.close(held._fd)
    return held.path


def test_only_the_folder_of_a_dead_front_is_removed(parent):
    """Both folders are private."""
    alive, dead = create_own_folder(), left_by_a_killed_one()
    assert alive.path.stat().st_mode & 0o777 == 0o700
    assert remove_abandoned() == (dead,)
    assert list(parent.iterdir()) == [alive.path]
    alive.remove()
    assert list(parent.iterdir()) == []
    assert remove_abandoned() == ()


def test_a_link_in_a_removed_folder_is_not_followed(parent, tmp_path):
    """The model of a dead front's oMLX belongs to its owner."""
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (left_by_a_killed_one() / "base" / "tiny").symlink_to(model)
    assert len(remove_abandoned()) == 1
    assert (model / "config.json").exists()


def test_what_only_has_such_a_name_is_not_removed(parent, tmp_path):
    """A link, a file, a folder that other users may open, and one of an earlier release, whose front holds no lock."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (parent / f"{PREFIX}link").symlink_to(target)
    (parent / f"{PREFIX}file").touch()
    (parent / f"{PREFIX}open").mkdir(mode=0o755)
    (parent / "llmkube-omlx-earlier").mkdir(mode=0o700)
    assert remove_abandoned() == ()
    assert len(list(parent.iterdir())) == 4
    assert target.exists()


@needs_second_user
def test_another_users_folder_is_not_removed(parent):
    """Though root could remove it, and no process locks it."""
    theirs = left_by_a_killed_one()
    os.chown(theirs, OTHER_UID, OTHER_UID)
    assert remove_abandoned() == ()
    assert theirs.exists()


def test_a_folder_removed_before_it_was_locked_is_created_again(parent, monkeypatch):
    """Between its creation and its lock another front may take it for abandoned."""
    real, calls = omlx_program._lock_folder, []

    def held(path):
        calls.append(path)
        if len(calls) == 1:
            path.rmdir()
        return real(path)

    monkeypatch.setattr(omlx_program, "_lock_folder", held)
    made = create_own_folder()
    assert len(calls) == 2
    assert made.path.is_dir()
    made.remove()


def test_a_disk_without_locks_is_reported(parent, monkeypatch):
    """It is not retried for ever."""
    monkeypatch.setattr(omlx_program, "_lock_folder", lambda path: None)
    with pytest.raises(OSError, match="set TMPDIR to another disk"):
        create_own_folder()
