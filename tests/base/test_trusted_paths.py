"""The users who can change the target of a path."""

import os
import stat

import pytest

from llmkube.base.trusted_paths import PathStep, private_folder_weakness, resolve_links
from second_user import OTHER_UID, needs_second_user, open_common_folder

ME, OTHER = 1000, 2000
OPEN, STICKY = 0o777, 0o1777


def found(uid, mode):
    return os.stat_result((stat.S_IFDIR | mode, 0, 0, 0, uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("folder", "entry", "trusted", "weak"),
    [
        ((0, 0o755), (OTHER, 0o700), {0, ME}, ""),
        ((ME, 0o775), (ME, 0o700), {0, ME}, ""),  # a group is its owner's to choose
        ((OTHER, 0o755), (ME, 0o700), {0, ME}, "belongs to another user"),
        ((OTHER, 0o755), (ME, 0o700), {0, ME, OTHER}, ""),
        ((OTHER, 0o755), (ME, 0o700), None, ""),
        ((0, OPEN), (ME, 0o700), {0, ME}, "every user may write"),
        ((0, OPEN), (ME, 0o700), None, "every user may write"),
        ((0, STICKY), (ME, 0o700), {0, ME}, ""),
        ((0, STICKY), (OTHER, 0o700), {0, ME}, "belongs to another user"),
        ((0, STICKY), (OTHER, 0o700), None, ""),
        ((0, STICKY), None, {0, ME}, ""),
    ],
)
def test_users_who_could_replace_an_entry(tmp_path, folder, entry, trusted, weak):
    """Only the owner of a folder, or of an entry of a sticky one, may be able to replace it, and has to be trusted."""
    step = PathStep(tmp_path, found(*folder), None if entry is None else found(*entry))
    weakness_text = step.weakness(trusted)
    assert (weak in weakness_text) if weak else weakness_text == ""


def test_a_path_is_followed_as_the_kernel_follows_it(tmp_path):
    """Through absolute and relative links and `..` behind one, the end is the file that an open would reach."""
    base = tmp_path.resolve()
    (base / "a" / "b").mkdir(parents=True)
    (base / "a" / "b" / "file").touch()
    (base / "far").symlink_to(base / "a" / "b")
    (base / "a" / "near").symlink_to("b/../b")
    for text in ("far/file", "a/near/file", "far/../b/file", "a/b/file", "far/./file"):
        way = resolve_links(base / text)
        assert (way.end, way.error) == (base / "a" / "b" / "file", None)
        assert way.end == (base / text).resolve()
        assert way.found.st_ino == (base / "a" / "b" / "file").stat().st_ino
        assert base in [step.folder for step in way.steps]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("none/x", FileNotFoundError),
        ("dangling", FileNotFoundError),
        ("file/x", NotADirectoryError),
        ("a" * 300, OSError),
        ("a" * 300 + "/x", OSError),
    ],
)
def test_a_missing_path_is_no_weakness(tmp_path, text, error):
    """The end of a path that cannot be followed is the rest as written, from that point."""
    base = tmp_path.resolve()
    (base / "dangling").symlink_to("nowhere/./x")
    (base / "file").touch()
    way = resolve_links(base / text)
    assert (way.found, type(way.error)) == (None, error)
    assert way.end == (base / "nowhere" / "x" if text == "dangling" else base / text)


def test_links_in_a_circle_have_no_end(tmp_path):
    """A loop of links is reported, and followed no further than the kernel would."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    way = resolve_links(tmp_path / "a")
    assert way.found is None
    assert "symbolic links" in str(way.error)


def weakness(folder):
    return private_folder_weakness(folder, uid=os.geteuid(), inner=("ca",))


@pytest.mark.parametrize(
    ("spoil", "weakness_text"),
    [
        (lambda _: None, ""),
        (lambda folder: folder.chmod(0o755), ""),
        (lambda folder: folder.chmod(0o770), "users other than its owner may write to it"),
        (lambda folder: folder.chmod(0o707), "users other than its owner may write to it"),
        (lambda folder: (folder / "config.toml").chmod(0o666), ""),  # no other user gets into the folder
        (lambda folder: (folder.chmod(0o755), (folder / "config.toml").chmod(0o664)), "write to config.toml in it"),
        (lambda folder: (folder.chmod(0o755), (folder / "ca" / "deep" / "key").chmod(0o602)), "write to key in it"),
        (lambda folder: (folder.chmod(0o755), (folder / "logs" / "log").chmod(0o666)), ""),
        (lambda folder: folder.parent.chmod(0o777), "every user may write to"),
        (lambda folder: folder.parent.chmod(0o1777), ""),
        (lambda folder: (folder / "link").symlink_to("config.toml"), ""),
        (lambda folder: (folder / "link").symlink_to("nowhere"), ""),
    ],
)
def test_s14_a_private_folder_is_no_other_users(tmp_path, spoil, weakness_text):
    """A folder or a part of its path that others may write to is reported by its name."""
    folder = tmp_path / "way" / "state"
    for each in (folder / "ca" / "deep", folder / "logs"):
        each.mkdir(parents=True)
    for file in (folder / "config.toml", folder / "ca" / "deep" / "key", folder / "logs" / "log"):
        file.touch(mode=0o600)
    folder.chmod(0o700)
    spoil(folder)
    found = weakness(folder)
    assert (weakness_text in found) if weakness_text else found == ""


def test_s14_an_empty_folder_is_made_private(tmp_path):
    """An empty folder is closed to others, and then is private; the path to a missing one is checked."""
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    assert weakness(folder) == ""
    assert folder.stat().st_mode & 0o777 == 0o700
    tmp_path.chmod(0o777)
    assert "every user may write" in weakness(tmp_path / "none" / "state")


@needs_second_user
def test_s14_a_folder_of_another_user_is_not_private(tmp_path):
    """A second user's folder, file, link or folder on the path is refused, even if only root could read it."""
    with open_common_folder() as base:
        for number, part in enumerate(("", "config.toml", "ca/key", "link", "..")):
            folder = base / str(number) / "state"
            (folder / "ca").mkdir(parents=True, mode=0o700)
            (folder / "config.toml").touch()
            (folder / "ca" / "key").touch()
            (folder / "link").symlink_to("/tmp" if part == "link" else "config.toml")
            folder.chmod(0o700)
            assert weakness(folder) == ""
            os.chown(folder / part, OTHER_UID, OTHER_UID, follow_symlinks=part != "link")
            assert bool(weakness(folder)) is (part != "link")
            assert part or weakness(folder) == f"it belongs to another user (uid {OTHER_UID})"
            if part == "link":
                (folder / "link").unlink()
                (base / "his").touch()
                os.chown(base / "his", OTHER_UID, OTHER_UID)
                (folder / "link").symlink_to(base / "his")
                assert "link in it belongs to another user" in weakness(folder)
