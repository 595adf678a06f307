"""The folders of oMLX that are ours: a later front removes those of dead ones, and nothing else."""

import os

import pytest

from llmkube.programs.daemon_engine import omlx_server
from llmkube.programs.daemon_engine.omlx_server import PREFIX, new_folder, remove_abandoned
from second_user import OTHER_UID, needs_second_user


@pytest.fixture
def parent(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def left_by_a_killed_one():
    """The kernel closes what a killed process had open, and with it the lock."""
    held = new_folder()
    (held.path / "base").mkdir()
    os.close(held._fd)
    return held.path


def test_that_of_a_live_front_stays_and_that_of_a_dead_one_goes(parent):
    """Both are this user's alone."""
    alive, dead = new_folder(), left_by_a_killed_one()
    assert alive.path.stat().st_mode & 0o777 == 0o700
    assert remove_abandoned() == (dead,)
    assert list(parent.iterdir()) == [alive.path]
    alive.remove()
    assert list(parent.iterdir()) == []
    assert remove_abandoned() == ()


def test_a_link_in_it_leads_to_no_loss(parent, tmp_path):
    """The model of a dead front's oMLX is its owner's."""
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (left_by_a_killed_one() / "base" / "tiny").symlink_to(model)
    assert len(remove_abandoned()) == 1
    assert (model / "config.json").exists()


def test_what_is_only_called_so_stays(parent, tmp_path):
    """A link, a file, a folder that others may open, and one of an earlier release, whose front holds no lock."""
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
def test_another_users_stays(parent):
    """Though root could remove it, and nobody holds it."""
    theirs = left_by_a_killed_one()
    os.chown(theirs, OTHER_UID, OTHER_UID)
    assert remove_abandoned() == ()
    assert theirs.exists()


def test_a_folder_that_was_taken_for_an_abandoned_one_is_made_again(parent, monkeypatch):
    """Between its making and its lock another front may look."""
    real, calls = omlx_server._held, []

    def held(path):
        calls.append(path)
        if len(calls) == 1:
            path.rmdir()
        return real(path)

    monkeypatch.setattr(omlx_server, "_held", held)
    made = new_folder()
    assert len(calls) == 2
    assert made.path.is_dir()
    made.remove()


def test_a_disk_without_locks_is_told(parent, monkeypatch):
    """It is not tried for ever."""
    monkeypatch.setattr(omlx_server, "_held", lambda path: None)
    with pytest.raises(OSError, match="set TMPDIR to another disk"):
        new_folder()


class Everyone:
    """Any user's number."""

    def __eq__(self, other):
        return True

    __hash__ = None


living_and_dead = test_that_of_a_live_front_stays_and_that_of_a_dead_one_goes
whose = test_another_users_stays

BUGS = {
    "no lock is asked for": ("fcntl.flock", lambda *_: None, living_and_dead),
    "nothing is removed": ("shutil.rmtree", lambda *_, **__: None, living_and_dead),
    "every folder is this user's": ("os.geteuid", Everyone, whose),
}


@pytest.mark.soak
@needs_second_user
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_made_on_purpose_is_noticed(parent, monkeypatch, name):
    """Each of these has a test that it does not survive."""
    what, replacement, test = BUGS[name]
    monkeypatch.setattr(what, replacement)
    with pytest.raises(AssertionError):
        test(parent)
