"""What is shown while nothing can be written is said to be old, with what helps."""

import pytest

from llmkube.cli import credential_note
from llmkube.cli.credential_note import tell_full_disk


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "state"
    made.mkdir(mode=0o700)
    return made


def test_a_full_disk_is_said_on_standard_error(folder, tmp_path, capsys, monkeypatch):
    """One line names the folder and the way out; a folder that is not there, or has room, says nothing."""
    tell_full_disk([folder, tmp_path / "none"])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(credential_note, "free_bytes", lambda _: 0)
    monkeypatch.setattr("llmkube.base.full_disk.free_bytes", lambda _: 0)
    tell_full_disk([folder])
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == (
        "what is shown may be old: the programs of this host can write no status, because "
        f"the disk of {folder} is full (0 B are free); free some space on it, and this goes on by itself\n"
    )
