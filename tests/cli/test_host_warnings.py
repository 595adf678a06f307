"""A host's trouble with the API server is said by the commands that people look with."""

import pytest

from llmkube.cli import host_warnings
from llmkube.cli.commands.services import listing, objects
from llmkube.cli.host_warnings import warn_credential_problem, warn_full_disk
from llmkube.supervisor.values.host_credential import problem_path

SAID = "the API server refuses it; an administrator of the cluster runs: llmkube agent join --name box"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "state"
    made.mkdir(mode=0o700)
    problem_path(made).write_text(f"{SAID}\n")
    return made


def test_the_note_of_an_agent_is_reported_on_standard_error(folder, tmp_path, capsys):
    """A folder without one says nothing."""
    warn_credential_problem([tmp_path / "none", folder])
    seen = capsys.readouterr()
    assert seen.err == f"the agent on this host: {SAID}\n"
    assert seen.out == ""


def test_a_note_that_another_user_may_have_written_is_not_printed(folder, capsys, monkeypatch):
    """It would be a command that another user has chosen."""
    folder.chmod(0o777)
    warn_credential_problem([folder])
    assert capsys.readouterr().err == ""
    folder.chmod(0o700)
    monkeypatch.setattr(host_warnings, "_MAX_CHARS", 7)
    warn_credential_problem([folder])
    assert capsys.readouterr().err == "the agent on this host: the API\n"


def test_a_note_steers_no_terminal(folder, capsys):
    """It may repeat what an API server has said, whose control characters are left out."""
    problem_path(folder).write_text("the server says \x1b]0;title\x07\x1b[2Jno\n")
    warn_credential_problem([folder])
    assert not set("\x1b\x07") & set(capsys.readouterr().err)


@pytest.mark.parametrize(("module", "args"), [(listing, ("list",)), (objects, ("status", "demo"))])
def test_list_and_status_report_it(run, folder, monkeypatch, module, args):
    """Beside what they show, which stays as it is."""
    monkeypatch.setattr(module, "state_dirs", lambda *_: (folder,))
    done = run(*args)
    assert done.exit_code == 0, done.output
    assert SAID in done.stderr
    assert SAID not in done.stdout
    assert "demo" in done.stdout


def test_a_full_disk_is_reported_on_standard_error(folder, tmp_path, capsys, monkeypatch):
    """One line names the folder and the way out; a folder that is not there, or has room, says nothing."""
    warn_full_disk([folder, tmp_path / "none"])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(host_warnings, "free_bytes", lambda _: 0)
    monkeypatch.setattr("llmkube.base.full_disk.free_bytes", lambda _: 0)
    warn_full_disk([folder])
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == (
        "the output may be out of date: programs on this machine cannot write status, because "
        f"the disk of {folder} is full (0 B free); free some space on it, and work resumes automatically\n"
    )
