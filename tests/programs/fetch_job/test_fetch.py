"""`llmkube fetch` puts weights where engines can read them, and writes a termination message for the controller."""

import contextlib
import json
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmkube.cli.main import cli
from llmkube.controller.status.job_result import read_fetched
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import Pod
from llmkube.programs.fetch_job import fetch
from llmkube.programs.fetch_job.fetch import publish
from llmkube.weights.errors import FetchError, FileSetError
from llmkube.weights.store import blobs

DEMO_BYTES = 956256


@pytest.fixture
def run(tmp_path):
    def invoke(*args, env=None):
        fixed = ["--to", tmp_path / "models" / "k", "--model-store", tmp_path / "models" / ".store"]
        argv = ["fetch", *args, *fixed, "--termination-log", tmp_path / "log"]
        return CliRunner().invoke(cli, [str(each) for each in argv], env=env)

    return invoke


def read_result(tmp_path):
    return json.loads((tmp_path / "log").read_text())


def test_other_users_can_read_the_built_in_model(run, tmp_path):
    """The file is complete, readable by other users, and in a folder that they may enter."""
    done = run("builtin://demo")
    assert done.exit_code == 0, done.output
    file = tmp_path / "models" / "k" / "model.gguf"
    assert file.stat().st_size == DEMO_BYTES
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "models" / ".store").stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".store", "k"]


def test_the_controller_reads_the_termination_message(run, tmp_path):
    """It finds path, size, digest and header in it."""
    run("builtin://demo")
    ended = {"terminated": {"exitCode": 0, "message": (tmp_path / "log").read_text()}}
    pod = {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"name": "fetch", "state": ended}]}}
    fetched = read_fetched([decode(Pod, pod)])
    assert (fetched.path, fetched.size_bytes, fetched.gguf.architecture) == ("model.gguf", DEMO_BYTES, "llama")
    assert len(fetched.sha256) == 64
    assert len((tmp_path / "log").read_bytes()) <= 4096


def test_a_second_run_changes_nothing(run, tmp_path):
    """A Job that runs again finds all files, and does not touch the file that an engine may have open."""
    run("builtin://demo")
    before = (tmp_path / "models" / "k" / "model.gguf").stat()
    assert run("builtin://demo").exit_code == 0
    after = (tmp_path / "models" / "k" / "model.gguf").stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def test_a_buckets_endpoint_is_checked_as_any_other_source(run, tmp_path):
    """An endpoint from the environment may be no private address, and half a key is refused by name."""
    local = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "hush"}
    done = run("s3://bucket/model.gguf", env=local)
    assert (done.exit_code, read_result(tmp_path)["reason"]) == (2, "AddressBlocked")
    done = run("s3://bucket/model.gguf", env={**local, "AWS_ACCESS_KEY_ID": ""})
    assert (done.exit_code, read_result(tmp_path)["reason"]) == (2, "SourceInvalid")
    assert "no AWS_ACCESS_KEY_ID" in read_result(tmp_path)["message"]
    assert "hush" not in done.output


def test_the_source_may_come_from_the_environment(run, tmp_path):
    """A source with a password in it need not be on the command line."""
    assert run(env={"LLMKUBE_SOURCE": "builtin://demo"}).exit_code == 0
    assert read_result(tmp_path)["path"] == "model.gguf"


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (("s3://bucket/folder/",), 2, "SourceInvalid"),
        (("/data/model.gguf",), 2, "SourceInvalid"),
        (("http://127.0.0.1:1/model.gguf",), 2, "AddressBlocked"),
        (("nonsense",), 2, "SourceInvalid"),
        (("builtin://demo", "--sha256", "ab" * 32), 2, "DigestMismatch"),
        (("builtin://demo", "--sha256", "short"), 2, "DigestMismatch"),
        (("builtin://demo", "--beside", "mmproj.gguf"), 2, "InvalidFileSet"),
        (("org/repo", "--file", "../x.gguf"), 2, "InvalidFileSet"),
        (("builtin://demo", "--allow-private-sources", "10"), 2, "SourceInvalid"),
        (("builtin://demo", "--hf-token-file", "/nonexistent"), 2, "TokenUnavailable"),
    ],
)
def test_a_permanent_failure_has_its_own_exit_code(run, tmp_path, args, code, reason):
    """Exit code 2, a reason for programs and a message for people; engines see no file."""
    done = run(*args)
    assert done.exit_code == code, done.output
    assert read_result(tmp_path)["reason"] == reason
    assert read_result(tmp_path)["message"]
    assert not (tmp_path / "models" / "k").exists()


@pytest.mark.parametrize(
    ("model", "other", "collides"),
    [
        ("chat.gguf", "model.gguf", True),
        ("model.gguf", "model.gguf", False),
        ("chat.gguf", "mmproj.gguf", False),
        ("a-00001-of-00002.gguf", "model-00002-of-00002.gguf", True),
        ("a-00001-of-00002.gguf", "model.gguf", False),
    ],
)
def test_a_further_file_never_replaces_the_model(model, other, collides):
    """A file that would get the model's own name is refused before the download."""
    with pytest.raises(FileSetError, match="would replace the model") if collides else contextlib.nullcontext():
        fetch._sources("org/repo", (model,), (other,))


def test_a_failure_of_the_disk_is_temporary(run, tmp_path):
    """A store that cannot be created is exit code 1."""
    (tmp_path / "models").write_text("in the way")
    assert run("builtin://demo").exit_code == 1
    assert read_result(tmp_path)["reason"] == "FetchFailed"


def test_a_folder_with_other_content_is_replaced(tmp_path):
    """Atomically."""
    file = tmp_path / "blob"
    file.write_bytes(b"x")
    publish(tmp_path / "k", {"old.gguf": file})
    publish(tmp_path / "k", {"model.gguf": file, "sub/extra.gguf": file})
    there = sorted(str(path.relative_to(tmp_path / "k")) for path in (tmp_path / "k").rglob("*.gguf"))
    assert there == ["model.gguf", "sub/extra.gguf"]
    assert stat.S_IMODE((tmp_path / "k" / "sub").stat().st_mode) == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob", "k"]


def test_a_missing_file_publishes_nothing(tmp_path):
    """An incomplete set is never visible, and nothing is left of the attempt."""
    file = tmp_path / "blob"
    file.write_bytes(b"x")
    with pytest.raises(FetchError):
        publish(tmp_path / "k", {"a.gguf": file, "b.gguf": tmp_path / "missing"})
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]


# -- changes of a source ---------------------------------------------------------------------------------------------


class FileServer:
    """A web server with one file in several versions; it also plays a bucket's server."""

    def __init__(self) -> None:
        demo = next((Path(blobs.__file__).parents[1] / "builtin").glob("*.gguf")).read_bytes()
        self.files = {"v1": demo, "v2": demo[:-1] + bytes([demo[-1] ^ 1]), "v3": demo[:-1] + bytes([demo[-1] ^ 2])}
        self.version, self.status, self.asked, self.listing = "v1", 0, [], b""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append((self.path, self.headers.get("Authorization") or ""))
                data = server.listing if self.path.startswith("/api/") else server.files[server.version]
                self.send_response(server.status or 200)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", f'"{server.version}"')
                self.end_headers()
                with contextlib.suppress(OSError):  # the client may disconnect early
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def server():
    one = FileServer()
    thread = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


FRESH = ("--allow-private-sources", "127.0.0.1/32", "--fresh", "--versions")


def test_each_version_has_a_folder_and_the_last_two_stay(run, tmp_path, server):
    """A changed file gets a new folder; the previous one stays for processes that use it, older ones are removed."""
    source, paths, models = f"{server.url}/m.gguf", {}, tmp_path / "models"
    for version in ("v1", "v1", "v2", "v3"):
        server.version = version
        done = run(source, *FRESH)
        assert done.exit_code == 0, done.output
        assert read_result(tmp_path)["etag"] == f'"{version}"'
        assert paths.setdefault(version, read_result(tmp_path)["path"]) == read_result(tmp_path)["path"]
        assert (models / "k" / read_result(tmp_path)["path"]).read_bytes() == server.files[version]
    assert len(set(paths.values())) == 3
    left = {str(path.relative_to(models / "k")) for path in (models / "k").rglob("*.gguf")}
    assert left == {paths["v2"], paths["v3"]}
    assert len(list((models / ".store" / "blobs").iterdir())) == 1


def test_a_file_that_the_server_has_lost_is_kept(run, tmp_path, server):
    """The termination message reports it."""
    source = f"{server.url}/m.gguf"
    run(source, *FRESH)
    before = read_result(tmp_path)
    server.status = 404
    done = run(source, *FRESH)
    assert done.exit_code == 0, done.output
    assert read_result(tmp_path)["path"] == before["path"]
    assert "404" in read_result(tmp_path)["kept"]
    assert run(f"{server.url}/other.gguf", *FRESH).exit_code == 2


def test_an_object_is_fetched_with_the_key_of_the_environment(run, tmp_path, server):
    """The variables of AWS's tools name an endpoint and sign requests to it."""
    env = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush"}
    done = run("s3://bucket/chat", *FRESH, "--file", "m.gguf", env=env)
    assert done.exit_code == 0, done.output
    [(path, authorization)] = server.asked
    assert path == "/bucket/chat/m.gguf"
    assert authorization.startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert "hush" not in done.output + (tmp_path / "log").read_text()


def test_a_job_takes_the_usual_quantization_of_a_repository(run, tmp_path, server):
    """A controller's Job chooses in a repository as a host does, and lists the files when a name is wrong."""
    names = ("m-Q2_K.gguf", "m-Q4_K_M.gguf", "mmproj-m-F16.gguf")
    server.listing = json.dumps({"sha": "c" * 40, "siblings": [{"rfilename": name} for name in names]}).encode()
    flags = (f"--hub-endpoint={server.url}", "--allow-private-sources=127.0.0.0/8")
    done = run("org/repo", *flags)
    assert done.exit_code == 0, done.output
    assert server.asked[-1][0].endswith("/m-Q4_K_M.gguf")
    done = run("hf.co/org/repo:Q9_X", *flags)
    assert done.exit_code == 2
    assert "has no Q9_X; it has m-Q2_K.gguf" in read_result(tmp_path)["message"]
