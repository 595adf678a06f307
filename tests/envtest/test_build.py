"""The build decides by its sources and the environment alone where programs are; nothing here compiles anything."""

from pathlib import Path

import pytest

from envtest.build import MODULE, assets_dir, build, control_plane
from go_programs import GO_VERSION, BuildError, missing, pinned_version, version_of


def test_the_cache_is_outside_the_tree_and_named_after_the_sources():
    """The first of LLMKUBE_ENVTEST_CACHE, XDG_CACHE_HOME and ~/.cache that is set holds a folder per hash."""
    assert assets_dir({"LLMKUBE_ENVTEST_CACHE": "/c"}) == Path("/c") / control_plane().source_hash
    assert assets_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/llmkube/envtest") / control_plane().source_hash
    assert assets_dir({}) == Path("~/.cache/llmkube/envtest").expanduser() / control_plane().source_hash


def test_provided_programs_are_used_unchanged(tmp_path: Path):
    """With KUBEBUILDER_ASSETS nothing is built, and a missing program is an error that names it."""
    environ = {"KUBEBUILDER_ASSETS": str(tmp_path)}
    (tmp_path / "etcd").touch(mode=0o755)
    assert build(["etcd"], lambda _: None, environ) == tmp_path
    assert missing(tmp_path, ["etcd", "kubectl"]) == ("kubectl",)
    with pytest.raises(BuildError, match="lacks kubectl"):
        build(["kubectl"], lambda _: None, environ)


def test_the_libraries_and_the_programs_are_of_one_release():
    """Kubernetes v1.X.Y goes with its libraries at v0.X.Y."""
    assert pinned_version(MODULE, "k8s.io/kubectl") == pinned_version(MODULE, "k8s.io/kubernetes").replace(
        "v1.", "v0.", 1
    )


@pytest.mark.parametrize("path", sorted(MODULE.parent.rglob("go.mod")), ids=lambda path: path.parent.name)
def test_the_go_that_is_installed_builds_every_module(path: Path):
    """No go.mod of the tests asks for a newer Go than the one that is looked for."""
    (line,) = (line for line in path.read_text().splitlines() if line.startswith("go "))
    assert version_of(line) <= (*GO_VERSION, 0)
