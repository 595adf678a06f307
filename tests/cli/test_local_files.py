"""What the user of `llmkube up` may do with files that authors of objects may not (finding S8)."""

import attrs
import pytest

from cli.cli_objects import model
from llmkube.cli.local_files import allow_folder, cause_of
from llmkube.cli.target_cluster import Cluster, ClusterFlags, own_up_dir
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import ENGINES_LOCK, SERVER_LOCK
from llmkube.weights.store.local_sources import RECORDED_FOLDERS, recorded_folders


@pytest.fixture
def up_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "up").mkdir()
    return tmp_path / "up"


def test_a_typed_path_allows_its_folder(up_dir, tmp_path, capsys):
    """A file elsewhere and the end of its links are allowed once; files in the home are allowed anyway."""
    real, link = tmp_path / "disk" / "m.gguf", tmp_path / "models" / "m.gguf"
    for path in (real, link):
        path.parent.mkdir()
    real.write_bytes(b"GGUF")
    link.symlink_to(real)
    (tmp_path / "home" / "h.gguf").write_bytes(b"GGUF")
    cluster = Cluster(None, "default", up_dir=up_dir)
    for _ in range(2):
        allow_folder(cluster, str(link))
    for other in ("hf://org/repo/m.gguf", str(tmp_path / "home" / "h.gguf"), str(tmp_path / "none" / "m.gguf"), "/"):
        allow_folder(cluster, other)
    assert recorded_folders(up_dir / RECORDED_FOLDERS) == (real.parent, link.parent)
    assert capsys.readouterr().err.count("Models may now name files below") == 1
    allow_folder(Cluster(None, "default"), str(real))  # another cluster: nothing is recorded


def test_only_the_user_of_a_running_up_is_its_owner(up_dir, monkeypatch):
    """The chosen kubeconfig is that of an `up` which this user runs on this machine."""
    where = ClusterFlags(up_dir / "kubeconfig")
    assert own_up_dir(where) is None
    with hold_state_dir(up_dir, ENGINES_LOCK, SERVER_LOCK):
        assert own_up_dir(where) == up_dir
        monkeypatch.setattr("os.geteuid", lambda: 4711)
        assert own_up_dir(where) is None


@pytest.mark.parametrize(
    ("content", "cause"),
    [(None, ": there is no such file"), (b"", "it is empty"), (b"<!DOCTYPE html>", "it looks like a web page")],
)
def test_the_owner_learns_why_a_file_is_not_served(up_dir, tmp_path, content, cause):
    """Others have the condition, which is the same for every cause."""
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    refused = attrs.evolve(model(), spec=attrs.evolve(model().spec, source=str(path)))
    said = cause_of(Cluster(None, "default", up_dir=up_dir), refused, "FileNotFound")
    assert said.startswith(str(path))
    assert cause in said
    assert cause_of(Cluster(None, "default"), refused, "FileNotFound") == ""
    builtin = attrs.evolve(model(), spec=attrs.evolve(model().spec, source="builtin://demo"))
    assert cause_of(Cluster(None, "default", up_dir=up_dir), builtin, "FileNotFound") == ""  # that of an adapter
    assert cause_of(Cluster(None, "default", up_dir=up_dir), refused, "NotGGUF") == ""
