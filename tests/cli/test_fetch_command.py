"""`llmkube fetch` puts weights where engines can read them, and leaves last words that a controller can read."""

import json
import stat

import pytest
from click.testing import CliRunner

from llmkube.cli.fetch import publish
from llmkube.cli.main import cli
from llmkube.controller.download import read_fetched
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import Pod
from llmkube.weights.errors import FetchError

DEMO_BYTES = 956256


@pytest.fixture
def run(tmp_path):
    def invoke(*args, env=None):
        fixed = ["--to", tmp_path / "models" / "k", "--model-store", tmp_path / "models" / ".store"]
        words = ["fetch", *args, *fixed, "--termination-log", tmp_path / "log"]
        return CliRunner().invoke(cli, [str(word) for word in words], env=env)

    return invoke


def told(tmp_path):
    return json.loads((tmp_path / "log").read_text())


def test_the_built_in_model_is_there_for_everybody(run, tmp_path):
    """The file is complete, readable by other users, and in a folder that they may enter."""
    done = run("builtin://demo")
    assert done.exit_code == 0, done.output
    file = tmp_path / "models" / "k" / "model.gguf"
    assert file.stat().st_size == DEMO_BYTES
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "models" / ".store").stat().st_mode) == 0o700
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".store", "k"]


def test_the_last_words_are_what_the_controller_reads(run, tmp_path):
    """The controller finds path, size, digest and header in what the container has left."""
    run("builtin://demo")
    ended = {"terminated": {"exitCode": 0, "message": (tmp_path / "log").read_text()}}
    pod = {"metadata": {"name": "x"}, "status": {"containerStatuses": [{"name": "fetch", "state": ended}]}}
    fetched = read_fetched([decode(Pod, pod)])
    assert (fetched.path, fetched.size_bytes, fetched.gguf.architecture) == ("model.gguf", DEMO_BYTES, "llama")
    assert len(fetched.sha256) == 64
    assert len((tmp_path / "log").read_bytes()) <= 4096


def test_the_second_time_changes_nothing(run, tmp_path):
    """A Job that is run again finds everything there, and leaves the file that an engine may have open."""
    run("builtin://demo")
    before = (tmp_path / "models" / "k" / "model.gguf").stat()
    assert run("builtin://demo").exit_code == 0
    after = (tmp_path / "models" / "k" / "model.gguf").stat()
    assert (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def test_the_source_may_come_from_the_environment(run, tmp_path):
    """A source with a password in it need not be on the command line."""
    assert run(env={"LLMKUBE_SOURCE": "builtin://demo"}).exit_code == 0
    assert told(tmp_path)["path"] == "model.gguf"


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (("s3://bucket/model.gguf",), 2, "SourceUnsupported"),
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
def test_what_another_try_would_not_mend_has_its_own_code(run, tmp_path, args, code, reason):
    """Exit code 2, a word for programs and a sentence for people; nothing is shown to engines."""
    done = run(*args)
    assert done.exit_code == code, done.output
    assert told(tmp_path)["reason"] == reason
    assert told(tmp_path)["message"]
    assert not (tmp_path / "models" / "k").exists()


def test_what_the_disk_does_is_worth_another_try(run, tmp_path):
    """A store that cannot be made is exit code 1."""
    (tmp_path / "models").write_text("in the way")
    assert run("builtin://demo").exit_code == 1
    assert told(tmp_path)["reason"] == "FetchFailed"


def test_a_folder_with_something_else_in_it_is_replaced(tmp_path):
    """What was published before under this key gives way to what belongs there, all at once."""
    file = tmp_path / "blob"
    file.write_bytes(b"x")
    publish(tmp_path / "k", {"old.gguf": file})
    publish(tmp_path / "k", {"model.gguf": file, "sub/extra.gguf": file})
    there = sorted(str(path.relative_to(tmp_path / "k")) for path in (tmp_path / "k").rglob("*.gguf"))
    assert there == ["model.gguf", "sub/extra.gguf"]
    assert stat.S_IMODE((tmp_path / "k" / "sub").stat().st_mode) == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob", "k"]


def test_a_file_that_is_gone_publishes_nothing(tmp_path):
    """Half a set is never shown, and nothing is left of the attempt."""
    file = tmp_path / "blob"
    file.write_bytes(b"x")
    with pytest.raises(FetchError):
        publish(tmp_path / "k", {"a.gguf": file, "b.gguf": tmp_path / "missing"})
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]
