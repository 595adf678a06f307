"""A release is the same bytes from the same commit, and its SBOM lists what the lock pins; `.ci/run` makes one."""

import hashlib
import os
import shutil
import subprocess

import pytest

from supply.dist import ROOT, DistError, build_packages, export, packed, sbom_faults, sums

EPOCH = 1_760_000_000


def copy_of_the_tree(folder):
    """The files of this tree that git knows, or would take."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((ROOT / name).read_bytes())
            path.chmod((ROOT / name).stat().st_mode)
    return folder


@pytest.mark.ci
def test_two_builds_are_the_same_bytes(tmp_path, monkeypatch):
    """Whatever the folder, its files' times, the mask, the time zone and the language are."""
    made = []
    for name, mask, zone, language in (("a", 0o022, "UTC", "C"), ("b", 0o077, "Pacific/Auckland", "de_DE.UTF-8")):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("LC_ALL", language)
        before = os.umask(mask)
        try:
            source = copy_of_the_tree(tmp_path / name / "source")
            if name == "b":
                for path in source.rglob("*"):
                    os.utime(path, (1, 1))
            build_packages(source, tmp_path / name / "built", EPOCH)
        finally:
            os.umask(before)
        made.append({path.name: path.read_bytes() for path in (tmp_path / name / "built").iterdir()})
    assert sorted(path.rpartition(".")[2] for path in made[0]) == ["gz", "whl"]
    assert made[0] == made[1]


def test_only_what_is_committed_is_exported(tmp_path):
    """A file that lies about is in no release, nor is an edit that was not committed."""
    clone, folder = tmp_path / "clone", tmp_path / "out"
    clone.mkdir()
    folder.mkdir()

    def git(*args):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        env = {**os.environ, "GIT_COMMITTER_DATE": f"{EPOCH} +0000"}
        subprocess.run(["git", *who, *args], cwd=clone, check=True, capture_output=True, env=env)

    git("init", "-q")
    (clone / "kept").write_text("committed")
    git("add", "kept")
    git("commit", "-q", "-m", "one")
    (clone / "kept").write_text("edited")
    (clone / "secret").write_text("lies about")
    assert export(clone, folder) == EPOCH
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"kept": "committed"}


def test_a_folder_without_history_is_refused_with_git_s_message(tmp_path):
    """A tarball of the sources has no commit to build from."""
    with pytest.raises(DistError, match="not a git repository"):
        export(tmp_path, tmp_path)


def test_the_sums_are_those_that_sha256sum_checks(tmp_path):
    """Sorted by name, and a file that was changed is found."""
    files = {"b.whl": b"wheel", "a.json": b"{}"}
    text = sums(files)
    assert text.splitlines()[0] == f"{hashlib.sha256(b'{}').hexdigest()}  a.json"
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "SHA256SUMS").write_text(text)

    def check():
        program = ["sha256sum"] if shutil.which("sha256sum") else ["shasum", "-a", "256"]  # macOS has the latter
        command = [*program, "--check", "SHA256SUMS"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    assert check() == 0
    (tmp_path / "b.whl").write_bytes(b"another")
    assert check() == 1


LOCK = """\
attrs==26.1.0 \\
    --hash=sha256:00
    # via llmkube
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:01
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:02
"""


def bom(components, *direct):
    listed = [{"bom-ref": f"{name}-ref", "name": name, "version": version} for name, version in components]
    return {
        "metadata": {"component": {"bom-ref": "root", "name": "llmkube"}},
        "components": listed,
        "dependencies": [{"ref": "root", "dependsOn": [f"{name}-ref" for name in direct]}, {"ref": "attrs-ref"}],
    }


@pytest.mark.parametrize(
    ("sbom", "faults"),
    [
        (bom([("attrs", "26.1.0"), ("NumPy", "2.5.5")], "attrs"), []),
        (bom([("attrs", "26.1.0"), ("numpy", "2.4.6")], "attrs"), []),
        (bom([("attrs", "26.0.0")], "attrs"), ["attrs 26.0.0 is not what the lock pins"]),
        (bom([("attrs", "26.1.0"), ("pip", "26.3")], "attrs"), ["pip 26.3 is not what the lock pins"]),
        (bom([("attrs", "26.1.0")]), ["attrs does not hang from the root"]),
        (bom([("numpy", "2.4.6")]), ["attrs is missing", "attrs does not hang from the root"]),
    ],
)
def test_an_sbom_is_held_to_the_lock(sbom, faults):
    """It has no other package or version than the lock, and all that the project names."""
    assert sbom_faults(sbom, LOCK, ["attrs"]) == faults


def test_what_a_shell_needs_is_packed_as_the_same_bytes(tmp_path):
    """Files of other times and modes, in whatever order they were made, are the same archive."""
    made = []
    for names, mode, time in ((("b", "a"), 0o600, 1), (("a", "b"), 0o755, 2)):
        folder = tmp_path / str(mode)
        (folder / "man").mkdir(parents=True)
        for name in names:
            path = folder / "man" / name
            path.write_text(name)
            path.chmod(mode)
            os.utime(path, (time, time))
        made.append(packed(folder, EPOCH))
    assert made[0] == made[1]
