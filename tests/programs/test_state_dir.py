"""The locks of a state directory."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmkube.base.errors import UserError
from llmkube.cli.main import cli
from llmkube.programs.failures import CommandError
from llmkube.programs.state_dir import FullDiskError, hold_state_dir, loading_note, temporary_state_dir
from llmkube.programs.state_location import ENGINES_LOCK, SERVER_LOCK, running_up_pid, wait_for_exit
from llmkube.supervisor.host.processes import find_marked


def test_the_folder_is_private(tmp_path):
    """A new folder has mode 0700 whatever the umask, and an existing one is changed to it."""
    old = tmp_path / "old"
    old.mkdir(mode=0o755)
    for path in (old, tmp_path / "a" / "new"):
        with hold_state_dir(path):
            assert path.stat().st_mode & 0o777 == 0o700
            assert (path / "lock").stat().st_mode & 0o777 == 0o600


def test_the_folders_of_an_earlier_version_become_private(tmp_path):
    """A link stays, and with it the mode of a folder elsewhere; so does a folder that is not LLMKube's."""
    for name in ("logs", "work", "shared", "state/routers", "state/mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state" / "logs").symlink_to(tmp_path / "logs")
    with hold_state_dir(tmp_path / "state"):
        pass
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("state/routers", "state/mine", "logs")}
    assert modes == {"state/routers": 0o700, "state/mine": 0o755, "logs": 0o755}


def test_s14_a_folder_is_not_made_where_every_user_may_swap_it(tmp_path):
    """No state directory is created below a folder that is writable for all and not sticky."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UserError, match="every user may write to"), hold_state_dir(tmp_path / "open" / "state"):
        pass
    assert not (tmp_path / "open" / "state").exists()
    (tmp_path / "open").chmod(0o1777)
    with hold_state_dir(tmp_path / "open" / "state"):
        pass


def test_users_of_an_earlier_version_learn_once_that_models_are_loaded_on_request(tmp_path):
    """A new user gets no note, nor does a user that has chosen the mode."""
    old, new, chosen = (tmp_path / name for name in ("old", "new", "chosen"))
    for path in (old, new, chosen):
        path.mkdir()
    for path in (old, chosen):
        (path / "kubeconfig").touch()
    assert "--activation Always" in loading_note(old, "OnRequest")
    assert loading_note(new, "OnRequest") == loading_note(chosen, "Always") == ""
    (new / "kubeconfig").touch()
    assert [loading_note(path, "OnRequest") for path in (old, new, chosen)] == ["", "", ""]


def test_a_second_program_gets_the_pid_of_the_first(tmp_path):
    """Only one program at a time holds a folder."""
    with (
        hold_state_dir(tmp_path),
        pytest.raises(UserError, match=f"in use by the llmkube process with pid {os.getpid()};.*--state-dir"),
        hold_state_dir(tmp_path),
    ):
        pass


def test_the_lock_ends_with_its_holder(tmp_path):
    """After the holder's exit, even by kill -9, the folder can be locked again."""
    program = (
        "import os, pathlib, signal\nfrom llmkube.programs.state_dir import hold_state_dir\n"
        f"with hold_state_dir(pathlib.Path({str(tmp_path)!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    with hold_state_dir(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_children_do_not_inherit_the_lock(tmp_path):
    """An engine that outlives its agent does not keep the folder locked."""
    with hold_state_dir(tmp_path):
        program = [sys.executable, "-c", "print('here', flush=True); input()"]
        child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    # Linux closes what is not inherited only after the parent has continued: wait for the program itself.
    assert child.stdout.readline() == b"here\n"
    with hold_state_dir(tmp_path):
        pass
    child.communicate(b"\n")


def test_locks_of_different_names_are_independent(tmp_path):
    """An API server and an agent in two processes may share a folder."""
    with hold_state_dir(tmp_path, "apiserver.lock"), hold_state_dir(tmp_path):
        pass


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    """The error names the flag that chooses another folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be used .*--state-dir"), hold_state_dir(tmp_path / "file" / "sub"):
        pass


def test_a_temporary_folder_leaves_nothing():
    """The folder and its content are removed at the end."""
    with temporary_state_dir() as path:
        (path / "store").mkdir()
        (path / "store" / "file").write_text("x")
        assert path.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


@pytest.mark.ci
def test_the_folder_of_a_killed_program_is_removed_with_its_engine(tmp_path, monkeypatch):
    """The next program does so; a folder that is in use, or was chosen by a user, stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = (
        "import os, signal, subprocess, sys\nfrom llmkube.programs.state_dir import temporary_state_dir\n"
        "with temporary_state_dir() as path:\n"
        "    environ = os.environ | {'LLMKUBE_AGENT_STATE': str(path)}\n"
        "    engine = [sys.executable, '-c', 'print(flush=True); input()']\n"
        "    child = subprocess.Popen(engine, env=environ, start_new_session=True, stdout=subprocess.PIPE)\n"
        "    child.stdout.readline()\n"  # for a moment after the spawn the kernel shows no environment
        "    print(path, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    chosen = tmp_path / "llmkube-mine"
    with hold_state_dir(chosen):
        pass
    with (
        temporary_state_dir() as used,
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as killed,
    ):
        left = Path(killed.stdout.readline().decode().strip())
        killed.wait()
        assert (left.is_dir(), len(find_marked("LLMKUBE_AGENT_STATE", str(left)))) == (True, 1)
        with temporary_state_dir():
            assert (left.exists(), find_marked("LLMKUBE_AGENT_STATE", str(left))) == (False, [])
            assert ((chosen / "lock").exists(), (used / "lock").exists()) == (True, True)


def refused(path):
    with pytest.raises(FullDiskError) as caught, hold_state_dir(path):
        pass
    return str(caught.value)


def test_a_first_start_on_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    """It has path, free and needed bytes and the fixes; a folder that is not empty is not refused in advance."""
    monkeypatch.setattr("llmkube.base.full_disk.free_bytes", lambda _: 16 << 10)
    message = refused(tmp_path / "new")
    assert message == (
        f"the disk of the state directory {tmp_path / 'new'} is full: 16.0 KiB are free, and LLMKube needs 4.0 MiB to "
        "start, and space for models; free some space, or choose another disk with --state-dir"
    )
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "journal").mkdir()
    with hold_state_dir(tmp_path / "old"):
        pass


def test_only_a_full_disk_becomes_a_full_disk_error(tmp_path):
    """Also in a group, if a full disk is the only cause; any other error passes through."""
    full, bug = OSError(errno.ENOSPC, "No space left on device"), ValueError("a bug")
    with pytest.raises(FullDiskError), hold_state_dir(tmp_path):
        raise ExceptionGroup("a nursery", [full, ExceptionGroup("another", [full])])
    with pytest.RaisesGroup(OSError, ValueError), hold_state_dir(tmp_path):
        raise ExceptionGroup("a nursery", [full, bug])


def test_an_up_runs_engines_and_server_in_one_process(tmp_path):
    """An agent, an API server alone and the two as different programs are no `llmkube up`."""
    assert running_up_pid(tmp_path) is None
    with hold_state_dir(tmp_path):
        assert running_up_pid(tmp_path) is None
        with hold_state_dir(tmp_path, SERVER_LOCK):
            assert running_up_pid(tmp_path) == os.getpid()
            (tmp_path / SERVER_LOCK).write_text("1\n")
            assert running_up_pid(tmp_path) is None
    with temporary_state_dir() as folder:
        assert running_up_pid(folder) == os.getpid()


def test_stopping_the_agent_does_not_stop_up(tmp_path, monkeypatch):
    """`agent stop` on the folder of a running `llmkube up` sends no signal, and names the command for that."""
    sent = []
    monkeypatch.setattr("os.kill", lambda *args: sent.append(args))
    with hold_state_dir(tmp_path, ENGINES_LOCK, SERVER_LOCK):
        done = CliRunner().invoke(cli, ["agent", "stop", "--state-dir", str(tmp_path)])
    assert (done.exit_code, sent) == (1, [])
    assert "but `llmkube up` is (pid" in done.stderr
    assert "stop it with `llmkube up stop`" in done.stderr
    with hold_state_dir(tmp_path):
        done = CliRunner().invoke(cli, ["agent", "stop", "--state-dir", str(tmp_path), "--timeout", "0"])
    assert (done.exit_code, sent) == (4, [(os.getpid(), signal.SIGINT)])


async def test_a_program_that_does_not_exit_is_reported(tmp_path, autojump_clock):
    """After a deadline, with its pid."""
    with hold_state_dir(tmp_path), pytest.raises(CommandError, match=f"pid {os.getpid()} is still running after 3 s"):
        await wait_for_exit(tmp_path, os.getpid(), 3)
    await wait_for_exit(tmp_path, os.getpid(), 3)
