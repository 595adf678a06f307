"""Commands that show state also print this host's problems with the API server and its disk."""

import pytest

from llmkube.cli import host_warnings
from llmkube.cli.commands.services import listing, objects
from llmkube.cli.host_warnings import warn_of_old_output
from llmkube.supervisor.values.host_credential import problem_path

PROBLEM = "the API server refuses it; an administrator of the cluster runs: llmkube agent join --name box"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "state"
    made.mkdir(mode=0o700)
    problem_path(made).write_text(f"{PROBLEM}\n")
    return made


def test_problem_of_the_agent_is_printed_on_stderr(folder, tmp_path, capsys):
    """A folder without a problem file prints nothing."""
    warn_of_old_output([tmp_path / "none", folder])
    seen = capsys.readouterr()
    assert seen.err == f"the agent on this host: {PROBLEM}\n"
    assert seen.out == ""


def test_problem_file_in_a_shared_folder_is_not_printed(folder, capsys, monkeypatch):
    """Another user could have written a command into it."""
    folder.chmod(0o777)
    warn_of_old_output([folder])
    assert capsys.readouterr().err == ""
    folder.chmod(0o700)
    monkeypatch.setattr(host_warnings, "_MAX_CHARS", 7)
    warn_of_old_output([folder])
    assert capsys.readouterr().err == "the agent on this host: the API\n"


def test_control_characters_are_not_printed(folder, capsys):
    """The file may repeat text of an API server."""
    problem_path(folder).write_text("the server says \x1b]0;title\x07\x1b[2Jno\n")
    warn_of_old_output([folder])
    assert not set("\x1b\x07") & set(capsys.readouterr().err)


@pytest.mark.parametrize(("module", "args"), [(listing, ("list",)), (objects, ("status", "demo"))])
def test_list_and_status_report_it(run, folder, monkeypatch, module, args):
    """The warning goes to stderr; stdout is unchanged."""
    monkeypatch.setattr(module, "state_dirs", lambda *_: (folder,))
    done = run(*args)
    assert done.exit_code == 0, done.output
    assert PROBLEM in done.stderr
    assert PROBLEM not in done.stdout
    assert "demo" in done.stdout


def test_a_full_disk_is_reported_on_standard_error(folder, tmp_path, capsys, monkeypatch):
    """One line names the folder and the fix; a missing folder or one with free space prints nothing."""
    problem_path(folder).unlink()
    warn_of_old_output([folder, tmp_path / "none"])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(host_warnings, "free_bytes", lambda _: 0)
    monkeypatch.setattr("llmkube.base.full_disk.free_bytes", lambda _: 0)
    warn_of_old_output([folder])
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == (
        "the output may be out of date: programs on this machine cannot write status, because "
        f"the disk of {folder} is full (0 B free); free some space on it, and work resumes automatically\n"
    )
