"""Which files of this host an object may name: the attacks of finding S8, as they were run."""

import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmkube.weights.errors import SourceNotAllowedError, WeightsNotFoundError
from llmkube.weights.store.local_sources import LocalSources, record_folders
from second_user import OTHER_UID, needs_second_user, open_common_folder, run_as_other, start_as_other

GGUF = b"GGUF, and more"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path.resolve() / "models"


@pytest.fixture
def sources(folder):
    return LocalSources((folder,))


def refusal(sources, path):
    with pytest.raises((SourceNotAllowedError, WeightsNotFoundError)) as caught:
        sources.admit(path)
    with pytest.raises(type(caught.value)) as again:
        sources.open(path)
    assert str(again.value) == str(caught.value)
    assert not sources.admits(path)
    return caught.value


def test_a_file_below_a_listed_folder_is_taken(folder, sources):
    """It is described as it is, and its descriptor reads it."""
    path = folder / "sub" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(GGUF)
    snapshot = sources.admit(path)
    assert (snapshot.path, snapshot.size_bytes, snapshot.inode) == (path, len(GGUF), path.stat().st_ino)
    descriptor = sources.open(path)
    assert os.pread(descriptor, 99, 0) == GGUF
    os.close(descriptor)
    assert sources.admits(path)


def test_s8_the_owners_commands_allow_further_folders(folder, tmp_path):
    """A folder recorded in the state directory is allowed at once; a damaged record allows nothing."""
    record = tmp_path / "local-sources.json"
    (folder / "m.gguf").write_bytes(GGUF)
    sources = LocalSources((), recorded=record)
    assert type(refusal(sources, folder / "m.gguf")) is SourceNotAllowedError
    record_folders(record, [folder])
    record_folders(record, [tmp_path / "other"])
    assert sources.admits(folder / "m.gguf")
    assert record.stat().st_mode & 0o777 == 0o600
    record.write_text("[3")
    assert type(refusal(sources, folder / "m.gguf")) is SourceNotAllowedError


def test_s8_no_folder_is_listed_unless_its_owner_does(folder):
    """Without a list no file of this host can be named, not even a good one."""
    (folder / "m.gguf").write_bytes(GGUF)
    assert type(refusal(LocalSources(), folder / "m.gguf")) is SourceNotAllowedError


@pytest.mark.parametrize(
    "text",
    ["/etc/shadow", "/etc/none", "/proc/self/environ", "{}", "{}/../secret", "{}/../none", "{}x/m", "/{}/m.gguf"],
)
def test_s8_what_lies_elsewhere_is_refused_before_the_disk_is_asked(folder, sources, monkeypatch, text):
    """The sentence is the same for a file that exists and for one that does not, and names the setting."""
    (folder.parent / "secret").write_bytes(GGUF)
    path = Path(text.format(folder))
    looked = []
    real = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda self: (looked.append(self), real(self))[1])
    error = refusal(sources, path)
    assert not [each for each in looked if folder != each and folder not in each.parents and each not in folder.parents]
    assert (type(error), error.reason) == (SourceNotAllowedError, "SourceNotAllowed")
    assert str(error).replace(str(path), "PATH") == (
        "spec.source: PATH is not below an allowed folder; allow its folder on this machine with --allow-local-sources "
        "(allow_local_sources in config.toml), or move the file below an allowed one"
    )


@pytest.mark.parametrize("target", ["secret", "none", "folder/none", "folder", "text"])
def test_s8_a_link_that_leads_out_reveals_nothing(folder, sources, target):
    """A link below a listed folder, to a file, a folder or nothing outside, is refused in the same words."""
    outside = folder.parent
    (outside / "secret").write_bytes(GGUF)
    (outside / "text").write_text("root:x")
    (outside / "folder").mkdir()
    (folder / "link").symlink_to(outside / target)
    (folder / "dir").symlink_to(outside)
    for path in (folder / "link", folder / "dir" / target):
        error = refusal(sources, path)
        assert type(error) is SourceNotAllowedError
        assert str(error) == str(SourceNotAllowedError.of_path(path))


def test_links_within_the_listed_folders_are_followed(tmp_path, folder):
    """Caches are made of links: what they lead to is what is served, also in another listed folder."""
    cache = tmp_path.resolve() / "cache"
    cache.mkdir()
    (cache / "blob").write_bytes(GGUF)
    (folder / "m.gguf").symlink_to("../cache/blob")
    assert LocalSources((folder, cache)).admit(folder / "m.gguf").path == cache / "blob"
    (tmp_path / "other").symlink_to(cache)
    assert LocalSources((tmp_path / "other",)).admit(tmp_path / "other" / "blob").path == cache / "blob"
    assert LocalSources((tmp_path / "other",)).admit(cache / "blob").path == cache / "blob"


@pytest.mark.parametrize(
    ("make", "detail"),
    [
        (lambda _: None, "there is no such file"),
        (lambda path: path.mkdir(), "is a folder; use the .gguf file in it"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"root:$y$j9T$"), "is not a GGUF file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "there is no such file"),
        (lambda path: path.symlink_to(path), "symbolic links"),
    ],
    ids=["missing", "folder", "empty", "text", "pipe", "dangling", "loop"],
)
def test_s8_what_is_no_weights_is_as_good_as_missing(folder, sources, make, detail):
    """One sentence whatever lies at a path below a listed folder; only the host's log gets the difference."""
    path = folder / "model.gguf"
    make(path)
    error = refusal(sources, path)
    assert (type(error), error.reason) == (WeightsNotFoundError, "FileNotFound")
    assert str(error) == str(WeightsNotFoundError.at(path, ""))
    assert detail in error.detail


def test_s8_the_parts_of_a_split_model_are_judged_each(tmp_path, folder, sources):
    """A part that is a link out, or missing, refuses the model; links between listed folders keep the parts' names."""
    names = [f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for name in names:
        (folder / name).write_bytes(GGUF)
    assert sources.admit(folder / names[0]).path == folder / names[0]
    (folder / names[1]).rename(tmp_path / "outside")
    assert type(refusal_of_all(sources, folder / names[0])) is WeightsNotFoundError
    (folder / names[1]).symlink_to(tmp_path / "outside")
    assert type(refusal_of_all(sources, folder / names[0])) is SourceNotAllowedError
    (tmp_path / "linked").mkdir()
    for name in names:
        (tmp_path / "linked" / name).symlink_to(tmp_path / "outside")
    listed = LocalSources((tmp_path.resolve(),))
    assert listed.admit(tmp_path / "linked" / names[0]).path == tmp_path.resolve() / "linked" / names[0]


def refusal_of_all(sources, path):
    with pytest.raises((SourceNotAllowedError, WeightsNotFoundError)) as caught:
        sources.admit(path)
    return caught.value


def test_s8_a_folder_that_every_user_may_write_to_is_not_believed(folder, sources):
    """Where any user could put a link in the file's place after the check, it is not served until that is fixed."""
    path = folder / "shared" / "m.gguf"
    path.parent.mkdir()
    path.write_bytes(GGUF)
    path.parent.chmod(0o777)
    assert "every user may write" in refusal(sources, path).detail
    path.parent.chmod(0o1777)
    assert sources.admits(path)


@contextmanager
def swapping(path, *targets):
    """The other user puts links to these in the place of a file, in turn, as fast as the machine can."""
    swaps = 'p="$1"; shift; while :; do for t; do ln -s "$t" "$p.new"; mv -Tf "$p.new" "$p"; done; done'
    attacker = start_as_other(f"trap exit TERM; {swaps}", path, *targets)
    try:
        yield
    finally:
        attacker.terminate()  # the shell ends after the program that it runs: a killed one would leave that behind
        attacker.wait(60)


@needs_second_user
def test_s8_another_user_who_swaps_a_file_gets_nothing_of_others():
    """A second Unix user swaps his GGUF with links to root's private one, in his folder and in a sticky one."""
    with open_common_folder() as base:
        private = base / "private"
        private.mkdir(mode=0o700)
        (private / "secret.gguf").write_bytes(b"GGUF private")
        models, sticky = base / "models", base / "models" / "sticky"
        sticky.mkdir(parents=True)
        sticky.chmod(0o1777)
        (models / "his").mkdir()
        os.chown(models / "his", OTHER_UID, OTHER_UID)
        listed = LocalSources((models,))
        for name in ("his", "sticky"):
            run_as_other('printf "GGUF his" > "$1"', models / name / "m.gguf")
            with swapping(models / name / "swapped.gguf", models / name / "m.gguf", private / "secret.gguf"):
                wait_for(models / name / "swapped.gguf")
                for _ in range(500):
                    with pytest.raises((SourceNotAllowedError, WeightsNotFoundError)):
                        os.close(listed.open(models / name / "swapped.gguf"))
        his = LocalSources((models / "his",))  # the host's owner trusts him: he is served his own, and nothing else
        seen, wanted, looks, ends = set(), {b"GGUF his", SourceNotAllowedError}, 0, time.monotonic() + 120
        with swapping(models / "his" / "swapped.gguf", models / "his" / "m.gguf", private / "secret.gguf"):
            while (looks < 3000 or not wanted <= seen) and time.monotonic() < ends:
                looks += 1
                try:
                    descriptor = his.open(models / "his" / "swapped.gguf")
                except (SourceNotAllowedError, WeightsNotFoundError) as error:
                    seen.add(type(error))
                else:
                    seen.add(os.pread(descriptor, 99, 0))
                    os.close(descriptor)
        assert wanted <= seen
        assert b"GGUF private" not in seen


def wait_for(path):
    ends = time.monotonic() + 60
    while not path.is_symlink():
        assert time.monotonic() < ends, f"{path} has not come"
        time.sleep(0.01)


def test_a_file_that_is_replaced_between_look_and_open_is_not_read(folder, sources, monkeypatch):
    """The opened file must be the checked one: another file under its name is refused unread."""
    (folder / "m.gguf").write_bytes(GGUF)
    (folder / "other").write_bytes(b"GGUF other")
    real = os.open

    def swap(path, *args, **kwargs):
        shutil.move(folder / "other", folder / "m.gguf")
        return real(path, *args, **kwargs)

    monkeypatch.setattr("llmkube.weights.store.local_sources.os.open", swap)
    with pytest.raises(WeightsNotFoundError) as caught:
        sources.open(folder / "m.gguf")
    assert "replaced" in caught.value.detail


def mlx_folder(path):
    path.mkdir()
    for name in ("config.json", "model.safetensors", "notes.md"):
        (path / name).write_bytes(b"{}")
    return path


def test_a_folder_of_safetensors_below_a_listed_one_is_taken(folder, sources):
    """It is described by its files, and any change of one is another identity."""
    path = mlx_folder(folder / "m")
    seen = sources.admit_folder(path)
    assert (seen.path, seen.size_bytes, [file.path.name for file in seen.files]) == (
        path, 4, ["config.json", "model.safetensors"],
    )  # fmt: skip
    assert sources.admits(path, folder=True)
    (path / "config.json").write_bytes(b"{ }")
    assert sources.admit_folder(path).identity != seen.identity


def test_a_folder_of_any_content_is_described_by_all_its_files(folder, sources):
    """Those in folders below it as well; a single file is taken, too."""
    (folder / "m" / "sub").mkdir(parents=True)
    (folder / "m" / "mdef").write_bytes(b"12")
    (folder / "m" / "sub" / "means").write_bytes(b"345")
    seen = sources.admit_folder(folder / "m", opaque=True)
    assert (seen.path, seen.size_bytes, [file.path.name for file in seen.files]) == (folder / "m", 5, ["mdef", "means"])
    (folder / "m" / "sub" / "means").write_bytes(b"3456")
    assert sources.admit_folder(folder / "m", opaque=True).identity != seen.identity
    assert sources.admit_folder(folder / "m" / "mdef", opaque=True).path == folder / "m" / "mdef"
    assert sources.admits(folder, folder=True, opaque=True)


@pytest.mark.parametrize("make", ["file", "folder"])
def test_s8_a_link_in_a_folder_of_any_content_leads_nowhere_else(folder, sources, make):
    """An engine would read through it what only the host's owner may read; neither is a path elsewhere taken."""
    outside = folder.parent / "outside"
    (folder / "m").mkdir()
    (folder / "m" / "a").write_bytes(b"1")
    if make == "folder":
        outside.mkdir()
    else:
        outside.write_bytes(b"secret")
    (folder / "m" / "b").symlink_to(outside)
    for path in (folder / "m", outside, folder / "m" / "b"):
        with pytest.raises((SourceNotAllowedError, WeightsNotFoundError)):
            sources.admit_folder(path, opaque=True)


@pytest.mark.parametrize("text", ["/etc", "{}/..", "{}/../m", "{}x", "{}/m/../../m"])
def test_s8_no_folder_outside_is_taken(folder, sources, text):
    """A path outside the listed folders is refused like a file, whether or not it exists."""
    mlx_folder(folder.parent / "m")
    with pytest.raises((SourceNotAllowedError, WeightsNotFoundError)):
        sources.admit_folder(Path(text.format(folder)))
    assert not sources.admits(Path(text.format(folder)), folder=True)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_s8_a_link_in_a_folder_leads_to_no_other_file(folder, sources, name):
    """An engine would read through it what only the host's owner may read."""
    secret = folder.parent / "secret"
    secret.write_bytes(b"{}")
    path = mlx_folder(folder / "m")
    (path / name).unlink()
    (path / name).symlink_to(secret)
    with pytest.raises(SourceNotAllowedError):
        sources.admit_folder(path)
    (path / name).unlink()
    (path / name).mkdir()
    with pytest.raises(WeightsNotFoundError):
        sources.admit_folder(path)


def test_a_folder_without_a_model_is_none(folder, sources):
    """It needs both the configuration and weights."""
    for name in ("config.json", "model.safetensors"):
        path = mlx_folder(folder / name)
        (path / name).unlink()
        with pytest.raises(WeightsNotFoundError):
            sources.admit_folder(path)
