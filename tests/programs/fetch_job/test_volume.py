"""`llmkube fetch` without a download: facts of a file, and removal of folders with the blobs that only they use."""

import hashlib
import json
import shutil

import httpx
import pytest
import trio
from click.testing import CliRunner

from free_ports import free_port
from llmkube.base.errors import UserError
from llmkube.base.http.client import open_http_client
from llmkube.cli.main import cli
from llmkube.controller.reconcile.pod_polling import read_percent
from llmkube.controller.status.job_result import read_fetched
from llmkube.k8s.codec import decode
from llmkube.k8s.wire.termination_message import MAX_BYTES
from llmkube.k8s.workloads import Pod
from llmkube.programs.fetch_job.volume import Gauge, adopt, failure_message, gguf_status_of, run_gauge, write_result
from llmkube.weights.download.progress import Progress
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import WeightsFile, open_store
from llmkube.weights.store.index import find_weights, name_of

DEMO_BYTES = 956256
KEYS = ("a" * 16, "b" * 16)


@pytest.fixture
def run(tmp_path):
    def invoke(*args):
        argv = ["fetch", *args, "--termination-log", tmp_path / "log"]
        return CliRunner().invoke(cli, [str(each) for each in argv], env={"LLMKUBE_SOURCE": ""})

    return invoke


@pytest.fixture
def volume(run, tmp_path):
    """Create a volume on which two folders show the same file."""
    for key in KEYS:
        done = run("builtin://demo", "--to", tmp_path / "v" / key, "--model-store", tmp_path / "v" / ".store")
        assert done.exit_code == 0, done.output
    return tmp_path / "v"


def read_result(tmp_path):
    return json.loads((tmp_path / "log").read_text())


def held_bytes(volume):
    return sum(path.stat().st_size for path in (volume / ".store" / "blobs").rglob("*") if path.is_file())


def test_the_controller_reads_the_facts_of_a_file(run, tmp_path, volume):
    """It finds size and header of a file that was only inspected."""
    done = run("--inspect", volume / KEYS[0] / "model.gguf")
    assert done.exit_code == 0, done.output
    ended = {"terminated": {"exitCode": 0, "message": (tmp_path / "log").read_text()}}
    pod = {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"name": "fetch", "state": ended}]}}
    found = read_fetched([decode(Pod, pod)])
    assert (found.size_bytes, found.gguf.architecture) == (DEMO_BYTES, "llama")


@pytest.mark.parametrize(
    ("name", "reason"), [("nothing.gguf", "FileNotFound"), ("text.gguf", "NotGGUF"), ("", "FileNotFound")]
)
def test_an_unusable_file_ends_the_job_with_a_reason(run, tmp_path, name, reason):
    """No file, another file and a folder are errors of the user, which no retry would fix."""
    (tmp_path / "text.gguf").write_text("hello, I am not a model")
    done = run("--inspect", tmp_path / name)
    assert (done.exit_code, read_result(tmp_path)["reason"]) == (2, reason), done.output


def test_a_missing_part_is_named(run, tmp_path, volume):
    """All parts of a split model are looked for."""
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes((volume / KEYS[0] / "model.gguf").read_bytes())
    done = run("--inspect", first)
    assert done.exit_code == 2
    assert "m-00002-of-00002.gguf" in read_result(tmp_path)["message"]


def test_a_blob_stays_until_its_last_folder_is_removed(run, tmp_path, volume):
    """The first of two folders with the same file frees nothing; the second frees the store's copy too."""
    there = ("--to", volume, "--model-store", volume / ".store")
    assert run(*there, "--prune", KEYS[0]).exit_code == 0
    assert read_result(tmp_path) == {"removed": [KEYS[0]], "freedBytes": 0}
    assert (volume / KEYS[1] / "model.gguf").stat().st_size == held_bytes(volume) == DEMO_BYTES
    assert run(*there, "--prune", KEYS[0], "--prune", KEYS[1]).exit_code == 0
    assert read_result(tmp_path)["removed"] == [KEYS[1]]
    assert read_result(tmp_path)["freedBytes"] >= DEMO_BYTES
    assert held_bytes(volume) == 0
    assert sorted(path.name for path in volume.iterdir()) == [".store"]


def test_an_unpublished_blob_is_not_pruned(run, tmp_path, volume):
    """A fetch has just completed the file, and has yet to create its folder."""
    for key in KEYS:
        shutil.rmtree(volume / key)
    other = volume / ("c" * 16)
    other.mkdir()
    (other / "model.gguf").write_text("of another store")
    assert run("--to", volume, "--model-store", volume / ".store", "--prune", other.name).exit_code == 0
    assert read_result(tmp_path)["removed"] == [other.name]
    assert held_bytes(volume) == DEMO_BYTES


@pytest.mark.parametrize("key", ["..", ".store", "A" * 16, "a" * 15, "/etc", "a/../../b"])
def test_only_keys_are_removed(run, tmp_path, volume, key):
    """An argument that is no key removes nothing, nor do the keys named with it."""
    done = run("--to", volume, "--model-store", volume / ".store", "--prune", KEYS[0], "--prune", key)
    assert (done.exit_code, read_result(tmp_path)["reason"]) == (2, "InvalidFileSet")
    assert (volume / KEYS[0] / "model.gguf").exists()


def test_a_link_is_not_followed(run, tmp_path, volume):
    """A link in place of the folder is not removed, nor is its target."""
    (volume / ("d" * 16)).symlink_to(tmp_path / "v" / KEYS[0])
    run("--to", volume, "--model-store", volume / ".store", "--prune", "d" * 16)
    assert read_result(tmp_path)["removed"] == []
    assert (volume / KEYS[0] / "model.gguf").exists()


@pytest.mark.parametrize(
    "argv", [(), ("builtin://demo", "--inspect", "x"), ("--inspect", "x", "--prune", "a" * 16), ("builtin://demo",)]
)
def test_exactly_one_operation_is_required(run, argv):
    """No operation, two operations, and a fetch without folders are usage errors."""
    assert run(*argv).exit_code == 2


async def test_the_progress_server_shows_no_names():
    """Over a real socket: a controller reads the percentage of all files, other paths are 404, and no name is shown."""
    gauge = Gauge(files=2)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_http_client() as http:
            port = await nursery.start(run_gauge, gauge, 0)

            async def ask(path="/progress"):
                return await http.request("GET", f"http://127.0.0.1:{port}{path}")

            assert read_percent((await ask()).body.decode()) is None
            gauge(Progress("downloading", 500, 1000))
            assert read_percent((await ask()).body.decode()) == 25
            gauge.begin(2)
            gauge(Progress("downloading", 600, 1000))
            answer = (await ask()).body.decode()
            assert read_percent(answer) == 80
            assert set(json.loads(answer)) == {"file", "files", "stage", "doneBytes", "totalBytes"}
            assert (await ask("/")).status == httpx.codes.NOT_FOUND
            nursery.cancel_scope.cancel()


def test_the_progress_server_ends_with_the_fetch(run, tmp_path):
    """A fetch with the server has the same result as one without, and releases the port."""
    port = free_port()
    there = ("--to", tmp_path / "v" / "k", "--model-store", tmp_path / "v" / ".store")
    for _ in range(2):
        done = run("builtin://demo", *there, "--progress-port", port)
        assert done.exit_code == 0, done.output
        assert "cannot listen" not in done.output


async def test_a_taken_port_costs_only_the_progress_server(capsys):
    """The fetch continues without it."""
    async with trio.open_nursery() as nursery:
        [taken] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with taken:
            assert await nursery.start(run_gauge, Gauge(1), taken.socket.getsockname()[1]) == 0
            nursery.cancel_scope.cancel()
    assert "cannot listen" in capsys.readouterr().err


WEB = parse_source("https://example.com/Model-Q4_K_M.gguf")
HUB = parse_source("hf://org/repo/sub/Model-Q4_K_M.gguf")
SPLIT = parse_source("hf://org/repo/m-00001-of-00002.gguf")
BYTES = b"GGUF" + bytes(1000)
DIGEST = hashlib.sha256(BYTES).hexdigest()


async def taken(tmp_path, source, names, sha256=None):
    """Return the blobs that the store has of a source after the adoption from a folder with these files."""
    folder, store = tmp_path / "models" / "old", open_store(tmp_path / "models" / ".store")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(BYTES)
    limiter = trio.CapacityLimiter(2)
    await adopt(folder, source, store, sha256=sha256, progress=lambda _: None, limiter=limiter)
    return find_weights(store, name_of(store, source))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (WEB, ["a-name-of-its-own.gguf"]),
        (HUB, ["sub/Model-Q4_K_M.gguf"]),
        (HUB, ["Model-Q4_K_M.gguf"]),
        (SPLIT, ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
    ],
)
async def test_a_file_of_an_earlier_cache_is_adopted_for_its_source(tmp_path, source, names):
    """The store has the very same file under the source's name."""
    found = await taken(tmp_path, source, names)
    assert isinstance(found, WeightsFile)
    assert found.path.read_bytes() == BYTES
    if len(names) == 1:
        assert found.path.stat().st_ino == (tmp_path / "models" / "old" / names[0]).stat().st_ino


@pytest.mark.parametrize(
    ("source", "names", "sha256"),
    [
        (WEB, [], None),
        (WEB, ["one.gguf", "two.gguf"], None),
        (WEB, ["model.gguf.tmp"], None),
        (WEB, ["model.gguf"], "0" * 64),
        (HUB, ["another.gguf"], None),
        (SPLIT, ["m-00001-of-00002.gguf"], None),
    ],
)
async def test_a_file_that_may_not_be_the_source_is_not_adopted(tmp_path, source, names, sha256):
    """No file, several, half a download, another digest, another file, a part: the store stays empty."""
    assert await taken(tmp_path, source, names, sha256) is None


async def test_a_file_with_the_expected_digest_is_adopted(tmp_path):
    assert isinstance(await taken(tmp_path, WEB, ["x.gguf"], DIGEST), WeightsFile)


def written(path, result):
    write_result(path / "log", result)
    content = (path / "log").read_bytes()
    assert len(content) <= MAX_BYTES
    return json.loads(content)


@pytest.mark.parametrize("letter", ["a", '"', "\n", "\x01", "é", "模", "🦙", "\udc80"])
def test_a_failure_message_of_any_language_is_readable(tmp_path, letter):
    """However many bytes a character takes, the reason and the beginning of the message are kept whole."""
    content = written(tmp_path, failure_message(UserError(letter * 5000)))
    assert content["reason"] == "SourceInvalid"
    assert len(content["message"]) >= 499
    assert set(content["message"]) == {"?" if letter == "\udc80" else letter}


def test_a_short_message_is_not_cut(tmp_path):
    assert written(tmp_path, failure_message(UserError("模型 not found")))["message"] == "模型 not found"


def test_a_result_with_the_longest_texts_and_names_fits(tmp_path):
    """Of many files with long names the last are left out; path, size, digest and header never are."""
    facts = GGUFFacts(architecture="模" * 900, file_version=3, tensor_count=1, size_bytes=1, name="模" * 900,
                      license="模" * 900)  # fmt: skip
    result = {
        "path": "model.gguf",
        "sizeBytes": 2**60,
        "sha256": "a" * 64,
        "files": [f"{number:03}-{'模' * 80}.gguf" for number in range(16)],
        "gguf": gguf_status_of(facts),
        "kept": "模" * 300,
    }
    content = written(tmp_path, result)
    assert {**content, "files": []} == {**result, "files": []}
    assert content["files"] == result["files"][: len(content["files"])]
    assert content["files"]


def test_a_missing_termination_log_is_no_error(tmp_path):
    write_result(tmp_path / "nowhere" / "log", {"path": "x"})
